"""Servers that cannot run here, replayed over a real socket from the formats they document.

Each :class:`Wire` answers the routes of one system as its documentation and source describe them,
with bytes for tokens, and refuses what the system refuses. Nothing here is taken from our
own client: what a wire does not know it answers with 404, a key that it forbids with its own error.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TEMPLATE = "<user>{}<bot>"
"""The chat template of every server here."""

WORDS = "streaming text "

FIRST_S = 0.006
GAP_S = 0.003


def tokens_of(text: str) -> int:
    """Tokens of a text."""
    return len(text.encode())


def rendered(prompt: str) -> str:
    """A chat of one message, as the made-up chat template renders it."""
    return TEMPLATE.format(prompt)


def word(i: int) -> str:
    """The text of the ``i``-th token."""
    return WORDS[i % len(WORDS)]


@dataclass(frozen=True)
class Reply:
    """One answer. ``events`` are sent one by one, each when it is due; else ``body`` is sent."""

    status: int = 200
    body: Any = None
    events: Iterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "text/event-stream"


Route = Callable[[Mapping[str, Any], Mapping[str, str]], Reply]


@dataclass(frozen=True)
class Wire:
    """One system: its routes by method and path."""

    name: str
    routes: Mapping[tuple[str, str], Route]


def sse(value: Any, space: str = " ") -> bytes:
    """An event whose data is JSON, or a bare word."""
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data:{space}{data}\n\n".encode()


def paced(events: list[bytes], first: int) -> Iterator[bytes]:
    """``events``: before number ``first`` the prompt is read, before later ones a token made."""
    for i, event in enumerate(events):
        if i == first:
            time.sleep(FIRST_S)
        elif i > first:
            time.sleep(GAP_S)
        yield event


class Replay:
    """A wire on a free loopback port. A context manager; ``asked`` keeps every request."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        replay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(json.loads(data))

            def _answer(self, body: Any) -> None:
                path = self.path.split("?")[0]
                replay.asked.append((self.command, path, body))
                route = replay.wire.routes.get((self.command, path))
                headers = {k.lower(): v for k, v in self.headers.items()}
                try:
                    reply = route(body, headers) if route else Reply(404, {"detail": "Not Found"})
                except (KeyError, TypeError, ValueError) as e:
                    reply = Reply(422, {"error": f"cannot be read: {e!r}"})
                if reply.events is None:
                    data = json.dumps(reply.body).encode()
                    self._head(reply, "application/json", {"Content-Length": str(len(data))})
                    self.wfile.write(data)
                    return
                self._head(reply, reply.kind, {"Transfer-Encoding": "chunked"})
                for event in reply.events:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def _head(self, reply: Reply, kind: str, more: Mapping[str, str]) -> None:
                self.send_response(reply.status)
                for name, value in {"Content-Type": kind, **more, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on stderr."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that has enough hangs up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

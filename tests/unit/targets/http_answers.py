"""A real HTTP server on loopback that answers each path with what the test gives it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client


class Answers(ThreadingHTTPServer):
    """``answers``: body by path, as JSON, text or bytes; paths without one get 404."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Any], header: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.header = header
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Answers

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {self.path}")
        body = self.server.answers.get(self.path)
        status = 404 if body is None else 200
        if not isinstance(body, bytes):
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response_only(status)
        self.send_header("Server", self.server.header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - named by the library

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


@contextmanager
def served(
    answers: Mapping[str, Any], header: str = "test", prefix: str = "/v1"
) -> Iterator[tuple[Client, Answers]]:
    """A client of the running server, and the server, which notes what it was asked."""
    server = Answers(answers, header)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    client = Client(Address.parse(f"http://127.0.0.1:{server.server_port}{prefix}"))
    try:
        yield client, server
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()

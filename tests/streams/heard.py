"""The HTTP that a scripted server hears, and the plain documents that it gives."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

from .script import header_block

_ROUTES = ("completions", "completion", "generate_stream", "generate")


@dataclass(frozen=True)
class Request:
    """What the server was sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def wants_answer(self) -> bool:
        """True for the routes that generate."""
        route = self.target.partition("?")[0].rpartition("/")[2]
        return self.method == "POST" and route in _ROUTES


def rendered(request: Request) -> bytes | None:
    """TGI's and llama.cpp's routes that render a chat; None: no such route."""
    keys = {"/chat_tokenize": "templated_text", "/apply-template": "prompt"}
    if request.method != "POST" or request.target not in keys:
        return None
    return document({keys[request.target]: "rendered"})


def document(value: object, status: int = 200) -> bytes:
    """A JSON document as a whole answer."""
    body = json.dumps(value).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    return header_block(status, headers) + body


def not_found() -> bytes:
    return document({"error": {"message": "no such route", "code": 404}}, 404)


def read_request(sock: socket.socket, left: bytes) -> tuple[Request | None, bytes]:
    while b"\r\n\r\n" not in left:
        more = sock.recv(65536)
        if not more:
            return None, b""
        left += more
    head, _, left = left.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(left) < length:
        more = sock.recv(65536)
        if not more:
            return None, b""
        left += more
    return Request(method, target, headers, left[:length]), left[length:]

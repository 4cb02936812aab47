"""Records what a real server answers: raw bytes of one response, and when each piece came.

    python tests/servers/record.py http://127.0.0.1:8000 NAME [METHOD] /path [JSON] [Header:value …]

writes ``recorded/NAME.http`` (the response as it came off the socket: status line, headers,
framed body) and ``recorded/NAME.json`` (the request, the server's software, and
``[ms after the request was written, bytes so far]`` of every read). Paths and names of this
machine are replaced in both, at equal length where the body is framed by length.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).with_name("recorded")


def record(
    base: str, method: str, path: str, body: str | None, headers: list[str]
) -> tuple[bytes, list[tuple[float, int]]]:
    """Ask once and read to the end of the connection."""
    url = urlsplit(base)
    assert url.hostname is not None
    data = b"" if body is None else body.encode()
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {url.hostname}:{url.port}",
        "Accept-Encoding: identity",
        "Connection: close",
        *headers,
    ]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    got, reads = b"", []
    with socket.create_connection((url.hostname, url.port or 80), timeout=120) as s:
        s.sendall("\r\n".join([*head, "", ""]).encode() + data)
        began = time.perf_counter()
        while piece := s.recv(65536):
            got += piece
            reads.append((round((time.perf_counter() - began) * 1000, 2), len(got)))
    return got, reads


def main(argv: list[str]) -> None:
    base, name, *rest = argv
    method = rest.pop(0) if rest[0].isupper() else ("POST" if len(rest) > 1 else "GET")
    path, *rest = rest
    body = rest.pop(0) if rest and rest[0].startswith(("{", "[")) else None
    got, reads = record(base, method, path, body, rest)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.http").write_bytes(got)
    asked = {"method": method, "path": path, "body": None if body is None else json.loads(body)}
    (FOLDER / f"{name}.json").write_text(
        json.dumps(
            {"request": asked, "headers": [h.split(":")[0] for h in rest], "reads": reads},
            ensure_ascii=False,
        )
        + "\n",
        encoding="utf-8",
    )
    print(
        got[:600].decode("utf-8", "replace"), "…", got[-500:].decode("utf-8", "replace"), sep="\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

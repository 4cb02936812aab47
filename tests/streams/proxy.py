"""A small HTTP proxy: passes plain requests on, and opens tunnels for CONNECT."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Listens on loopback. ``heard`` holds the head of every request; ``refuse`` answers 407."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.heard: list[str] = []
        self._refuse = refuse
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._sock]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _start(self, body: object, *args: object) -> None:
        thread = threading.Thread(target=body, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sock.accept()
                self._open.append(client)
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client:
            raw = b""
            while b"\r\n\r\n" not in raw:
                more = client.recv(65536)
                if not more:
                    return
                raw += more
            head, _, rest = raw.partition(b"\r\n\r\n")
            self.heard.append(head.decode("latin-1"))
            first, _, headers = self.heard[-1].partition("\r\n")
            method, target, version = first.split(" ")
            if self._refuse:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                ask = rest
            else:
                at = urlsplit(target)
                host, port = str(at.hostname), str(at.port)
                ask = f"{method} {at.path} {version}\r\n{headers}\r\n\r\n".encode("latin-1") + rest
            server = socket.create_connection((host, int(port)))
            self._open.append(server)
            with server:
                server.sendall(ask)
                _pipe(client, server)


def _pipe(a: socket.socket, b: socket.socket) -> None:
    while True:
        for sock in select.select([a, b], [], [])[0]:
            data = sock.recv(65536)
            if not data:
                return
            (b if sock is a else a).sendall(data)

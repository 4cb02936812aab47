"""A server as its client sees it: connections opened before the clock, and plain requests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..version import __version__
from .address import Address
from .connection import Connection
from .dial import Proxy, tls_context
from .errors import WireError
from .exchange import NS, Deadlines, Exchange, Outcome
from .loop import Loop
from .payload import Payload
from .secret import Secret
from .stamps import Clock

_MAX_REPLY = 32 * 1024 * 1024
_STALE_NS = 1_000_000_000
"""Idle for longer, a connection is not used again: servers close theirs after some seconds."""


@dataclass(frozen=True)
class Reply:
    """A plain answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """True for status 200."""
        return self.status == 200

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            WireError: it is none.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as e:
            raise WireError(f"the answer is no JSON: {str(e)[:100]}") from None


class Client:
    """One server. For one thread at a time.

    Args:
        address: the server and its prefix.
        headers: sent with every request; a :class:`Secret` is never shown.
        verify: True (the system's CAs), False, or a CA file.
        proxy: ``http://[user:password@]host:port``.
        clock: monotonic ns; with another than the machine's own the kernel's stamps are not used.
        connect_s: longest time to open a connection.
        timed: False for a client of plain requests beside one that is timed.

    Raises:
        UsageError: the proxy or the CA file cannot be used.
    """

    def __init__(
        self,
        address: Address,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        verify: bool | str = True,
        proxy: str | Secret | None = None,
        clock: Clock = time.perf_counter_ns,
        connect_s: float = 10.0,
        timed: bool = True,
    ) -> None:
        self.address = address
        self.clock = clock
        self.loop = Loop(clock, timed=timed)
        self._headers = dict(headers or {})
        self._proxy = None if proxy is None else Proxy.parse(proxy)
        self._context = tls_context(verify) if address.tls else None
        self._kernel = clock is time.perf_counter_ns
        self._connect_s = connect_s
        self._idle: list[Exchange | Connection] = []
        self.reuses = True
        """False once the server was seen to close connections after an answer."""
        self.connections = 0
        """Connections opened so far."""

    def payload(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        root: bool = False,
        accept: str = "application/json",
    ) -> Payload:
        """One request as bytes; ``root``: the route is below the server's root."""
        address = self.address.root() if root else self.address
        target = address.at(path)
        if self._proxy is not None and not address.tls:
            target = f"http://{address.authority}{target}"
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8")
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {address.authority}",
            f"Accept: {accept}",
            "Accept-Encoding: identity",
        ]
        if not any(name.lower() == "user-agent" for name in self._headers):
            lines.append(f"User-Agent: pytest-llmsla/{__version__}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        return Payload(
            "\r\n".join([*lines, *self._secret_lines(), "", ""]).encode("latin-1") + data
        )

    def _secret_lines(self) -> list[str]:
        given = [
            f"{name}: {value.reveal() if isinstance(value, Secret) else value}"
            for name, value in self._headers.items()
        ]
        if self._proxy is not None and self._proxy.authorization and not self.address.tls:
            given.append(f"Proxy-Authorization: {self._proxy.authorization.reveal()}")
        return given

    def take(self, *, fresh: bool = False) -> Connection:
        """An open connection: an idle one that is still alive, else a new one.

        Raises:
            WireError: none can be opened.
        """
        while self._idle:
            kept = self._idle.pop()
            good = not fresh and self.usable(kept)
            connection = let_go(kept)
            if good:
                return connection
            connection.close()
        self.connections += 1
        return self.open()

    def open(self) -> Connection:
        """A new connection that is nobody's; may be called from any thread.

        Raises:
            WireError: none can be opened.
        """
        return Connection.open(
            self.address,
            clock=self.clock,
            timeout_s=self._connect_s,
            context=self._context,
            proxy=self._proxy,
            kernel=self._kernel,
        )

    def usable(self, kept: Exchange | Connection) -> bool:
        """True when another request can be sent on it.

        Some servers close a connection right after a stream and do not say so before.

        Once that has been seen, and after a second of silence, no connection is used again: its
        end could cross a request, which would fail for no reason of the service's.
        """
        if isinstance(kept, Exchange):
            if not kept.settle():
                return False
            kept = kept.connection
        used = kept.used > 0
        if self.clock() - kept.last_ns > _STALE_NS or (used and not self.reuses):
            return False
        if not kept.alive():
            self.reuses = self.reuses and not used
            return False
        return True

    def learn_reuse(self, wait_s: float = 0.1) -> None:
        """See whether the server closes a connection after an answer: unmeasured, once."""
        if self.clock is time.perf_counter_ns:
            time.sleep(wait_s)
        self.warm(self.take())

    def give_back(self, exchange: Exchange) -> None:
        """Keep the connection of a finished exchange, if it can be used again."""
        if exchange.outcome.error is None:
            self._idle.append(exchange)
        else:
            let_go(exchange).close()

    def warm(self, connection: Connection) -> None:
        """Keep a connection that was opened and not used."""
        self._idle.append(connection)

    def run(self, exchange: Exchange) -> None:
        """Run one request to its end; how it went is in its outcome."""
        self.loop.run([exchange])
        self.give_back(exchange)

    def fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        root: bool = False,
    ) -> Reply:
        """One plain request and its whole answer, whatever its status. Never timed.

        Raises:
            WireError: no sound answer came within ``timeout_s``.
        """
        payload = self.payload(method, path, body, root=root)
        connection = self.take()
        used = connection.used > 0
        outcome = self._whole(connection, payload, timeout_s)
        left_s = timeout_s - (outcome.end_ns - outcome.start_ns) / NS
        if outcome.error is not None and used and not outcome.reads and left_s > 0:
            # The server closed the kept connection as the request went out.
            outcome = self._whole(self.take(fresh=True), payload, left_s)
        if outcome.error is not None:
            raise WireError(f"{method} {self.address.url}: {outcome.error}") from None
        return Reply(outcome.status, outcome.headers, outcome.body)

    def _whole(self, connection: Connection, payload: Payload, timeout_s: float) -> Outcome:
        exchange = Exchange(connection, payload, Deadlines(total_s=timeout_s), max_body=_MAX_REPLY)
        self.run(exchange)
        return exchange.outcome

    def close(self) -> None:
        """Close every connection. Idempotent."""
        for kept in self._idle:
            let_go(kept).close()
        self._idle.clear()
        self.loop.close()


def let_go(kept: Exchange | Connection) -> Connection:
    """The connection alone, without what it carried last."""
    if isinstance(kept, Exchange):
        kept.release()
        return kept.connection
    return kept

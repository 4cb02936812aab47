"""A server that follows a script, over real sockets, on a clock that nothing else moves.

Client and server share a :class:`Clock`. It stands still until the client has nothing to do and
says so (:meth:`Server.idle`): then it jumps to the next scripted moment, or to the client's own
next deadline where that is earlier. Every byte is thus read at the very moment of its script, on
any machine under any load, and nothing waits for real time to pass.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .heard import Request, not_found, read_request, rendered
from .script import Answer, Step

if TYPE_CHECKING:
    from pytest_llmsla.targets.http.target import HttpTarget
    from pytest_llmsla.wire.client import Reply
    from pytest_llmsla.wire.exchange import Exchange

NS_PER_MS = 1_000_000
_GUARD_S = 20.0  # real seconds after which a test is stuck
_UNREAD_S = 0.02  # real seconds until bytes count as never read (the client has what it wants)


class Clock:
    """Nanoseconds that pass only when told."""

    def __init__(self, now_ns: int = 5_000_000_000) -> None:
        self.now = now_ns

    def __call__(self) -> int:
        return self.now


@dataclass
class _Connection:
    sock: socket.socket
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """What is still to be sent, with its moment, ns."""
    sending: bool = False


Other = Callable[[Request], "bytes | None"]


class Server:
    """Answers POSTs on generating routes by script, everything else by ``other``, else 404.

    Args:
        clock: shared with the client; None: every step is sent at once, in real time.
        family: AF_INET, AF_INET6, or AF_UNIX with ``path``.
        tls: a server-side context.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        family: int = socket.AF_INET,
        path: Path | None = None,
        tls: ssl.SSLContext | None = None,
        other: Other | None = None,
    ) -> None:
        self.clock = clock
        self.requests: list[Request] = []
        self.connections = 0
        self.received: Callable[[], int] | None = None
        """Bytes the client has read so far, where it can be asked."""
        self.sent: Callable[[], int] | None = None
        """Requests the client has sent so far: time stands while one is on its way."""
        self.also: Callable[[], int | None] = lambda: None
        """The next moment of something else that happens by script."""
        self._answers: Sequence[Answer] = ()
        self._choose: Callable[[Request], Answer] | None = None
        self._tls = tls
        self._other = other or rendered
        self._cond = threading.Condition()
        self._live: list[_Connection] = []
        self._sent = 0
        self._posts = 0  # of the present request
        self._closed = False
        self._problem: str | None = None
        self._threads: list[threading.Thread] = []
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_UNIX:
            self._sock.bind(str(path))
        else:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self._sock.listen(64)
        self._wake_r, self._wake_w = os.pipe()
        self._start(self._accept)

    # -- for tests

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    @property
    def posts(self) -> list[Request]:
        """Every POST for an answer so far."""
        return [r for r in self.requests if r.wants_answer]

    def answer_by(self, choose: Callable[[Request], Answer]) -> None:
        """Every request from now on gets what ``choose`` makes of it."""
        with self._cond:
            self._choose = choose

    def play(self, answers: Sequence[Answer]) -> None:
        """The next request gets these."""
        with self._cond:
            self._answers = answers
            self._posts = 0

    def wait_until_closed(self) -> None:
        """Until the server has ended every connection that it is going to end."""
        with self._cond:
            assert self._cond.wait_for(lambda: not self._live, _GUARD_S)

    def close(self) -> None:
        """End every connection and thread.

        Raises:
            AssertionError: something went wrong inside the server.
        """
        with self._cond:
            self._closed = True
            live = list(self._live)
            self._cond.notify_all()
        os.write(self._wake_w, b"x")
        for c in live:
            with contextlib.suppress(OSError):
                c.sock.shutdown(socket.SHUT_RDWR)
        for t in self._threads:
            t.join(_GUARD_S)
            assert not t.is_alive(), "the scripted server does not end"
        self._sock.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        assert self._problem is None, self._problem

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- time

    def idle(self, deadline_ns: int | None) -> None:
        """The client found nothing to do; let time jump to the next moment of anybody."""
        clock = self.clock
        assert clock is not None
        with self._cond:
            if not self._settled():
                self._cond.wait(0.0005)
                return
            if not self._heard_all():
                assert self._wait(self._heard_all, _GUARD_S), "a request never reached the server"
                return
            known = [m for m in (self._next(), self.also(), deadline_ns) if m is not None]
            if not known:
                return
            clock.now = max(clock.now, min(known))
            self._cond.notify_all()
            self._wait(lambda: not self._due() or any(c.sending for c in self._live), 1.0)

    def _heard_all(self) -> bool:
        return self.sent is None or self.sent() <= len(self.requests)

    def _wait(self, for_what: Callable[[], bool], seconds: float) -> bool:
        return self._cond.wait_for(lambda: self._closed or for_what(), seconds)

    def _next(self) -> int | None:
        moments = [c.steps[0][0] for c in self._live if c.steps]
        return min(moments) if moments else None

    def _is_due(self, c: _Connection) -> bool:
        return bool(c.steps) and (self.clock is None or c.steps[0][0] <= self.clock.now)

    def _due(self) -> bool:
        return any(self._is_due(c) for c in self._live)

    def _settled(self) -> bool:
        """Everything due is sent, and everything sent was read or never will be."""
        if self._due() or any(c.sending for c in self._live):
            return False
        if self.received is None:
            return True
        read = self.received()
        now = time.monotonic()
        if read >= self._sent:
            self._unread_since = None
            return True
        if self._unread_since is None or self._unread_since[0] != read:
            self._unread_since = (read, now)
        if now - self._unread_since[1] < _UNREAD_S:
            return False
        self._sent = read  # never read: the client has closed
        self._unread_since = None
        return True

    _unread_since: tuple[int, float] | None = None

    # -- connections, each in a thread

    def _start(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, daemon=True, name="scripted-server")
        self._threads.append(thread)
        thread.start()

    def _chosen(self, request: Request) -> Answer | None:
        if self._choose is not None:
            return self._choose(request)
        return next((a for a in self._answers if a.fits(request.body, self._posts)), None)

    def _accept(self) -> None:
        while not self._closed:
            ready, _, _ = select.select([self._sock, self._wake_r], [], [])
            if self._wake_r in ready:
                return
            sock, _ = self._sock.accept()
            connection = _Connection(sock)
            with self._cond:
                self._live.append(connection)
                self.connections += 1
            self._start(lambda c=connection: self._serve(c))  # type: ignore[misc]

    def _serve(self, c: _Connection) -> None:
        try:
            if c.sock.family != socket.AF_UNIX:
                c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                c.sock = self._tls.wrap_socket(c.sock, server_side=True)
            left = b""
            while True:
                request, left = read_request(c.sock, left)
                if request is None or not self._answer(c, request):
                    return
        except (OSError, EOFError):
            pass  # the client has closed
        except Exception as e:
            self._problem = repr(e)
        finally:
            with self._cond:
                if c in self._live:
                    self._live.remove(c)
                self._cond.notify_all()
            with contextlib.suppress(OSError):
                c.sock.close()

    def _answer(self, c: _Connection, request: Request) -> bool:
        """Send the answer; False ends the connection."""
        with self._cond:
            self.requests.append(request)
            if not request.wants_answer:
                raw = self._other(request) or not_found()
                steps: Sequence[Step] = [Step(0, raw)]
            else:
                self._posts += 1
                chosen = self._chosen(request)
                steps = [Step(0, not_found())] if chosen is None else chosen.steps
            now = 0 if self.clock is None else self.clock.now
            c.steps = [(now + round(s.at_ms * NS_PER_MS), s) for s in steps]
            self._cond.notify_all()
        while c.steps:
            with self._cond:
                while (
                    not self._closed and self.clock is not None and c.steps[0][0] > self.clock.now
                ):
                    self._cond.wait(_GUARD_S)
                if self._closed:
                    return False
                step = c.steps[0][1]
                c.sending = True
                self._sent += len(step.data)
                self._cond.notify_all()
            try:
                c.sock.sendall(step.data)
                if step.close is not None:
                    _end(c.sock, step.close)
            finally:
                with self._cond:
                    c.sending = False
                    c.steps.pop(0)
                    self._cond.notify_all()
            if step.close is not None:
                return False
        return True


def _end(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
    sock.close()


def in_lock_step(target: HttpTarget, server: Server) -> None:
    """Let ``server`` move the clock whenever the client's loop has nothing to do."""
    client, clock = target.client, server.clock
    loop, step, fetch = client.loop, client.loop.step, client.fetch
    assert clock is not None
    heard, fetched = len(server.requests) - target.sent_requests, 0
    server.received = lambda: loop.bytes_read
    server.sent = lambda: heard + target.sent_requests + fetched

    def stepped(until_ns: int | None = None) -> list[Exchange]:
        before = loop.bytes_read
        ended = step(until_ns)
        if not ended and loop.bytes_read == before:
            known = [m for m in (loop.deadline_ns(), until_ns) if m is not None]
            server.idle(min(known, default=None))
        return ended

    def paused(until_ns: int, cancelled: Callable[[], bool]) -> None:
        while clock.now < until_ns and not cancelled():
            server.idle(until_ns)

    def fetching(*args: Any, **more: Any) -> Reply:
        nonlocal fetched
        fetched += 1
        return fetch(*args, **more)

    for owner, name, instead in (
        (loop, "step", stepped),
        (loop, "pause", paused),
        (client, "fetch", fetching),
    ):
        setattr(owner, name, instead)

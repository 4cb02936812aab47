"""One connection to a server: opened before the clock, read with the kernel's stamps."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from . import stamps
from .address import Address
from .dial import Proxy, dial, late, left, ssl_words, tls_context, words
from .errors import WireError
from .payload import Payload

if TYPE_CHECKING:
    from ..timeline import Stamp

READ_BYTES = 64 * 1024
ANCILLARY_BYTES = stamps.ANCILLARY_BYTES
_TLS_RECORD = 16 * 1024


class Read(NamedTuple):
    """What one read gave: bytes, when they arrived, and which clock says so."""

    data: bytes
    t_ns: int
    stamp: Stamp


Received = tuple[bytes, "stamps.Ancillary", int, stamps.Turn]
"""A read as the socket gave it: bytes, ancillary data, when it returned, its turn."""
_new = tuple.__new__  # a third of the time that the constructor of a named tuple takes


class Connection:
    """A connected socket, with TLS where the address says so. Used by one thread at a time.

    Attributes:
        connect_ns: what opening it took: name look-up, TCP, proxy, TLS.
        used: requests sent on it.
        last_ns: when something was sent or arrived last.
        kernel: True when the kernel stamps what is received.
    """

    def __init__(self, sock: socket.socket, clock: stamps.Clock, *, kernel: bool) -> None:
        self._sock = sock
        self._clock = clock
        self._stamper = stamps.Stamper()
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.last_ns = clock()
        self._ended = False
        self.connect_ns = 0
        self.used = 0
        self.bytes_read = 0
        self.kernel = kernel and stamps.enable(sock)
        self._rest: Payload | None = None
        self._recvmsg = sock.recvmsg if self.kernel else None

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        clock: stamps.Clock,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
        kernel: bool = True,
    ) -> Connection:
        """Connect, through ``proxy`` if given, and shake hands.

        Raises:
            WireError: it failed, or took longer than ``timeout_s``.
        """
        began, deadline = clock(), time.monotonic() + timeout_s
        with ExitStack() as opened:
            try:
                made = cls(dial(address, proxy, deadline), clock, kernel=kernel)
                opened.callback(made.close)
                if address.tls:
                    made._handshake(context or tls_context(True), address, deadline)
            except TimeoutError:
                raise WireError(late(address, timeout_s)) from None
            except ssl.SSLError as e:
                raise WireError(f"TLS with {address.url} failed: {ssl_words(e)}") from None
            except OSError as e:
                raise WireError(f"connecting to {address.url} failed: {words(e)}") from None
            made._sock.setblocking(False)
            made.connect_ns = clock() - began
            opened.pop_all()
        return made

    def fileno(self) -> int:
        """The socket's descriptor; -1 once closed."""
        return self._sock.fileno()

    def send(self, payload: Payload) -> int:
        """Write a request, or as much of it as can be now; the moment just before, ns.

        Where :attr:`unsent` is True then, :meth:`send_rest` goes on.

        Raises:
            WireError: the connection broke, or holds bytes that nobody asked for: they would be
                taken for the answer.
        """
        self._refuse_unasked()
        self.used += 1
        if self._tls is not None:
            self._tls.write(payload.reveal())
            payload = Payload(self._outgoing.read())
        self._rest = payload if self._rest is None else self._rest.before(payload)
        start = self.last_ns = self._clock()
        self.send_rest()
        return start

    @property
    def unsent(self) -> bool:
        """True while a part of the request waits for the other side to take it."""
        return self._rest is not None

    def send_rest(self) -> None:
        """Write what can be written now.

        Raises:
            WireError: the connection broke.
        """
        while self._rest is not None:
            try:
                sent = self._sock.send(self._rest.reveal())
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:
                raise WireError(f"the connection broke while sending: {words(e)}") from None
            self._rest = self._rest.after(sent)

    def receive(self, turn: stamps.Turn) -> Received | None:
        """What has arrived, as it is; None when nothing is there now; empty data at the end.

        Nothing is done that can wait: see :meth:`finish`.

        Raises:
            WireError: the connection was reset.
        """
        if self._ended:
            return b"", [], self.last_ns, turn
        try:
            if self._recvmsg is not None:
                data, extra, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
            else:
                data, extra = self._sock.recv(READ_BYTES), []
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as e:
            raise WireError(f"the connection was reset or broke: {words(e)}") from None
        if not data:
            self._ended = True
        self.bytes_read += len(data)
        return data, extra, self._clock(), turn

    def finish(self, received: Received) -> Read | None:
        """A read with its stamp; reads are finished in the order in which they came.

        With TLS, bytes that do not complete a record give None, and the record's data the
        stamp of its last byte.

        Raises:
            WireError: TLS is broken.
        """
        data, extra, at_ns, turn = received
        if not data:
            return Read(b"", at_ns, "user")
        kernel_ns = stamps.realtime_ns(extra)
        t_ns, stamp = self._stamper.stamp(kernel_ns, at_ns, self.last_ns, turn)
        self.last_ns = t_ns
        if self._tls is not None:
            data = self._decrypt(data)
            if not data and not self._ended:
                return None
        return _new(Read, (data, t_ns, stamp))

    def read(self) -> Read | None:
        """:meth:`receive` and :meth:`finish` at once.

        Raises:
            WireError: the connection was reset, or TLS is broken.
        """
        turn = stamps.Turn()
        received = self.receive(turn)
        if received is None:
            return None
        if received[1]:
            turn.ahead_ns = stamps.Wall(self._clock).look()
        return self.finish(received)

    @property
    def disbelieved(self) -> int:
        """Kernel stamps that could not be right: the wall clock was set."""
        return self._stamper.disbelieved

    def alive(self) -> bool:
        """True while the idle connection is open and silent: look before the clock starts."""
        try:
            return self.read() is None
        except WireError:
            return False

    def _refuse_unasked(self) -> None:
        try:
            early = self.read()
        except WireError:
            return  # sending will say that it is broken
        if early is not None and early.data:
            raise WireError(
                "the server sent something before it was asked: what follows cannot be told from "
                "the answer"
            )

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._sock.close()

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            while True:
                part = self._tls.read(_TLS_RECORD)
                if not part:
                    self._ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as e:
            raise WireError(f"TLS broke: {ssl_words(e)}") from None
        if self._outgoing.pending:  # an answer of the protocol itself (key update)
            answer = Payload(self._outgoing.read())
            self._rest = answer if self._rest is None else self._rest.before(answer)
            self.send_rest()
        return b"".join(parts)

    def _handshake(self, context: ssl.SSLContext, address: Address, deadline: float) -> None:
        tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=address.host)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._sock.settimeout(left(deadline))
                data = self._sock.recv(READ_BYTES)
                if not data:
                    raise WireError(
                        f"TLS with {address.url} failed: the server closed the connection"
                    ) from None
                self._incoming.write(data)
        self._flush(deadline)
        self._tls = tls

    def _flush(self, deadline: float) -> None:
        if self._outgoing.pending:
            self._sock.settimeout(left(deadline))
            self._sock.sendall(self._outgoing.read())

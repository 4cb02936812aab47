"""When bytes arrived: by the kernel where it says so, else when the read returned.

Linux stamps a received TCP segment on CLOCK_REALTIME (``SO_TIMESTAMPNS``, given by ``recvmsg`` as
ancillary data, for the last segment of a read). It is turned into the monotonic clock by how far
apart the two clocks are. That is looked at once for all sockets that are read in one turn, right
behind the last of them, and compared with the turn before: a wall clock that was set in between
does no harm.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..timeline import Stamp

# Not in every build's socket module; the numbers are Linux's (asm-generic/socket.h) on x86 and arm.
_LINUX = sys.platform == "linux"
_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_TIMESPEC = struct.Struct("@qq") if sys.maxsize > 2**32 else struct.Struct("@ll")
_LEVEL, _unpack = socket.SOL_SOCKET, _TIMESPEC.unpack_from
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if _LINUX else 0
_NS = 1_000_000_000
_BRACKET_NS = 20_000  # two readings further apart were interrupted: read again
_SLACK_NS = 50_000  # a stamp may be this much older than the one before it
_SET_NS = 50_000
"""The two clocks keep their distance: what slews one slews both. Moved by more, one was set."""

Clock = Callable[[], int]
Ancillary = list[tuple[int, int, bytes]]


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what this socket receives; False where it cannot."""
    if not _LINUX or sock.family == socket.AF_UNIX:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def realtime_ns(ancillary: Ancillary) -> int:
    """The kernel's stamp among ancillary data, ns of CLOCK_REALTIME; 0 without one."""
    seconds: int
    ns: int
    for level, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS and level == _LEVEL and len(data) >= _TIMESPEC.size:
            seconds, ns = _unpack(data)
            return seconds * _NS + ns
    return 0


class Turn:
    """What the reads of one turn share, filled in behind the last of them.

    ``ahead_ns``: CLOCK_REALTIME minus the client's clock; None: the wall clock was set meanwhile.
    """

    __slots__ = ("ahead_ns",)

    def __init__(self, ahead_ns: int | None = None) -> None:
        self.ahead_ns = ahead_ns


class Wall:
    """Looks how far the wall clock is ahead of ``clock``."""

    __slots__ = ("_ahead", "_clock")

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._ahead: int | None = None

    def look(self) -> int | None:
        """ns; None where it is not what it was at the last look."""
        before = self._clock()
        real = time.time_ns()
        now = self._clock()
        while now - before > _BRACKET_NS:
            before = self._clock()
            real = time.time_ns()
            now = self._clock()
        ahead = real - (before + now) // 2
        last, self._ahead = self._ahead, ahead
        return ahead if last is None or -_SET_NS < ahead - last < _SET_NS else None


class Stamper:
    """Turns kernel stamps into times of the client's clock, and counts those it cannot believe."""

    __slots__ = ("disbelieved",)

    def __init__(self) -> None:
        self.disbelieved = 0

    def stamp(
        self, kernel_ns: int, at_ns: int, not_before_ns: int, turn: Turn
    ) -> tuple[int, Stamp]:
        """When the data of a read that returned at ``at_ns`` arrived, and which clock says so.

        Args:
            kernel_ns: the kernel's stamp (:func:`realtime_ns`), 0 without one.
            at_ns: on the client's clock, as the result.
            not_before_ns: the data arrived after this moment (when the socket was last seen
                empty). A stamp outside that moment and ``at_ns`` is not believed: the wall clock
                was set.
            turn: of the read.
        """
        if not kernel_ns:
            return at_ns, "user"
        ahead = turn.ahead_ns
        if ahead is not None:
            t_ns = kernel_ns - ahead
            if not_before_ns <= t_ns <= at_ns:
                return t_ns, "kernel"
            if not_before_ns - _SLACK_NS <= t_ns < not_before_ns <= at_ns:
                return not_before_ns, "kernel"
        self.disbelieved += 1
        return at_ns, "user"

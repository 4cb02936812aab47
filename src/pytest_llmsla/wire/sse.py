"""Server-sent events, decoded as bytes arrive, each with the stamp of its last byte.

After the standard's parsing rules (HTML Living Standard, 9.2.6): lines end with LF, CR or CRLF, a
byte order mark may stand first, a line that begins with a colon is a comment, several ``data``
lines are joined by LF, and an event that its blank line does not end is no event. Lines are split
as bytes, so that U+2028 and the like end none.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import WireError

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its name (``message`` where it has none) and its data, not yet decoded."""

    t_ns: int
    name: str
    data: bytes


class SseDecoder:
    """Feed it bytes as they arrive; it gives the events that they complete.

    What it gives does not depend on where reads ended: events that were whole before an event that
    is too long are given first, with :attr:`failed` set; the next :meth:`feed` raises it.

    Args:
        max_event_bytes: longest event, its field names included; bounds the memory.
    """

    __slots__ = (
        "_buffer", "_clean", "_data", "_fresh", "_limit", "_name", "_sized", "_skip_lf", "comments",
        "failed",
    )  # fmt: skip

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._name = ""
        self._sized = 0
        self._fresh = True
        self._skip_lf = False
        self._clean = False
        self.comments = 0
        self.failed: WireError | None = None

    def feed(self, data: bytes, t_ns: int) -> list[Event]:
        """The events that ``data``, received at ``t_ns``, completes.

        Raises:
            WireError: an event is longer than ``max_event_bytes``, and nothing whole came before it
                in ``data``.
        """
        if self.failed is not None:
            raise self.failed
        if self._clean and self._whole(data):
            return [Event(t_ns, "message", data[6:-2])]
        out: list[Event] = []
        try:
            self._take(data, t_ns, out)
        except WireError as e:
            self._clear()
            self._buffer.clear()
            self.failed = e
            if not out:
                raise
        # Between two events, with nothing kept of either.
        self._clean = not (self._buffer or self._sized or self._fresh or self._skip_lf)
        return out

    def framed(self, data: bytes) -> tuple[int, int] | None:
        """Where the event's data stands in ``data``, if it holds no end of line; see :meth:`feed`.

        None: ``data`` is something else than one event of one data line.
        """
        size = len(data)
        if not self._clean or size > self._limit or not data.startswith(b"data:"):
            return None
        start = 6 if data.startswith(b" ", 5) else 5
        if data.endswith(b"\n\n"):
            return start, size - 2
        return (start, size - 4) if data.endswith(b"\r\n\r\n") else None

    def _whole(self, data: bytes) -> bool:
        """True for what nearly every read of a stream is: one event of one data line."""
        return (
            data.endswith(b"\n\n")
            and data.startswith(b"data: ")
            and data.count(b"\n") == 2
            and b"\r" not in data
            and len(data) <= self._limit
        )

    def _take(self, data: bytes, t_ns: int, out: list[Event]) -> None:
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        self._buffer += data
        if self._fresh:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
                return  # too short to tell
            self._fresh = False
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
        if b"\n" in data or b"\r" in data:
            self._split(out, t_ns)
        if len(self._buffer) + self._sized > self._limit:
            self._too_long()

    def _split(self, out: list[Event], t_ns: int) -> None:
        whole = bytes(self._buffer)
        if b"\r" in whole:
            if whole.endswith(b"\r"):
                self._skip_lf = True  # its LF, if it has one, comes with the next bytes
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = whole.split(b"\n")
        self._buffer[:] = rest
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                out.append(Event(t_ns, self._name or "message", b"\n".join(self._data)))
                self._clear()
            else:
                self._clear()

    def _field(self, line: bytes) -> None:
        if self._sized + len(line) > self._limit:
            self._too_long()
        if line.startswith(b":"):
            self.comments += 1
            return
        self._sized += len(line)
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ").decode("utf-8", "replace")
        elif line == b"event":
            self._name = ""

    def _clear(self) -> None:
        self._data = []
        self._name = ""
        self._sized = 0

    def _too_long(self) -> None:
        raise WireError(
            f"an event is longer than the limit of {self._limit} bytes: refused, so that a broken "
            "stream cannot fill the memory"
        )

    def left_over(self) -> bytes:
        """What stands behind the last whole event; empty when the stream ended with one."""
        lines = [b"data: " + line for line in self._data]
        return b"\n".join([*lines, bytes(self._buffer)]).strip()

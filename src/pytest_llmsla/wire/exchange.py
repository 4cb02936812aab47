"""One request and its answer: what is read is stamped at once and parsed when there is time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .connection import Connection, Read, Received
from .errors import WireError
from .payload import Payload
from .refusal import coding
from .refusal import refusal as refusal
from .response import Response
from .sse import MAX_EVENT_BYTES, SseDecoder
from .terms import Deadlines as Deadlines
from .terms import Outcome as Outcome
from .terms import Reader as Reader

if TYPE_CHECKING:
    from .stamps import Turn

NS = 1_000_000_000
READ_COST = 400
"""Bytes that a read which waits takes in memory besides its data."""
_MAX_PLAIN = 1024 * 1024


class Exchange:
    """One request on one connection. :meth:`read` and :meth:`parse` are called by the loop.

    ``reader`` takes an event stream; None collects a plain body of at most ``max_body`` bytes.
    ``since_ns`` is where the deadlines count from, when that was before this attempt.
    """

    def __init__(
        self,
        connection: Connection,
        payload: Payload,
        deadlines: Deadlines,
        *,
        reader: Reader | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_body: int = _MAX_PLAIN,
        since_ns: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.connection = connection
        self.cancelled = cancelled
        self.response = Response()
        self.outcome = Outcome(start_ns=0)
        self.done = False
        self.fd = connection.fileno()
        self.watched = False
        """The loop waits for its socket."""
        self._payload = payload
        self._deadlines = deadlines
        self._reader = reader
        self._sse = SseDecoder(max_event_bytes)
        self._stream: Reader | None = None
        """The reader, once a stream has begun."""
        self._plain = bytearray()
        self._max_body = max_body
        self._since = since_ns
        self._last_byte_ns = 0
        self._parsed_ns = 0
        self._whole_ns: int | None = None
        """When the answer was known to be whole."""
        self._pending: deque[Read | Received | WireError] = deque()

    def start(self) -> None:
        """Send the request, or begin to; a failure is in the outcome."""
        try:
            self.outcome.start_ns = self.connection.send(self._payload)
        except WireError as e:
            self.outcome.start_ns = self.connection.last_ns
            self._finish(e, self.outcome.start_ns)
        if self._since is None:
            self._since = self.outcome.start_ns
        self._last_byte_ns = self._parsed_ns = self.outcome.start_ns

    def send_rest(self) -> bool:
        """Go on sending; True when there is something to parse: that it broke."""
        try:
            self.connection.send_rest()
        except WireError as e:
            self._pending.append(e)
            return True
        return False

    def receive(self, turn: Turn) -> int:
        """Take what has arrived, to be parsed later: its bytes, 0 at the end, -1 for nothing."""
        try:
            got = self.connection.receive(turn)
        except WireError as e:
            self._pending.append(e)
            return 0
        if got is None:
            return -1
        self._pending.append(got)
        self._last_byte_ns = got[2]
        return len(got[0])

    def read(self) -> bool:
        """Take what has arrived and its stamp; True when there is something to parse."""
        try:
            got = self.connection.read()
        except WireError as e:
            self._pending.append(e)
            return True
        if got is None:
            return False
        self._pending.append(got)
        self._last_byte_ns = got.t_ns
        return True

    @property
    def waits(self) -> bool:
        """True while something that was read is not parsed."""
        return bool(self._pending)

    def parse(self) -> None:
        """Parse all that was read."""
        while self._pending:
            self.parse_next()

    def parse_next(self) -> int:
        """Parse the oldest read that waits; the memory that it took, bytes."""
        if not self._pending:
            return 0
        entry = self._pending.popleft()
        if isinstance(entry, WireError):
            if not self.done:
                self._broken(entry)
            return READ_COST
        cost = READ_COST + len(entry[0])
        if self.done:
            return cost
        try:
            read = entry if isinstance(entry, Read) else self.connection.finish(entry)
        except WireError as e:
            self._broken(e)
            return cost
        if read is not None:
            self._parse(read)
        return cost

    def _parse(self, entry: Read) -> None:
        data, t_ns, stamp = entry
        self._parsed_ns = t_ns
        if not data:
            self._parse_end(t_ns)
            return
        outcome = self.outcome
        outcome.reads += 1
        if stamp == "user":
            outcome.user_stamps += 1
        broken: WireError | None = None
        try:
            self.response.feed(data)
        except WireError as e:
            broken = e
        try:
            self._take(t_ns)  # what came before the damage counts, however the reads were cut
        except WireError as e:
            self._finish(e, t_ns)
        if broken is not None and not self.done:
            self._finish(broken, t_ns)

    def _parse_end(self, t_ns: int) -> None:
        """The server closed its side."""
        try:
            self.response.end_of_stream()
        except WireError as e:
            self._broken(e)
            return
        try:
            self._take(t_ns)
        except WireError as e:
            self._finish(e, t_ns)

    def _take(self, t_ns: int) -> None:
        response, stream = self.response, self._stream
        if stream is None:
            if not response.headers_done:
                return
            stream = self._begin()
        body = response.take_body()
        if stream is not None:
            if body and self._events(body, t_ns, stream):
                self._finish(None, t_ns)
            elif response.done:
                stream.ended(self._sse.left_over())
                self._finish(None, t_ns)
            return
        self._plain += body
        if len(self._plain) > self._max_body:
            if self._reader is None:
                raise WireError(f"the answer is longer than {self._max_body} bytes")
            self._refuse()
        if response.done:
            if self._reader is not None:
                self._refuse()
            self.outcome.body = bytes(self._plain)
            self._finish(None, t_ns)

    def _begin(self) -> Reader | None:
        """The head is whole: the reader, if it is that of a stream."""
        response, outcome = self.response, self.outcome
        if not outcome.status:
            outcome.status, outcome.headers = response.status, response.headers
            self._stream = self._reader if _is_stream(response) else None
        return self._stream

    def _events(self, body: bytes, t_ns: int, reader: Reader) -> bool:
        """Take the events that ``body`` completes; True when nothing of interest can follow."""
        at = self._sse.framed(body)
        if at is not None and reader.known(body, at[0], at[1], t_ns):
            return False
        for event in self._sse.feed(body, t_ns):
            if reader.event(event):
                return True
        if self._whole_ns is None and reader.complete:
            self._whole_ns = t_ns
        if self._sse.failed is not None:
            raise self._sse.failed
        return False

    def _refuse(self) -> None:
        raise refusal(self.response.status, self.response.headers, bytes(self._plain))

    def deadline_ns(self) -> int | None:
        """When the next deadline is, None without one."""
        found = [at for at, _ in self._limits()]
        return min(found) if found else None

    def check(self, now_ns: int) -> None:
        """End the exchange if a deadline has passed or it was cancelled."""
        if self.done:
            return
        if self.cancelled():
            self._finish(WireError("stopped after its deadline"), now_ns)
            return
        for at, name in self._limits():
            if now_ns >= at:
                whole = name == "after_finish_s"
                self._finish(None if whole else WireError(self._late(name)), now_ns)
                return

    def _limits(self) -> list[tuple[int, str]]:
        """Moments and names of the deadlines in force. Looked at every tick: no words are made."""
        d, since, reader = self._deadlines, self._since or 0, self._reader
        out: list[tuple[int, str]] = []
        if reader is not None and reader.complete:
            # Not from the last byte on: pings may follow for ever.
            done = self._last_byte_ns if self._whole_ns is None else self._whole_ns
            at = done + round(d.after_finish_s * NS)
            whole = at if d.total_s is None else since + round(d.total_s * NS)
            return [(min(at, whole), "after_finish_s")]
        if d.total_s is not None:
            out.append((since + round(d.total_s * NS), "total_s"))
        if reader is None:
            return out
        if reader.begun:
            if d.idle_s is not None:
                out.append((self._last_byte_ns + round(d.idle_s * NS), "idle_s"))
        elif d.first_token_s is not None:
            out.append((since + round(d.first_token_s * NS), "first_token_s"))
        return out

    def _late(self, name: str) -> str:
        if self.connection.unsent:
            limit = f"{getattr(self._deadlines, name):g} s (timeouts.{name})"
            return f"timed out: the request could not be sent within {limit}"
        what = {
            "total_s": "not complete after",
            "idle_s": "no further byte for",
            "first_token_s": "no first token after",
        }[name]
        return f"timed out: {what} {getattr(self._deadlines, name):g} s (timeouts.{name})"

    def _broken(self, e: WireError) -> None:
        """The connection broke: harmless once the answer was whole."""
        whole = self._reader is not None and self._reader.complete
        self._finish(None if whole else e, self._parsed_ns)

    def _finish(self, error: WireError | None, t_ns: int) -> None:
        self.done = True
        if error is not None:
            error.__traceback__ = error.__context__ = None  # frames that hold this exchange
        self.outcome.error = error
        self.outcome.end_ns = t_ns

    def settle(self) -> bool | None:
        """After the end: True when the connection can carry another request, False when it never
        can, None while the end of the response has not come."""
        if self.outcome.error is not None or self.connection.unsent:
            return False
        try:
            while not self.response.done:
                got = self._next_read()
                if got is None:
                    return None
                if not got.data:
                    return False
                self.response.feed(got.data)
                self.response.take_body()
        except WireError:
            return False
        return self.response.keep_alive and not self._pending

    def _next_read(self) -> Read | None:
        """The oldest read that waits, else what has arrived."""
        while self._pending:
            entry = self._pending.popleft()
            if isinstance(entry, WireError):
                raise entry
            got = entry if isinstance(entry, Read) else self.connection.finish(entry)
            if got is not None:
                return got
        return self.connection.read()

    def release(self) -> None:
        """Nothing of it is used any more, but the connection."""
        self._pending.clear()
        self.response.release()


def _is_stream(response: Response) -> bool:
    # Not strip(): only these two are white space in HTTP.
    kinds = (
        response.headers.get("content-type", "").lower().split(",")
    )  # two where a proxy adds one
    stream = all(k.partition(";")[0].strip(" \t") == "text/event-stream" for k in kinds)
    coded = coding(response.headers)
    return response.status == 200 and stream and coded is None

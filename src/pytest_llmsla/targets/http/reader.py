"""Reads one streamed answer, event by event, into token events and what the server says of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...wire.errors import WireError
from ...wire.sse import Event
from ..base import Recorder
from .alike import Alike, learn
from .counting import TokenEvent
from .dialect import Dialect, Piece

_TRIES = 8
"""Lessons taken from one stream at most, and one more with every 32 of its events."""
_FAR_MORE = 4  # times the tokens asked for: then the server does not stop by itself
_MOST_TEXT = 16 * 1024 * 1024
"""Characters of one answer: all of them are kept."""


@dataclass
class Said:
    """What the server has said of the answer so far."""

    events: list[TokenEvent] = field(default_factory=list)
    totals: list[tuple[int, int]] = field(default_factory=list)
    """(stamp, output tokens so far) of every event that told."""
    texts: list[str] = field(default_factory=list)
    finish: tuple[int, str] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """The most that was said: where a server contradicts itself, nothing is taken for new."""
    prompt_before: int | None = None
    """A prompt length that it said before it said another."""
    first_visible_ns: int | None = None
    server_ms: dict[str, float] = field(default_factory=dict)
    marked: bool = False
    """The end marker came."""


class StreamReader:
    """A :class:`~pytest_llmsla.wire.exchange.Reader` for one request.

    ``asked`` is the number of tokens asked for; far more events than that end the request.
    """

    def __init__(self, dialect: Dialect, record: Recorder, asked: int) -> None:
        self.said = Said()
        self._dialect = dialect
        self._record = record
        self._most = _FAR_MORE * asked + 256
        self._read_ns: int | None = None
        self._alike: Alike | None = None
        self._last = b""
        self._by_message = False
        """Its parts come as messages: one that is like those before it is no repetition."""
        self._tries = 0
        self._size = 0

    @property
    def begun(self) -> bool:
        """True once a token has arrived."""
        return self._read_ns is not None

    @property
    def complete(self) -> bool:
        """True once a finish reason or the end marker came."""
        return self.said.finish is not None or self.said.marked

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        """Take the event with the data ``data[start:end]`` if it is like one before.

        False: :meth:`event` has to read it. True: there is no end of line in it.

        Raises:
            WireError: it follows an endless answer.
        """
        alike, said = self._alike, self.said
        if alike is None or said.finish is not None:
            return False
        found = alike.read(data, start, end)
        if found is None:
            return False
        text, total = found
        if not text:
            return False
        self._token(t_ns, text, text if alike.visible else "", None, total)
        if total is not None:
            said.totals.append((t_ns, total))
        if alike.notes:
            self._note_prompt(alike.piece)
        return True

    def event(self, event: Event) -> bool:
        """Take one event; True at the end marker.

        Raises:
            WireError: it cannot be read, reports an error, or follows an endless answer.
        """
        # One of several that came in one read.
        if event.name == "message" and self.known(event.data, 0, len(event.data), event.t_ns):
            return False
        piece = self._dialect.read(event)
        if piece.error is not None:
            raise WireError(f"the server reported an error in the stream: {piece.error}")
        if piece.whole and not self._by_message and self._repeated(piece):
            piece.text = piece.visible = ""
            piece.tokens = None  # they were counted as they came
        if piece.text:
            if self.said.finish is not None:
                raise WireError("generated text follows the finish reason: the stream is not sound")
            self._by_message = self._by_message or piece.whole
            self._token(event.t_ns, piece.text, piece.visible, piece.tokens, piece.total)
            if event.name == "message":
                self._learn(event.data, piece)
        elif piece.tokens:
            # Ids without text: half a character, or the end token. They count, and begin nothing.
            self.said.events.append(TokenEvent(event.t_ns, "", piece.tokens, piece.total))
            self._bounded(len(self.said.events), "token events")
        self._note(event.t_ns, piece)
        return piece.done

    def _repeated(self, piece: Piece) -> bool:
        """MiniMax ends a stream with the whole message: what was streamed is no new text."""
        seen, every = "".join(self.said.texts), "".join(e.text for e in self.said.events)
        return piece.text == every != "" or piece.visible == seen != ""

    def _learn(self, data: bytes, piece: Piece) -> None:
        if self._tries < _TRIES + len(self.said.events) // 32:
            self._tries += 1
            self._alike = learn(self._last, data, piece, self._dialect.read) or self._alike
            self._last = data

    def _token(
        self, t_ns: int, text: str, visible: str, tokens: int | None, total: int | None
    ) -> None:
        said = self.said
        if t_ns == self._read_ns:
            self._record.merged += 1
        self._read_ns = t_ns
        events = said.events
        # A third of the time that the constructor takes.
        events.append(tuple.__new__(TokenEvent, (t_ns, text, tokens, total)))
        said.texts.append(visible)
        if visible and said.first_visible_ns is None:
            said.first_visible_ns = t_ns
        # One each for now: progress and deadlines look here; reconciled at the end.
        self._record.arrivals.append((t_ns, 1))
        self._size += len(text)
        if len(events) > self._most:
            self._bounded(len(events), "token events")
        if self._size > _MOST_TEXT:
            raise WireError(
                f"the answer is longer than the limit of {_MOST_TEXT} characters: refused, so "
                "that a broken stream cannot fill the memory"
            )

    def _bounded(self, count: int, what: str) -> None:
        if count > self._most:
            raise WireError(
                f"more than {self._most} {what} came: the server does not stop at the tokens asked "
                "for"
            )

    def _note(self, t_ns: int, piece: Piece) -> None:
        said = self.said
        # 0 behind a count stands for one that was not filled in, as it does for the prompt.
        if piece.total or (piece.total == 0 and (piece.text or not self._counted())):
            # Behind the finishing event by order, though one read may have brought both.
            behind = said.finish is not None and t_ns <= said.finish[0]
            at = said.finish[0] + 1 if behind and said.finish is not None else t_ns
            said.totals.append((at, piece.total))
            self._bounded(len(said.totals) - len(said.events), "events without a token")
        self._note_prompt(piece)
        if piece.server_ms:
            said.server_ms.update(piece.server_ms)
        if piece.finish is not None and said.finish is None:
            # Behind the last token by order, though one read may have brought both.
            alone = not piece.text and not piece.tokens
            same = bool(said.events) and said.events[-1].t_ns == t_ns
            said.finish = (t_ns + 1 if alone and same else t_ns, piece.finish)
        said.marked = said.marked or piece.done

    def _counted(self) -> bool:
        return any(total for _, total in self.said.totals[-1:])

    def _note_prompt(self, piece: Piece) -> None:
        said = self.said
        if piece.prompt_tokens:  # no prompt has none: 0 stands for a count that was not filled in
            if said.prompt_tokens not in (None, piece.prompt_tokens):
                said.prompt_before = said.prompt_tokens
            said.prompt_tokens = piece.prompt_tokens
        if piece.cached_tokens is not None:
            said.cached_tokens = max(piece.cached_tokens, said.cached_tokens or 0)

    def ended(self, left_over: bytes) -> None:
        """The body ended.

        Raises:
            WireError: neither a finish reason nor the end marker came, or it ended inside an event.
        """
        if left_over:
            self._last_event(left_over)
        if not self.complete:
            raise WireError(
                "the stream ended with neither a finish reason nor an end marker: the answer is "
                "incomplete (truncated)"
            )

    def _last_event(self, left_over: bytes) -> None:
        """Many servers leave out the blank line after the last event; it must be whole all the
        same, and be no more than the end marker: a text that might go on is no answer."""
        field, _, value = left_over.partition(b":")
        if field == b"data" and value.strip() == b"[DONE]":
            self.said.marked = True
        elif not left_over.startswith(b":"):
            raise WireError("the stream ended in the middle of an event: the answer is truncated")

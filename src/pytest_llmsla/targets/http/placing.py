"""Puts a number of tokens on a group of text events, by the best evidence there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...timeline import FIRST_UNSURE

Tokenize = Callable[[str], int]
Arrivals = list[tuple[int, int]]

MOST_HELD_BACK = 4
"""Tokens without text behind an answer: three bytes of an unfinished character, an end token."""
_STOPPED = ("stop", "eos", "eos_token", "end_turn", "tool_calls", "function_call")
"""Finish reasons of an answer that the model ended itself, by a token that has no text."""
_CUT = ("length", "limit", "max_tokens")
"""Finish reasons of an answer that was cut at the tokens asked for, inside a character or not."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """An event of text; ``ids`` counts its tokens and those held back before it."""

    t_ns: int
    text: str
    ids: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class End:
    """The event that finished the answer."""

    t_ns: int
    reason: str | None

    @property
    def by_token(self) -> bool:
        """True when the model ended it, by an end token."""
        return self.reason in _STOPPED

    @property
    def cut(self) -> bool:
        """True when it was cut at the tokens asked for: the last ones may have no text yet."""
        return self.reason in _CUT


@dataclass(frozen=True, slots=True)
class Parts:
    """What may explain tokens besides the text events."""

    tail: tuple[tuple[int, int], ...]
    """(stamp, tokens) of events without text behind the last text."""
    end: End | None
    """The finishing event; None in the middle of an answer."""
    tokenize: Tokenize | None


@dataclass(slots=True)
class Placed:
    """Arrivals, and why they are no more than an estimate."""

    arrivals: Arrivals
    estimated: str | None

    def add(self, other: Placed) -> None:
        """Append ``other``; the first reason is kept."""
        self.arrivals += other.arrivals
        self.estimated = self.estimated or other.estimated


def carriers_of(
    events: Iterable[tuple[int, str, int | None, int | None]],
) -> tuple[list[Carrier], Arrivals]:
    """Text events with the tokens held back before each, and the tokens behind the last text.

    ``events`` are (stamp, text, tokens, total).
    """
    carriers: list[Carrier] = []
    held: Arrivals = []
    for t_ns, text, tokens, total in events:
        if text:
            ids = None if tokens is None else tokens + sum(k for _, k in held)
            carriers.append(Carrier(t_ns, text, ids, total))
            held = []
        elif tokens:
            held.append((t_ns, tokens))
    return carriers, held


def place(group: Sequence[Carrier], tokens: int, before: str, parts: Parts) -> Placed:
    """Put ``tokens`` on the events of ``group``; ``before`` is the text of all events before it.

    The server's ids if they add up; one event holds all; as many events as tokens have one each;
    the tokenizer if it adds up; else a spread by length of text, labelled as an estimate.
    """
    if tokens == 0:
        return Placed([], None)
    found = by_ids(group, tokens, parts)
    if found is None and len(group) == 1 and not _shares(group[0], tokens, before, parts.end):
        found = [(group[0].t_ns, tokens)]
    if found is None and tokens == len(group):
        found = one_each(group)
    if found is None:
        found = by_tokenizer(group, tokens, before, parts)
    if found is not None:
        return Placed(found, None)
    if tokens == len(group) + 1 and parts.end is not None and parts.end.by_token:
        return Placed(
            [*one_each(group), (parts.end.t_ns, 1)],
            f"{tokens} tokens in {len(group)} events of text: the last one is taken for an end "
            "token",
        )
    if tokens < len(group):
        why = f"the server counted {tokens} tokens for {len(group)} events of text"
        why += "" if before else f": {FIRST_UNSURE}"
    else:
        why = (
            f"{tokens} tokens in {len(group)} events of text: nothing says how many each event "
            "brought"
        )
    return Placed(spread(group, tokens), why)


def _shares(last: Carrier, tokens: int, before: str, end: End | None) -> bool:
    """True when an end token behind the last of several events may be among ``tokens``."""
    later = end is not None and end.by_token and end.t_ns > last.t_ns
    return later and tokens > 1 and before != ""


def one_each(group: Sequence[Carrier]) -> Arrivals:
    """One token an event."""
    return [(c.t_ns, 1) for c in group]


def by_ids(group: Sequence[Carrier], tokens: int | None, parts: Parts) -> Arrivals | None:
    """What the server says of each event; None where it does not, or it does not add up.

    Without a total (``tokens`` None) there is nothing to add up to.
    """
    ids = [c.ids for c in group]
    known = [k for k in ids if k is not None]
    if len(known) < len(ids):
        return None
    return _fitting(group, known, parts.tail, tokens, parts.end)


def by_tokenizer(
    group: Sequence[Carrier], tokens: int | None, before: str, parts: Parts
) -> Arrivals | None:
    """What a tokenizer says of the text so far, event by event; None where it does not add up.

    The text is tokenized as a whole up to each event: a piece alone has other tokens. Without a
    total every event has to bring at least one.
    """
    if parts.tokenize is None:
        return None
    counts = [parts.tokenize(before) if before else 0]
    for carrier in group:
        before += carrier.text
        counts.append(parts.tokenize(before))
    brought = [b - a for a, b in pairwise(counts)]
    if min(brought) < (1 if tokens is None else 0):
        return None
    return _fitting(group, brought, (), tokens, parts.end)


def _fitting(
    group: Sequence[Carrier],
    brought: Sequence[int],
    tail: Sequence[tuple[int, int]],
    tokens: int | None,
    end: End | None,
) -> Arrivals | None:
    """Arrivals by ``brought``, if they explain ``tokens``: exactly, or all but an end token.

    Others that are missing may be bytes of a character that the answer was cut in, but as well
    tokens without text in the middle, or a text that was cut into other tokens. When the finish
    came would tell, but not where one read brought it with the text: that would make a verdict of
    how the bytes were read.
    """
    if brought[0] < 1:
        return None  # text without a token: these counts mean something else
    placed = [(c.t_ns, k) for c, k in zip(group, brought, strict=True) if k] + list(tail)
    missing = 0 if tokens is None else tokens - sum(k for _, k in placed)
    if missing == 0:
        return placed
    if missing == 1 and end is not None and end.by_token:
        return [*placed, (end.t_ns, 1)]
    return None


def spread(group: Sequence[Carrier], tokens: int) -> Arrivals:
    """An estimate: ``tokens`` by length of text, one an event where there are enough.

    The first event has one in any case: its text came from a token.
    """
    brought = [1 if tokens >= len(group) else 0] * len(group)
    brought[0] = 1
    rest = tokens - sum(brought)
    length = sum(len(c.text) for c in group)
    seen = given = 0
    for i, carrier in enumerate(group):
        seen += len(carrier.text)
        share = rest * seen // length
        brought[i] += share - given
        given = share
    return [(c.t_ns, k) for c, k in zip(group, brought, strict=True) if k]

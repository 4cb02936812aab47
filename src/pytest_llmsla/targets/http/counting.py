"""How many tokens each event brought: running totals, a final total, ids, a tokenizer, events.

The order of trust: what the server says of its own count (running totals, a final total), then
what it says of single events (token ids, logprobs), then a tokenizer, then the number of events.
``max_tokens`` is never a count. Whatever cannot be placed exactly is labelled with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import NamedTuple

from ...timeline import FIRST_UNSURE, TokenSource
from .placing import (
    MOST_HELD_BACK,
    Arrivals,
    Carrier,
    End,
    Parts,
    Placed,
    Tokenize,
    by_ids,
    by_tokenizer,
    carriers_of,
    one_each,
    place,
    spread,
)

NONE_AT_LAST = "the server counted no token for the last text"
"""It would be left out, and the gap before it, which may be the slow one."""

_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\x00"
"""Characters without width: some servers send them as a sign of life."""
_LIKE_OTHERS = 2
"""Times the longest later gap of an answer: a longer first one may be no gap between tokens."""


class TokenEvent(NamedTuple):
    """One event that carried generated text, or tokens whose text was still held back.

    An event without text needs ``tokens``: a server that sends an event for every token id sends
    one for half a character and for the end token too. It never begins an answer: its tokens
    arrive with the next text, or, behind the last text, at its own stamp.
    """

    t_ns: int
    text: str
    tokens: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Arrivals of an answer, and how sure their tokens are.

    ``arrivals`` keeps the stamps of events, holds no 0, begins with the first text, and sums up to
    ``output_tokens``.
    """

    arrivals: tuple[tuple[int, int], ...]
    output_tokens: int | None
    source: TokenSource
    estimated: str | None
    """Why the tokens could not be placed exactly; None when they were."""


def reconcile(
    events: Sequence[TokenEvent],
    *,
    totals: Sequence[tuple[int, int]],
    final: int | None,
    finish: tuple[int, str | None] | None,
    tokenize: Tokenize | None,
) -> Counted:
    """Place the tokens of one answer on its events.

    Args:
        events: in order of arrival.
        totals: every (stamp, output tokens so far) that was seen, on token events or not.
        final: the last total.
        finish: stamp and reason of the finishing event.
        tokenize: tokens of a text, without special tokens.
    """
    if final is None and totals:
        final = totals[-1][1]
    return plus_one(events, totals, final) or by_evidence(events, totals, final, finish, tokenize)


def plus_one(
    events: Sequence[TokenEvent], totals: Sequence[tuple[int, int]], final: int | None
) -> Counted | None:
    """The common answer at a tenth of the time; None where it is another one.

    Every event has text, their number is the final total, and each says that it brought one token
    (by running totals or by ids) or none says anything. :func:`by_evidence` finds the same.
    """
    n = len(events)
    if final != n or n < 2:
        return None
    stamps, texts, tokens, running = zip(*events, strict=True)
    if not all(texts) or _fall(totals, final) is not None:
        return None
    if running == tuple(range(1, n + 1)):
        source: TokenSource = "usage_continuous"
    elif running[:-1].count(None) == n - 1 and n in (tokens.count(None), tokens.count(1)):
        if not texts[0].strip(_UNSEEN):
            return None
        source = "usage_final"
    else:
        return None
    return Counted(tuple(zip(stamps, repeat(1))), n, source, None)


def by_evidence(
    events: Sequence[TokenEvent],
    totals: Sequence[tuple[int, int]],
    final: int | None,
    finish: tuple[int, str | None] | None,
    tokenize: Tokenize | None,
) -> Counted:
    """Any answer, with the arguments of :func:`reconcile`."""
    carriers, tail = carriers_of((e.t_ns, e.text, e.tokens, e.total) for e in events)
    if not carriers:
        why = "tokens were counted, but no event held text" if final else None
        return Counted((), final, "events" if final is None else "usage_final", why)
    parts = Parts(tuple(tail), None if finish is None else End(*finish), tokenize)
    if final and _fall(totals, final) is None and _one_behind(carriers, final, parts):
        placed = one_each(carriers)
        if parts.end is not None and final > len(placed):
            placed.append((parts.tail[0][0] if parts.tail else parts.end.t_ns, 1))
        return _counted(Placed(placed, None), "usage_final")
    return _doubted(_of_text(carriers, totals, final, parts), carriers, parts.end)


def _of_text(
    carriers: Sequence[Carrier], totals: Sequence[tuple[int, int]], final: int | None, parts: Parts
) -> Counted:
    if not final:
        said = "no tokens" if final is None else "0 tokens"
        return _without_total(carriers, parts, f"the server counted {said}")
    fell = _fall(totals, final)
    if fell is not None:
        return _counted(Placed(spread(carriers, final), fell), "usage_final")
    if not _running(carriers, totals):
        return _counted(place(carriers, final, "", parts), "usage_final")
    if _stopped_counting(carriers, final):
        return _without_total(carriers, parts, f"the server stopped counting at {final}")
    return _counted(_by_running_totals(carriers, totals, final, parts), "usage_continuous")


def _doubted(counted: Counted, carriers: Sequence[Carrier], end: End | None) -> Counted:
    """``counted``, with a word on a first or last text that may be none of the model's."""
    said = counted.estimated or ""
    if carriers[-1].ids == 0 and not said:
        said = NONE_AT_LAST
        counted = replace(counted, estimated=said)
    sure = not said and not (end and end.by_token)
    if not (sure and counted.source == "usage_final") and _unseen(carriers[0]):
        why = f"{said}; " if said else ""
        said = f"{why}the first text holds nothing to be seen: {FIRST_UNSURE}"
        return replace(counted, estimated=said)
    if FIRST_UNSURE in said or not _none_at_first(carriers, sure=sure):
        return counted
    why = said or f"{counted.output_tokens} tokens in {len(carriers)} events of text"
    return replace(counted, estimated=f"{why}; it counted none at the first: {FIRST_UNSURE}")


def _counted(placed: Placed, source: TokenSource) -> Counted:
    return Counted(
        tuple(placed.arrivals), sum(k for _, k in placed.arrivals), source, placed.estimated
    )


def _fall(totals: Sequence[tuple[int, int]], final: int) -> str | None:
    """A total that goes down counts something else than the tokens so far."""
    seen = [0, *(total for _, total in totals), final]
    if seen == sorted(seen):
        return None
    highest, total = next((a, b) for a, b in pairwise(seen) if b < a)
    return f"the server's running total fell from {highest} to {total}"


def _running(carriers: Sequence[Carrier], totals: Sequence[tuple[int, int]]) -> bool:
    """True when totals stand on events of text as they come and grow with them.

    A total of 0 on an event with text lags behind; one that never grows is no running total. In
    both cases only the last one counts.
    """
    known = [c.total for c in carriers if c.total is not None]
    along = any(c.total is not None for c in carriers[:-1])
    if len(carriers) == 1:
        along = bool(known) and len(totals) > 1
    if not along or known[0] == 0:
        return False
    return len(known) == 1 or known[-1] > known[0]


def _unseen(first: Carrier) -> bool:
    """True for a text without any width that the server does not say to hold a token."""
    return not (first.ids or first.total or first.text.strip(_UNSEEN))


def _none_at_first(carriers: Sequence[Carrier], *, sure: bool) -> bool:
    """True when the first text may be none of the model's: an echo of the prompt, a greeting.

    The server says so by ids, or by a total of 0: not one that is 0 all along, nor, where the
    count is ``sure`` and no end token may be in it, one that is one behind at every event.
    """
    if carriers[0].ids == 0:
        return True
    known = [(i, c.total) for i, c in enumerate(carriers) if c.total is not None]
    if carriers[0].total != 0 or not any(total for _, total in known):
        return False
    return not (sure and all(total == i for i, total in known))


def _one_behind(carriers: Sequence[Carrier], final: int, parts: Parts) -> bool:
    """True when each total counts the tokens before its own event: one token an event, surely.

    Ids settle it. Without them a greeting that no total counts, before tokens that are counted with
    their events and a counted end token, shows the very same totals, and the first text would be no
    first token. So the end token must be counted on top, which a greeting leaves no room for; and
    should the server count something else that is not seen, the prompt would be read behind the
    greeting: the first gap must be one like the others of this answer, and a tokenizer, where there
    is one, must find all the tokens.
    """
    n = len(carriers)
    if n < 3 or any(c.total != i or c.ids not in (None, 1) for i, c in enumerate(carriers)):
        return False
    ended = parts.end is not None and parts.end.by_token
    if sum(k for _, k in parts.tail) not in (0, final - n):
        return False
    if carriers[0].ids is not None:  # the server's own word on the first
        return final == n or (ended and final == n + 1)
    if not ended or final != n + 1:
        return False
    first, *others = (b.t_ns - a.t_ns for a, b in pairwise(carriers))
    if first > _LIKE_OTHERS * max(others):
        return False
    return parts.tokenize is None or parts.tokenize("".join(c.text for c in carriers)) == n


def _by_running_totals(
    carriers: Sequence[Carrier], totals: Sequence[tuple[int, int]], final: int, parts: Parts
) -> Placed:
    """Each growth of the total belongs to the events of text since the total before."""
    out, before = Placed([], None), ""
    group: list[Carrier] = []
    base = 0
    grew = True
    for carrier in carriers:
        group.append(carrier)
        if carrier.total is not None:
            grew = carrier.total > base
            out.add(place(group, carrier.total - base, before, Parts((), None, parts.tokenize)))
            before += "".join(c.text for c in group)
            group, base = [], carrier.total
    if group:
        out.add(place(group, final - base, before, parts))
    elif final > base:
        out.add(_behind_the_text(out.arrivals, totals, base, final, parts.end))
    elif not grew:
        out.estimated = out.estimated or NONE_AT_LAST
    return out


def _behind_the_text(
    placed: Arrivals, totals: Sequence[tuple[int, int]], base: int, final: int, end: End | None
) -> Placed:
    """Tokens that were counted after the last text: an end token, half a character.

    They arrived where the total grew, at the finish at the latest; a total that comes later still
    (in a usage event) is no arrival and can only tell of one end token, or of the bytes of a
    character that the answer was cut in: it says that they are behind the text, however long that
    took.
    """
    growth = final - base
    if end is None:
        return Placed(
            [(placed[-1][0], growth)],
            f"{growth} tokens were counted after the last text, and no event finished the answer",
        )
    at, seen = end.t_ns, base
    for t_ns, total in totals:
        if total > seen and t_ns <= end.t_ns:
            at, seen = t_ns, total
    in_time = seen == final and growth <= MOST_HELD_BACK
    late = seen == base and (growth == 1 or (end.cut and growth < MOST_HELD_BACK))
    if in_time or late:
        return Placed([(at, growth)], None)
    return Placed(
        [(at, growth)], f"{growth} tokens were counted after the last text: nothing says when"
    )


def _stopped_counting(carriers: Sequence[Carrier], final: int) -> bool:
    """True when text came after the last total: it would be left out, and its gaps with it."""
    known = [c.total for c in carriers if c.total is not None]
    return carriers[-1].total is None and known[-1] == final


def _without_total(carriers: Sequence[Carrier], parts: Parts, said: str) -> Counted:
    """No usable total: the server's word on each event, the tokenizer's, or one token an event.

    ``said``: what the server said instead. Token ids come from the server, but they are counted
    here, event by event: source ``events``.
    """
    found = by_ids(carriers, None, parts)
    if found is not None:
        return _counted(Placed(found, None), "events")
    found = by_tokenizer(carriers, None, "", parts)
    if found is not None:
        return _counted(Placed(found, None), "tokenizer")
    why = f"{said}: each of {len(carriers)} events of text is taken for one token"
    return _counted(Placed(one_each(carriers), why), "events")

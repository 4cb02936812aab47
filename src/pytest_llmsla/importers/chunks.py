"""From a tool's chunks to token arrivals: which chunk brought which token, and is that known?

Many tools stamp every event that has a choice, also the one that only opens the answer (a role
without content). Such a chunk is no token; only the counts betray it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ..timeline import FIRST_UNSURE, NS_PER_MS, Arrivals

_TOGETHER_NS = NS_PER_MS  # an opening chunk sent with the first token, not before it
_EARLY = 3  # times the longest other gap: what reading a prompt takes, beside decode steps


@dataclass(frozen=True)
class Placed:
    """``arrivals`` (ns, tokens) and why they are an estimate; None: each is where it belongs."""

    arrivals: Arrivals
    estimated: str | None = None


def usual(answers: Iterable[Sequence[int]]) -> int:
    """The longest later gap of an ordinary answer of a run, ns; 0: none has two gaps.

    ``answers``: gaps between the chunks of each answer, ns.
    """
    longest = [max(gaps[1:]) for gaps in answers if len(gaps) > 1]
    return round(median(longest)) if longest else 0


def place(
    start_ns: int,
    ttft_ns: int,
    gaps_ns: Sequence[int],
    tokens: int | None,
    *,
    opens_with_role: bool,
    usual_ns: int = 0,
) -> Placed:
    """One token a chunk, as far as the counts allow that.

    Args:
        start_ns: when the request was sent.
        ttft_ns: from there to the first chunk.
        gaps_ns: between chunks, in order.
        tokens: output tokens as counted; None: nobody counted.
        opens_with_role: True where the first chunk may hold no token (chat routes).
        usual_ns: what :func:`usual` found, for an answer of two chunks: it has no later gap of
            its own to compare its one gap with.
    """
    times = [start_ns + ttft_ns]
    for gap in gaps_ns:
        times.append(times[-1] + gap)
    chunks = len(times)
    if tokens is not None and opens_with_role and gaps_ns and gaps_ns[0] < _TOGETHER_NS:
        if chunks == tokens + 1:  # the role came with the first token: the second chunk is it
            return Placed(Arrivals((at, 1) for at in times[1:]))
        if chunks == tokens:
            why = "the first chunk may be a role sent with the first token"
            return Placed(Arrivals((at, 1) for at in times), why)
    arrivals = Arrivals((at, 1) for at in times)
    if tokens is None or chunks == tokens:
        alone = opens_with_role and len(gaps_ns) > 0
        if alone and gaps_ns[0] > _EARLY * max(gaps_ns[1:], default=usual_ns):
            # Counts may agree by chance: a role without a token, and elsewhere a chunk of two.
            return Placed(
                arrivals,
                f"the second chunk came {gaps_ns[0] / NS_PER_MS:.0f} ms after the first, longer "
                f"than any later gap, as behind a role that is sent early, so {FIRST_UNSURE}",
            )
        return Placed(arrivals)
    if opens_with_role or chunks > tokens:
        return Placed(arrivals[:tokens], f"{chunks} chunks for {tokens} tokens, so {FIRST_UNSURE}")
    return Placed(arrivals, f"{chunks} chunks brought {tokens} tokens")

"""The slowest requests of a bucket as tokens in time, each from its own start."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from ..timeline import Timeline
from .shapes import ms, thinned

_MOST_GAPS = 10


def slowest(timelines: Sequence[Timeline], most: int, ticks: int) -> list[dict[str, Any]]:
    """At most ``most`` requests: those of the longest TTFT, of the longest gap, and a usual one.

    Each has ``why`` (``ttft``, ``gap`` or ``usual``), its figures, ``ticks_ms`` (arrivals since
    the clock of TTFT began, thinned to ``ticks``) and ``gaps`` (its longest, as [from, to] ms).
    """
    timed = [t for t in timelines if t.arrivals]
    if not timed:
        return []
    usual = sorted(timed, key=lambda t: (_total(t), t.id))[(len(timed) - 1) // 2]
    half = max((most - 1) // 2, 1)
    chosen: dict[str, tuple[str, Timeline]] = {}
    for t in sorted(timed, key=lambda t: (-(t.ttft_ns or 0), t.id))[:half]:
        chosen[t.id] = ("ttft", t)
    gapped = sorted((t for t in timed if t.id not in chosen), key=lambda t: (-_gap(t), t.id))
    for t in gapped[: max(most - 1 - len(chosen), 0)]:
        chosen[t.id] = ("gap", t)
    chosen.setdefault(usual.id, ("usual", usual))
    return [_strip(why, t, ticks) for why, t in chosen.values()]


def _total(t: Timeline) -> int:
    return t.arrivals[-1][0] - t.due_ns


def _gap(t: Timeline) -> int:
    return max(t.chunk_gaps_ns(), default=0)


def _strip(why: str, t: Timeline, ticks: int) -> dict[str, Any]:
    begin = t.due_ns
    at = [a for a, _ in t.arrivals]
    gaps = t.chunk_gaps_ns()
    longest = nlargest(_MOST_GAPS, range(len(gaps)), key=lambda i: (gaps[i], -i))
    return {
        "why": why,
        "id": t.id,
        "prompt_tokens": t.prompt_tokens,
        "tokens": t.tokens,
        "ttft_ms": ms(at[0] - begin),
        "total_ms": ms(at[-1] - begin),
        "largest_gap_ms": ms(_gap(t)),
        "ticks_ms": [ms(a - begin) for a in thinned(at, [0, *gaps], ticks)],
        "of": len(at),
        "gaps": [[ms(at[i] - begin), ms(at[i + 1] - begin)] for i in sorted(longest)],
    }

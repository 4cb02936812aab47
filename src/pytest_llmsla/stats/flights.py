"""How many requests were in flight beside a request: the mean over time misses bursts."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""Begin and end of one request, ns."""


def squares(spans: Sequence[Span], lo: int, hi: int) -> int:
    """The integral over ``[lo, hi]`` of the square of how many are in flight, ns."""
    edges: list[tuple[int, int]] = []
    for begin, end in spans:
        if min(end, hi) > max(begin, lo):
            edges += [(max(begin, lo), 1), (min(end, hi), -1)]
    total = now = last = 0
    for at, step in sorted(edges):
        total += now * now * (at - last)
        now, last = now + step, at
    return total


def others_met(spans: Sequence[Span], lo: int, hi: int) -> float:
    """Others in flight at a moment of a request's flight within ``[lo, hi]``, on average.

    With N in flight it is the integral of N² over that of N, less one: the mean of N for arrivals
    that know nothing of each other (Poisson), n − 1 where n come and go at once, however long the
    pause after them. 0 without a request.
    """
    area = sum(max(0, min(end, hi) - max(begin, lo)) for begin, end in spans)
    return squares(spans, lo, hi) / area - 1 if area else 0.0

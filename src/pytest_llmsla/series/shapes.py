"""Numbers into shapes of bounded size: histograms, quantiles along an axis, thinned points."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from ..timeline import NS_PER_MS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_LOG_WHEN = 6.0
"""A largest value this many times the median is drawn on a logarithmic scale."""
_DECADES = 1e4
"""A logarithmic scale reaches down to the largest value over this; smaller ones are in its first
bin."""


def ms(ns: float) -> float:
    """Nanoseconds in milliseconds, rounded to microseconds."""
    return round(ns / NS_PER_MS, 3)


def histogram(values: Sequence[float] | Floats, bins: int) -> dict[str, Any] | None:
    """Counts of ``values`` in at most ``bins`` bins; None for no values.

    Returns:
        ``scale`` (``linear`` or ``log``), ``edges`` (one more than counts), ``counts``.
    """
    import numpy as np

    array = np.asarray(values, dtype=float)
    if array.size == 0:
        return None
    low, high = float(array.min()), float(array.max())
    scale = "linear"
    if high <= low:
        edges = np.array([low * 0.98, low * 1.02] if low > 0 else [low, low + 1])
    elif high > _LOG_WHEN * float(np.median(array)) and high > 0:
        scale = "log"
        positive = float(array[array > 0].min())
        low = max(positive, high / _DECADES)
        edges = np.geomspace(low, high, bins + 1) if high > low else np.array([high * 0.98, high])
    else:
        edges = np.linspace(low, high, bins + 1)
    counts, _ = np.histogram(np.clip(array, edges[0], edges[-1]), bins=edges)
    return {
        "scale": scale,
        "edges": [float(f"{e:.6g}") for e in edges],
        "counts": [int(c) for c in counts],
    }


def by_position(
    firsts: Sequence[int], gaps: Sequence[Sequence[float]], most: int
) -> dict[str, list[Any]] | None:
    """Median and P95 (nearest rank) of ``gaps`` along the position of the token they precede.

    Args:
        firsts: per request the position of the token after its first gap, counted from 1.
        gaps: per request its inter-token latencies, ms.
        most: number of bins at most; positions share a bin where there are more.

    Returns:
        Columns ``from``, ``to`` (positions, both included), ``n``, ``median``, ``p95``.
    """
    import numpy as np

    pairs = [(f, g) for f, g in zip(firsts, gaps, strict=True) if len(g)]
    if not pairs:
        return None
    at = np.concatenate([np.arange(f, f + len(g)) for f, g in pairs])
    values = np.concatenate([np.asarray(g, dtype=float) for _, g in pairs])
    begin, end = int(at.min()), int(at.max())
    width = -(-(end - begin + 1) // most)
    which = (at - begin) // width
    order = np.lexsort((values, which))
    which, values = which[order], values[order]
    bins, starts = np.unique(which, return_index=True)
    stops = np.append(starts[1:], values.size)
    out: dict[str, list[Any]] = {"from": [], "to": [], "n": [], "median": [], "p95": []}
    for index, start, stop in zip(bins, starts, stops, strict=True):
        n = int(stop - start)
        first = begin + int(index) * width
        out["from"].append(first)
        out["to"].append(min(first + width - 1, end))
        out["n"].append(n)
        for name, percent in (("median", 50), ("p95", 95)):
            out[name].append(round(float(values[start + _rank(n, percent)]), 3))
    return out


def _rank(n: int, percent: int) -> int:
    """Index of the nearest rank: the smallest sample with at least that share at or below it."""
    return max(-(-n * percent // 100), 1) - 1


def thinned(items: Sequence[Any], weight: Sequence[float], most: int) -> list[Any]:
    """At most ``most`` of ``items`` in their order: a fifth by the largest weight, the rest evenly.

    The same input gives the same output.
    """
    if len(items) <= most:
        return list(items)
    kept = set(nlargest(max(most // 5, 1), range(len(items)), key=lambda i: (weight[i], -i)))
    rest = [i for i in range(len(items)) if i not in kept]
    wanted = most - len(kept)
    kept.update(rest[k * len(rest) // wanted] for k in range(wanted))
    return [items[i] for i in sorted(kept)]

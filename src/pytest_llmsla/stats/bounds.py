"""For which other limits would the same requests have passed or failed? That is the bound.

One test per observed value, all at once: the wealth at a limit v is monotone in v, so the
bounds are found by bisection, and they hold however often one looks, as the verdict does.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from .pool import in_order
from .unit import Unit
from .wealth import FAIL_BETS, PASS_BETS, log_e_of_series, scaled

HEADROOM = 4.0
"""A service this many times under its limit passes without the guard."""


def observed_of(units: Sequence[Unit]) -> Sequence[float]:
    """Every sample of the units, ascending; ``inf`` for a failed request. Eight bytes each."""
    answers = (answer for unit in units for answer in unit.answers)
    return in_order((math.inf,) if answer is None else answer for answer in answers)


def upper_bound(
    units: Sequence[Unit], values: Sequence[float], p0: float, h: float, need: float
) -> float | None:
    """Smallest observed v for which the units would PASS a limit of v; None: no such value.

    ``values``: :func:`observed_of` the units. ``need`` is ln(1/α). min(bound with h, 4 × bound
    without h), as the decision itself.
    """
    finite = bisect_left(values, math.inf)

    def log_e(v: float) -> float:
        return log_e_of_series([u.share_over(v, p0) for u in units], p0, PASS_BETS)

    def first(holds: Callable[[float], bool]) -> float | None:
        i = _first_index(values, finite, holds)
        return values[i] if i < finite else None

    with_guard = first(lambda v: scaled(log_e(v), h) >= need)
    if h >= 1:
        return with_guard
    without = first(lambda v: log_e(v) >= need)
    if without is None:
        return with_guard
    return HEADROOM * without if with_guard is None else min(with_guard, HEADROOM * without)


def lower_bound(
    units: Sequence[Unit], values: Sequence[float], p0: float, h: float, need: float
) -> float | None:
    """Largest v such that the units would FAIL every limit below v; None: no such value.

    ``inf`` when failed requests and broken samples suffice by themselves.
    """

    def too_high(v: float) -> bool:
        shares = [u.share_from(v, p0) for u in units]
        return scaled(log_e_of_series(shares, p0, FAIL_BETS), h) < need

    above = _first_index(values, len(values), too_high)
    return values[above - 1] if above else None


def _first_index(values: Sequence[float], count: int, holds: Callable[[float], bool]) -> int:
    """Index of the first of ``count`` values for which the monotone ``holds`` is true; else it."""
    lo, hi = 0, count
    while lo < hi:
        mid = (lo + hi) // 2
        if holds(values[mid]):
            hi = mid
        else:
            lo = mid + 1
    return lo

"""For which other limits would the same requests have passed or failed? That is the bound.

One test per observed value, all at once: the wealth at a limit v is monotone in v, so the
bounds are found by bisection, and they hold however often one looks, as the verdict does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .unit import Unit
from .wealth import FAIL_BETS, PASS_BETS, log_e_of_series, scaled

HEADROOM = 4.0
"""A service this many times under its limit passes without the guard."""


def upper_bound(units: Sequence[Unit], p0: float, h: float, need: float) -> float | None:
    """Smallest observed v for which the units would PASS a limit of v; None: no such value.

    ``need`` is ln(1/α). min(bound with h, 4 × bound without h), as the decision itself.
    """
    values = [v for v in _observed(units) if math.isfinite(v)]

    def log_e(v: float) -> float:
        return log_e_of_series([u.share_over(v, p0) for u in units], p0, PASS_BETS)

    with_guard = _first(values, lambda v: scaled(log_e(v), h) >= need)
    if h >= 1:
        return with_guard
    without = _first(values, lambda v: log_e(v) >= need)
    if without is None:
        return with_guard
    return HEADROOM * without if with_guard is None else min(with_guard, HEADROOM * without)


def lower_bound(units: Sequence[Unit], p0: float, h: float, need: float) -> float | None:
    """Largest v such that the units would FAIL every limit below v; None: no such value.

    ``inf`` when failed requests and broken samples suffice by themselves.
    """
    values = _observed(units)

    def too_high(v: float) -> bool:
        shares = [u.share_from(v, p0) for u in units]
        return scaled(log_e_of_series(shares, p0, FAIL_BETS), h) < need

    above = _first_index(values, too_high)
    return values[above - 1] if above else None


def _observed(units: Sequence[Unit]) -> list[float]:
    seen: set[float] = set()
    for unit in units:
        for answer in unit.answers:
            seen.update((math.inf,) if answer is None else answer)
    return sorted(seen)


def _first_index(values: Sequence[float], holds: Callable[[float], bool]) -> int:
    """Index of the first value for which the monotone ``holds`` is true; len when none."""
    lo, hi = 0, len(values)
    while lo < hi:
        mid = (lo + hi) // 2
        if holds(values[mid]):
            hi = mid
        else:
            lo = mid + 1
    return lo


def _first(values: Sequence[float], holds: Callable[[float], bool]) -> float | None:
    i = _first_index(values, holds)
    return values[i] if i < len(values) else None

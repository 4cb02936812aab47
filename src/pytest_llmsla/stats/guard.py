"""The guard h: noise that drifts makes requests alike, so it makes each count for less.

Sequential tests hold for requests that do not depend on each other. Where neighbours resemble
each other, n requests hold less evidence than n; h estimates how much less from the first four
autocorrelations of how close each request came to its limit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

_FAR_BELOW = 8.0
_LAGS = 4
_MOST_CORRELATION = 0.95
_MIN_UNITS = 10
_NO_SPREAD = 1e-9


def closeness(values: Sequence[float], limit: float) -> float:
    """How close one request came to its limit: mean of log(x/limit), between −ln 8 and 0.

    Samples up to limit/8 (zeros too) are left out, samples over the limit (∞ too) count as 0.
    All left out: −ln 8. ``values`` are clean samples, ascending, at least one.
    """
    far, kept = bisect_right(values, limit / _FAR_BELOW), bisect_right(values, limit)
    count = len(values) - far
    if not count:
        return -math.log(_FAR_BELOW)
    return math.fsum([math.log(x / limit) for x in values[far:kept]]) / count


def guard_factor(series: Sequence[float]) -> float:
    """h in (0, 1] for one :func:`closeness` per unit, in start order.

    r_k = [Σ(y_t−ȳ)(y_{t+k}−ȳ)/(n−k)] / [Σ(y−ȳ)²/n];
    h = 1 / (1 + 2·Σ_{k=1..4} clip(r_k + 1/n − 1/√n, 0, .95)).
    1 with fewer than ten units or no spread. ``fsum`` throughout: the built-in ``sum`` rounds
    differently from Python 3.12 on, and a verdict must not depend on that.
    """
    n = len(series)
    if n < _MIN_UNITS:
        return 1.0
    mean = math.fsum(series) / n
    dev = [y - mean for y in series]
    variance = math.fsum(a * a for a in dev) / n
    if math.sqrt(variance) < _NO_SPREAD:
        return 1.0
    total = 0.0
    for k in range(1, _LAGS + 1):
        r = math.fsum(a * b for a, b in zip(dev, dev[k:], strict=False)) / (n - k) / variance
        total += min(max(r + 1 / n - 1 / math.sqrt(n), 0.0), _MOST_CORRELATION)
    return 1 / (1 + 2 * total)

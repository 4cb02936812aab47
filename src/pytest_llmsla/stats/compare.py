"""Is run B slower than run A? Two sets of requests, one percentile, three answers.

Numbers only. Whether the two may be compared at all (same machine, model, versions, interleaved
in one session) is the caller's to settle first: no interval sees a difference between sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError
from .intervals import Interval, woodruff
from .spec import check_share


@dataclass(frozen=True)
class Comparison:
    """How much slower the new run is: percentile new / base, finite or None.

    ``lower`` and ``upper`` are one-sided bounds of the ratio, each at ``confidence``.
    """

    verdict: Literal["ok", "regression", "inconclusive"]
    ratio: float | None
    lower: float | None
    upper: float | None
    tolerance: float
    confidence: float
    base: Interval
    new: Interval


def compare(
    base: Sequence[Iterable[float | None]],
    new: Sequence[Iterable[float | None]],
    q: float = 0.95,
    tolerance: float = 0.10,
    confidence: float = 0.95,
) -> Comparison:
    """Compare percentile ``q`` of two runs; each run is a sequence of requests' samples.

    MOVER (Zou & Donner 2008) on the logarithm, from one-sided Woodruff limits l, u around t:

        up = (t1−t0) + √((u1−t1)² + (t0−l0)²),   lo = (t1−t0) − √((t1−l1)² + (u0−t0)²)

    ok when up ≤ log(1+tolerance), regression when lo is above it, else inconclusive, as also
    when a run has no percentile. ``confidence`` in (0.5, 1) is one-sided.
    """
    check_share("confidence", confidence, "0.95 is the default")
    if confidence <= 0.5:
        raise UsageError(f"confidence: got {confidence!r}; valid is above 0.5; 0.95 is the default")
    if isinstance(tolerance, bool) or not (math.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(
            f"tolerance: got {tolerance!r}; valid is a finite number from 0; write 10 % as 0.10"
        )
    two_sided = round(2 * confidence - 1, 12)
    a = woodruff(base, q, two_sided)
    b = woodruff(new, q, two_sided)
    lo, mid, up = _difference(a, b)
    allowed = math.log1p(tolerance)
    verdict: Literal["ok", "regression", "inconclusive"] = "inconclusive"
    if up <= allowed:
        verdict = "ok"
    elif lo > allowed:
        verdict = "regression"
    return Comparison(
        verdict=verdict,
        ratio=_ratio(mid),
        lower=_ratio(lo),
        upper=_ratio(up),
        tolerance=tolerance,
        confidence=confidence,
        base=a,
        new=b,
    )


def _difference(a: Interval, b: Interval) -> tuple[float, float, float]:
    """(lower, estimate, upper) of log b − log a; infinite where nothing is known."""
    if not (a.estimate and b.estimate):
        return -math.inf, math.nan, math.inf
    t0, t1 = math.log(a.estimate), math.log(b.estimate)
    up = t1 - t0 + math.hypot(_log(b.upper, math.inf) - t1, t0 - _log(a.lower, -math.inf))
    lo = t1 - t0 - math.hypot(t1 - _log(b.lower, -math.inf), _log(a.upper, math.inf) - t0)
    return lo, t1 - t0, up


def _log(value: float | None, unknown: float) -> float:
    if value is None:
        return unknown
    return math.log(value) if value > 0 else -math.inf


def _ratio(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if math.isfinite(log_ratio) else None

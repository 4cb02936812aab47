"""Is a run slower than several stored ones? The difference between runs counts as well."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .compare import Comparison, compare
from .samples import nearest_rank

Run = Sequence[Iterable[float | None]]
"""One run: the samples of each of its requests."""


@dataclass(frozen=True)
class BaselineComparison:
    """A new run against stored ones.

    ``between`` is the standard deviation of the stored runs' log percentiles, None with one run.
    """

    verdict: Literal["ok", "regression", "inconclusive"]
    within: Comparison
    """As if all stored requests had been one run: the uncertainty inside runs only."""
    ratio: float | None
    lower: float | None
    upper: float | None
    runs: int
    between: float | None


def compare_with_runs(
    stored: Sequence[Run],
    new: Run,
    q: float = 0.95,
    tolerance: float = 0.10,
    confidence: float = 0.95,
) -> BaselineComparison:
    """Compare percentile ``q`` of a new run with that of ``stored`` ones pooled.

    To the limits of :func:`compare` (MOVER on log quantiles) the effect of a run is added: with
    k runs whose log percentiles have the standard deviation s,

        up = (t1−t0) + √((up₀−(t1−t0))² + r²),   lo alike,   r = t_{k−1}·s·√(1 + 1/k),

    t of Student with k−1 degrees of freedom, one-sided. s holds the noise inside runs as well, so
    the bounds are rather too wide. With one run r is unknown and left out: whoever asks must know
    that order and drift cannot be told from a change then.

    Raises:
        UsageError: as :func:`compare`.
    """
    pooled = [list(request) for run in stored for request in run]
    within = compare(pooled, new, q, tolerance, confidence)
    between = _between(stored, q)
    if between is None and len(stored) > 1:
        return BaselineComparison(
            "inconclusive", within, within.ratio, None, None, len(stored), None
        )
    lower, upper = _widened(within, between, len(stored), confidence)
    allowed = math.log1p(tolerance)
    verdict: Literal["ok", "regression", "inconclusive"] = "inconclusive"
    if upper is not None and upper <= allowed:
        verdict = "ok"
    elif lower is not None and lower > allowed:
        verdict = "regression"
    return BaselineComparison(
        verdict, within, within.ratio, _exp(lower), _exp(upper), len(stored), between
    )


def _between(stored: Sequence[Run], q: float) -> float | None:
    """Standard deviation of the runs' log percentiles; None with one, or where one has none."""
    found = [nearest_rank([v for request in run for v in request], q) for run in stored]
    if len(found) < 2 or any(v is None or not 0 < v < math.inf for v in found):
        return None
    logs = [math.log(v) for v in found if v is not None]
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1))


def _widened(
    within: Comparison, between: float | None, runs: int, confidence: float
) -> tuple[float | None, float | None]:
    """Log bounds with the effect of a run; None where there is no bound."""
    if within.ratio is None:
        return None, None
    middle = math.log(within.ratio)
    extra = 0.0
    if between is not None:
        from scipy.special import stdtrit  # here: loading scipy takes long

        extra = float(stdtrit(runs - 1, confidence)) * between * math.sqrt(1 + 1 / runs)
    lower = upper = None
    if within.lower is not None:
        lower = middle - math.hypot(middle - math.log(within.lower), extra)
    if within.upper is not None:
        upper = middle + math.hypot(math.log(within.upper) - middle, extra)
    return lower, upper


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)

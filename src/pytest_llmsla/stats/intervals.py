"""Percentiles with an interval for reading: fixed-n, requests as clusters.

Such an interval holds for a number of requests fixed beforehand. It does not survive stopping
when the result looks good; only ``SequentialGate.bounds()`` does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .samples import allowed_share, finite, rank_of_sorted, sorted_samples
from .spec import check_quantile, check_share


@dataclass(frozen=True)
class Interval:
    """A percentile and its two-sided interval, in the unit of the samples; finite or None.

    ``estimate`` is None without samples, or where the rank falls on a failed request;
    ``lower``/``upper`` are None where the data set no bound on that side.
    """

    quantile: float
    estimate: float | None
    lower: float | None
    upper: float | None
    confidence: float
    requests: int
    samples: int
    method: Literal["fixed-n"] = "fixed-n"


def woodruff(
    requests: Sequence[Iterable[float | None]], q: float, confidence: float = 0.95
) -> Interval:
    """Nearest-rank percentile ``q`` with Woodruff's interval, requests as clusters.

    ``requests``: samples of each; a failed one as its samples of ∞. Samples of one request may
    depend on each other in any way; requests may not. With Q the pooled nearest rank and
    S_i samples of request i over Q(q):

        D_i = S_i − (1−q)·n_i,   se = √(n/(n−1)·ΣD_i²) / Σn_i,
        [Q(q − t·se), Q(q + t·se)],   t of Student with n−1 degrees of freedom.

    Woodruff 1952 with the linearised variance of a ratio. No bound where a level leaves (0, 1],
    and none at all from fewer than two requests.
    """
    check_quantile(q)
    check_share("confidence", confidence, "0.95 is the default")
    clusters = [c for c in (sorted_samples(r) for r in requests) if c]
    pooled = sorted(v for c in clusters for v in c)
    estimate = rank_of_sorted(pooled, q)
    lower = upper = None
    if estimate is not None and len(clusters) > 1:
        half = _t(len(clusters) - 1, confidence) * _standard_error(clusters, estimate, q)
        lower = rank_of_sorted(pooled, q - half) if q - half > 0 else None
        upper = rank_of_sorted(pooled, q + half) if q + half <= 1 else None
    return Interval(
        quantile=q,
        estimate=finite(estimate),
        lower=finite(lower),
        upper=finite(upper),
        confidence=confidence,
        requests=len(clusters),
        samples=len(pooled),
    )


def _standard_error(clusters: Sequence[Sequence[float]], at: float, q: float) -> float:
    """Standard error of the share of samples over ``at``; clusters are sorted."""
    n = len(clusters)
    p0 = allowed_share(q)
    squares = [((len(c) - bisect_right(c, at)) - p0 * len(c)) ** 2 for c in clusters]
    return math.sqrt(n / (n - 1) * math.fsum(squares)) / sum(len(c) for c in clusters)


def _t(df: int, confidence: float) -> float:
    from scipy.special import stdtrit  # here: loading scipy takes longer than a small gate

    return float(stdtrit(df, (1 + confidence) / 2))

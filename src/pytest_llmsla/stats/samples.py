"""Samples as the statistics see them, and the percentile every report prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import cast

from ..errors import InternalError, UsageError

# Wide enough for any percentile that people write, narrow enough to turn 0.95 into 19/20.
_DENOMINATOR = 10**9


@lru_cache(maxsize=256)
def exact_level(level: float) -> Fraction:
    """The fraction that was meant: 0.95 is 19/20, so that rank 19 of 20 is not lost to rounding."""
    return Fraction(level).limit_denominator(_DENOMINATOR)


def allowed_share(quantile: float) -> float:
    """p0 = 1 − quantile, without the rounding error of the subtraction: 0.05 for 0.95."""
    return float(1 - exact_level(quantile))


def clean_sample(value: float | None) -> float:
    """The sample as a float ≥ 0; ``inf`` for what cannot be a latency (None, NaN, ∞, negative).

    Broken samples exceed every limit: they may cost a PASS and can never give one.
    Raises :class:`InternalError` for anything that is not a number.
    """
    if value is None:
        return math.inf
    if isinstance(value, (str, bytes, bool)):
        raise InternalError(
            f"sample: got {value!r}; valid is a number or None; pass latencies as numbers"
        )
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise InternalError(
            f"sample: got {value!r}; valid is a number or None; pass latencies as numbers"
        ) from None
    return number if number >= 0 else math.inf


def finite(value: float | None) -> float | None:
    """``value``, or None where it is infinite, NaN or missing: reports hold finite numbers only."""
    return value if value is not None and math.isfinite(value) else None


def sorted_samples(values: Iterable[float | None]) -> list[float]:
    """All samples, cleaned, ascending; broken ones are ``inf`` at the end."""
    given = list(values)
    # One by one only where one may be broken: a sum is NaN where a sample is.
    if set(map(type, given)) == {float}:
        numbers = cast("list[float]", given)
        if sum(numbers) >= 0 <= min(numbers):
            return sorted(numbers)
    return sorted(map(clean_sample, given))


def rank_of_sorted(ordered: Sequence[float], level: float) -> float | None:
    """Nearest rank of an ascending sequence; None when it is empty.

    ``level`` in (0, 1]. The smallest sample v with at least ``level·n`` samples ≤ v.
    """
    if not ordered:
        return None
    return ordered[max(math.ceil(exact_level(level) * len(ordered)), 1) - 1]


def nearest_rank(values: Iterable[float | None], q: float) -> float | None:
    """Nearest-rank percentile: the smallest sample v with at least ``q·n`` samples ≤ v.

    ``q`` in (0, 1]; the unit of the result is that of the samples. None when there is no
    sample; ``inf`` when the rank falls on a broken sample (None, NaN, ∞, negative).
    """
    if not 0 < q <= 1:
        raise UsageError(f"quantile: got {q!r}; valid is above 0 and at most 1; write P95 as 0.95")
    return rank_of_sorted(sorted_samples(values), q)

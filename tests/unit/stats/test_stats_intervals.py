"""Nearest rank and the fixed-n interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from pytest_llmsla.errors import UsageError
from pytest_llmsla.stats import nearest_rank, woodruff

derandomized = settings(deadline=None, derandomize=True)


@derandomized
@given(
    st.lists(st.one_of(st.floats(0, 1e6), st.just(math.inf)), min_size=1, max_size=200),
    st.integers(1, 1000),
)
def test_nearest_rank_is_its_definition(values: list[float], per_mille: int) -> None:
    """The smallest sample with at least q·n samples at or below it, counted in whole numbers."""
    q = per_mille / 1000
    expected = min(
        v for v in values if sum(x <= v for x in values) * 1000 >= per_mille * len(values)
    )
    assert nearest_rank(values, q) == expected


@pytest.mark.parametrize("n", [20, 40, 60, 100, 140, 280, 340, 560, 1000])
def test_rank_is_not_lost_to_rounding(n: int) -> None:
    """P95 of 20·k samples is sample 19·k; in floats 0.95·n may come out just above."""
    assert nearest_rank(range(1, n + 1), 0.95) == n * 19 // 20


def test_no_sample_no_number() -> None:
    """Nothing measured has no percentile, and never 0."""
    assert nearest_rank([], 0.95) is None


def test_broken_samples_rank_last() -> None:
    """NaN, None and negative values sit above every real one."""
    assert nearest_rank([math.nan, 1.0, None, 2.0], 0.5) == 2.0
    assert nearest_rank([-1.0, 1.0], 1) == math.inf


@pytest.mark.parametrize("q", [0, -1, 1.01, 95, math.nan])
def test_wrong_percentile_is_a_usage_error(q: float) -> None:
    """95 is not 0.95."""
    with pytest.raises(UsageError, match=r"write P95 as 0\.95"):
        nearest_rank([1.0], q)


def test_interval_follows_the_formula() -> None:
    """Worked by numpy from the published formula, unequal requests."""
    rng = np.random.default_rng(5)
    rows = [
        list(rng.lognormal(3 + 0.2 * rng.normal(), 0.3, rng.integers(5, 40))) for _ in range(80)
    ]
    for q in (0.5, 0.95, 0.99):
        got = woodruff(rows, q)
        pooled = np.sort(np.concatenate(rows))
        n, total = len(rows), len(pooled)
        at = pooled[math.ceil(round(q * total, 9)) - 1]
        d = np.array([np.sum(np.array(r) > at) - (1 - q) * len(r) for r in rows])
        half = scipy_stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1) * np.sum(d**2)) / total
        assert got.estimate == at
        assert got.lower == pooled[math.ceil((q - half) * total) - 1]
        if q + half <= 1:
            assert got.upper == pooled[math.ceil((q + half) * total) - 1]
        else:
            assert got.upper is None
        assert (got.requests, got.samples, got.method) == (n, total, "fixed-n")


def test_requests_are_the_clusters() -> None:
    """Copying each sample inside its request adds samples and not an ounce of certainty."""
    rng = np.random.default_rng(6)
    singles = [[float(v)] for v in rng.lognormal(3, 0.3, 200)]
    once, often = woodruff(singles, 0.95), woodruff([r * 30 for r in singles], 0.95)
    assert (often.estimate, often.lower, often.upper) == (once.estimate, once.lower, once.upper)


@pytest.mark.parametrize("rows", [[], [[]], [[1.0, 2.0, 3.0]], [[], [1.0]]])
def test_fewer_than_two_requests_set_no_bound(rows: list[list[float]]) -> None:
    """One request says nothing about the next one."""
    got = woodruff(rows, 0.5)
    assert (got.lower, got.upper) == (None, None)


def test_unreachable_levels_have_no_bound() -> None:
    """P99 of five requests has no upper bound; failures are never printed as a number."""
    assert woodruff([[1.0], [2.0], [3.0], [4.0], [5.0]], 0.99).upper is None
    failed = woodruff([[1.0]] * 5 + [[math.inf]] * 5, 0.95)
    assert (failed.estimate, failed.upper) == (None, None)


def test_coverage() -> None:
    """With dependent tokens the 95 % interval of P95 holds the truth about 95 times in 100."""
    rng = np.random.default_rng(7)
    truth = math.exp(scipy_stats.norm.ppf(0.95) * math.hypot(0.2, 0.3))
    hits = runs = 0
    for _ in range(200):
        shift = rng.normal(0, 0.2, (120, 1))
        rows = np.exp(shift + rng.normal(0, 0.3, (120, 20))).tolist()
        got = woodruff(rows, 0.95)
        runs += 1
        hits += (got.lower or 0) <= truth <= (got.upper or math.inf)
    assert scipy_stats.binomtest(hits, runs, 0.95).pvalue > 1e-3

"""Two runs, one percentile, three answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.stats import compare, woodruff


def run(seed: int, scale: float = 1.0, requests: int = 150) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    shift = rng.normal(0, 0.05, (requests, 1))
    return (scale * 20 * np.exp(shift + rng.normal(0, 0.1, (requests, 30)))).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("scale", "verdict"), [(1.0, "ok"), (0.7, "ok"), (1.10, "inconclusive"), (1.3, "regression")]
)
def test_verdicts(scale: float, verdict: str) -> None:
    """Alike or faster: ok. 30 % slower: regression. At the tolerance: it cannot be told."""
    assert compare(run(1), run(2, scale)).verdict == verdict


def test_follows_the_formula() -> None:
    """MOVER on logarithms of one-sided Woodruff limits."""
    got = compare(run(1), run(2, 1.05), confidence=0.95)
    base, new = woodruff(run(1), 0.95, 0.9), woodruff(run(2, 1.05), 0.95, 0.9)
    t0, l0, u0 = (math.log(v) for v in (base.estimate, base.lower, base.upper))  # type: ignore[arg-type]
    t1, l1, u1 = (math.log(v) for v in (new.estimate, new.lower, new.upper))  # type: ignore[arg-type]
    assert got.upper == pytest.approx(math.exp(t1 - t0 + math.hypot(u1 - t1, t0 - l0)), rel=1e-12)
    assert got.lower == pytest.approx(math.exp(t1 - t0 - math.hypot(t1 - l1, u0 - t0)), rel=1e-12)
    assert got.ratio == pytest.approx(math.exp(t1 - t0), rel=1e-12)


def test_swapped_runs_swap_the_bounds() -> None:
    """A against B is the reciprocal of B against A."""
    there, back = compare(run(1), run(2, 1.2)), compare(run(2, 1.2), run(1))
    assert there.upper == pytest.approx(1 / back.lower, rel=1e-12)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("base", "new"),
    [
        ([], run(1)),
        (run(1), []),
        ([], []),
        (run(1), [[]] * 50),
        (run(1)[:1], run(2)[:1]),
        (run(1), [[math.inf]] * 50),
        (run(1), [[0.0]] * 50),
        ([[0.0]] * 50, run(1)),
    ],
    ids=["no base", "no new", "nothing", "empty", "one each", "failed", "zeros", "zero base"],
)
def test_nothing_to_compare_is_inconclusive(
    base: list[list[float]], new: list[list[float]]
) -> None:
    """A run without a percentile is never ok and never a regression, and prints no number."""
    got = compare(base, new)
    assert got.verdict == "inconclusive"
    assert (got.lower, got.upper) == (None, None)


def test_regressions_are_rarely_called_where_there_is_none() -> None:
    """Equal runs under tolerance 0: at most about one in twenty is called a regression."""
    called = sum(
        compare(run(s, requests=60), run(1000 + s, requests=60), tolerance=0).verdict
        == "regression"
        for s in range(60)
    )
    assert called <= 9  # binomial(60, .05): more has a probability below 0.001


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf, True])
def test_wrong_tolerance_is_a_usage_error(tolerance: float) -> None:
    """The tolerance is a share from 0."""
    with pytest.raises(UsageError, match=r"tolerance: got .* write 10 % as 0\.10"):
        compare(run(1), run(2), tolerance=tolerance)


@pytest.mark.parametrize("confidence", [0.5, 0.3, 1.0, 95])
def test_wrong_confidence_is_a_usage_error(confidence: float) -> None:
    """One-sided limits at or below one half are none."""
    with pytest.raises(UsageError, match="confidence: got"):
        compare(run(1), run(2), confidence=confidence)

"""A new run against stored ones: the difference between runs is part of the uncertainty."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from scipy.stats import t as student

from pytest_llmsla.errors import UsageError
from pytest_llmsla.stats import compare, compare_with_runs, nearest_rank

Requests = list[list[float]]


def run(seed: int, *, factor: float = 1.0, n: int = 200, spread: float = 0.05) -> Requests:
    """``n`` requests of one sample each around 100 · ``factor``."""
    rng = random.Random(seed)
    return [[100 * factor * math.exp(rng.gauss(0, spread))] for _ in range(n)]


def test_equal_runs_are_ok_and_slower_ones_are_not() -> None:
    """Three steady runs tell 1 % from 25 %."""
    stored = [run(i) for i in range(3)]
    assert compare_with_runs(stored, run(9), tolerance=0.10).verdict == "ok"
    assert compare_with_runs(stored, run(9, factor=1.4), tolerance=0.10).verdict == "regression"
    assert compare_with_runs(stored, run(9, factor=1.1), tolerance=0.10).verdict == "inconclusive"


def test_the_formula() -> None:
    """Bounds are MOVER's, widened by Student's t · s · √(1+1/k), in quadrature."""
    stored = [run(i, factor=f) for i, f in enumerate((1.0, 1.02, 0.99, 1.01))]
    new = run(8)
    within = compare([r for each in stored for r in each], new)
    logs = [math.log(nearest_rank([v for r in each for v in r], 0.95) or 0) for each in stored]
    extra = student.ppf(0.95, 3) * stdev(logs) * math.sqrt(1 + 1 / 4)
    found = compare_with_runs(stored, new)
    assert within.ratio is not None
    assert within.upper is not None
    assert within.lower is not None
    middle = math.log(within.ratio)
    assert found.upper == pytest.approx(
        math.exp(middle + math.hypot(math.log(within.upper) - middle, extra))
    )
    assert found.lower == pytest.approx(
        math.exp(middle - math.hypot(middle - math.log(within.lower), extra))
    )
    assert (found.runs, found.between) == (4, pytest.approx(stdev(logs)))
    assert found.ratio == within.ratio


def test_runs_that_scatter_decide_less() -> None:
    """The same requests in runs that differ by 20 % from one to the next tell nothing of 10 %."""
    steady = compare_with_runs([run(i) for i in range(3)], run(9))
    rough = [run(i, factor=f) for i, f in enumerate((0.85, 1.0, 1.15))]
    scattered = compare_with_runs(rough, run(9))
    assert steady.verdict == "ok"
    assert scattered.verdict == "inconclusive"
    assert (scattered.upper or 0) > (steady.upper or 0)


def test_equal_code_seldom_fails_though_runs_differ() -> None:
    """With a run-to-run effect of 5 %, fewer than 5 % of equal runs are called slower."""
    rng = random.Random(1)
    called = []
    for trial in range(200):
        stored = [run(trial * 10 + i, factor=math.exp(rng.gauss(0, 0.05)), n=60) for i in range(3)]
        new = run(trial * 10 + 9, factor=math.exp(rng.gauss(0, 0.05)), n=60)
        called.append(compare_with_runs(stored, new, tolerance=0).verdict == "regression")
    assert fmean(called) <= 0.05


@pytest.mark.parametrize("bad", [[[math.inf]] * 200, [[0.0]] * 200])
def test_a_stored_run_without_a_percentile_decides_nothing(bad: Requests) -> None:
    """A run that failed, or whose times are 0, has no percentile to scatter by."""
    found = compare_with_runs([run(1), bad], run(2))
    assert (found.verdict, found.between, found.upper) == ("inconclusive", None, None)


def test_failed_requests_are_slower_than_anything() -> None:
    """A tenth of failures leaves the new run without a P95: never ok."""
    failing = [*run(9, n=180), *[[math.inf]] * 20]
    assert compare_with_runs([run(i) for i in range(3)], failing).verdict == "inconclusive"


def test_nothing_to_compare() -> None:
    """Without samples on either side there is no verdict but inconclusive."""
    assert compare_with_runs([run(1)], []).verdict == "inconclusive"
    assert compare_with_runs([], run(1)).verdict == "inconclusive"


def test_arguments_are_checked() -> None:
    """As in the comparison of two runs."""
    with pytest.raises(UsageError, match="tolerance"):
        compare_with_runs([run(1)], run(2), tolerance=-1)

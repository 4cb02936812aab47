"""How often the gate is wrong: exactly where that can be worked out, else simulated by seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from pytest_llmsla.errors import UsageError
from pytest_llmsla.stats import (
    GateSpec,
    SequentialGate,
    clean_units_to_pass,
    least_over_to_fail,
    operating_characteristic,
)

LIMIT = 100.0


def ends(
    share: float, runs: int, seed: int, units: int = 300, tokens: int = 1, **spec: bool
) -> dict[str | None, int]:
    """First decisions of ``runs`` gates whose requests are slow with probability ``share``."""
    rng = np.random.default_rng(seed)
    counts: dict[str | None, int] = {"pass": 0, "fail": 0, None: 0}
    for _ in range(runs):
        gate = SequentialGate(GateSpec(limit=LIMIT, max_samples=tokens, **spec))  # type: ignore[arg-type]
        slow = rng.random(units) < share
        times = np.where(slow, 160.0, 60.0) * rng.uniform(0.8, 1.2, units)
        for ms in times:
            gate.add([float(ms)] * tokens)
            if gate.decision:
                break
        counts[gate.decision] += 1
    return counts


def at_most(count: int, runs: int, probability: float) -> bool:
    """Whether so high a count is still believable (1 in 10,000) at that probability."""
    return bool(binom.sf(count - 1, runs, probability) > 1e-4)


def test_violators_pass_at_most_alpha() -> None:
    """Just over 5 % of requests over the limit: at most α_pass of gates ever pass."""
    got = ends(0.052, runs=700, seed=11)
    assert at_most(got["pass"], 700, 0.05)
    assert got["pass"] > 0  # else the simulation tests nothing


def test_violators_pass_at_most_alpha_with_dependent_tokens() -> None:
    """All tokens of a request slow together: still at most α_pass."""
    got = ends(0.052, runs=300, seed=12, tokens=20)
    assert at_most(got["pass"], 300, 0.05)


def test_keepers_fail_at_most_alpha() -> None:
    """Exactly 5 % over the limit is allowed: at most α_fail of gates ever fail."""
    got = ends(0.05, runs=700, seed=13)
    assert at_most(got["fail"], 700, 0.01)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_exact_error_rates(quantile: float) -> None:
    """Worked out over all paths, both error rates keep their bounds at the border itself."""
    point = operating_characteristic(1 - quantile, quantile, max_units=400)
    assert 0 < point.passes <= 0.05
    assert 0 < point.fails <= 0.01
    assert point.passes + point.fails + point.undecided == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("share", "passes", "fails"),
    [
        (0.01, 0.9596, 0.0),
        (0.02, 0.6393, 0.0),
        (0.03, 0.2871, 0.0002),
        (0.10, 0.0007, 0.6115),
        (0.15, 0.0, 0.9972),
    ],
)
def test_operating_characteristic(share: float, passes: float, fails: float) -> None:
    """The table printed in the docs, at 300 requests."""
    point = operating_characteristic(share)
    assert point.passes == pytest.approx(passes, abs=6e-5)
    assert point.fails == pytest.approx(fails, abs=6e-5)


@pytest.mark.parametrize("share", [0.02, 0.10])
def test_the_gate_ends_as_worked_out(share: float) -> None:
    """Simulated gates agree with the exact sums within four standard errors."""
    runs, point = 500, operating_characteristic(share)
    got = ends(share, runs, seed=14, guard=False)
    for name, p in (("pass", point.passes), ("fail", point.fails)):
        assert abs(got[name] / runs - p) <= 4 * math.sqrt(p * (1 - p) / runs) + 1 / runs


def test_never_over_and_always_over() -> None:
    """The two ends: a clean service passes at 69, a broken one fails at 5, with certainty."""
    clean, broken = operating_characteristic(0.0), operating_characteristic(1.0)
    assert (clean.passes, clean.mean_units) == (pytest.approx(1), pytest.approx(69))
    assert (broken.fails, broken.mean_units) == (pytest.approx(1), pytest.approx(5))


@pytest.mark.parametrize("q", [0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999])
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01])
def test_default_budgets_reach_pass(q: float, alpha: float) -> None:
    """⌈15/(1−q)⌉ requests suffice for a clean PASS under every preset."""
    assert clean_units_to_pass(q, alpha) <= math.ceil(round(15 / (1 - q), 6))


def test_least_over_to_fail_is_least() -> None:
    """None before min_fail units; by then one request fewer would not fail."""
    assert least_over_to_fail(4, 0.95, 0.01) is None
    gate = SequentialGate(GateSpec(limit=LIMIT, guard=False))
    least = least_over_to_fail(30, 0.95, 0.01)
    assert least is not None
    for i in range(30):
        gate.add([60.0 if i < 30 - least + 1 else 160.0])
    assert gate.decision is None


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_wrong_share_is_a_usage_error(share: float) -> None:
    """A share is between 0 and 1."""
    with pytest.raises(UsageError, match="share: got"):
        operating_characteristic(share)

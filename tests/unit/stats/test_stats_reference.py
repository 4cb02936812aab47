"""Reference values worked out apart from this code, to 1e-9 or exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from pytest_llmsla.stats import (
    GateSpec,
    SequentialGate,
    clean_units_to_pass,
    least_over_to_fail,
)

EXACT = 1e-9
NEVER = 1e-30


def ttft_gate(
    series: Iterable[float | None], *, until_decided: bool, limit: float = 100.0, **spec: float
) -> SequentialGate:
    """A gate of one sample a request, fed with ``series``; None: the request failed."""
    gate = SequentialGate(GateSpec(limit=limit, **spec))  # type: ignore[arg-type]
    for value in series:
        gate.add([] if value is None else [value], failed=value is None)
        if until_decided and gate.decision:
            break
    return gate


def counted(n: int, over: int) -> SequentialGate:
    """``over`` of ``n`` requests over the limit, no decision on the way."""
    series = [200.0] * over + [50.0] * (n - over)
    return ttft_gate(series, until_decided=False, guard=False, alpha_pass=NEVER, alpha_fail=NEVER)


@pytest.mark.parametrize(
    ("n", "over", "expected"),
    [
        (1, 0, 0.040916632242),
        (59, 0, 2.561359962400),
        (68, 0, 2.974840103667),
        (69, 0, 3.021088689082),
        (100, 1, 1.762621239451),
        (135, 1, 3.018697223684),
        (170, 2, 3.010061274760),
        (300, 5, 3.906328274094),
    ],
)
def test_log_e_pass(n: int, over: int, expected: float) -> None:
    """Evidence for PASS after n requests with some over the limit."""
    assert counted(n, over).log_e_pass == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    ("n", "over", "expected"),
    [
        (1, 1, 2.155414824228),
        (2, 2, 4.826949313550),
        (5, 3, 4.275430949219),
        (10, 4, 4.370643327984),
        (50, 9, 4.271805189328),
        (100, 5, -2.795997875735),
    ],
)
def test_log_e_fail(n: int, over: int, expected: float) -> None:
    """Evidence for FAIL after n requests with some over the limit."""
    assert counted(n, over).log_e_fail == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(("over", "n"), [(0, 69), (1, 135), (2, 170), (3, 205), (4, 240)])
def test_first_pass(over: int, n: int) -> None:
    """The request at which a P95 passes with 0 to 4 over the limit."""
    series = itertools.chain([200.0] * over, itertools.repeat(50.0))
    gate = ttft_gate(series, until_decided=True, guard=False, min_fail=1000)
    assert (gate.decision, gate.decided_at) == ("pass", n)


@pytest.mark.parametrize(
    ("quantile", "alpha", "n"),
    [
        (0.50, 0.05, 6),
        (0.90, 0.05, 34),
        (0.95, 0.05, 69),
        (0.99, 0.05, 349),
        (0.95, 0.20, 38),
        (0.95, 0.10, 54),
        (0.95, 0.01, 103),
    ],
)
def test_clean_units_to_pass(quantile: float, alpha: float, n: int) -> None:
    """What planning promises is when a clean gate passes, and not one request sooner."""
    assert clean_units_to_pass(quantile, alpha) == n
    gate = ttft_gate(
        itertools.repeat(50.0), until_decided=True, quantile=quantile, alpha_pass=alpha
    )
    assert (gate.decision, gate.decided_at) == ("pass", n)


@pytest.mark.parametrize(
    ("n", "over"), [(2, 2), (3, 3), (5, 4), (10, 5), (20, 6), (50, 10), (100, 15)]
)
def test_least_over_to_fail(n: int, over: int) -> None:
    """The fewest requests over the limit that fail a P95 by request n."""
    assert least_over_to_fail(n, 0.95, 0.01, min_fail=1) == over


@pytest.mark.parametrize(
    ("over", "of", "min_fail", "decision", "n"),
    [(2, 100, 5, "pass", 114), (10, 100, 1, "fail", 9)],
)
def test_every_request_alike(over: int, of: int, min_fail: int, decision: str, n: int) -> None:
    """Every request with the same share of its tokens over the limit."""
    gate = SequentialGate(GateSpec(limit=50.0, max_samples=of, min_fail=min_fail, guard=False))
    while gate.decision is None:
        gate.add([60.0] * over + [20.0] * (of - over))
    assert (gate.decision, gate.decided_at) == (decision, n)


def test_short_answers_cost_requests() -> None:
    """Clean requests with four fifths of the possible samples pass at 86."""
    gate = SequentialGate(GateSpec(limit=50.0, max_samples=10, guard=False))
    while gate.decision is None:
        gate.add([20.0] * 8)
    assert (gate.decision, gate.decided_at) == ("pass", 86)
    assert clean_units_to_pass(0.95, 0.05, fill=0.8) == 86


def test_bounds_of_one_to_hundred() -> None:
    """Samples 1 to 100 bound the P95 by 86 and 100, wherever the limit stands."""
    for limit in (50.5, 90.0, 300.0):
        gate = ttft_gate(map(float, range(1, 101)), until_decided=False, limit=limit, guard=False)
        assert gate.bounds() == (86.0, 100.0)


def test_every_fifth_over() -> None:
    """Every fifth request over the limit fails at 45 with a lower bound at the slow value."""
    series = (400.0 if i % 5 == 0 else 100.0 for i in itertools.count(1))
    gate = ttft_gate(series, until_decided=True, limit=300.0, guard=False)
    assert (gate.decision, gate.decided_at) == ("fail", 45)
    assert gate.bounds()[0] == 400.0


def test_one_over_at_forty() -> None:
    """One slow request in the middle puts the PASS off to 135."""
    series = (400.0 if i == 40 else 100.0 for i in itertools.count(1))
    gate = ttft_gate(series, until_decided=True, limit=300.0, guard=False)
    assert (gate.decision, gate.decided_at) == ("pass", 135)


def test_three_failed_then_clean() -> None:
    """Three failed requests are paid for with 136 more, guard on or off."""
    for guard in (True, False):
        series = itertools.chain([None] * 3, itertools.repeat(20.0))
        gate = ttft_gate(series, until_decided=True, guard=guard)
        assert (gate.decision, gate.decided_at) == ("pass", 205)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([float(v) for v in range(60, 83, 2)], 0.298435149232),
        ([80.0, 40.0] * 6, 0.239312724776),
        ([80.0, 80.0, 80.0, 40.0, 40.0, 40.0] * 4, 0.686015157762),
        ([50.0] * 4 + [None] * 3 + [50.0] * 13, 0.498317216094),
    ],
    ids=["rising", "alternating", "in threes", "failures"],
)
def test_guard(series: list[float | None], expected: float) -> None:
    """How much the guard leaves of the evidence of series that drift."""
    gate = ttft_gate(series, until_decided=False, alpha_pass=NEVER, alpha_fail=NEVER)
    assert gate.h == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    ("cycle", "n", "h"),
    [
        ([20.0, 21.0, 22.0, 23.0, 24.0, 23.0, 22.0, 21.0], 69, 0.478939124165),
        ([80.0, 80.0, 80.0, 40.0, 40.0, 40.0], 100, 0.672894551649),
    ],
    ids=["fourfold headroom", "near the limit"],
)
def test_guard_at_the_decision(cycle: list[float], n: int, h: float) -> None:
    """Drift delays a PASS near the limit and not one with fourfold headroom."""
    gate = ttft_gate(itertools.cycle(cycle), until_decided=True)
    assert (gate.decision, gate.decided_at) == ("pass", n)
    assert gate.h == pytest.approx(h, abs=EXACT)

"""Properties of the gate over random requests, and agreement with the formulae as published."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmsla.stats import GateSpec, SequentialGate
from pytest_llmsla.stats.pool import SortedPool
from pytest_llmsla.stats.samples import rank_of_sorted
from pytest_llmsla.stats.wealth import FAIL_BETS, PASS_BETS, log_e_of_series

LIMIT = 100.0
M = 4
# So that evidence is that of all requests, not of an earlier decision.
UNDECIDED: dict[str, Any] = {"alpha_pass": 1e-99, "min_fail": 10**9}
Request = tuple[list[float], bool]

# Values around the limit, its quarter and its eighth, and a few exactly on them.
sample = st.one_of(
    st.sampled_from([0.0, LIMIT / 8, LIMIT / 4, LIMIT, math.nextafter(LIMIT, 200), 400.0]),
    st.floats(5.0, 140.0),
)
request = st.tuples(st.lists(sample, min_size=1, max_size=M), st.sampled_from([False] * 9 + [True]))
# A few shapes repeated, so that decisions do happen and bisection has ties.
requests = st.builds(
    lambda shapes, times: shapes * times,
    st.lists(request, min_size=1, max_size=8),
    st.integers(1, 40),
)
steady = st.builds(
    lambda fast, slow, n: [([fast] * M, False)] * n + [([slow] * M, False)] * (n // 12),
    st.floats(5.0, 99.0),
    sample,
    st.integers(60, 160),
)
series = st.one_of(requests, steady)

many = settings(deadline=None, derandomize=True, max_examples=60)


def gate_of(rows: list[Request], limit: float = LIMIT, **spec: Any) -> SequentialGate:
    gate = SequentialGate(GateSpec(limit=limit, max_samples=M, **spec))
    for values, failed in rows:
        gate.add(values, failed)
    return gate


def published(rows: list[Request], limit: float) -> dict[str, Any]:
    """The test written straight from its published formulae, slope and d, one look at the end."""
    p0, ln = 0.05, math.log

    def slope(c: float) -> float:
        return 1 / p0 if math.isinf(c) else (c - 1) / (1 + (c - 1) * p0)

    def log_e(at: float, bets: dict[float, float]) -> float:
        wealth = 0.0
        for c, weight in bets.items():
            product = weight
            for values, failed in rows:
                x = [math.inf] * M if failed else values
                d = (sum(v > at for v in x) - p0 * len(x)) / M
                factor = 1 + slope(c) * d
                product *= 0.0 if factor < 1e-12 else factor
            wealth += product
        return ln(wealth) if wealth > 0 else -math.inf

    y = []
    for values, failed in rows:
        near = [min(ln(v / limit), 0.0) for v in values if v > limit / 8]
        y.append(0.0 if failed else float(np.mean(near)) if near else -ln(8))
    n, h = len(y), 1.0
    if n >= 10 and np.std(y) >= 1e-9:
        dev = np.array(y) - np.mean(y)
        lags = [(dev[:-k] @ dev[k:]) / (n - k) / (dev @ dev / n) for k in range(1, 5)]
        h = 1 / (1 + 2 * sum(np.clip(r + 1 / n - 1 / math.sqrt(n), 0, 0.95) for r in lags))
    e_pass, e_quarter = (log_e(at, {0: 0.4, 0.25: 0.4, 0.5: 0.2}) for at in (limit, limit / 4))
    e_fail = log_e(limit, {2: 0.25, 4: 0.25, 16: 0.25, math.inf: 0.25})
    fails = n >= 5 and max(e_fail, 0) * h >= ln(100)
    passes = max(e_pass, 0) * h >= ln(20) or e_quarter >= ln(20)
    return {
        "pass": e_pass,
        "fail": e_fail,
        "quarter": e_quarter,
        "h": h,
        "now": "fail" if fails else "pass" if passes else None,
    }


@many
@given(series)
def test_agrees_with_the_published_formulae(rows: list[Request]) -> None:
    """Wealth, guard and decision are those of the formulae, at every look up to the decision."""
    gate = SequentialGate(GateSpec(limit=LIMIT, max_samples=M))
    looks = sorted({1, 4, 5, 9, 10, 11, len(rows) // 2, len(rows)})
    for n, (values, failed) in enumerate(rows, 1):
        gate.add(values, failed)
        if n in looks or gate.decision:
            expected = published(rows[:n], LIMIT)
            assert gate.log_e_pass == pytest.approx(expected["pass"], abs=1e-9)
            assert gate.log_e_fail == pytest.approx(expected["fail"], abs=1e-9)
            assert gate.log_e_pass_quarter == pytest.approx(expected["quarter"], abs=1e-9)
            assert gate.h == pytest.approx(expected["h"], abs=1e-7)
            assert gate.decision == expected["now"]
        if gate.decision:
            break


@many
@given(series, st.floats(5.0, 400.0), st.floats(5.0, 400.0))
def test_evidence_is_monotone_in_the_limit(rows: list[Request], one: float, two: float) -> None:
    """A higher limit never has less evidence for PASS nor more for FAIL."""
    low, high = (gate_of(rows, limit=v, **UNDECIDED) for v in sorted((one, two)))
    assert low.log_e_pass <= high.log_e_pass
    assert low.log_e_fail >= high.log_e_fail


@many
@given(series, st.booleans())
def test_bounds_agree_with_the_verdict(rows: list[Request], guard: bool) -> None:
    """PASS ⇒ upper ≤ limit, FAIL ⇒ lower > limit, and lower ≤ upper, after every request."""
    gate = SequentialGate(GateSpec(limit=LIMIT, max_samples=M, guard=guard))
    for n, (values, failed) in enumerate(rows):
        gate.add(values, failed)
        if n % 7 and n < len(rows) - 1:
            continue
        lower, upper = gate.bounds()
        if gate.verdict() == "pass":
            assert upper is not None
            assert upper <= LIMIT
        if gate.verdict() == "fail":
            assert lower is not None
            assert lower > LIMIT
        if gate.decision is None:
            assert lower is None or lower <= LIMIT
            assert upper is None or upper > LIMIT
        if lower is not None and upper is not None:
            assert lower <= upper


@many
@given(series, st.integers(1, 5), st.booleans(), st.booleans())
def test_the_observed_percentile_lies_between_its_bounds(
    rows: list[Request], size: int, guard: bool, rounded: bool
) -> None:
    """Of the same exact samples, also where the pool rounds and the last block is not full.

    The one exception is a FAIL that later requests have brought back under the limit.
    """
    gate = SequentialGate(GateSpec(limit=LIMIT, max_samples=M, guard=guard))
    if rounded:
        gate._pool = SortedPool(edge=LIMIT, exact=10)
    seen: list[float] = []
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        gate.add_block(block, size)
        seen += [v for values, failed in block for v in ([math.inf] * M if failed else values)]
        if start % 11 and start + size < len(rows):
            continue
        observed = rank_of_sorted(sorted(seen), 0.95)
        assert observed is not None
        lower, upper = gate.bounds(observed)
        if lower is not None and not (gate.verdict() == "fail" and observed <= LIMIT):
            assert lower <= observed
        if upper is not None:
            assert observed <= upper
        if gate.verdict() == "pass":
            assert upper is not None
            assert upper <= LIMIT
        if gate.verdict() == "fail":
            assert lower is not None
            assert lower > LIMIT


@many
@given(series)
def test_bounds_are_those_of_testing_every_value(rows: list[Request]) -> None:
    """Bisection finds what a test at each observed value finds, guard off."""
    units = [[math.inf] * M if failed else values for values, failed in rows]

    def log_e(over: Any, bets: Any) -> float:
        x = [0.05 * (1 - len(u) / M) + sum(map(over, u)) / M for u in units]
        return log_e_of_series(x, 0.05, bets)

    values = sorted({v for u in units for v in u})
    uppers = [
        v
        for v in values
        if math.isfinite(v) and log_e(lambda s, v=v: s > v, PASS_BETS) >= math.log(20)
    ]
    lowers = [v for v in values if log_e(lambda s, v=v: s >= v, FAIL_BETS) >= math.log(100)]
    gate = gate_of(rows, limit=1e9, guard=False, min_fail=1, alpha_pass=0.05)
    lower, upper = gate.bounds()
    assert lower == (max(lowers) if lowers else None)
    # Under so high a limit the gate passes wherever it can, so a bound may be that of then.
    if uppers:
        assert upper == min(uppers)


@many
@given(series)
def test_looking_changes_nothing(rows: list[Request]) -> None:
    """A gate watched after every request and a replay of the stored requests agree to the digit."""
    live = SequentialGate(GateSpec(limit=LIMIT, max_samples=M))
    for n, (values, failed) in enumerate(rows):
        live.add(values, failed)
        live.observed(), live.verdict(), live.h, live.log_e_pass
        if n % 11 == 0:
            live.bounds()
    replay = gate_of(rows)
    assert live.evidence == replay.evidence
    assert live.bounds() == replay.bounds()
    assert (live.verdict(), live.decided_at, live.observed()) == (
        replay.verdict(),
        replay.decided_at,
        replay.observed(),
    )


@many
@given(st.lists(st.lists(request, min_size=3, max_size=3), min_size=1, max_size=30), st.data())
def test_order_inside_a_block_is_irrelevant(blocks: list[list[Request]], data: Any) -> None:
    """Blocks of requests in flight together give the same digits in any inner order."""
    one, two = (SequentialGate(GateSpec(limit=LIMIT, max_samples=M)) for _ in range(2))
    for block in blocks:
        one.add_block(block)
        two.add_block(data.draw(st.permutations(block)))
    assert one.evidence == two.evidence
    assert one.bounds() == two.bounds()
    assert one.verdict() == two.verdict()


RANK = {"fail": 0, "inconclusive": 1, "pass": 2}


@many
@given(series, st.integers(0, 10**6))
def test_a_failed_request_never_helps(rows: list[Request], where: int) -> None:
    """A failure in place of an answer: less evidence for PASS, more for FAIL, no better verdict."""
    at = where % len(rows)
    worse_rows = [*rows[:at], ([], True), *rows[at + 1 :]]
    free = {"guard": False, **UNDECIDED}
    good, worse = gate_of(rows, **free), gate_of(worse_rows, **free)
    assert worse.log_e_pass <= good.log_e_pass
    assert worse.log_e_fail >= good.log_e_fail
    good, worse = gate_of(rows, guard=False), gate_of(worse_rows, guard=False)
    assert RANK[worse.verdict()] <= RANK[good.verdict()]
    assert (worse.observed() or 0.0) >= (good.observed() or 0.0)


@many
@given(series, st.integers(0, 10**6), st.integers(1, 80))
def test_requests_without_samples_are_no_evidence(
    rows: list[Request], where: int, how_many: int
) -> None:
    """Requests that gave no sample and did not fail leave no trace but the count of requests."""
    at = where % (len(rows) + 1)
    padded = gate_of([*rows[:at], *[([], False)] * how_many, *rows[at:]])
    plain = gate_of(rows)
    assert padded.requests == plain.requests + how_many
    assert padded.evidence == plain.evidence
    assert padded.bounds() == plain.bounds()
    assert (padded.verdict(), padded.units) == (plain.verdict(), plain.units)


@many
@given(series)
def test_the_guard_never_helps(rows: list[Request]) -> None:
    """Whatever passes with the guard had at least that much evidence without it."""
    guarded = gate_of(rows)
    assert 0 < guarded.h <= 1
    if guarded.decided_at is not None:
        free = gate_of(rows[: guarded.decided_at], guard=False)
        assert free.decided_at is not None
        assert free.decided_at <= guarded.decided_at


@many
@given(series, st.sampled_from([math.nan, math.inf, -math.inf, -1.0, None, 10**400]))
def test_broken_samples_exceed(rows: list[Request], broken: Any) -> None:
    """None, NaN, ∞, negative and absurd samples count as slower than everything."""
    slow = gate_of([([*v[1:], math.inf], f) for v, f in rows])
    odd = gate_of([([*v[1:], broken], f) for v, f in rows])
    assert odd.evidence == slow.evidence
    assert odd.bounds() == slow.bounds()
    assert odd.observed() == slow.observed()

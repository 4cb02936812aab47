"""What the gate does after a decision, with failures and blocks, and with wrong input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from pytest_llmsla.errors import InternalError, UsageError
from pytest_llmsla.stats import GateSpec, SequentialGate

LIMIT = 300.0


def fed(*runs: tuple[int, float | None], **spec: Any) -> SequentialGate:
    """A TTFT gate fed with runs of ``(how many, value)``; a value of None: failed."""
    gate = SequentialGate(GateSpec(limit=LIMIT, **spec))
    for count, value in runs:
        for _ in range(count):
            gate.add([] if value is None else [value], failed=value is None)
    return gate


def test_nothing_measured_never_passes() -> None:
    """A gate without a request, or with requests that gave no sample, has no verdict or number."""
    gate = SequentialGate(GateSpec(limit=LIMIT))
    assert (gate.verdict(), gate.decision, gate.observed()) == ("inconclusive", None, None)
    assert gate.bounds() == (None, None)
    for _ in range(1000):
        gate.add([])
    assert (gate.verdict(), gate.decision, gate.observed()) == ("inconclusive", None, None)
    assert gate.bounds() == (None, None)
    assert (gate.requests, gate.units, gate.samples) == (1000, 0, 0)


def test_twice_the_limit_fails_in_five() -> None:
    """A service at twice the limit is stopped after five requests."""
    gate = fed((5, 600.0))
    assert (gate.decision, gate.decided_at, gate.verdict()) == ("fail", 5, "fail")
    assert gate.bounds() == (600.0, None)


def test_a_pass_does_not_survive_ten_times_the_limit() -> None:
    """69 clean requests, then 231 at ten times the limit: FAIL, and the first decision is kept."""
    gate = fed((69, 50.0))
    assert gate.verdict() == "pass"
    then = gate.evidence
    for _ in range(231):
        gate.add([3000.0])
    assert gate.verdict() == "fail"
    assert (gate.decision, gate.decided_at, gate.evidence) == ("pass", 69, then)
    assert gate.failed
    lower, _ = gate.bounds()
    assert lower is not None
    assert lower > LIMIT


def test_a_pass_is_revoked_by_the_final_percentile() -> None:
    """A PASS whose final percentile is over the limit is inconclusive while that is so."""
    gate = fed((69, 50.0), (4, 400.0))
    assert (gate.decision, gate.verdict()) == ("pass", "inconclusive")
    assert gate.observed() == 400.0
    upper = gate.bounds()[1]
    assert upper is None or upper > LIMIT
    for _ in range(20):
        gate.add([50.0])
    assert (gate.verdict(), gate.observed()) == ("pass", 50.0)


def test_a_fail_stands() -> None:
    """A FAIL is not undone by any number of clean requests, and its bound still says why."""
    gate = fed((5, 400.0), (1500, 50.0))
    assert gate.verdict() == "fail"
    assert gate.bounds() == (400.0, None)
    assert gate.observed() == 50.0


def test_loosened_bounds_fall_back_to_the_decision() -> None:
    """A PASS that later requests put in doubt keeps a bound at the limit or below."""
    gate = fed((69, 50.0), (3, 400.0), guard=False)
    assert gate.verdict() == "pass"
    assert gate.bounds()[1] == 50.0


def test_failed_requests_are_infinitely_slow() -> None:
    """Failures count with all their samples and move the percentile out of reach."""
    gate = SequentialGate(GateSpec(limit=50.0, max_samples=10))
    gate.add([20.0] * 10)
    gate.add([20.0] * 3, failed=True)
    assert (gate.requests, gate.samples, gate.exceeded) == (2, 20, 10)
    assert gate.observed() == math.inf
    assert fed((5, None)).bounds() == (math.inf, None)
    assert fed((5, None)).verdict() == "fail"


def test_samples_exactly_at_the_limit_keep_it() -> None:
    """≤ is ≤: at the limit is within, the next float is not."""
    assert fed((69, LIMIT), guard=False).verdict() == "pass"
    assert fed((69, math.nextafter(LIMIT, math.inf))).verdict() == "fail"


def test_constant_noise_is_not_drift() -> None:
    """Requests that all take the same time leave the guard at 1."""
    assert fed((40, 299.0)).h == 1.0


def test_fourfold_headroom_needs_no_guard() -> None:
    """Drift well below a quarter of the limit does not delay a PASS; nearer to it, it does."""
    ramp = [*range(40, 75), *range(75, 40, -1)]
    far, near = (SequentialGate(GateSpec(limit=LIMIT)) for _ in range(2))
    for v in itertools.islice(itertools.cycle(ramp), 69):
        far.add([float(v)])
        near.add([v * 3.0])
    assert (far.decision, far.decided_at) == ("pass", 69)
    assert far.log_e_pass_quarter >= math.log(20)
    assert near.decision is None
    assert near.h < 0.5


def test_more_samples_than_possible_is_an_internal_error() -> None:
    """n_i > M would void the test: it is refused and leaves the gate as it was."""
    gate = SequentialGate(GateSpec(limit=50.0, max_samples=2))
    gate.add([1.0, 2.0])
    with pytest.raises(InternalError, match=r"got 3; valid is at most max_samples 2.*raise max"):
        gate.add_block([([1.0], False), ([1.0, 2.0, 3.0], False)])
    assert (gate.requests, gate.units, gate.samples) == (1, 1, 2)


@pytest.mark.parametrize("value", ["12", b"1", True, object(), [1.0]])
def test_a_sample_that_is_no_number_is_an_internal_error(value: Any) -> None:
    """Text, booleans and objects are not latencies."""
    with pytest.raises(InternalError, match="valid is a number or None"):
        SequentialGate(GateSpec()).add([value])


def test_a_block_is_one_unit() -> None:
    """A clean P95 passes after 69 blocks, 276 requests at four in flight."""
    gate = SequentialGate(GateSpec(limit=LIMIT))
    while gate.decision is None:
        gate.add_block([([50.0], False)] * 4)
    assert (gate.decided_at, gate.requests) == (69, 276)


def test_a_block_averages_its_requests() -> None:
    """A block with one request in four over counts like a quarter of a request over."""
    block = SequentialGate(GateSpec(limit=LIMIT))
    alike = SequentialGate(GateSpec(limit=LIMIT, max_samples=4))
    block.add_block([([50.0], False)] * 3 + [([400.0], False)])
    alike.add([50.0] * 3 + [400.0])
    assert block.log_e_pass == pytest.approx(alike.log_e_pass, abs=1e-12)
    assert block.log_e_fail == pytest.approx(alike.log_e_fail, abs=1e-12)


def test_an_incomplete_block_is_dropped_but_not_its_failures() -> None:
    """The last block, not full: no evidence for PASS, its failures against it."""
    gate = SequentialGate(GateSpec(limit=LIMIT))
    gate.add_block([([50.0], False)] * 4)
    before = gate.evidence
    gate.add_block([([50.0], False)] * 3, size=4)
    assert gate.evidence == before
    assert (gate.requests, gate.samples) == (7, 7)
    gate.add_block([([50.0], False), ([], True)], size=4)
    assert gate.units == 2
    assert gate.log_e_pass < before.log_e_pass
    assert gate.log_e_fail > before.log_e_fail
    neutral = SequentialGate(GateSpec(limit=LIMIT))
    neutral.add_block([([50.0], False)] * 4)
    neutral.add_block([([], True), ([], False), ([], False), ([], False)])
    assert gate.log_e_pass == neutral.log_e_pass


@pytest.mark.parametrize(("given", "size"), [(0, None), (0, 4), (5, 4)])
def test_a_block_of_a_wrong_size_is_an_internal_error(given: int, size: int | None) -> None:
    """A block holds one request to as many as fit."""
    with pytest.raises(InternalError, match=f"got {given} requests"):
        SequentialGate(GateSpec()).add_block([([1.0], False)] * given, size=size)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(
            ["quantile", "alpha_pass", "alpha_fail"], [0, 1, 1.5, -0.1, math.nan, True, "0.95"]
        ),
        *itertools.product(["limit"], [0, -1.0, math.inf, math.nan, True, "300", None]),
        *itertools.product(["max_samples", "min_fail"], [0, -1, 1.5, True, "1"]),
        ("quantile", 95),
        ("quantile", 1 - 1e-15),
    ],
)
def test_a_wrong_spec_is_a_usage_error(field: str, value: Any) -> None:
    """Every field is checked before anything is measured; the message names it and the value."""
    with pytest.raises(UsageError) as error:
        GateSpec(**{field: value})
    text = str(error.value)
    assert text.startswith(f"{field}: got {value!r}; valid is ")
    assert text.count(";") >= 2


@pytest.mark.parametrize(("percent", "p0"), [(95, 0.05), (99, 0.01), (99.9, 0.001), (50, 0.5)])
def test_allowed_share_has_no_rounding_error(percent: float, p0: float) -> None:
    """95/100 leaves 0.05, not 0.050000000000000044."""
    assert GateSpec(quantile=percent / 100).p0 == p0

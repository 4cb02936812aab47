"""The share of failed requests: one is red by default, none is only as good as its number."""

from __future__ import annotations

import pytest

from gate_samples import broken, judged, only, policy, timeline
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper

RATE = "short/error_rate"
TENTH = policy(errors={"max_error_rate": 0.1})


def rate_of(loaded: LoadedPolicy, timelines: list[Timeline]) -> Finding:
    return only(judged(loaded, timelines), RATE)


def mixed(total: int, failed: int) -> list[Timeline]:
    """``total`` requests of which ``failed``, spread evenly, failed."""
    bad = {int((i + 0.5) * total / failed) for i in range(failed)}
    return [broken(n) if n in bad else timeline(n) for n in range(total)]


@pytest.mark.parametrize("at", [0, 30, 68])
def test_one_failure_is_red(at: int) -> None:
    """Wherever it happened, with its cause and its count."""
    every = [broken(n) if n == at else timeline(n) for n in range(69)]
    found = rate_of(policy(), every)
    assert (found.verdict, found.exceeded, found.observed) == ("fail", 1, 1 / 69)
    assert found.reason == "1 of 69 requests failed: RuntimeError: boom (1 of 69 requests)"


def test_every_failure_is_told_once_with_its_count() -> None:
    """Ten refusals are one line."""
    found = rate_of(policy(), [broken(n, "ConnectionError: refused") for n in range(10)])
    assert (found.verdict, found.observed) == ("fail", 1.0)
    assert found.reason.count("refused") == 1
    assert "(10 of 10 requests)" in found.reason


def test_no_failure_passes_with_the_bucket() -> None:
    """How many requests that rests on is up to the other limits."""
    assert rate_of(policy(), mixed(69, 0)).verdict == "pass"


def test_alone_it_needs_what_a_clean_percentile_needs() -> None:
    """A test that limits nothing else asks as many requests as a P95 takes."""
    alone = policy({"name": "short", "prompt_max": 128}, itl={"p95_ms": None})
    keeper = Gatekeeper(alone)
    n = 0
    while keeper.undecided("short"):
        keeper.add(timeline(n))
        n += 1
    assert n == 69
    found = only(judged(alone, mixed(68, 0)), RATE)
    assert (found.verdict, found.reason) == (
        "inconclusive",
        "0 of 68 requests failed: 68 of at least 69 requests",
    )
    assert only(keeper, RATE).verdict == "pass"


@pytest.mark.parametrize(
    ("total", "failed", "expected"),
    [(300, 0, "pass"), (300, 6, "pass"), (300, 30, "inconclusive"), (300, 90, "fail")],
)
def test_a_share_above_zero_is_judged_by_the_same_test(
    total: int, failed: int, expected: str
) -> None:
    """At the limit nobody can tell; well on either side it is decided."""
    assert rate_of(TENTH, mixed(total, failed)).verdict == expected


def test_a_share_says_how_many_requests_it_takes() -> None:
    """Few clean requests do not prove a small share."""
    found = rate_of(TENTH, mixed(10, 0))
    assert found.verdict == "inconclusive"
    assert found.reason == "0 of 10 requests failed; 10 of at least 34 requests"


@pytest.mark.parametrize("loaded", [policy(), TENTH])
def test_a_problem_is_never_a_clean_record(loaded: LoadedPolicy) -> None:
    """Requests that could not be asked did not succeed."""
    for total in (0, 5, 20):
        keeper = judged(loaded, mixed(total, 0))
        keeper.problem("short", "no prompt is left")
        found = only(keeper, RATE)
        assert (found.verdict, found.reason) == ("error", "no prompt is left")


def test_all_failed_is_red_whatever_share_is_allowed() -> None:
    """A limit of 99 % does not pass a service that answers nothing."""
    found = rate_of(policy(errors={"max_error_rate": 0.99}), mixed(300, 300))
    assert found.verdict == "fail"


def test_observed_evidence_passes_no_release() -> None:
    """Five good answers are no release evidence of reliability; one bad one is evidence against."""
    observed = policy(evidence={"preset": "observed"})
    assert rate_of(observed, mixed(5, 0)).verdict == "inconclusive"
    assert rate_of(observed, mixed(5, 1)).verdict == "fail"
    assert judged(observed, mixed(5, 0), gate="g").findings()[-1].verdict == "pass"


def test_warm_up_failures_are_no_measured_ones() -> None:
    """They are counted in the report and enter no rate."""
    found = rate_of(policy(), [broken(-1, warmup=True), *mixed(69, 0)])
    assert (found.verdict, found.requests) == ("pass", 69)

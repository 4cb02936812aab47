"""Which limits a policy declares, and what turns a broken one into something else."""

from __future__ import annotations

from typing import Any

import pytest

from gate_samples import LONG, SHORT, broken, judged, only, policy, reading, timeline, verdicts
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper, KvPlanState, limits_of

FULL: dict[str, Any] = {
    "itl": {"p50_ms": 30, "p95_ms": 50, "p99_ms": 80, "stall_p95_ms": 500},
    "tgs": {"min_tokens_per_s": 5},
    "memory": {"rss_peak_gib": 4, "allocated_peak_gib": 4},
    "evidence": {"max_requests": 400},
}


def test_every_limit_of_a_policy_is_declared_in_the_order_of_the_rules() -> None:
    """Bucket by bucket, then the limits of the whole service; nothing is loaded for it."""
    assert [limit.id for limit in limits_of(policy(SHORT, LONG, **FULL))] == [
        "short/ttft_p95",
        "short/itl_p50",
        "short/itl_p95",
        "short/itl_p99",
        "short/stall_p95",
        "short/error_rate",
        "long/ttft_p95",
        "long/itl_p50",
        "long/itl_p95",
        "long/itl_p99",
        "long/stall_p95",
        "long/error_rate",
        "tgs/concurrency-1",
        "memory/allocated_peak",
        "memory/rss_peak",
    ]


def test_rules_two_and_three_and_errors_are_there_without_being_written() -> None:
    """The shortest policy holds ITL P95, documented TGS and no failures."""
    assert [(limit.id, limit.limit) for limit in limits_of(policy(itl={}))] == [
        ("short/ttft_p95", 300),
        ("short/itl_p95", 50),
        ("short/error_rate", 0),
        ("tgs/concurrency-1", None),
    ]


def test_a_test_of_its_own_prefixes_its_limits() -> None:
    """Node id first; TGS only where a rate was asked for."""
    ids = [limit.id for limit in limits_of(policy(), "t.py::t")]
    assert ids == ["t.py::t/ttft_p95", "t.py::t/itl_p95", "t.py::t/error_rate"]
    with_rate = [limit.id for limit in limits_of(policy(tgs={"min_tokens_per_s": 5}), "t.py::t")]
    assert with_rate[-1] == "t.py::t/tgs"


def test_several_buckets_of_a_test_have_names_of_their_own() -> None:
    """No limit stands for another's bucket."""
    ids = [limit.id for limit in limits_of(policy(SHORT, LONG), "t.py::t")]
    assert ids[0] == "t.py::t/short/ttft_p95"
    assert len(set(ids)) == len(ids) == 6


def test_a_percentile_is_named_as_written() -> None:
    """P99.9 is not P99 or P100."""
    loaded = policy(ttft={"percentile": 99.9}, evidence={"max_requests": 20_000})
    assert limits_of(loaded)[0].id == "short/ttft_p99.9"


ALL_SEEN = [timeline(n) for n in range(69)]


def test_all_findings_are_those_of_the_limits_in_their_order() -> None:
    """One finding a limit that was measured, none besides."""
    keeper = judged(policy(**FULL), ALL_SEEN)
    assert [f.id for f in keeper.findings()] == [limit.id for limit in keeper.limits]
    assert [keeper.finding(limit.id) for limit in keeper.limits] == keeper.findings()
    assert keeper.finding("short/else") is None


def test_a_whole_clean_gate() -> None:
    """Every rule passes at its number; P99 and a memory figure that is not there do not."""
    assert verdicts(judged(policy(**FULL), ALL_SEEN)) == {
        "short/ttft_p95": "pass",
        "short/itl_p50": "pass",
        "short/itl_p95": "pass",
        "short/itl_p99": "inconclusive",  # needs 349
        "short/stall_p95": "pass",
        "short/error_rate": "pass",
        "tgs/concurrency-1": "pass",
        "memory/allocated_peak": "error",
        "memory/rss_peak": "pass",
    }


def test_two_buckets_are_two_verdicts() -> None:
    """A slow long bucket does not touch the short one, and is not hidden by it."""
    every: list[Timeline] = []
    for n in range(69):
        every.append(timeline(2 * n, unit=n))
        every.append(timeline(2 * n + 1, unit=n, bucket="long", prompt=500, ttft=900))
    found = verdicts(judged(policy(SHORT, LONG), every))
    assert (found["short/ttft_p95"], found["long/ttft_p95"]) == ("pass", "fail")


def test_a_bucket_that_is_stopped_wants_no_more() -> None:
    """A problem ends the asking for its bucket, and for every bucket when it is everyone's."""
    keeper = Gatekeeper(policy(SHORT, LONG))
    keeper.problem("long", "no prompt is left")
    assert (keeper.undecided("short"), keeper.undecided("long")) == (True, False)
    keeper.problem(None, "gone")
    assert not keeper.undecided("short")
    assert only(keeper, "long/ttft_p95").reason == "no prompt is left"
    assert keeper.undecided("else") is False


def test_more_tokens_than_the_policy_judges_is_unusable() -> None:
    """M was fixed before the run: a longer answer is a failed request, not an internal error."""
    returned = Gatekeeper(policy()).add(timeline(max_new_tokens=64))
    assert returned.status == "error"
    assert "the policy judges 8" in str(returned.error)


def test_a_corrected_request_is_given_back() -> None:
    """What goes on record is what was judged."""
    keeper = Gatekeeper(policy())
    assert keeper.add(timeline(0)) == timeline(0)
    assert keeper.add(timeline(1, prompt=None)).status == "error"
    assert keeper.add(broken(2)) == broken(2)


def test_other_buckets_and_failures_are_counted_for_the_report() -> None:
    """Failures by bucket and reason; a bucket that is not of this policy is nobody's."""
    keeper = judged(
        policy(SHORT, LONG),
        [broken(0), broken(1), timeline(2, prompt=None), broken(3, bucket="else")],
    )
    assert sorted(keeper.failures().values()) == [1, 2]
    assert keeper.failures()["short", "RuntimeError: boom"] == 2


def test_progress_names_what_is_open() -> None:
    """Running percentiles and undecided limits, as they stand."""
    keeper = judged(policy(), map(timeline, range(10)))
    assert keeper.running("short") == {"ttft p95": 100.0, "itl p95": 20.0}
    assert keeper.open_limits("short") == ["short/ttft_p95", "short/itl_p95"]
    assert (keeper.open_limits("else"), keeper.running("else")) == ([], {})


# -- a KV-cache plan

PLAN = KvPlanState(summary="cause: cache; measures: int8; owner: us; expires 2099-12-31")
NO_PLAN = KvPlanState(problem="kv.md expired on 2020-01-01")


def slow_tokens(loaded: LoadedPolicy, plan: KvPlanState | None) -> Gatekeeper:
    every = [timeline(n, gaps=(90,) * 7) for n in range(69)]
    return judged(loaded, every, kv_plan=plan)


@pytest.mark.parametrize(
    ("plan", "passes", "expected", "words"),
    [
        (None, False, "fail", "rule 2 asks for a KV-cache plan"),
        (None, True, "fail", "rule 2 asks for a KV-cache plan"),
        (NO_PLAN, False, "fail", "the KV-cache plan is not valid: kv.md expired"),
        (NO_PLAN, True, "fail", "the KV-cache plan is not valid: kv.md expired"),
        (PLAN, False, "conditional", "KV-cache plan on record: cause: cache"),
        (PLAN, True, "pass", "policy: conditional_passes"),
    ],
)
def test_a_plan_makes_a_broken_itl_conditional(
    plan: KvPlanState | None, passes: bool, expected: str, words: str
) -> None:
    """Only a plan that holds, and PASS only where the policy says so in words."""
    loaded = policy(itl={"p95_ms": 50, "conditional_passes": passes})
    found = only(slow_tokens(loaded, plan), "short/itl_p95")
    assert found.verdict == expected
    assert words in found.reason


@pytest.mark.parametrize(
    ("every", "limit_id", "expected"),
    [
        ([timeline(n, ttft=900) for n in range(69)], "short/ttft_p95", "fail"),
        ([timeline(n, gaps=(90,) * 7) for n in range(69)], "short/itl_p50", "fail"),
        ([timeline(n, gaps=(900,) * 7) for n in range(69)], "short/stall_p95", "fail"),
        ([timeline(n, gaps=()) for n in range(69)], "short/itl_p95", "error"),
        ([timeline(n, gaps=(49,) * 7) for n in range(9)], "short/itl_p95", "inconclusive"),
        ([broken(n) for n in range(69)], "short/itl_p95", "error"),
    ],
)
def test_a_plan_covers_nothing_but_a_broken_p95_of_itl(
    every: list[Timeline], limit_id: str, expected: str
) -> None:
    """Not TTFT, not another percentile, not what could not be measured."""
    loaded = policy(
        itl={"p50_ms": 30, "p95_ms": 50, "stall_p95_ms": 500, "conditional_passes": True}
    )
    assert only(judged(loaded, every, kv_plan=PLAN), limit_id).verdict == expected


# -- nothing missing ever passes


@pytest.mark.parametrize(
    "timelines",
    [
        [],
        [timeline(n, warmup=True) for n in range(69)],
        [timeline(n, bucket="else") for n in range(69)],
        [timeline(n, purpose="tgs-peak") for n in range(69)],
        [broken(n) for n in range(69)],
        [timeline(n, arrivals=()) for n in range(69)],
        [timeline(n, prompt=None) for n in range(69)],
        [timeline(n, concurrency=4) for n in range(69)],
        [broken(0), *(timeline(0, id=f"r{n}", unit=n) for n in range(1, 69))],
        [timeline(n, scheduled_ns=timeline(n).start_ns + 1) for n in range(69)],
        [timeline(n, end_ns=timeline(n).start_ns) for n in range(69)],
        [timeline(n, arrivals=((timeline(n).start_ns, 1),)) for n in range(69)],
    ],
)
def test_no_sound_request_no_pass(timelines: list[Timeline]) -> None:
    """Whatever else is there, a limit that no sound request was held against is not met."""
    keeper = judged(policy(**FULL), timelines)
    assert "pass" not in verdicts(keeper).values()


def test_a_reading_without_a_request_is_no_evidence() -> None:
    """Memory alone is judged by nobody."""
    keeper = Gatekeeper(policy(**FULL))
    keeper.resources(reading())
    assert keeper.findings() == []

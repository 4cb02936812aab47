"""TTFT, ITL and stall limits: how many requests decide, and why nothing else does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gate_samples import LONG, SHORT, TOKENS, broken, judged, only, policy, timeline
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import REPEATED, Timeline
from pytest_llmsla.verdict import Gatekeeper

NORMAL = policy()
Make = Callable[[int], Timeline]


def until_decided(loaded: LoadedPolicy, make: Make, most: int = 300) -> Gatekeeper:
    """Ask as a run does: until the bucket wants no more."""
    keeper = Gatekeeper(loaded)
    n = 0
    while keeper.undecided("short") and n < most:
        keeper.add(make(n))
        n += 1
    keeper.end("requests" if n == most else "decided")
    return keeper


def ttft_of(keeper: Gatekeeper) -> Finding:
    return only(keeper, "short/ttft_p95")


def itl_of(keeper: Gatekeeper) -> Finding:
    return only(keeper, "short/itl_p95")


# -- how many


@pytest.mark.parametrize(("preset", "requests"), [("fast", 38), ("normal", 69), ("strict", 103)])
def test_a_clean_gate_passes_after_exactly_so_many(preset: str, requests: int) -> None:
    """One request fewer is not enough, for TTFT and for ITL alike."""
    loaded = policy(evidence={"preset": preset})
    keeper = until_decided(loaded, timeline)
    assert keeper.count("short") == requests
    for found in (ttft_of(keeper), itl_of(keeper)):
        assert (found.verdict, found.decided_at, found.units) == ("pass", requests, requests)
        assert found.upper is not None
        assert found.limit is not None
        assert found.observed is not None
        assert found.observed <= found.upper <= found.limit
    before = judged(loaded, map(timeline, range(requests - 1)))
    assert {ttft_of(before).verdict, itl_of(before).verdict} == {"inconclusive"}


@pytest.mark.parametrize(
    ("make", "limit_id"),
    [
        (lambda n: timeline(n, ttft=600), "short/ttft_p95"),
        (lambda n: timeline(n, gaps=(100,) * 7), "short/itl_p95"),
    ],
)
def test_twice_the_limit_fails_within_six(make: Make, limit_id: str) -> None:
    """A service far over its limit does not cost a whole budget to refuse."""
    keeper = Gatekeeper(NORMAL)
    n = 0
    while only_or_none(keeper, limit_id) != "fail":
        keeper.add(make(n))
        n += 1
        assert n <= 6
    found = only(keeper, limit_id)
    assert found.lower is not None
    assert found.limit is not None
    assert found.lower > found.limit
    assert found.exceeded == found.samples


def only_or_none(keeper: Gatekeeper, limit_id: str) -> str | None:
    found = keeper.finding(limit_id)
    return None if found is None else found.verdict


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("seconds", "the time budget is spent: 30 of at least 69 requests"),
        ("requests", "the request budget is spent: 30 of at least 69 requests"),
        ("interrupted", "measuring ended: 30 of at least 69 requests"),
    ],
)
def test_a_spent_budget_is_inconclusive_and_says_what_it_takes(ended: str, words: str) -> None:
    """Not PASS, not FAIL, and the number that is needed."""
    keeper = judged(NORMAL, map(timeline, range(30)))
    keeper.end(ended)
    assert (ttft_of(keeper).verdict, ttft_of(keeper).reason) == ("inconclusive", words)


def test_near_the_limit_a_whole_budget_may_not_tell() -> None:
    """Then the reason is not the number of requests."""
    keeper = until_decided(NORMAL, lambda n: timeline(n, ttft=400 if n % 20 == 7 else 290))
    assert ttft_of(keeper).verdict == "inconclusive"
    assert ttft_of(keeper).reason.endswith("300 requests could not tell")


def test_the_limit_itself_is_kept() -> None:
    """A sample equal to the limit does not exceed it; one nanosecond more does."""
    exact = judged(NORMAL, [timeline(n, ttft=300) for n in range(300)])
    over = judged(NORMAL, [timeline(n, ttft=300 + 1e-6) for n in range(300)])
    assert (ttft_of(exact).verdict, ttft_of(exact).exceeded) == ("pass", 0)
    assert (ttft_of(over).verdict, ttft_of(over).exceeded) == ("fail", 300)


# -- after a decision


def test_a_pass_does_not_outlive_a_service_that_breaks() -> None:
    """69 clean requests, then 231 at ten times the limit: FAIL, decided_at kept."""
    every = [timeline(n, ttft=100 if n < 69 else 3000) for n in range(300)]
    found = ttft_of(judged(NORMAL, every))
    assert (found.verdict, found.decided_at) == ("fail", 69)


def test_a_pass_is_revoked_by_its_final_percentile() -> None:
    """Too many over in the end, too few for FAIL: INCONCLUSIVE, with the reason."""
    every = [timeline(n, ttft=100 if n < 69 else 310) for n in range(73)]
    found = ttft_of(judged(NORMAL, every))
    assert found.verdict == "inconclusive"
    assert found.reason == "was passed, but the percentile over all requests exceeds the limit"


# -- failures


@pytest.mark.parametrize("failed", range(1, 6))
def test_a_failed_request_exceeds_with_all_its_samples(failed: int) -> None:
    """It enters no percentile as a number and costs as the worst request would."""
    every = [broken(n) if n < failed else timeline(n) for n in range(60)]
    keeper = judged(NORMAL, every)
    found = itl_of(keeper)
    assert found.exceeded == failed * (TOKENS - 1)
    assert found.samples == 60 * (TOKENS - 1)
    assert found.verdict != "pass"
    assert any("failed requests count as over the limit" in note for note in found.notes)


def test_samples_before_a_failure_are_not_used() -> None:
    """Three fast tokens and an exception are a failure, not three fast tokens."""
    half = timeline(0, gaps=(1, 1), status="error", error="OutOfMemoryError: boom")
    found = itl_of(judged(NORMAL, [half, *map(timeline, range(1, 40))]))
    assert found.percentiles["p50"] == 20.0
    assert found.exceeded == TOKENS - 1


def test_a_percentile_among_failures_is_no_number() -> None:
    """With one failure in ten P95 falls on it: there is none, and never 0."""
    every = [broken(n) if n % 10 == 0 else timeline(n) for n in range(40)]
    found = ttft_of(judged(NORMAL, every))
    assert (found.observed, found.percentiles["p95"]) == (None, None)
    assert found.percentiles["p50"] == 100.0
    assert found.verdict != "pass"


def test_nothing_but_failures_is_an_error_with_its_cause() -> None:
    """Not FAIL: no latency was measured."""
    keeper = judged(NORMAL, [broken(n) for n in range(10)])
    for found in (ttft_of(keeper), itl_of(keeper)):
        assert found.verdict == "error"
        assert found.reason == "RuntimeError: boom (10 of 10 requests)"
        assert (found.lower, found.upper, found.observed) == (None, None, None)


@pytest.mark.parametrize(
    "bad",
    [
        timeline(prompt=None),
        timeline(prompt=129),
        timeline(max_new_tokens=TOKENS - 1),
        timeline(max_new_tokens=TOKENS + 1),
        timeline(arrivals=()),
    ],
)
def test_an_unusable_request_counts_as_failed(bad: Timeline) -> None:
    """Unknown length, outside the bucket, too many tokens, none: all the same."""
    keeper = judged(NORMAL, [bad, *map(timeline, range(1, 69))])
    assert ttft_of(keeper).exceeded == 1
    assert ttft_of(keeper).verdict == "inconclusive"
    assert only(keeper, "short/error_rate").verdict == "fail"


def test_requests_that_overlap_are_not_one_at_a_time() -> None:
    """Declared one by one and run together: the second of two is unusable, and says why."""
    first, second = timeline(0), timeline(1)
    early = timeline(0, id="r2", unit=2)
    keeper = judged(NORMAL, [first, early, second])
    assert only(keeper, "short/error_rate").exceeded == 1
    assert "before request r000000 had ended" in only(keeper, "short/error_rate").reason


# -- not measurable


def test_lengths_that_do_not_cover_the_bucket_do_not_pass() -> None:
    """All short prompts: INCONCLUSIVE for every latency limit of the bucket."""
    keeper = judged(NORMAL, [timeline(n, prompt=20) for n in range(69)])
    for found in (ttft_of(keeper), itl_of(keeper)):
        assert found.verdict == "inconclusive"
        assert "lengths not covered: 0 of 69" in found.reason


def test_failed_requests_do_not_cover_a_bucket() -> None:
    """Long prompts that all failed say nothing about long prompts."""
    loaded = policy(ttft={"percentile": 50}, errors={"max_error_rate": 0.9})
    every = [broken(n, prompt=128) if n % 3 == 0 else timeline(n, prompt=20) for n in range(300)]
    found = only(judged(loaded, every), "short/ttft_p50")
    assert found.verdict == "inconclusive"
    assert "lengths not covered" in found.reason


@pytest.mark.parametrize("warm", [False, True])
def test_prompts_from_a_cache_are_no_new_prompts(warm: bool) -> None:
    """One cached prompt makes TTFT an error unless that is meant; ITL is not touched."""
    loaded = policy(workload={"warm_cache": warm})
    every = [timeline(n, cached_tokens=100 if n == 30 else 0) for n in range(69)]
    keeper = judged(loaded, every)
    assert ttft_of(keeper).verdict == ("pass" if warm else "error")
    assert itl_of(keeper).verdict == "pass"
    if not warm:
        assert "1 of 69 prompts were answered from a prefix cache" in ttft_of(keeper).reason


@pytest.mark.parametrize("warm", [False, True])
def test_the_same_prompt_again_is_no_new_prompt(warm: bool) -> None:
    """A prompt sent before in the same gate makes TTFT an error unless that is meant."""
    loaded = policy(workload={"warm_cache": warm})
    every = [timeline(n, notes=(REPEATED,) if n else ()) for n in range(69)]
    keeper = judged(loaded, every)
    assert ttft_of(keeper).verdict == ("pass" if warm else "error")
    assert itl_of(keeper).verdict == "pass"


def test_itl_that_cannot_be_measured_is_an_error_and_ends_its_search() -> None:
    """Counts that disagree: ITL is an error, TTFT is judged, and no budget is burnt."""
    keeper = until_decided(NORMAL, lambda n: timeline(n, output_tokens=TOKENS + 1))
    assert itl_of(keeper).verdict == "error"
    assert ttft_of(keeper).verdict == "pass"
    assert keeper.count("short") == 69


def test_answers_of_one_token_have_no_itl() -> None:
    """No gap in any request: an error, however good TTFT is."""
    keeper = judged(NORMAL, [timeline(n, gaps=()) for n in range(69)])
    assert itl_of(keeper).verdict == "error"
    assert "fewer than two gaps" in itl_of(keeper).reason


def test_short_answers_cost_requests() -> None:
    """Four gaps of seven in every answer, length not forced: 69 requests are not enough."""
    loaded = policy(workload={"force_length": False})
    every = [timeline(n, gaps=(20,) * 4, finish_reason="stop") for n in range(300)]
    assert itl_of(judged(loaded, every[:69])).verdict == "inconclusive"
    assert itl_of(judged(loaded, every)).verdict == "pass"


@pytest.mark.parametrize("bursts", ["error", "allow"])
def test_bursts_are_an_error_or_spread(bursts: str) -> None:
    """Four tokens every 100 ms: buffered, or 25 ms each where the policy allows bursts."""
    loaded = policy(itl={"p95_ms": 50, "bursts": bursts}, workload={"max_new_tokens": 9})
    gaps = (100, 0.01, 0.01, 0.01) * 2
    every = [timeline(n, gaps=gaps, max_new_tokens=9) for n in range(69)]
    found = itl_of(judged(loaded, every))
    assert found.verdict == ("pass" if bursts == "allow" else "error")
    if bursts == "allow":
        assert found.observed == pytest.approx(25.0, abs=0.1)


# -- stall


def freezing(every: int, requests: int = 200) -> list[Timeline]:
    smooth, frozen = (20,) * 127, (20,) * 60 + (900,) + (20,) * 66
    return [
        timeline(n, gaps=frozen if n % every == 3 else smooth, max_new_tokens=128)
        for n in range(requests)
    ]


STALLS: dict[str, Any] = {
    "itl": {"p95_ms": 50, "p99_ms": 50, "stall_p95_ms": 500},
    "workload": {"max_new_tokens": 128},
}


def test_rare_freezes_show_in_the_stall_and_not_in_itl() -> None:
    """One gap of 900 ms in every tenth request: pooled P95 and P99 are 20, stall P95 is 900."""
    keeper = judged(policy(**STALLS, evidence={"max_requests": 400}), freezing(10))
    assert (itl_of(keeper).verdict, itl_of(keeper).observed) == ("pass", 20.0)
    assert only(keeper, "short/itl_p99").observed == 20.0
    stall = only(keeper, "short/stall_p95")
    assert (stall.observed, stall.exceeded) == (900.0, 20)
    assert stall.verdict == "inconclusive"  # 20 of 200 do not yet prove more than 5 %


def test_freezes_in_every_fifth_request_fail_the_stall_limit() -> None:
    """Then it is proven, while every pooled percentile still keeps its limit."""
    keeper = judged(policy(**STALLS, evidence={"max_requests": 400}), freezing(5))
    assert only(keeper, "short/stall_p95").verdict == "fail"
    assert itl_of(keeper).verdict == "pass"


def test_freezes_fail_at_once_where_a_look_is_enough() -> None:
    """Under observed evidence the percentile itself is held against the limit."""
    keeper = judged(policy(**STALLS, evidence={"preset": "observed"}), freezing(10))
    assert only(keeper, "short/stall_p95").verdict == "fail"


# -- what is reported


def test_a_problem_turns_undecided_into_error_and_leaves_a_decision() -> None:
    """What was decided before a target broke stands; the rest could not be measured."""
    decided = judged(NORMAL, map(timeline, range(69)))
    open_ = judged(NORMAL, map(timeline, range(20)))
    for keeper in (decided, open_):
        keeper.problem(None, "timed out; the target cannot be used any more")
    assert ttft_of(decided).verdict == "pass"
    assert (ttft_of(open_).verdict, ttft_of(open_).reason) == (
        "error",
        "timed out; the target cannot be used any more",
    )
    assert only(decided, "short/error_rate").verdict == "error"


def test_a_bucket_that_was_never_measured_is_an_error_with_its_reason() -> None:
    """A model that cannot be loaded leaves a row for every limit of the bucket."""
    keeper = Gatekeeper(NORMAL)
    keeper.problem(None, "no such model")
    assert {(f.verdict, f.reason) for f in keeper.findings()} == {("error", "no such model")}
    assert [f.id for f in keeper.findings()] == [
        "short/ttft_p95",
        "short/itl_p95",
        "short/error_rate",
    ]


def test_a_bucket_nobody_asked_has_no_finding() -> None:
    """Not measured is not judged: the report lists it as missing."""
    keeper = judged(policy(SHORT, LONG), map(timeline, range(69)))
    assert not any(f.bucket == "long" for f in keeper.findings())


def test_a_cold_first_request_is_kept_and_marked() -> None:
    """Without warm-up the slow first call stays in the sample, with a note."""
    every = [timeline(n, ttft=5000 if n == 0 else 100) for n in range(21)]
    found = ttft_of(judged(NORMAL, every))
    assert any(note.startswith("cold: ") for note in found.notes)
    assert found.exceeded == 1
    warm = ttft_of(judged(NORMAL, [timeline(-1, warmup=True), *every]))
    assert not any(note.startswith("cold: ") for note in warm.notes)


def test_attempts_are_pooled_and_told_apart() -> None:
    """A rerun adds its requests to those before it; each attempt's own figure is shown."""
    slow = [timeline(n, gaps=(80,) * 7) for n in range(6)]
    fast = [timeline(n, gaps=(45,) * 7, attempt=2) for n in range(6, 75)]
    found = itl_of(judged(NORMAL, [*slow, *fast]))
    assert found.verdict == "fail"
    assert [(a["attempt"], a["requests"], a["observed"]) for a in found.attempts] == [
        (1, 6, 80.0),
        (2, 69, 45.0),
    ]
    assert any("are pooled" in note for note in found.notes)


@pytest.mark.parametrize(
    "every",
    [
        [],
        [broken(0)],
        [timeline(0)],
        [timeline(0), broken(1)],
        [timeline(n) for n in range(70)],
        [timeline(n, ttft=9999) for n in range(9)],
        [timeline(0, gaps=())],
    ],
)
def test_every_number_of_a_finding_is_finite(every: list[Timeline]) -> None:
    """Whatever was measured: a number or nothing, never NaN or infinity."""
    for found in judged(NORMAL, every).findings():
        for value in walk(found.to_json()):
            assert not isinstance(value, float) or math.isfinite(value)


def walk(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        for v in value.values():
            yield from walk(v)
    elif isinstance(value, list):
        for v in value:
            yield from walk(v)
    else:
        yield value


# -- observed evidence


@pytest.mark.parametrize(
    ("gate", "ttft", "expected"),
    [
        (None, 100, "inconclusive"),
        (None, 400, "fail"),
        ("t.py::t", 100, "pass"),
        ("t.py::t", 400, "fail"),
    ],
)
def test_observed_evidence_passes_no_release(gate: str | None, ttft: float, expected: str) -> None:
    """A few looks can refuse a release; they can pass a test that asked for no more."""
    loaded = policy(evidence={"preset": "observed"})
    every = [timeline(n, ttft=ttft, gate=gate) for n in range(5)]
    keeper = judged(loaded, every, gate=gate)
    found = next(f for f in keeper.findings() if f.metric == "ttft")
    assert found.verdict == expected
    assert found.reason == "observed, n=5: not release evidence"


def test_observed_evidence_needs_a_sample_all_the_same() -> None:
    """No token, no number, no PASS."""
    loaded = policy(evidence={"preset": "observed"})
    keeper = judged(loaded, [timeline(0, arrivals=())], gate="t.py::t")
    assert {f.verdict for f in keeper.findings()} <= {"error", "fail"}


def test_a_pooled_percentile_far_out_of_a_few_looks_fails() -> None:
    """One of five over its limit is a P95 over its limit."""
    loaded = policy(evidence={"preset": "observed"})
    every = [timeline(n, ttft=400 if n == 2 else 100) for n in range(5)]
    assert judged(loaded, every, gate="g").findings()[0].verdict == "fail"

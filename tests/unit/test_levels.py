"""Judging under load: blocks, the load that was there, the order of starts, live as in a replay."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate_samples import (
    LONG,
    MS,
    SHORT,
    TOKENS,
    broken,
    judged,
    log_lines_of,
    only,
    policy,
    timeline,
    verdicts,
    write_log,
)
from load_samples import at_levels, closed, log_of, opened, plain, read_at, seen
from pytest_llmsla.errors import InternalError, UsageError
from pytest_llmsla.finding import Finding
from pytest_llmsla.judging import judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.stats import GateSpec, SequentialGate
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper, limits_of

TTFT, ITL, RATE = "short/ttft_p95", "short/itl_p95", "short/error_rate"
FOUR = at_levels(4)
OPEN = policy(workload={"load": {"kind": "constant", "rate": 4}})


# -- which limits there are


def test_every_limit_holds_at_every_level() -> None:
    """The first level keeps the plain ids; a further one names itself in each of its own."""
    loaded = policy(SHORT, LONG, tgs={"concurrency": [1, 4]}, goodput={"min_share": 0.9})
    assert [(x.id, x.concurrency, x.load) for x in limits_of(loaded)] == [
        (f"{bucket}/{stem}{metric}", n, f"at concurrency {n}")
        for bucket in ("short", "long")
        for n, stem in ((1, ""), (4, "concurrency-4/"))
        for metric in ("ttft_p95", "itl_p95", "error_rate")
    ] + [
        ("tgs/concurrency-1", 1, "at concurrency 1"),
        ("tgs/concurrency-4", 4, "at concurrency 4"),
        ("goodput", 1, "at concurrency 1"),
        ("goodput/concurrency-4", 4, "at concurrency 4"),
    ]


def test_open_loop_is_one_level_without_a_number() -> None:
    """Its ids are the plain ones, and its texts name the rate."""
    assert [(x.id, x.concurrency, x.load) for x in limits_of(OPEN)] == [
        (TTFT, None, "open loop, 4 requests/s"),
        (ITL, None, "open loop, 4 requests/s"),
        (RATE, None, "open loop, 4 requests/s"),
        ("tgs/open-loop", None, "open loop, 4 requests/s"),
    ]


def test_a_test_at_four_has_the_ids_of_its_own() -> None:
    """One level is the first one, whatever its number; a rate by concurrency is found."""
    loaded = policy(tgs={"concurrency": [4], "min_tokens_per_s": {4: 150}})
    found = limits_of(loaded, "t.py::t")
    assert [x.id for x in found][-1] == "t.py::t/tgs"
    assert {x.concurrency for x in found} == {4}
    assert found[-1].limit == 150


def test_one_at_a_time_is_not_talked_about() -> None:
    """Reports of [1] are as they were: no word of load."""
    assert {x.load for x in limits_of(policy())} == {""}


# -- blocks


def test_requests_in_flight_together_are_one_unit() -> None:
    """A clean P95 passes after 69 blocks, not after 69 requests, and says both."""
    found = only(seen(FOUR, closed(4, 276, warmups=8)), TTFT)
    assert (found.verdict, found.units, found.requests, found.block) == ("pass", 69, 276, 4)
    assert (found.concurrency, found.load) == (4, "at concurrency 4")
    assert found.reason == "decided after 69 blocks of 4 requests"
    fewer = only(seen(FOUR, closed(4, 272, warmups=8)), TTFT)
    assert (fewer.verdict, fewer.units) == ("inconclusive", 68)
    assert "68 of at least 69 blocks of 4 requests" in fewer.reason


def test_of_a_block_that_is_not_full_only_failures_count() -> None:
    """Three clean requests more are no evidence; three failed ones are, and stay in the total."""
    clean = closed(4, 279, warmups=8)
    assert only(seen(FOUR, clean), TTFT).units == 69

    def last_fail(i: int) -> Timeline:
        return broken(i, end_ns=timeline(i).start_ns + 200 * MS) if i >= 8 + 276 else plain(i)

    found = only(seen(FOUR, closed(4, 279, last_fail, warmups=8)), TTFT)
    assert (found.units, found.requests, found.exceeded) == (70, 279, 3)
    assert only(seen(FOUR, closed(4, 279, last_fail, warmups=8)), RATE).verdict == "fail"


def test_asking_early_changes_nothing_later() -> None:
    """A finding in the middle of a block judges a copy: the block can still be filled."""
    every = closed(4, 276, warmups=8)
    asked, straight = Gatekeeper(FOUR), Gatekeeper(FOUR)
    for n, t in enumerate(every):
        asked.add(t)
        straight.add(t)
        if n % 13 == 0:
            asked.findings()
    assert asked.findings() == straight.findings()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(1, 60), st.randoms(use_true_random=False))
def test_live_and_replay_agree(
    tmp_path_factory: pytest.TempPathFactory, n: int, requests: int, chance: random.Random
) -> None:
    """Requests end in any order; what is judged as they were started is what a replay judges."""

    def shape(i: int) -> Timeline:
        if chance.random() < 0.1:
            return broken(i, end_ns=timeline(i).start_ns + round(chance.uniform(1, 400) * MS))
        gaps = [chance.uniform(5, 60) for _ in range(TOKENS - 1)]
        return timeline(i, ttft=chance.uniform(50, 600), gaps=gaps)

    loaded = at_levels(n, evidence={"preset": "fast"}, goodput={"min_share": 0.8})
    every = closed(n, requests, shape, warmups=2 * n)
    live = seen(loaded, every)
    lines = log_of(log_lines_of(loaded, []), every)
    lines.insert(-1, read_at(n, live.answered()))
    log = read_run(write_log(tmp_path_factory.mktemp("log") / "t.jsonl", lines))
    (gate,) = judge_log(log)
    assert gate.findings() == live.findings()
    assert gate.keeper.tgs_entries() == live.tgs_entries()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 60), st.randoms(use_true_random=False))
def test_live_and_replay_agree_on_a_schedule(
    tmp_path_factory: pytest.TempPathFactory, block: int, requests: int, chance: random.Random
) -> None:
    """Arrivals at any distance, answers of any length, some that fail: the same digits."""

    def shape(i: int) -> Timeline:
        if chance.random() < 0.1:
            return broken(i, end_ns=timeline(i).start_ns + round(chance.uniform(1, 400) * MS))
        return timeline(i, ttft=chance.uniform(50, 600))

    at, due = 0.0, []
    for _ in range(requests):
        at += chance.uniform(1, 600)
        due.append(at)
    loaded = policy(workload={"load": {"kind": "poisson", "rate": 4}})
    every = opened(due, shape, places=3, block=block)
    live = seen(loaded, every)
    lines = log_of(log_lines_of(loaded, []), every)
    lines.insert(-1, read_at(None, live.answered()))
    log = read_run(write_log(tmp_path_factory.mktemp("log") / "t.jsonl", lines))
    (gate,) = judge_log(log)
    assert gate.findings() == live.findings()
    assert gate.keeper.tgs_entries() == live.tgs_entries()


def test_requests_out_of_start_order_are_refused() -> None:
    """Blocks of consecutive starts cannot be made of anything else: a bug, not a verdict."""
    every = closed(4, 12)
    keeper = Gatekeeper(FOUR)
    for t in every[4:8]:
        keeper.add(t)
    with pytest.raises(InternalError, match="give requests in start order"):
        keeper.add(every[0])


def test_slow_windows_that_come_in_clusters_do_not_pass() -> None:
    """At 8 in flight a slow moment hits all of them: 8 requests are one piece of evidence.

    A tenth of the time is slow, twice what the limit allows. Taken one by one most of such
    services would pass: chance finds 69 clean requests in a row; as blocks they do not.
    """
    passed = {"blocks": 0, "requests": 0}
    for seed in range(20):
        chance = random.Random(seed)
        slow = [chance.random() < 0.10 for _ in range(40)]
        blocks, requests = SequentialGate(GateSpec()), SequentialGate(GateSpec())
        for block in slow:
            answers = [([900.0 if block else 100.0], False)] * 8
            blocks.add_block(answers)
            for values, failed in answers if requests.decision is None else ():
                requests.add(values, failed)
        passed["blocks"] += blocks.decision == "pass"
        passed["requests"] += requests.decision == "pass"
    assert passed["blocks"] == 0
    assert passed["requests"] >= 5


def test_a_gate_at_eight_judges_by_blocks() -> None:
    """Clean but for one slow moment in ten: 69 requests in a row are clean, and nothing passes."""

    def shape(i: int) -> Timeline:
        return timeline(i, ttft=900 if i // 8 % 10 == 9 else 100)

    found = only(seen(at_levels(8), closed(8, 320, shape)), TTFT)
    assert (found.verdict, found.units) == ("inconclusive", 40)


# -- the load that was there


def reasons(keeper: Gatekeeper) -> dict[str, tuple[str, str]]:
    return {f.id: (f.verdict, f.reason) for f in keeper.findings()}


def test_a_log_cannot_pass_eight_at_once_as_eight_alone() -> None:
    """Units of one request at concurrency 8 are no evidence, however many there are."""
    every = [replace(t, block=1, unit=i) for i, t in enumerate(closed(8, 400))]
    found = reasons(seen(at_levels(8), every))
    assert found[TTFT][0] == found["tgs/concurrency-8"][0] == "error"
    assert "judged in units of 1 requests at concurrency 8" in found[TTFT][1]
    assert "pass" not in {verdict for verdict, _ in found.values()}


def test_concurrency_that_was_not_held_is_no_evidence() -> None:
    """Four were asked for, and half the time one was there: neither PASS nor FAIL."""
    every = closed(4, 400)
    sparse = [replace(t, concurrency=8, block=8, unit=i // 8) for i, t in enumerate(every)]
    verdict, reason = reasons(seen(at_levels(8), sparse))[TTFT]
    assert verdict == "error"
    assert reason.startswith("concurrency not held: 4.0 requests in flight on average, 8 were")


def test_more_than_asked_for_is_no_evidence_either() -> None:
    """Eight were in flight where four were asked for: the record is of another load."""
    every = [replace(t, concurrency=4, block=4, unit=i // 4) for i, t in enumerate(closed(8, 400))]
    assert reasons(seen(FOUR, every))[TTFT] == (
        "error",
        "8 requests were in flight at once, 4 were asked for: something else sent requests too, or "
        "the record is damaged",
    )


def test_ramp_and_drain_are_not_held_against_it() -> None:
    """Between first and last measured start the load is whole, whatever comes before and after."""
    every = closed(4, 300, warmups=8)
    keeper = seen(FOUR, every)
    entry = keeper.tgs_entries()[0]
    assert entry["actual_concurrency"] == pytest.approx(4, abs=0.01)
    assert entry["conditions"]["concurrency"] == {
        "asked": 4,
        "actual": entry["actual_concurrency"],
    }


def test_a_pause_between_two_runs_is_not_counted() -> None:
    """A level that was opened twice is two runs; between them nothing was to be in flight."""
    first = closed(4, 140)
    late = max(t.end_ns for t in first) + 60_000 * MS
    second = [
        replace(
            t,
            id=f"again-{t.id}",
            start_ns=t.start_ns + late,
            end_ns=t.end_ns + late,
            arrivals=tuple((at + late, k) for at, k in t.arrivals),
            unit=t.unit + 35,
        )
        for t in closed(4, 140)
    ]
    told, untold = Gatekeeper(FOUR), Gatekeeper(FOUR)
    told.opened(4, 0, mode="threads")
    for t in first:
        told.add(t), untold.add(t)
    told.opened(4, late, mode="threads")
    for t in second:
        told.add(t), untold.add(t)
    assert only(told, TTFT).verdict == "pass"
    assert only(untold, TTFT).reason.startswith("concurrency not held")
    assert told.tgs_entries()[0]["mode"] == "threads"
    assert told.tgs_entries()[0]["tokens_per_s"] == pytest.approx(4 * TOKENS / 0.24, rel=0.02)


def test_a_level_the_policy_does_not_have_makes_nothing_pass(tmp_path: Path) -> None:
    """Its requests are nobody's, and a run that has them is not the run of its policy; judged by
    another policy they are left aside."""
    assert seen(FOUR, closed(2, 200)).findings() == []
    alone = [timeline(n) for n in range(69)]
    after = max(t.end_ns for t in alone) + MS
    every = [
        replace(
            t,
            start_ns=t.start_ns + after,
            end_ns=t.end_ns + after,
            arrivals=tuple((at + after, k) for at, k in t.arrivals),
        )
        for t in closed(2, 200)
    ]
    lines = log_of(log_lines_of(policy(), alone), every)
    log = read_run(write_log(tmp_path / "t.jsonl", lines))
    own, other = judge_log(log), judge_log(log, policy(itl={"p95_ms": 40}))
    assert "pass" not in {f.verdict for f in own[0].findings()}
    assert own[0].findings()[0].reason.startswith("200 requests are on record at a concurrency")
    assert {f.id: f.verdict for f in other[0].findings()}[TTFT] == "pass"


def test_requests_of_one_at_a_time_do_not_count_at_four() -> None:
    """A plan of [1, 4] whose second level never ran has no finding there, so no PASS."""
    keeper = judged(at_levels(1, 4), [timeline(n) for n in range(69)])
    assert not any("concurrency-4" in f.id for f in keeper.findings())


def test_levels_are_judged_apart() -> None:
    """Slow at four, fast alone: two verdicts of one bucket."""
    loaded = at_levels(1, 4)
    alone = [timeline(n) for n in range(69)]
    after = max(t.end_ns for t in alone) + MS

    def slow(i: int) -> Timeline:
        return timeline(i, ttft=900)

    four = [
        replace(
            t,
            start_ns=t.start_ns + after,
            end_ns=t.end_ns + after,
            arrivals=tuple((at + after, k) for at, k in t.arrivals),
        )
        for t in closed(4, 80, slow)
    ]
    keeper = seen(loaded, alone, four)
    found = verdicts(keeper)
    (why,) = only(keeper, "short/concurrency-4/ttft_p95").diagnosis
    assert why.startswith(
        "holds with 1 in flight (P95 100.0 ms) and breaks with 4 in flight (P95 9"
    )
    assert (found[TTFT], found["short/concurrency-4/ttft_p95"]) == ("pass", "fail")
    assert (found[ITL], found["short/concurrency-4/error_rate"]) == ("pass", "pass")


def test_a_block_cut_out_of_the_file_is_missed(tmp_path: Path) -> None:
    """What is missing may have failed: one request or a whole block, anywhere but at the end."""
    every = closed(4, 80)
    for gone in ({17}, {16, 17, 18, 19}):
        kept = [t for i, t in enumerate(every) if i not in gone]
        lines = log_of(log_lines_of(FOUR, []), kept)
        with pytest.raises(UsageError, match="Requests are missing from the file"):
            read_run(write_log(tmp_path / "t.jsonl", lines))


# -- the cases


def wave(first_ms: float, rest_ms: float, requests: int) -> list[Timeline]:
    """Ten in flight; the first ten take long, the others do not."""

    def shape(i: int) -> Timeline:
        return timeline(i, ttft=first_ms if i < 10 else rest_ms, gaps=(1,) * (TOKENS - 1))

    return closed(10, requests, shape)


def test_the_first_wave_is_warm_up() -> None:
    """Ten warm-ups of 50 s are left out and listed; the others at 0.7 s hold a limit of 1 s."""
    loaded = policy(
        {"name": "short", "prompt_max": 128, "ttft_ms": 1000},
        tgs={"concurrency": [10]},
        evidence={"preset": "fast"},
    )
    every = wave(50_000, 700, 10 + 400)
    warm = [replace(t, warmup=True, unit=0, block=1) for t in every[:10]]
    rest = [replace(t, unit=i // 10) for i, t in enumerate(every[10:])]
    keeper = seen(loaded, [*warm, *rest])
    found = only(keeper, TTFT)
    assert (found.verdict, found.percentiles["p95"]) == ("pass", 700.0)
    assert max(t.end_ns - t.start_ns for t in keeper.warmups("short")) > 50_000 * MS


def test_without_warm_up_the_first_wave_is_named() -> None:
    """P95 of a hundred requests is 50 s, and the reader learns that the slow ones came first."""
    loaded = policy(
        {"name": "short", "prompt_max": 128, "ttft_ms": 1000}, tgs={"concurrency": [10]}
    )
    found = only(seen(loaded, wave(50_000, 700, 100)), TTFT)
    assert found.percentiles["p95"] == 50_000.0
    assert found.verdict != "pass"
    assert any(
        note.startswith("first wave: without warm-up the first 10 req") for note in found.notes
    )


def test_waiting_inside_the_client_is_part_of_the_latency() -> None:
    """Ten due at once, one place: TTFT is 100 to 1000 ms from due and 100 ms from sending."""

    def shape(i: int) -> Timeline:
        return timeline(i, ttft=100, gaps=())

    loaded = policy(
        workload={"load": {"kind": "constant", "rate": 4}, "max_new_tokens": 8},
        evidence={"preset": "observed"},
    )
    every = opened([0.0] * 10, shape, places=1, block=10)
    found = only(seen(loaded, every), TTFT)
    assert (found.observed, found.percentiles["p50"]) == (1000.0, 500.0)
    assert found.verdict == "fail"
    assert any("from sending it P95 is 100.0 ms" in note for note in found.notes)


# -- open loop


def steady(requests: int = 300, *, every_ms: float = 250, **fields: object) -> list[Timeline]:
    return opened([every_ms * i for i in range(requests)], places=4, block=2, **fields)


def test_a_schedule_that_is_kept_passes() -> None:
    """Four a second at 240 ms each: one in flight, judged in blocks of two."""
    found = only(seen(OPEN, steady()), TTFT)
    assert (found.verdict, found.block, found.concurrency) == ("pass", 2, None)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({"late_ns": None}, "error", "how late the client sent its requests is not on record"),
        ({"late_ns": 6 * MS}, "error", "client overloaded: P95 of how late it sent requests is 6"),
    ],
)
def test_a_client_that_is_late_is_no_evidence(
    change: dict[str, object], verdict: str, reason: str
) -> None:
    """Then nobody knows what the schedule would have shown: neither PASS nor FAIL."""
    found = only(seen(OPEN, steady(**change)), TTFT)
    assert (found.verdict, found.reason[: len(reason)]) == (verdict, reason)


def test_a_few_late_sends_are_no_overload() -> None:
    """P95 decides: one send in thirty that is late leaves the verdict."""
    every = [replace(t, late_ns=50 * MS if i % 30 == 0 else 0) for i, t in enumerate(steady())]
    assert only(seen(OPEN, every), TTFT).verdict == "pass"


def test_units_smaller_than_what_is_in_flight_do_not_pass() -> None:
    """Requests that overlap more than warm-up showed are not independent."""
    crowded = opened([60.0 * i for i in range(400)], places=8, block=2)
    found: Finding = only(seen(OPEN, crowded), TTFT)
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("units too small: 4.0 requests were in flight on average")


def test_a_schedule_that_was_thinned_out_is_no_evidence() -> None:
    """Half the rate that the policy asks for, or half of the requests gone: not that load."""
    thin = [
        replace(t, unit=i // 2) for i, t in enumerate(t for n, t in enumerate(steady(600)) if n % 2)
    ]
    found = reasons(seen(OPEN, thin))
    assert {verdict for verdict, _ in found.values()} == {"error"}
    assert found[TTFT][1].startswith("the schedule was not kept: 2 requests/s were due, 4 were")


@pytest.mark.parametrize("load", [{"kind": "poisson"}, {"kind": "gamma", "burstiness": 0.25}])
def test_arrivals_that_scatter_as_they_do_are_the_schedule(load: dict[str, object]) -> None:
    """Three hundred independent or bursty arrivals are a few per cent off their mean rate."""
    loaded = policy(workload={"load": {**load, "rate": 4}})
    shape = float(str(load.get("burstiness", 1)))
    for seed in range(8):
        chance, at, due = random.Random(seed), 0.0, []
        for _ in range(300):
            at += chance.gammavariate(shape, 250 / shape)
            due.append(at)
        keeper = seen(loaded, opened(due, places=64, block=8))
        assert not any(f.reason.startswith("the schedule") for f in keeper.findings())


def test_a_schedule_of_other_requests_is_ignored() -> None:
    """Closed requests are not an open loop's, nor the other way round."""
    assert seen(OPEN, closed(1, 80)).findings() == []
    assert seen(policy(), steady()).findings() == []

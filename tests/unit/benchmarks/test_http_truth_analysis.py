"""What clients say is compared with the truth request by request, and nothing is taken for good."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
MS = 1_000_000


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other by name, from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> Any:
    return importlib.import_module(name)


def record(key: str, sent_ms: list[float], *, arrived_ms: float = 0.0, **more: Any) -> Any:
    before = [round(t * MS) for t in sent_ms]
    return {
        "key": key,
        "id": f"id-{key}",
        "arrived_ns": round(arrived_ms * MS),
        "due_ns": before,
        "before_ns": before,
        "after_ns": [b + 5_000 for b in before],
        "stalls": 0,
        "closed": False,
        **more,
    }


def truths(*records: Any) -> Any:
    return module("truth.analysis").truths(records)


def said(key: str, ttft: float | None = None, gaps: Any = None, **more: Any) -> Any:
    return module("truth.analysis").Said(key, ttft, gaps, **more)


def errors(truth: Any, *given: Any) -> Any:
    return module("truth.analysis").errors(truth, given)


def test_truth_is_counted_from_the_arrival_of_the_request() -> None:
    """TTFT from the kernel's stamp of the request, gaps from send to send."""
    found = truths(record("m1", [110, 130, 155], arrived_ms=10))["m1"]
    assert (found.ttft_ms, found.gaps_ms) == (100.0, (20.0, 25.0))
    assert found.complete


def test_warm_ups_and_strangers_are_not_judged_and_the_last_of_a_key_counts() -> None:
    """Keys that begin with another letter, and requests without a key, are left out."""
    found = truths(record("w0", [1]), record("", [1]), record("m0", [1, 2]), record("m0", [5, 9]))
    assert list(found) == ["m0"]
    assert found["m0"].gaps_ms == (4.0,)


def test_errors_pair_each_request_with_its_own_truth() -> None:
    """Whatever the order in which a client reports."""
    truth = truths(record("m0", [100, 120, 140]), record("m1", [200, 210, 220]))
    found = errors(truth, said("m1", 201.0, (10.5, 10.0)), said("m0", 99.0, (20.0, 21.0)))
    assert found.ttft == [-1.0, 1.0]
    assert found.gap == [0.0, 1.0, 0.5, 0.0]
    assert (found.lost, found.miscounted, found.doubtful) == (0, 0, 0)


def test_a_request_that_is_not_reported_is_lost() -> None:
    """It is counted, not passed over."""
    found = errors(truths(record("m0", [1, 2]), record("m1", [1, 2])), said("m0", 1.0, (1.0,)))
    assert found.lost == 1


def test_another_number_of_gaps_is_a_miscount_but_for_the_role() -> None:
    """One gap more is the chunk with the role, taken for a token; any other count compares not."""
    truth = truths(record("m0", [100, 120, 140]))
    assert errors(truth, said("m0", None, (0.1, 20.0, 21.0))).gap == [0.0, 1.0]
    assert errors(truth, said("m0", None, (20.0,))).miscounted == 1
    assert errors(truth, said("m0", None, (1.0, 2.0, 3.0, 4.0))).miscounted == 1


def test_an_event_whose_send_took_long_is_in_no_figure() -> None:
    """Both gaps beside it are left out, and counted."""
    doubtful = record("m0", [100, 120, 140, 160])
    doubtful["after_ns"][1] += 300_000
    truth = truths(doubtful)
    assert truth["m0"].gaps_ms == (None, None, 20.0)
    found = errors(truth, said("m0", 100.0, (5.0, 5.0, 21.0), mean_itl_ms=20.0))
    assert (found.gap, found.ttft, found.mean_itl) == ([1.0], [0.0], [])
    assert found.doubtful == 2
    doubtful["after_ns"][0] += 300_000
    assert truths(doubtful)["m0"].ttft_ms is None


def test_means_are_compared_where_there_are_no_gaps() -> None:
    """A client that reports one mean a request has that compared with the request's true mean."""
    truth = truths(record("m0", [100, 120, 150]))
    assert errors(truth, said("m0", mean_itl_ms=26.0)).mean_itl == [1.0]


def test_a_client_that_falls_behind_stretches_answers() -> None:
    """The error of an answer's duration is a share of it, of gaps and of means alike."""
    truth = truths(record("m0", [100, 120, 140]))
    assert errors(truth, said("m0", None, (22.0, 22.0))).span == pytest.approx([0.1])
    assert errors(truth, said("m0", mean_itl_ms=18.0)).span == pytest.approx([-0.1])
    assert errors(truths(record("m0", [100])), said("m0", 100.0, ())).span == []


def test_reported_percentiles_are_those_of_the_same_requests() -> None:
    """ITL pooled; a mean weighs as much as its gaps; nothing reported gives no figure."""
    reported = module("truth.analysis").reported
    truth = truths(record("m0", [100, 110, 120]), record("m1", [200, 230, 260]))
    found = reported(truth, [said("m0", 100.0, (11.0, 12.0)), said("m1", 203.0, (31.0, 33.0))])
    assert found == {"ttft_p50": 0.0, "ttft_p95": 3.0, "itl_p95": 3.0, "itl_p95_truth": 30.0}
    found = reported(truth, [said("m1", 203.0, mean_itl_ms=31.0)])
    assert (found["ttft_p50"], found["itl_p95"]) == (3.0, 1.0)
    assert reported(truth, [])["itl_p95"] is None


def test_spread_is_of_absolute_values() -> None:
    """Errors of both signs do not cancel; no value gives no percentile."""
    spread = module("truth.analysis").spread
    found = spread([-3.0, 1.0, -1.0, 2.0])
    assert (found["p50"], found["p99"], found["n"]) == (1.0, 3.0, 4)
    assert spread([])["p50"] is None


def test_merged_reads_are_gaps_of_nothing() -> None:
    """Events of one read have one stamp."""
    assert module("truth.analysis").merged([(20.0, 0.0, 20.0), (0.0,)]) == 2


def test_cpu_is_read_between_samples_and_not_beyond_them() -> None:
    """Straight lines between samples; a window that they do not cover gives nothing."""
    between = module("truth.analysis").cpu_between
    samples = [(0, 1.0), (10, 2.0), (20, 2.0), (30, 5.0)]
    assert between(samples, 5, 25) == pytest.approx(2.0)
    assert between(samples, 10, 20) == 0.0
    assert between(samples, 5, 31) is None
    assert between([], 0, 1) is None


def test_rate_counts_events_while_tokens_flow() -> None:
    """From the first token of any stream to the last, not from the arrival."""
    truth = truths(record("m0", [1000, 1500, 2000]), record("m1", [1000, 1500, 2000]))
    assert module("truth.analysis").rate(truth) == 6.0


def step(offered: float, **more: Any) -> Any:
    given = {
        "offered": offered,
        "rate": offered,
        "gap_ms": 64 / offered * 1e3,
        "error_p95_ms": 0.1,
        "late_p95_ms": 0.0,
        "behind_s": 0.0,
    }
    return module("truth.search").Step(**(given | more))


@pytest.mark.parametrize(
    ("more", "sound", "held"),
    [
        ({}, True, True),
        ({"error_p95_ms": 1.01}, True, False),
        ({"error_p95_ms": None}, True, False),
        ({"span_error_p95": 0.051}, True, False),
        ({"span_error_p95": 0.05}, True, True),
        ({"lost": 1}, True, False),
        ({"miscounted": 1}, True, False),
        ({"stalls": 1, "rate": 100.0, "late_p95_ms": 9.0}, True, False),
        ({"late_p95_ms": 1.1}, False, False),
        ({"rate": 2900.0}, False, False),
        ({"quiet": False, "error_p95_ms": 2.0}, False, False),
        ({"quiet": False}, False, True),
    ],
)
def test_a_try_holds_only_when_all_is_well(more: Any, sound: bool, held: bool) -> None:
    """Exact and whole; a failure counts only if neither the server nor other work was it."""
    tried = step(3200.0, **more)
    assert (tried.sound, tried.held) == (sound, held)


def test_the_error_may_not_exceed_half_a_gap() -> None:
    """Where gaps are shorter than 2 ms, 1 ms would be no measurement of them."""
    assert step(3200.0).limit_ms == 1.0
    fast = step(64_000.0, error_p95_ms=0.6)
    assert (fast.limit_ms, fast.held) == (0.5, False)
    assert fast.within_goal


def test_rates_by_1_ms_alone_are_looked_for_above() -> None:
    """Where the search ended because of half a gap; until they fail too, or the top is reached."""
    found = module("truth.search")
    asked: list[float] = []

    def attempt(rate: float) -> Any:
        asked.append(rate)
        return step(rate, error_p95_ms=0.9 if rate < 300_000 else 1.1)

    steps = [step(64_000.0), step(128_000.0, error_p95_ms=0.6)]
    found.rise(attempt, steps, factor=2.0, top=1e6, tries=2)
    assert asked == [256_000.0, 512_000.0, 512_000.0]
    assert found.highest(steps).offered == 64_000.0
    assert found.within_goal(steps).offered == 256_000.0
    found.rise(attempt, steps, factor=2.0, top=1e6, tries=2)
    assert len(asked) == 3


def searched(limit: float, *, flaky: Any = (), **more: Any) -> tuple[list[float], list[Any]]:
    """A search where rates up to ``limit`` hold; the n-th tries in ``flaky`` are unsound."""
    asked: list[float] = []

    def attempt(rate: float) -> Any:
        asked.append(rate)
        late = 9.0 if len(asked) - 1 in flaky else 0.0
        return step(rate, error_p95_ms=0.1 if rate <= limit else 5.0, late_p95_ms=late)

    given = {"start": 100.0, "factor": 2.0, "top": 1600.0, "floor": 25.0, "tries": 2} | more
    return asked, module("truth.search").search(attempt, **given)


@pytest.mark.parametrize(
    ("limit", "more", "asked"),
    [
        (450.0, {}, [100, 200, 400, 800, 800]),
        (9000.0, {}, [100, 200, 400, 800, 1600]),
        (60.0, {}, [100, 100, 50]),
        (1.0, {}, [100, 100, 50, 50, 25, 25]),
        (450.0, {"refine": 1, "tries": 1, "top": 800.0}, [100, 200, 400, 800, 565.685]),
        (60.0, {"refine": 1, "tries": 1}, [100, 50, 70.711]),
        (450.0, {"flaky": (2,)}, [100, 200, 400, 400, 800, 800]),
        (450.0, {"flaky": (1, 2, 3, 4)}, [100, 200, 200, 200, 200]),
        (450.0, {"flaky": (0, 1, 2, 3)}, [100, 100, 100, 100]),
    ],
)
def test_the_search_rises_until_a_rate_fails(limit: float, more: Any, asked: list[float]) -> None:
    """Rising, or falling from a start that fails; unsound tries are repeated, then end it."""
    got, steps = searched(limit, **more)
    assert got == pytest.approx(asked, rel=1e-5)
    assert [s.offered for s in steps] == got


def test_the_highest_rate_is_below_the_first_that_failed() -> None:
    """A rate that holds above one that does not is luck."""
    highest = module("truth.search").highest
    bad = {"error_p95_ms": 9.0}
    assert highest([step(1.0), step(2.0), step(4.0, **bad), step(8.0)]).offered == 2.0
    assert highest([step(1.0), step(2.0, **bad), step(2.0), step(4.0, **bad)]).offered == 2.0
    assert highest([step(4.0, **bad), step(2.0)]).offered == 2.0
    assert highest([step(1.0, **bad)]) is None
    assert highest([]) is None


@pytest.mark.parametrize(("behind_s", "in_time"), [(0.05, True), (0.051, False), (None, None)])
def test_late_parsing_is_told_apart_from_late_stamps(behind_s: Any, in_time: Any) -> None:
    """A twentieth of the time that tokens flowed; it is shown, and a try holds all the same."""
    tried = step(3200.0, behind_s=behind_s)
    assert (tried.in_time, tried.held) == (in_time, True)
    highest_in_time = module("truth.search").highest_in_time
    assert highest_in_time([tried]) == (3200.0 if in_time else None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"error_p95_ms": 2.5}, "P95 was 2.50 ms"),
        ({"error_p95_ms": None}, "reports no gaps"),
        ({"span_error_p95": 0.2}, "20 % longer"),
        ({"lost": 2}, "lost"),
        ({"stalls": 2}, "buffers"),
        ({"late_p95_ms": 4.0}, "server did not keep"),
    ],
)
def test_what_ended_a_search_is_said(more: Any, words: str) -> None:
    """The reason is that of the lowest rate above the best."""
    said_why = module("truth.search").why([step(8.0, lost=9), step(4.0, **more)])
    assert said_why.startswith("at 4 ")
    assert words in said_why
    assert module("truth.search").why([]) == "no higher rate was tried"


def test_repeats_are_pooled_and_failures_stay_visible() -> None:
    """Errors of all runs together; the worst reported percentile with its sign; each failure."""
    trial = module("truth.trial")
    plan = module("truth.schedule").Plan()
    found = []
    for ttft, wrong in ((0.1, 0.2), (0.3, -0.7)):
        e = module("truth.analysis").Errors(ttft=[ttft], gap=[wrong, 0.0])
        read = {"ttft_p50": wrong, "ttft_p95": None, "itl_p95": 0.0}
        found.append(
            trial.Trial("x", 1, plan, errors=e, reported=read, cpu_s=1.0, events=500, merged=1)
        )
    pooled = trial.pooled([*found, trial.Trial("x", 1, plan, failed="exit code 1: no")])
    assert (pooled["runs"], pooled["failed"]) == (2, ["exit code 1: no"])
    assert pooled["ttft_error"]["n"] == 2
    assert pooled["gap_error"]["p99"] == 0.7
    assert pooled["reported_ttft_p50_minus_truth"] == -0.7
    assert pooled["reported_ttft_p95_minus_truth"] is None
    assert pooled["cpu_s_per_1000_events"] == 2.0
    assert pooled["merged"] == 2
    assert trial.pooled([trial.Trial("x", 1, plan, failed="no")])["runs"] == 0


def test_a_run_that_failed_is_a_step_that_did_not_hold() -> None:
    """A client that ends without a result has not kept the rate."""
    trial = module("truth.trial")
    plan = module("truth.schedule").Plan()
    found = trial.step(trial.Trial("x", 64, plan, failed="exit code 1"), 3200.0)
    assert (found.held, found.sound, found.lost) == (False, True, 1)


@pytest.mark.parametrize(
    ("others", "late", "quiet"), [(0.0, 0.1, True), (0.5, 0.1, False), (0.0, 3.0, False)]
)
def test_other_work_and_a_late_server_disturb_a_run(
    others: float, late: float, quiet: bool
) -> None:
    """Both are kept with the run, and with the pooled repeats."""
    trial = module("truth.trial")
    plan = module("truth.schedule").Plan()
    e = module("truth.analysis").Errors(ttft=[0.1], gap=[0.1])
    read = dict.fromkeys(("ttft_p50", "ttft_p95", "itl_p95"), 0.0)
    run = trial.Trial("x", 1, plan, errors=e, reported=read, others=others, late_ms=(late,))
    assert run.quiet is quiet
    pooled = trial.pooled([run])
    assert (pooled["quiet"], pooled["others_cores"]) == (quiet, others)

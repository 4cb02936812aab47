"""A whole run from its log: complete or not, and never better than its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gate_samples import (
    LONG,
    SHORT,
    broken,
    judged,
    log_lines_of,
    plain_json,
    policy,
    timeline,
    write_log,
)
from pytest_llmsla.errors import UsageError
from pytest_llmsla.judging import build_report, judge_log, kv_plan_state
from pytest_llmsla.log import RunLog, read_run
from pytest_llmsla.policy import LoadedPolicy, policy_from_mapping

FAST = policy(evidence={"preset": "fast"})
CLEAN = [timeline(n) for n in range(38)]
IDS = ("short/ttft_p95", "short/itl_p95", "short/error_rate", "tgs/concurrency-1")


@dataclass(frozen=True)
class Said:
    """What a test runner said of one limit."""

    status: str = "passed"
    reason: str = ""
    reruns: int = 0


def log_of(folder: Path, loaded: LoadedPolicy = FAST, timelines: Any = CLEAN) -> RunLog:
    return read_run(write_log(folder / "t.jsonl", log_lines_of(loaded, timelines)))


def report_of(
    log: RunLog, outcomes: Mapping[str, Said] | None = None, **kwargs: Any
) -> dict[str, Any]:
    return build_report(log, judge_log(log), outcomes, **kwargs)


def all_passed(**changes: Said) -> dict[str, Said]:
    return {**dict.fromkeys(IDS, Said()), **changes}


def test_a_clean_run_is_a_complete_pass(tmp_path: Path) -> None:
    """Without a test runner and with one that ran everything."""
    log = log_of(tmp_path)
    for outcomes in (None, all_passed()):
        made = report_of(log, outcomes)
        assert (made["verdict"], made["complete"], made["not_measured"]) == ("pass", True, [])
        assert [f["id"] for f in made["findings"]] == list(IDS)


@pytest.mark.parametrize("limit_id", IDS)
@pytest.mark.parametrize(
    "status", ["skipped", "xfailed", "deselected", "not reached", "error", "xpassed", ""]
)
def test_a_limit_whose_test_did_not_run_is_missing(
    tmp_path: Path, limit_id: str, status: str
) -> None:
    """Whatever the evidence on record says, the sign-off is incomplete and names it."""
    outcomes = all_passed() | {limit_id: Said(status, "not today")}
    made = report_of(log_of(tmp_path), outcomes)
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert made["not_measured"] == [{"id": limit_id, "reason": f"{status}: not today"}]


@pytest.mark.parametrize("limit_id", IDS)
def test_a_limit_nobody_planned_is_missing(tmp_path: Path, limit_id: str) -> None:
    """Declared by the policy and unknown to the test runner: not collected."""
    outcomes = {name: said for name, said in all_passed().items() if name != limit_id}
    made = report_of(log_of(tmp_path), outcomes)
    assert (made["verdict"], made["not_measured"]) == (
        "inconclusive",
        [{"id": limit_id, "reason": "not collected"}],
    )


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_a_test_that_ran_and_left_nothing_on_record_is_missing(tmp_path: Path, status: str) -> None:
    """A gate whose lines are not in the log cannot be signed off by its test's word."""
    made = report_of(log_of(tmp_path), all_passed() | {"t.py::t/ttft_p95": Said(status)})
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert made["not_measured"][0]["id"] == "t.py::t/ttft_p95"
    assert "the log holds nothing of it" in made["not_measured"][0]["reason"]


def test_a_test_that_began_and_never_reported_is_an_error(tmp_path: Path) -> None:
    """A worker that died leaves an error row for each of its limits."""
    log = log_of(tmp_path, policy(SHORT, LONG, evidence={"preset": "fast"}))
    silent = Said("no result received", "the worker died")
    outcomes = all_passed() | {
        f"long/{name}": silent for name in ("ttft_p95", "itl_p95", "error_rate")
    }
    made = report_of(log, outcomes)
    assert made["verdict"] == "error"
    rows = {f["id"]: f for f in made["findings"] if f["bucket"] == "long"}
    assert {f["verdict"] for f in rows.values()} == {"error"}
    assert rows["long/ttft_p95"]["reason"] == "no result received (the worker died)"
    assert rows["long/ttft_p95"]["limit"] == 450


def test_a_failed_test_does_not_change_what_was_measured(tmp_path: Path) -> None:
    """The verdict comes from the timelines, not from the runner's word."""
    made = report_of(log_of(tmp_path), dict.fromkeys(IDS, Said("failed")))
    assert made["verdict"] == "pass"
    slow = log_of(tmp_path, timelines=[timeline(n, ttft=900) for n in range(38)])
    assert report_of(slow, all_passed())["verdict"] == "fail"


def test_reruns_are_named(tmp_path: Path) -> None:
    """Passed after one rerun is said, not hidden."""
    made = report_of(log_of(tmp_path), all_passed(**{IDS[0]: Said(reruns=1)}))
    assert made["reruns"] == [{"id": IDS[0], "reruns": 1, "status": "passed after 1 rerun(s)"}]


def test_what_the_caller_misses_makes_it_incomplete(tmp_path: Path) -> None:
    """A part of the suite, a dead worker: known to the caller only."""
    made = report_of(log_of(tmp_path), all_passed(), missing=[("worker", "gw0 died")])
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert made["not_measured"] == [{"id": "worker", "reason": "gw0 died"}]


@pytest.mark.parametrize(
    ("timelines", "verdict"),
    [
        ([timeline(n, ttft=900) for n in range(38)], "fail"),
        ([*CLEAN, broken(38)], "fail"),
        ([broken(n) for n in range(5)], "fail"),
        (CLEAN[:37], "inconclusive"),
        ([timeline(n, gaps=()) for n in range(38)], "error"),
        ([timeline(n, cached_tokens=120) for n in range(38)], "error"),
        ([], "inconclusive"),
    ],
)
def test_the_whole_is_never_better_than_its_worst_part(
    tmp_path: Path, timelines: Any, verdict: str
) -> None:
    """FAIL before ERROR before INCONCLUSIVE, and nothing measured is no PASS."""
    assert report_of(log_of(tmp_path, timelines=timelines))["verdict"] == verdict


# -- gates of tests


def gate_lines(key: str, loaded: LoadedPolicy, timelines: Any) -> list[dict[str, Any]]:
    """The lines of a test's own gate, to be put before the end of a log."""
    lines = log_lines_of(loaded, timelines, ended=False)[1:]
    for line in lines:
        if line["type"] != "segment":
            line["gate"] = key
        if "id" in line:
            line["id"] = f"{key}-{line['id']}"
    dumped = loaded.policy.model_dump(mode="json")
    return [{"type": "gate", "gate": key, "policy": dumped}, *lines]


def with_gate(folder: Path, loaded: LoadedPolicy, timelines: Any, *, alone: bool = False) -> RunLog:
    whole = log_lines_of(FAST, [] if alone else CLEAN)
    if alone:
        del whole[0]["policy"]
        whole = [line for line in whole if line["type"] != "target"]
        whole[-1]["measuring"] = []
    lines = [*whole[:-1], *gate_lines("t.py::t", loaded, timelines), whole[-1]]
    return read_run(write_log(folder / "t.jsonl", lines))


OBSERVED = policy(evidence={"preset": "observed"})


def test_a_tests_gate_is_judged_by_its_own_policy(tmp_path: Path) -> None:
    """Its requests belong to it alone, and the release's to the release."""
    tight = policy({**SHORT, "ttft_ms": 50}, evidence={"preset": "fast"})
    made = report_of(with_gate(tmp_path, tight, CLEAN))
    found = {f["id"]: f["verdict"] for f in made["findings"]}
    assert (found["short/ttft_p95"], found["t.py::t/ttft_p95"]) == ("pass", "fail")


def test_a_declared_gate_that_measured_nothing_is_missing(tmp_path: Path) -> None:
    """A test that was planned and never ran leaves its limits open."""
    made = report_of(with_gate(tmp_path, FAST, []))
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert {m["id"] for m in made["not_measured"]} == {
        "t.py::t/ttft_p95",
        "t.py::t/itl_p95",
        "t.py::t/error_rate",
    }


def test_observed_tests_alone_release_nothing(tmp_path: Path) -> None:
    """Each passes as a test; together they are no release evidence."""
    made = report_of(with_gate(tmp_path, OBSERVED, CLEAN[:5], alone=True))
    assert {f["verdict"] for f in made["findings"]} == {"pass"}
    assert (made["verdict"], made["reason"]) == (
        "inconclusive",
        "observed only: not release evidence",
    )


def test_observed_tests_beside_a_release_keep_it_from_sign_off_only(tmp_path: Path) -> None:
    """They say what they are; under sign-off they make it incomplete."""
    log = with_gate(tmp_path, OBSERVED, CLEAN[:5])
    assert report_of(log)["verdict"] == "pass"
    signed = report_of(log, signoff=True)
    assert (signed["verdict"], signed["complete"]) == ("inconclusive", False)


def test_an_observed_release_is_inconclusive(tmp_path: Path) -> None:
    """However good five requests look."""
    made = report_of(log_of(tmp_path, OBSERVED, CLEAN[:5]))
    assert made["verdict"] == "inconclusive"


def test_a_script_signs_nothing_off(tmp_path: Path) -> None:
    """No model was measured."""
    made = report_of(log_of(tmp_path), signoff=True)
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert any(m["id"] == "target" for m in made["not_measured"])


# -- the same code, the same digits


def test_judging_twice_gives_the_same_report(tmp_path: Path) -> None:
    """A log has one report, and it survives JSON."""
    log = log_of(tmp_path)
    first, second = report_of(log), report_of(read_run(tmp_path / "t.jsonl"))
    assert plain_json(first) == plain_json(second)


def test_a_log_gives_the_findings_of_the_judge_that_saw_it_live(tmp_path: Path) -> None:
    """To the last digit, for uneven times, failures and two buckets."""
    loaded = policy(SHORT, LONG, evidence={"preset": "fast"})
    every = []
    for n in range(120):
        long = n % 2 == 1
        shape: dict[str, Any] = {
            "unit": n // 2,
            "bucket": "long" if long else "short",
            "prompt": 500 - 3 * (n % 30) if long else 128 - n % 25,
            "ttft": 101.337 + 17.77 * (n % 7),
            "gaps": tuple(19.001 + 0.37 * ((n + i) % 11) for i in range(7)),
        }
        every.append(broken(n, **shape) if n == 77 else timeline(n, **shape))
    live = [f.to_json() for f in judged(loaded, every).findings()]
    stored = report_of(log_of(tmp_path, loaded, every))["findings"]
    for mine, theirs in zip(live, stored, strict=True):
        mine["start_point"] = theirs["start_point"]  # of the target line
        assert mine == theirs
    assert plain_json(stored) == stored


def test_a_given_policy_judges_instead_of_the_recorded_one(tmp_path: Path) -> None:
    """A release's limits are those of its own file, and its file's lines are named."""
    log = log_of(tmp_path)
    tight = policy({**SHORT, "ttft_ms": 50}, evidence={"preset": "fast"})
    made = build_report(log, judge_log(log, tight))
    assert made["verdict"] == "fail"
    assert made["policy"]["sha256"] == tight.sha256
    assert made["policy"]["recorded_sha256"] == FAST.sha256
    assert made["complete"] is True


def test_a_policy_with_more_buckets_than_the_run_is_not_met(tmp_path: Path) -> None:
    """Limits without a request on record are missing."""
    log = log_of(tmp_path)
    made = build_report(log, judge_log(log, policy(SHORT, LONG, evidence={"preset": "fast"})))
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)


def test_a_stricter_preset_takes_more_requests(tmp_path: Path) -> None:
    """38 requests that passed under fast do not pass under strict."""
    log = log_of(tmp_path)
    assert build_report(log, judge_log(log, policy()))["verdict"] == "inconclusive"


def test_a_recorded_policy_that_is_none_is_refused(tmp_path: Path) -> None:
    """With the file's name and what is wrong."""
    lines = log_lines_of(FAST, CLEAN)
    lines[0]["policy"] = {**lines[0]["policy"], "surprise": 1}
    log = read_run(write_log(tmp_path / "t.jsonl", lines))
    with pytest.raises(UsageError, match="surprise"):
        judge_log(log)


# -- what stands beside the verdict


def test_errors_are_grouped_with_their_count(tmp_path: Path) -> None:
    """One line a reason and bucket, problems beside them."""
    every = [broken(n) if n < 3 else timeline(n) for n in range(10)]
    lines = log_lines_of(FAST, every)
    problem = {"type": "problem", "gate": None, "bucket": "short", "reason": "stopped"}
    log = read_run(write_log(tmp_path / "t.jsonl", [*lines[:-1], problem, lines[-1]]))
    made = report_of(log)
    assert made["errors"] == [
        {"bucket": "short", "reason": "RuntimeError: boom", "count": 3},
        {"bucket": "short", "reason": "stopped", "count": 1},
    ]
    assert made["requests"]["measured"] == 10


def test_warm_up_is_counted_and_its_worst_is_named(tmp_path: Path) -> None:
    """What was discarded is not hidden; not steady is said."""
    warm = [timeline(n, warmup=True, unit=0, ttft=5000 if n == 0 else 100) for n in range(3)]
    every = [*warm, *(timeline(n, unit=n - 3) for n in range(3, 41))]
    made = report_of(log_of(tmp_path, timelines=every))
    assert made["warmup"]["short"]["note"] == "3 warm-up, worst 5140 ms; not steady by then"
    assert (made["warmup"]["short"]["failed"], made["requests"]["warmup"]) == (0, 3)


def test_warm_up_of_broken_times_breaks_nothing(tmp_path: Path) -> None:
    """An end before the start in a warm-up line is a failed warm-up, not a crash."""
    warm = [timeline(0, warmup=True, unit=0, end_ns=-5 * 10**9)]
    made = report_of(log_of(tmp_path, timelines=[*warm, timeline(1, unit=0)]))
    assert made["warmup"]["short"]["failed"] == 1


def test_the_family_bound_counts_tested_limits(tmp_path: Path) -> None:
    """R limits at α_fail each; limits that were not tested add nothing."""
    made = report_of(log_of(tmp_path))
    tested = [f for f in made["findings"] if f["evidence"] and f["evidence"]["alpha_fail"]]
    assert made["family_alpha_fail"] == pytest.approx(0.01 * len(tested))


@pytest.mark.parametrize("memory", [None, "", "unknown", "16.3 GiB, framework peak"])
def test_a_figure_on_record_without_its_conditions_is_a_broken_rule(
    tmp_path: Path, memory: str | None
) -> None:
    """Rule 3 holds for figures measured elsewhere too: FAIL beside a run that passes else."""
    line = {
        "type": "tgs",
        "id": "t.py::t/tgs",
        "value": 182.6,
        "prompt_lengths": "128",
        "sampling": {"greedy": True},
        "concurrency": 4,
        "memory": memory,
    }
    lines = log_lines_of(FAST, CLEAN)
    log = read_run(write_log(tmp_path / "t.jsonl", [*lines[:-1], line, lines[-1]]))
    made = report_of(log)
    documented = bool(memory) and memory != "unknown"
    assert made["verdict"] == ("pass" if documented else "fail")
    if not documented:
        found = made["findings"][-1]
        assert (found["id"], found["observed"]) == ("t.py::t/tgs-recorded", 182.6)
        assert "undocumented: memory" in found["reason"]


def test_a_figure_on_record_is_no_measurement(tmp_path: Path) -> None:
    """Documented or not, it alone makes no PASS."""
    given = dict.fromkeys(("prompt_lengths", "sampling", "concurrency", "memory"), "known")
    line = {"type": "tgs", "id": "t.py::t/tgs", "value": 182.6, **given}
    lines = log_lines_of(FAST, [])
    del lines[0]["policy"]
    path = write_log(tmp_path / "t.jsonl", [lines[0], line, lines[-1] | {"measuring": []}])
    assert report_of(read_run(path))["verdict"] == "error"


def test_a_gate_that_measured_and_is_gone_was_cut_out(tmp_path: Path) -> None:
    """The end of the log still names it."""
    lines = log_lines_of(FAST, CLEAN)
    lines[-1]["measuring"].append({"gate": "t.py::t", "reason": "decided"})
    with pytest.raises(UsageError, match=r"t\.py::t"):
        judge_log(read_run(write_log(tmp_path / "t.jsonl", lines)))


# -- KV-cache plans


def test_a_plan_is_read_as_of_the_day(tmp_path: Path) -> None:
    """Valid through its last day, a problem after it, unreadable or missing."""
    from datetime import date

    plan = tmp_path / "kv.md"
    plan.write_text("cause: cache\nmeasures: int8\nowner: team one\nexpires: 2025-06-30\n")
    raw = policy(itl={"p95_ms": 50, "kv_plan": "kv.md"}).policy.model_dump(mode="json")
    loaded = policy_from_mapping(raw, "test", base=tmp_path)
    assert "team one" in str(kv_plan_state(loaded, date(2025, 6, 30)).summary)
    late = kv_plan_state(loaded, date(2025, 7, 1))
    assert (late.summary, "expired" in str(late.problem)) == (None, True)
    plan.unlink()
    assert "there is no file" in str(kv_plan_state(loaded).problem)
    assert kv_plan_state(policy()) == kv_plan_state(FAST)

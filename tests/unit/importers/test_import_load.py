"""Requests of another tool that overlapped: judged in blocks, at the level that was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foreign_files import RAW, Call, calls, checked, policy

from pytest_llmsla.errors import UsageError


def waves(n: int, at_once: int = 4, every: float = 250.0) -> list[Call]:
    """``n`` requests, ``at_once`` of them together, one wave after the other."""
    return [
        replace(c, start=every * (i // at_once) + i % at_once / 100) for i, c in enumerate(calls(n))
    ]


@pytest.mark.parametrize(("n", "verdict"), [(100, "inconclusive"), (160, "pass")])
def test_four_at_once_are_one_unit(n: int, verdict: str, tmp_path: Path) -> None:
    """38 clean blocks of four are needed, not 38 requests."""
    path = RAW["vllm"](tmp_path, waves(n), max_concurrency=4)
    got = checked(path, policy(tmp_path, level=4))
    found = got.finding("short/ttft_p95")
    assert (found["verdict"], found["units"], found["block"]) == (verdict, n // 4, 4)
    assert got.finding("short/itl_p95")["verdict"] == verdict


def test_a_level_that_was_not_held_shows_nothing(tmp_path: Path) -> None:
    """Asked for four in flight, had one: no verdict at concurrency 4."""
    path = RAW["vllm"](tmp_path, calls(200), max_concurrency=4)
    got = checked(path, policy(tmp_path, level=4))
    assert "pass" not in (got.verdicts["short/ttft_p95"], got.verdicts["short/itl_p95"])
    assert got.code != 0


def test_all_at_once_is_a_level_of_its_own(tmp_path: Path) -> None:
    """Without a bound on concurrency all are in flight: one block, and no level of the policy."""
    path = RAW["vllm"](tmp_path, waves(40, 40), max_concurrency=None)
    assert checked(path, policy(tmp_path, level=4)).report["verdict"] != "pass"
    got = checked(path, policy(tmp_path, level=40))
    assert got.finding("short/ttft_p95")["units"] <= 1
    assert got.verdicts["short/ttft_p95"] != "pass"


def test_levels_of_one_file_are_judged_apart(tmp_path: Path) -> None:
    """servebench runs several levels; each has its limits."""
    alone = [replace(c, start=c.start + 0.5) for c in calls(60)]
    one = json.loads(RAW["servebench"](tmp_path, alone).read_text())
    four = json.loads(RAW["servebench"](tmp_path, waves(160), value=4.0).read_text())
    one["levels"] += four["levels"]
    path = tmp_path / "both.json"
    path.write_text(json.dumps(one))
    got = checked(path, policy(tmp_path, level="1, 4"))
    by_level = {
        (f["concurrency"], f["verdict"]) for f in got.report["findings"] if f["metric"] == "ttft"
    }
    assert by_level == {(1, "pass"), (4, "pass")}
    with pytest.raises(UsageError, match="measured at concurrency 4"):
        checked(path, policy(tmp_path))


def by_rate(folder: Path, late_ms: float) -> Path:
    """GuideLLM's constant strategy, each request sent ``late_ms`` after it was due."""
    path = RAW["guidellm"](folder, calls(80))
    doc = json.loads(path.read_text())
    one = doc["benchmarks"][0]
    one["config"]["strategy"] = {"type_": "constant", "rate": 1.0}
    for row in one["requests"]["successful"]:
        row["info"]["timings"]["targeted_start"] -= late_ms / 1000
    path.write_text(json.dumps(doc))
    return path


def test_an_open_loop_is_judged_from_when_requests_were_due(tmp_path: Path) -> None:
    """The tool's own lateness is part of TTFT; a tool that was too late is no evidence."""
    sla = policy(tmp_path, workload=", load: {kind: constant, rate: 1.0}")
    on_time = checked(by_rate(tmp_path, 2), sla).finding("short/ttft_p95")
    assert (on_time["verdict"], on_time["observed"]) == ("pass", pytest.approx(102, abs=0.1))
    late = checked(by_rate(tmp_path, 50), sla).finding("short/ttft_p95")
    assert late["verdict"] == "error"
    assert "client overloaded" in late["reason"]


def test_a_schedule_that_is_not_on_record_shows_no_open_loop(tmp_path: Path) -> None:
    """vllm bench does not say how late it was: no verdict from a schedule."""
    path = RAW["vllm"](
        tmp_path, calls(80), request_rate=1.0, max_concurrency=8, queue_times=[0.0] * 80
    )
    found = checked(path, policy(tmp_path, workload=", load: {kind: poisson, rate: 1.0}"))
    assert found.verdicts["short/ttft_p95"] == "error"
    assert "late" in found.finding("short/ttft_p95")["reason"]

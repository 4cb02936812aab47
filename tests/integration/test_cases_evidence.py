"""Warm-up, caches, first waves, freezes and mixtures: evidence that must not be prettified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gate_samples import (
    LONG,
    SHORT,
    engine,
    log_lines_of,
    policy,
    python_policy,
    run_gate,
    timeline,
    write_log,
)
from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.session import Session, finish

FAST = {"preset": "fast"}
SCRIPT = "from pytest_llmsla.targets.scripted import Script\n"


def scripted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, *buckets: Any, **groups: Any
) -> LoadedPolicy:
    """A policy on ``play`` of ``body``, made anew for every gate."""
    module = engine(tmp_path, monkeypatch, f"{SCRIPT}{body}")
    return python_policy(module, *buckets, kind="scripted", **{"evidence": FAST, **groups})


def report_of(tmp_path: Path, loaded: LoadedPolicy) -> dict[str, Any]:
    session, _ = run_gate(tmp_path, loaded)
    return finish(session.run_dir)


def finding(report: dict[str, Any], limit_id: str) -> dict[str, Any]:
    return next(f for f in report["findings"] if f["id"] == limit_id)


# -- caches


CACHE = """
def made():
    seen = set()
    def play(ask, index):
        first = ask.prompt.split()[0]
        ttft = 60 if first in seen else 1200
        seen.add(first)
        return Script([(ttft, 1)] + [(20, 1)] * 7)
    return play
"""


def test_warm_up_does_not_prime_a_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers repeats in 60 ms and new prompts in 1200: P95 is 1200, FAIL."""
    report = report_of(tmp_path, scripted(tmp_path, monkeypatch, CACHE, {**SHORT, "ttft_ms": 800}))
    found = finding(report, "short/ttft_p95")
    assert (found["verdict"], found["observed"]) == ("fail", 1200.0)
    assert found["percentiles"]["p50"] == 1200.0


@pytest.mark.parametrize("preset", ["fast", "observed"])
def test_the_same_prompt_again_never_passes_undeclared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """Sent by hand over and over, its repeats come from the cache: TTFT is an error."""
    loaded = scripted(
        tmp_path, monkeypatch, CACHE, {**SHORT, "ttft_ms": 800}, evidence={"preset": preset}
    )
    session = Session(tmp_path / "out")
    gate = session.gate("t.py::t", loaded)
    for _ in range(40):
        gate.ask("word " * 120)
    session.close()
    report = finish(session.run_dir)
    found = finding(report, "t.py::t/ttft_p95")
    assert (found["verdict"], report["verdict"]) == ("error", "error")
    assert "39 of 40 requests sent a prompt that had been sent before" in found["reason"]


def test_a_warm_cache_that_is_declared_is_judged_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With workload.warm_cache the figure stands, and the report says that it is one."""
    body = """
def made():
    def play(ask, index):
        tokens = len(ask.prompt.split())
        return Script([(60, 1)] + [(20, 1)] * 7, cached_tokens=tokens)
    return play
"""
    declared = {"max_new_tokens": 8, "warm_cache": True}
    loaded = scripted(tmp_path, monkeypatch, body, workload=declared)
    report = report_of(tmp_path, loaded)
    assert report["verdict"] == "pass"
    assert report["policy"]["warm_cache"] is True
    (tmp_path / "not").mkdir()
    undeclared = policy(target=loaded.policy.target.model_dump(mode="json"), evidence=FAST)
    report = report_of(tmp_path / "not", undeclared)
    assert finding(report, "short/ttft_p95")["verdict"] == "error"


# -- warm-up


COMPILES = """
def made():
    seen = set()
    def play(ask, index):
        shape = (len(ask.prompt.split()) > 128, ask.max_new_tokens)
        ttft = 100 if shape in seen else 5000
        seen.add(shape)
        return Script([(ttft, 1)] + [(20, 1)] * 7)
    return play
"""


def test_a_compile_lands_in_the_warm_up_of_its_own_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bucket is warmed with its own prompts: P95 is 100, and the worst is told."""
    report = report_of(tmp_path, scripted(tmp_path, monkeypatch, COMPILES, SHORT, LONG))
    assert report["verdict"] == "pass"
    for name in ("short", "long"):
        found = finding(report, f"{name}/ttft_p95")
        assert (found["observed"], found["exceeded"]) == (100.0, 0)
    worst = [w["worst_ms"] for w in report["warmup"].values()]
    assert max(worst) == 5140.0
    assert "worst 5140 ms" in str(report["warmup"])


def test_without_warm_up_the_cold_request_is_kept_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the sample, in the percentile and in a note: never dropped in silence."""
    loaded = scripted(
        tmp_path,
        monkeypatch,
        COMPILES,
        workload={"max_new_tokens": 8, "warmup": {"max_requests": 0}},
    )
    found = finding(report_of(tmp_path, loaded), "short/ttft_p95")
    assert found["exceeded"] == 1
    assert any(note.startswith("cold: ") for note in found["notes"])


WAVE = """
def made():
    def play(ask, index):
        return Script([(50_000 if index < 10 else 200, 1)] + [(20, 1)] * 7)
    return play
"""


def test_a_slow_first_wave_is_warm_up_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten requests of 50 s, then 0.2 s: with warm-up PASS, without it FAIL."""
    report = report_of(tmp_path, scripted(tmp_path, monkeypatch, WAVE))
    assert report["verdict"] == "pass"
    assert report["warmup"]["short"]["worst_ms"] == 50_140.0
    (tmp_path / "cold").mkdir()
    cold = {"max_new_tokens": 8, "warmup": {"max_requests": 0}}
    loaded = policy(target=_target(report), workload=cold, evidence=FAST)
    found = finding(report_of(tmp_path / "cold", loaded), "short/ttft_p95")
    assert found["verdict"] == "fail"


def _target(report: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "scripted", "entry": report["target"]["entry"]}


# -- freezes


FREEZES = """
def made():
    def play(ask, index):
        gaps = [20] * 127
        if index % 5 == 3:
            gaps[60] = 900
        return Script([(100, 1)] + [(gap, 1) for gap in gaps])
    return play
"""


def test_rare_freezes_break_a_stall_limit_and_no_pooled_percentile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pooled P95 and P99 stay 20 ms; the longest gap of a request has a P95 of 900."""
    loaded = scripted(
        tmp_path,
        monkeypatch,
        FREEZES,
        workload={"max_new_tokens": 128},
        itl={"p95_ms": 50, "p99_ms": 50, "stall_p95_ms": 500},
        evidence={"preset": "fast", "max_requests": 400},
    )
    report = report_of(tmp_path, loaded)
    itl, stall = finding(report, "short/itl_p95"), finding(report, "short/stall_p95")
    assert (itl["verdict"], itl["percentiles"]["p99"]) == ("pass", 20.0)
    assert (stall["verdict"], stall["observed"]) == ("fail", 900.0)
    assert report["verdict"] == "fail"


# -- several at once, several attempts, results without numbers


def test_several_workers_are_not_one_at_a_time(tmp_path: Path) -> None:
    """Requests that ran together are no independent evidence: nothing of it passes."""
    moved = []
    for n, t in enumerate(timeline(n) for n in range(80)):
        shift = (n % 4) * 10_000_000 * 1_000_000 - n % 4
        arrivals = tuple((at - shift, k) for at, k in t.arrivals)
        moved.append(
            timeline(n, start_ns=t.start_ns - shift, end_ns=t.end_ns - shift, arrivals=arrivals)
        )
    loaded = policy(evidence=FAST)
    log = read_run(write_log(tmp_path / "t.jsonl", log_lines_of(loaded, moved)))
    report = build_report(log, judge_log(log))
    assert report["verdict"] == "fail"
    assert {f["verdict"] for f in report["findings"] if f["bucket"]} == {"fail"}
    assert any("had ended: they shared the model" in e["reason"] for e in report["errors"])


def test_declared_concurrency_above_one_is_not_judged_as_one(tmp_path: Path) -> None:
    """Records of a load generator with four in flight are refused request by request."""
    loaded = policy(evidence=FAST)
    every = [timeline(n, concurrency=4) for n in range(80)]
    log = read_run(write_log(tmp_path / "t.jsonl", log_lines_of(loaded, every)))
    report = build_report(log, judge_log(log))
    assert "pass" not in {f["verdict"] for f in report["findings"]}


def test_a_second_attempt_does_not_wash_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ITL at 80 ms, then at 45, limit 50: both attempts are in the report, and it is FAIL."""
    body = """
def made():
    def play(ask, index):
        return Script([(100, 1)] + [(80 if index < 40 else 45, 1)] * 7)
    return play
"""
    session = Session(tmp_path / "out")
    gate = session.gate("t.py::t", scripted(tmp_path, monkeypatch, body))
    gate.run()
    gate.begin_attempt(2)
    gate.run()
    session.close()
    report = finish(session.run_dir)
    found = finding(report, "t.py::t/itl_p95")
    assert (found["verdict"], report["verdict"]) == ("fail", "fail")
    assert [a["attempt"] for a in found["attempts"]] == [1, 2]
    shown = (session.run_dir / "report.md").read_text(encoding="utf-8")
    assert "a rerun adds evidence, it replaces none" in shown


def test_a_result_with_an_error_and_no_percentile_is_an_error_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are null in the JSON, and the row is there."""
    body = "def made(): return lambda ask, index: Script(error='no answer')"
    report = report_of(tmp_path, scripted(tmp_path, monkeypatch, body))
    found = json.loads(json.dumps(finding(report, "short/ttft_p95")))
    assert found["verdict"] == "error"
    for name in ("observed", "lower", "upper", "decided_at"):
        assert found[name] is None
    assert set(found["percentiles"].values()) == {None}
    assert report["verdict"] in ("error", "fail")


def test_a_run_cut_short_is_not_made_whole_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pooled with complete runs it stays incomplete: what it lost may have failed."""
    loaded = policy(evidence=FAST)
    paths = []
    for n in range(3):
        lines = log_lines_of(loaded, [timeline(i) for i in range(40)], ended=n != 1)
        lines[0]["started"] = f"2025-01-0{n + 1}T00:00:00.000Z"
        paths.append(str(write_log(tmp_path / f"{n}.jsonl", lines)))
    assert llmsla(["check", paths[0], paths[2], "--json"]) == 0
    capsys.readouterr()
    assert llmsla(["check", *paths, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["complete"]) == ("inconclusive", False)


HANGS_FOR_EVER = """
import threading

class Engine:
    asked = 0
    def count(self, prompt, system):
        return len(prompt.split())
    def generate(self, prompt, *, max_new_tokens, sampling):
        Engine.asked += 1
        yield 0
        if Engine.asked == 14:
            threading.Event().wait()
        yield from range(1, max_new_tokens)

def made():
    return Engine()
"""
HANGING_POLICY = """
version: 1
target: {kind: python, entry: "hangs:made", timeouts: {idle_s: 0.5}}
workload: {max_new_tokens: 8}
buckets:
  - {name: short, prompt_max: 64, ttft_ms: 5000}
  - {name: long, prompt_max: 128, ttft_ms: 5000}
itl: {p95_ms: 5000}
evidence: {preset: fast}
"""


def test_a_generation_that_never_ends_does_not_keep_pytest_from_ending(tmp_path: Path) -> None:
    """The process ends by itself, red, with its report; the thread that hangs is left behind."""
    (tmp_path / "hangs.py").write_text(HANGS_FOR_EVER, encoding="utf-8")
    (tmp_path / "sla.yaml").write_text(HANGING_POLICY, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "sla.yaml", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout.decode()
    report = json.loads(next((tmp_path / ".llmsla/runs").glob("*/report.json")).read_bytes())
    assert "pass" not in {f["verdict"] for f in report["findings"]}
    assert "cannot be used any more" in finding(report, "long/ttft_p95")["reason"]

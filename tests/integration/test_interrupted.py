"""A run that is ended from outside has its report, and is no PASS."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slow_gate import SlowGate

from pytest_llmsla.cli import run as llmsla

if TYPE_CHECKING:
    from gated import Gated

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's here")

MEASURED = '"type":"request"'


@pytest.fixture
def slow(tmp_path: Path) -> SlowGate:
    """A gate that takes some seconds."""
    return SlowGate(tmp_path)


def test_a_run_told_to_end_reports_what_it_has(slow: SlowGate) -> None:
    """Ctrl-C: report.json and report.md of what was measured, exit 2, no PASS."""
    run = slow.start()
    slow.wait_for(MEASURED, 8, run)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, out
    (folder,) = slow.runs()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["ended"] == "interrupted"
    assert report["verdict"] != "pass"
    assert not report["complete"]
    assert report["requests"]["measured"] >= 5
    short = next(f for f in report["findings"] if f["id"] == "short/ttft_p95")
    assert short["requests"] >= 5
    assert short["percentiles"]["p50"] is not None
    assert "it was interrupted (Ctrl-C, SIGTERM)" in (folder / "report.md").read_text("utf-8")
    assert "reports: " in out


def test_a_request_that_hangs_is_ended_with_the_run(slow: SlowGate) -> None:
    """SIGTERM is like Ctrl-C, and an answer that never came is a failure: it may not vanish."""
    run = slow.start()
    slow.wait_for(MEASURED, 8, run)
    slow.hang(run)
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, out
    (folder,) = slow.runs()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["requests"]["in_flight_at_the_end"] == 1
    assert any("while this request was in flight" in e["reason"] for e in report["errors"])
    assert report["verdict"] != "pass"


def test_a_level_of_load_is_ended_with_the_run(slow: SlowGate) -> None:
    """Requests that were in flight together are all on record, as the failures they became."""
    slow.policy(rest="tgs: {concurrency: [4]}")
    run = slow.start()
    slow.wait_for(MEASURED, 20, run)
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, out
    report = json.loads((slow.runs()[0] / "report.json").read_text(encoding="utf-8"))
    assert report["ended"] == "interrupted"
    assert report["verdict"] != "pass"
    log = slow.log()
    lost = report["requests"]["in_flight_at_the_end"]
    assert log.count('"type":"start"') == log.count(MEASURED) + lost
    assert log.count('"status":"error"') + lost <= 4
    # All that was answered has its reading of memory, so that the run can go on as one figure.
    rows = [json.loads(line) for line in log.splitlines()]
    read = [r["answered"] for r in rows if r["type"] == "resources" and "answered" in r]
    ok = [r for r in rows if r["type"] == "request" and r["status"] == "ok" and not r["warmup"]]
    assert read[-1] == len(ok) > 0


def test_a_killed_run_leaves_what_it_measured(
    slow: SlowGate, capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9: no end, no report; every request that ended is judged by ``llmsla check``."""
    run = slow.start()
    slow.wait_for(MEASURED, 12, run)
    run.kill()
    run.communicate(timeout=60)
    (folder,) = slow.runs()
    assert not (folder / "report.json").exists()
    ended = slow.log().count(MEASURED)
    capsys.readouterr()
    assert llmsla(["check", "--json", str(folder)]) in (1, 2)
    report = json.loads(capsys.readouterr().out)
    assert report["ended"] == "interrupted"
    in_flight = report["requests"]["in_flight_at_the_end"]
    assert report["requests"]["measured"] + report["requests"]["warmup"] == ended + in_flight
    assert in_flight <= 1
    assert {row["id"] for row in report["not_measured"]} >= {"log"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_controller_of_a_worker_is_told_to_end(
    slow: SlowGate, capsys: pytest.CaptureFixture[str], how: signal.Signals
) -> None:
    """``-n1``: the worker ends with it, and what is left passes no later check."""
    pytest.importorskip("xdist")
    run = slow.start("-n1", "-p", "no:randomly")
    slow.wait_for(MEASURED, 8, run)
    (folder,) = slow.runs()
    run.send_signal(how)
    out, _ = run.communicate(timeout=60)
    if how == signal.SIGTERM:
        assert run.returncode == pytest.ExitCode.INTERRUPTED, out
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        assert report["ended"] == "interrupted"
        assert not report["complete"]
        assert report["requests"]["measured"] >= 5
    else:
        slow.wait_for_silence()
    capsys.readouterr()
    assert llmsla(["check", "--json", str(folder)]) in (1, 2)
    assert json.loads(capsys.readouterr().out)["verdict"] != "pass"
    ended = slow.log()
    slow.wait_for_silence()
    assert slow.log() == ended


def test_a_run_that_ended_before_its_tests_were_told_passes_no_check(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed between the last request and the report: a test may have failed by itself."""
    assert gated.run("sla.yaml").ret == 0
    (folder,) = gated.runs()
    path = folder / "timelines.jsonl"
    assert llmsla(["check", str(folder)]) == 0
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(r for r in rows if '"type":"outcomes"' not in r), encoding="utf-8")
    capsys.readouterr()
    assert llmsla(["check", str(folder)]) == 2
    assert "what became of its tests is not on record" in capsys.readouterr().out

"""``--sla-baseline``, the policy's ``baseline``, ``llmsla compare``: a run beside stored ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from gated import Gated
from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.reports.json_report import schema


@pytest.fixture
def stored(gated: Gated) -> Gated:
    """A folder ``stored`` with three runs of the policy, all alike."""
    for number in range(3):
        assert gated.run("sla.yaml", "--sla-report", "stored").ret == 0, number
    return gated


def change(run: Path, old: str, new: str) -> None:
    """Edit one run's log."""
    path = run / "timelines.jsonl"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_run_beside_stored_ones(stored: Gated) -> None:
    """The report holds the comparison, compared n of m, and the run stays green."""
    result = stored.run("sla.yaml", "--sla-baseline", "stored")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["Baseline:", "*OK: compared 5 of 5 metrics with 3 stored runs, tolerance 10 %*"]
    )
    report = stored.report()
    jsonschema.Draft202012Validator(schema("report")).validate(report)
    found = report["baseline"]
    assert (found["verdict"], found["compared"], found["of"]) == ("pass", 5, 5)
    assert {row["verdict"] for row in found["rows"]} == {"ok"}


def test_the_policy_names_them(stored: Gated) -> None:
    """``baseline.path`` does without the option, in the run and in a later check."""
    sla = stored.policy(rest="baseline: {path: stored, tolerance: 0.2}")
    assert stored.run("sla.yaml").ret == 0
    assert stored.report()["baseline"]["tolerance"] == 0.2
    assert llmsla(["check", str(stored.path / ".llmsla"), "--sla", str(sla)]) == 0


def test_another_machine_is_an_error_beside_a_limit_that_passes(stored: Gated) -> None:
    """The absolute limits PASS; the comparison is refused with what differs, and the run is red."""
    for run in stored.runs("stored"):
        change(run, '"cpu":{"model":', '"cpu":{"model":"Another CPU","was":')
    result = stored.run("sla.yaml", "--sla-baseline", "stored")
    assert result.ret == 1
    report = stored.report()
    assert {f["verdict"] for f in report["findings"]} == {"pass"}
    assert report["verdict"] == report["baseline"]["verdict"] == "error"
    assert "Another CPU" in report["baseline"]["reason"]
    assert report["baseline"]["compared"] == 0
    result.stdout.fnmatch_lines(["*Exit status 1: *the gate as a whole is ERROR (baseline: *"])


def test_few_stored_runs_are_inconclusive(stored: Gated) -> None:
    """Fewer than min_runs decide nothing: no PASS."""
    shutil.rmtree(stored.runs("stored")[0])
    assert stored.run("sla.yaml", "--sla-baseline", "stored").ret == 1
    report = stored.report()
    assert report["verdict"] == "inconclusive"
    assert "2 of at least 3 stored runs" in report["baseline"]["reason"]


def test_a_slower_run_is_red_though_its_limits_are_met(stored: Gated) -> None:
    """Stored runs half as slow: FAIL by the baseline alone."""
    for run in stored.runs("stored"):
        path, lines = run / "timelines.jsonl", []
        for line in (run / "timelines.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["type"] == "request":
                start = record["start_ns"]
                at = [[start + (t - start) // 2, k] for t, k in record["arrivals"]]
                record["arrivals"], record["end_ns"] = at, at[-1][0]
            lines.append(json.dumps(record))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = stored.run("sla.yaml", "--sla-baseline", "stored")
    assert result.ret == 1
    report = stored.report()
    assert {f["verdict"] for f in report["findings"]} == {"pass"}
    assert (report["verdict"], report["baseline"]["verdict"]) == ("fail", "fail")
    assert {row["verdict"] for row in report["baseline"]["rows"]} == {"regression"}
    result.stdout.fnmatch_lines(["*SLOWER: compared 5 of 5 metrics*"])


def test_a_missing_baseline_is_told_before_a_model_loads(gated: Gated) -> None:
    """A policy whose baseline does not exist is a usage error that names the line."""
    gated.policy(rest="baseline: {path: nowhere}")
    result = gated.run("sla.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*sla.yaml:*: baseline.path: there is no 'nowhere'*"])
    assert gated.runs() == []


class TestCommand:
    """``llmsla compare BASE NEW``."""

    def test_exit_codes_and_words(self, stored: Gated, capsys: pytest.CaptureFixture[str]) -> None:
        """0 when all is compared and nothing slower; the table names every metric."""
        assert stored.run("sla.yaml").ret == 0
        capsys.readouterr()
        base, new = str(stored.path / "stored"), str(stored.path / ".llmsla")
        assert llmsla(["compare", base, new]) == 0
        out = capsys.readouterr().out
        assert out.startswith("OK: compared 5 of 5 metrics with 3 stored runs, tolerance 10 %")
        assert "short/ttft_p95" in out
        assert llmsla(["compare", base, new, "--min-runs", "4"]) == 2
        assert "3 of at least 4 stored runs" in capsys.readouterr().out

    def test_json(self, stored: Gated, capsys: pytest.CaptureFixture[str]) -> None:
        """The comparison as JSON, and nothing else."""
        capsys.readouterr()
        base = str(stored.path / "stored")
        assert llmsla(["compare", base, f"{base}/latest", "--json", "--min-runs", "2"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["compared"], found["of"], len(found["runs"])) == (5, 5, 2)

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["nowhere", "nowhere"], "nowhere: no such file or folder"),
            ([".", "."], "holds no timelines.jsonl"),
        ],
    )
    def test_paths_without_runs(
        self, gated: Gated, capsys: pytest.CaptureFixture[str], args: list[str], words: str
    ) -> None:
        """A usage error that says what to give."""
        assert llmsla(["compare", *(str(gated.path / a) for a in args)]) == 4
        assert words in capsys.readouterr().err

    @pytest.mark.parametrize("tolerance", ["10", "-0.1", "nan", "inf"])
    def test_what_is_no_tolerance(
        self, tmp_path: Path, tolerance: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """10 is no share: did you mean 0.10? Told before any run is read."""
        here = str(tmp_path)
        assert llmsla(["compare", here, here, "--tolerance", tolerance]) == 4
        assert "write 10 % as 0.10" in capsys.readouterr().err


def test_a_comparison_that_was_cut_off_is_no_pass(stored: Gated) -> None:
    """Ended between its last request and the comparison it was to have, a run is not compared."""
    assert stored.run("sla.yaml", "--sla-baseline", "stored").ret == 0
    log = stored.runs()[-1] / "timelines.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    assert '"compared":{"verdict":"pass"' in lines[-1]
    log.write_text("".join(lines[:-1]), encoding="utf-8")
    report_dir, sla = str(stored.path / ".llmsla"), str(stored.path / "sla.yaml")
    assert llmsla(["check", report_dir, "--sla", sla]) == 2


def test_a_run_that_is_slower_than_its_baseline_stays_red(
    stored: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged again without the baseline, exported, in the history: nowhere it becomes a PASS."""
    for run in stored.runs("stored"):
        change(run, '"cpu":{"model":', '"cpu":{"model":"Another CPU","was":')
    assert stored.run("sla.yaml", "--sla-baseline", "stored").ret == 1
    shutil.rmtree(stored.path / "stored")
    report_dir, sla = str(stored.path / ".llmsla"), str(stored.path / "sla.yaml")
    assert llmsla(["check", report_dir, "--sla", sla]) != 0
    assert llmsla(["check", report_dir]) != 0
    capsys.readouterr()
    llmsla(["export", report_dir])
    assert "llmsla_run_passed 0" in capsys.readouterr().out.replace("0.0", "0")
    llmsla(["history", report_dir])
    assert "ERROR" in capsys.readouterr().out

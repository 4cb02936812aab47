"""``--sla…``: each option does what it says, and refuses what would weaken a gate unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

UNDECIDED = "[100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 400]"  # one in eleven is over


def undecided(gated: Gated) -> None:
    """A policy whose TTFT can neither pass nor fail within its budget."""
    gated.policy(ttft=UNDECIDED, rest="", preset="fast, max_requests: 40")


def test_report_folder(gated: Gated) -> None:
    """Each run gets a folder of its own; nothing is overwritten, ``latest`` shows the newest."""
    for _ in range(2):
        assert gated.run("sla.yaml", "--sla-report", "out").ret == 0
    assert len(gated.runs("out")) == 2
    for run in gated.runs("out"):
        assert {"report.json", "report.md", "timelines.jsonl"} <= {p.name for p in run.iterdir()}
    assert not (gated.path / ".llmsla").exists()


def test_report_folder_of_the_policy(gated: Gated) -> None:
    """``report.dir`` is the default of ``--sla-report``."""
    gated.policy(rest="report: {dir: signed}")
    gated.run("sla.yaml")
    assert gated.runs("signed")


def test_a_report_that_cannot_be_written(gated: Gated) -> None:
    """Without a record nothing is measured, the reason is told and the run is red."""
    (gated.path / "out").write_text("a file, no folder")
    result = gated.run("sla.yaml", "--sla-report", "out")
    assert result.ret != 0
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*the report folder cannot be written: *--sla-report*"])


@pytest.mark.parametrize("terminal", [True, False])
def test_a_report_that_cannot_be_written_at_the_end(gated: Gated, terminal: bool) -> None:
    """Every limit is met and the report is lost: the run is red and says why."""
    gated.tests(
        """
        import pathlib

        @sla(bucket="short")
        def test_a(sla_run):
            sla_run()
            for run in pathlib.Path(".llmsla/runs").iterdir():
                (run / "report.json").mkdir()
        """
    )
    result = gated.run(*([] if terminal else ["-p", "no:terminal"]))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = result.stdout if terminal else result.stderr
    told.fnmatch_lines(["ERROR: the report could not be made: *report.json*"])


def test_header_names_the_gate(gated: Gated) -> None:
    """The head of the run says what is gated and where the reports go."""
    gated.run("sla.yaml").stdout.fnmatch_lines(["sla: sla.yaml, preset fast, reports in *.llmsla"])


def test_preset(gated: Gated) -> None:
    """``--sla-preset`` replaces the policy's; a mark that names one keeps its own."""
    gated.tests(
        """
        @sla(bucket="short")
        def test_a(sla_run):
            assert len(sla_run()) == 69

        @sla(bucket="short", evidence="fast")
        def test_b(sla_run):
            assert len(sla_run()) == 38
        """
    )
    result = gated.run("--sla-preset", "normal", "sla.yaml", "test_it.py")
    assert result.ret == 0
    assert {f["evidence"]["preset"] for f in gated.report()["findings"] if f["evidence"]} == {
        "normal",
        "fast",
    }


def test_preset_that_is_none(gated: Gated) -> None:
    """An unknown preset is a usage error."""
    assert gated.run("sla.yaml", "--sla-preset", "loose").ret == pytest.ExitCode.USAGE_ERROR


def test_observed_preset_is_no_release_evidence(gated: Gated) -> None:
    """A gate that only looks cannot pass."""
    result = gated.run("sla.yaml", "--sla-preset", "observed")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "inconclusive"


def test_inconclusive_fails_by_default(gated: Gated) -> None:
    """A budget spent without a decision is red, with the operating characteristic beside it."""
    undecided(gated)
    result = gated.run("sla.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ttft p95*INCONCLUSIVE after 40 requests*", "*at 300 requests*"])


def test_inconclusive_warn(gated: Gated) -> None:
    """``warn`` lets a local run through, loudly, and the report stays inconclusive."""
    undecided(gated)
    result = gated.run("sla.yaml", "--sla-inconclusive=warn")
    assert result.ret == 0
    assert result.parseoutcomes()["inconclusive"] == 1
    result.stdout.fnmatch_lines(["WARNING: inconclusive, and let through*not a PASS*"])
    assert gated.report()["verdict"] == "inconclusive"


def test_warn_lets_no_failure_through(gated: Gated) -> None:
    """``warn`` is about undecided limits only."""
    gated.policy(ttft=900)
    assert gated.run("sla.yaml", "--sla-inconclusive=warn").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("env", "args"), [({"CI": "true"}, []), ({}, ["--sla-signoff"])])
def test_warn_is_refused_where_it_counts(
    gated: Gated, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], args: list[str]
) -> None:
    """In CI and for a sign-off, undecided may not pass."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    result = gated.run("sla.yaml", "--sla-inconclusive=warn", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --sla-inconclusive=warn cannot be used with *"])


def test_a_baseline_that_is_not_there(gated: Gated) -> None:
    """A comparison with nothing is refused before anything is measured."""
    result = gated.run("sla.yaml", "--sla-baseline", "folder")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --sla-baseline folder: does not exist*"])
    assert gated.runs() == []


def test_default_policy_is_not_collected(gated: Gated) -> None:
    """ini ``sla_policy`` gives marks their defaults and starts no gate."""
    gated.tests("def test_plain(): ...")
    gated.run().assert_outcomes(passed=1)
    assert not gated.runs()


def test_a_broken_default_policy(gated: Gated) -> None:
    """A broken ini policy is a usage error once a mark needs it."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run): ...")
    (gated.path / "sla.yaml").write_text("version: 2")
    result = gated.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: sla.yaml*", "*version: got 2; valid: 1"])


def test_a_signoff_of_a_script_is_none(gated: Gated) -> None:
    """``--sla-signoff`` on a scripted target is never a PASS: no model was measured."""
    result = gated.run("sla.yaml", "--sla-signoff")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["complete"] is False


def test_kv_plan_makes_it_conditional(gated: Gated) -> None:
    """Over rule 2's limit with a valid plan: conditional, shown so, and still not green."""
    (gated.path / "plan.md").write_text(
        "cause: cache grows with every chat turn\nmeasures: page the cache\n"
        "owner: serving team\nexpires: 2999-01-01\n"
    )
    gated.policy(itl="80", rest="").write_text(
        gated.policy(itl=80).read_text().replace("p95_ms: 50", "p95_ms: 50, kv_plan: plan.md")
    )
    result = gated.run("sla.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "conditional"
    result.stdout.fnmatch_lines(["itl p95*CONDITIONAL*"])


def test_a_kv_plan_that_is_not_there(gated: Gated) -> None:
    """Named and missing is bad input, also where ITL keeps its limit and nobody would read it."""
    text = gated.policy().read_text().replace("p95_ms: 50", "p95_ms: 50, kv_plan: plan.md")
    (gated.path / "sla.yaml").write_text(text)
    result = gated.run("sla.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: sla.yaml:* itl.kv_plan: *plan.md does not exist; give *"])
    assert not gated.runs()
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run): ...\n")
    assert gated.run().ret == pytest.ExitCode.USAGE_ERROR


def test_a_sign_off_takes_no_weaker_evidence_than_the_policy(gated: Gated) -> None:
    """--sla-signoff with a preset below the policy's is refused; a stronger one is taken."""
    gated.policy(preset="normal")
    weaker = gated.run("sla.yaml", "--sla-preset=fast", "--sla-signoff")
    assert weaker.ret == pytest.ExitCode.USAGE_ERROR
    weaker.stderr.fnmatch_lines(["*--sla-preset fast asks for less evidence than the policy*"])
    stronger = gated.run("sla.yaml", "--sla-preset=strict")
    assert stronger.ret == pytest.ExitCode.OK
    stronger.stdout.fnmatch_lines(["preset strict: 1 % risk*the policy says normal*"])

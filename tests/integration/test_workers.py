"""pytest-xdist: several workers are refused, one works, and a dead one is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

pytest.importorskip("xdist")

GATE = "@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n"
PLAIN = "def test_plain(): ...\ndef test_other(): ...\n"
MANY = ["-n2", "-n3", "--dist=load --tx=2*popen", "--dist=each --tx=popen --tx=popen"]


@pytest.mark.parametrize("many", MANY)
def test_several_workers_and_a_policy(gated: Gated, many: str) -> None:
    """Workers side by side change what is measured: refused, with the reason and the way out."""
    result = gated.run_apart("sla.yaml", *many.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: * pytest-xdist workers*compete*-n0 or -n1*"])
    assert not gated.runs()


def test_several_workers_and_a_marked_test(gated: Gated) -> None:
    """The same where only a mark asks for a gate."""
    gated.tests(GATE + PLAIN)
    result = gated.run_apart("-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "passed" not in result.parseoutcomes()
    assert not gated.runs()


def test_several_workers_and_the_model_alone(gated: Gated) -> None:
    """Two workers would load the model twice on one device: refused as well."""
    gated.tests("def test_a(sla_model): ...\n" + PLAIN)
    assert gated.run_apart("-n2").ret == pytest.ExitCode.USAGE_ERROR


def test_several_workers_without_a_gate(gated: Gated) -> None:
    """A suite that times nothing runs in parallel as ever."""
    gated.tests(PLAIN, ini=False)
    result = gated.run_apart("-n2")
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    assert not (gated.path / ".llmsla").exists()


def test_several_workers_with_the_gates_deselected(gated: Gated) -> None:
    """``-n2 -m 'not sla'`` is the way out the refusal names: it works."""
    gated.tests(GATE + PLAIN)
    result = gated.run_apart("-n2", "-m", "not sla")
    assert result.ret == 0
    result.assert_outcomes(passed=2)


def test_one_worker_measures_and_the_controller_reports(gated: Gated) -> None:
    """``-n1``: one report, by the controller, as without workers."""
    gated.tests(GATE + PLAIN)
    result = gated.run_apart("-n1", "sla.yaml", "test_it.py")
    assert result.ret == 0
    result.assert_outcomes(passed=7 + 3)
    assert len(gated.runs()) == 1
    assert gated.report()["verdict"] == "pass"
    assert set(gated.verdicts().values()) == {"pass"}
    assert len(gated.verdicts()) == 7 + 3
    result.stdout.fnmatch_lines(["*= sla =*", "scripted service: PASS*", "reports: *"])


def test_one_worker_and_a_broken_limit(gated: Gated) -> None:
    """``-n1``: a broken limit is exit 1 and the same block."""
    gated.policy(itl=80)
    result = gated.run_apart("-n1", "sla.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(["itl p95, bucket short*FAIL after 5 requests*"])
    assert gated.report()["verdict"] == "fail"


def test_one_worker_and_an_incomplete_gate(gated: Gated) -> None:
    """``-n1``: the exit status that falls at the end of the run is the controller's."""
    result = gated.run_apart("-n1", "sla.yaml::short")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_one_worker_shows_progress(gated: Gated) -> None:
    """``-n1``: what the worker does is visible while it runs."""
    result = gated.run_apart("-n1", "sla.yaml")
    result.stderr.fnmatch_lines(["sla: loading scripted*", "sla: short: warm-up*"])


@pytest.mark.parametrize("args", [["sla.yaml"], []])
def test_usage_errors_reach_the_controller(gated: Gated, args: list[str]) -> None:
    """A bad mark or policy is exit 4 under ``-n1`` as well."""
    gated.tests("@sla(bucket='short', ttft_p59=3)\ndef test_a(sla_run): ...\n")
    if args:
        (gated.path / "sla.yaml").write_text("version: 1\nbuckets: {}\n")
    result = gated.run_apart("-n1", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *"])
    assert not gated.runs()


def test_a_signoff_of_nothing(gated: Gated) -> None:
    """``-n1 --sla-signoff`` without a gate is the same usage error."""
    gated.tests(PLAIN, ini=False)
    assert gated.run_apart("-n1", "--sla-signoff").ret == pytest.ExitCode.USAGE_ERROR


def test_a_worker_that_dies(gated: Gated) -> None:
    """Rows judged before stay; the rest are errors "no result received"; the run is red."""
    gated.tests(
        """
        import os

        @sla(bucket="short")
        def test_1(sla_run):
            sla_run()

        @sla(bucket="long")
        def test_2(sla_run):
            sla_run()

        @sla(bucket="short")
        def test_3(sla_run):
            os._exit(9)

        @sla(bucket="long")
        def test_4(sla_run):
            sla_run()
        """
    )
    result = gated.run_apart("-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    report = gated.report()
    assert report["verdict"] == "error"
    verdicts = gated.verdicts()
    for name, verdict in {"test_1": "pass", "test_2": "pass", "test_3": "error"}.items():
        assert verdicts[f"test_it.py::{name}/ttft_p95"] == verdict
    assert verdicts["test_it.py::test_4/ttft_p95"] == "error"
    by_id = {f["id"]: f for f in report["findings"]}
    assert "no result received" in by_id["test_it.py::test_3/ttft_p95"]["reason"]
    assert report["complete"] is False


def test_a_worker_that_dies_after_its_limits_were_met(gated: Gated) -> None:
    """Even with every limit met on record, a run whose worker died is not signed off."""
    gated.tests(
        """
        import os

        @sla(bucket="short")
        def test_1(sla_run):
            sla_run()
            os._exit(9)
        """
    )
    result = gated.run_apart("-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] != "pass"


def test_a_worker_that_dies_before_anything(gated: Gated) -> None:
    """No record at all is still a report: every limit without a result, red."""
    gated.tests("import os\n\n@sla(bucket='short')\ndef test_1(sla_run):\n    os._exit(9)\n")
    (gated.path / "conftest.py").write_text(
        "import os\ndef pytest_runtest_setup(item):\n    os._exit(9)\n"
    )
    result = gated.run_apart("-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "error"

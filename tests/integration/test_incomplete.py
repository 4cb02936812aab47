"""Nothing that was not measured can be signed off, however it came to be left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

TWO = """
    @sla(bucket="short")
    def test_a(sla_run):
        sla_run()

    {mark}
    @sla(bucket="long")
    def test_b(sla_run):
        {first}
        sla_run()
"""


def reasons(gated: Gated) -> dict[str, str]:
    """Why each limit was not measured."""
    return {n["id"]: n["reason"] for n in gated.report()["not_measured"]}


@pytest.mark.parametrize(
    ("mark", "first", "reason"),
    [
        ("@pytest.mark.skip(reason='no time')", "", "skipped: no time"),
        ("@pytest.mark.skipif(True, reason='not here')", "", "skipped: not here"),
        ("", "pytest.skip('in the body')", "skipped: in the body"),
        ("@pytest.mark.xfail(reason='known')", "assert False", "xfailed: known"),
        ("@pytest.mark.xfail(run=False, reason='hangs')", "", "xfailed: *hangs"),
    ],
)
def test_skipped_and_xfailed(gated: Gated, mark: str, first: str, reason: str) -> None:
    """Every test is green or yellow, and the gate is not: incomplete, exit 1, the limit named."""
    gated.tests(TWO.format(mark=mark, first=first))
    result = gated.run()
    assert "failed" not in result.parseoutcomes()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "inconclusive"
    found = reasons(gated)
    assert set(found) == {f"test_it.py::test_b/{m}" for m in ("ttft_p95", "itl_p95", "error_rate")}
    for why in found.values():
        pytest.LineMatcher([why]).fnmatch_lines([reason])
    what = (
        "no test failed but 1 that may (xfail)" if "xfail" in mark else "every test that ran passed"
    )
    result.stdout.fnmatch_lines([f"Exit status 1: {what}, *INCONCLUSIVE*--sla-inconclusive=warn."])


def test_a_broken_limit_that_may_fail_gets_no_advice_to_let_it_through(gated: Gated) -> None:
    """An xfailed FAIL stays FAIL: nothing passed, and --sla-inconclusive=warn would not help."""
    gated.policy(ttft=400)
    gated.tests("@pytest.mark.xfail\n@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n")
    result = gated.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["Exit status 1: no test failed but 1 that may (xfail), and the gate as a whole is FAIL."]
    )
    result.stdout.no_fnmatch_line("*--sla-inconclusive=warn*")


def test_setup_only_says_that_no_test_was_carried_out(gated: Gated) -> None:
    """Fixtures were set up and no test ran, so none passed."""
    result = gated.run("sla.yaml", "--setup-only")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["Exit status 1: no test was carried out, and the gate*"])


@pytest.mark.parametrize("where", ["CI", "--sla-signoff"])
def test_no_advice_that_would_be_refused(
    gated: Gated, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In CI and for a sign-off --sla-inconclusive=warn is a usage error: it is not proposed."""
    if where == "CI":
        monkeypatch.setenv("CI", "true")
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    pytest.skip()\n")
    result = gated.run(*(() if where == "CI" else (where,)))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["Exit status 1: no test was carried out, *INCONCLUSIVE*"])
    result.stdout.no_fnmatch_line("*--sla-inconclusive=warn*")


@pytest.mark.parametrize(
    "line", ["pytest.skip('no card', allow_module_level=True)", "pytest.importorskip('nosuch')"]
)
def test_a_file_that_skips_itself(gated: Gated, line: str) -> None:
    """Gates in a file that skips itself whole are not seen, and not forgotten."""
    gated.tests(f"{line}\n@sla(bucket='long')\ndef test_b(sla_run): ...\n", name="test_two")
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n", name="test_one")
    result = gated.run()
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert reasons(gated)["test_two.py"].startswith("skipped: ")


def test_a_file_without_gates_may_skip_itself(gated: Gated) -> None:
    """Other files' skips have nothing to do with the SLA."""
    gated.pytester.makepyfile(
        test_two="import pytest\npytest.skip('no', allow_module_level=True)\n"
    )
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n", name="test_one")
    assert gated.run().ret == 0


def test_xfail_on_a_broken_limit(gated: Gated) -> None:
    """An expected break is still a break."""
    gated.policy(ttft=900)
    gated.tests(TWO.format(mark="@pytest.mark.xfail", first=""))
    result = gated.run("-k", "test_b")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "fail"


@pytest.mark.parametrize(
    "args",
    [["-k", "short"], ["--deselect", "sla.yaml::long"], ["-k", "not tgs"]],
)
def test_deselected_limits(gated: Gated, args: list[str]) -> None:
    """Limits left out by selection make the gate incomplete; what ran is reported."""
    result = gated.run("sla.yaml", *args)
    assert "failed" not in result.parseoutcomes()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert set(reasons(gated).values()) == {"deselected"}


def test_deselected_marked_tests(gated: Gated) -> None:
    """The same for tests of one's own."""
    gated.tests(TWO.format(mark="", first=""))
    result = gated.run("-k", "test_a")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_naming_one_test_is_a_run_of_its_own(gated: Gated) -> None:
    """A node id collects that test only: its gate is whole."""
    gated.tests(TWO.format(mark="", first=""))
    assert gated.run("test_it.py::test_a").ret == 0


def test_all_deselected_is_a_note(gated: Gated) -> None:
    """``-m 'not sla'`` runs the rest of the suite as ever, with a word about the gates."""
    gated.tests(TWO.format(mark="", first="") + "\n    def test_plain(): ...\n")
    result = gated.run("-m", "not sla")
    assert result.ret == 0
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["6 limits were deselected and nothing was measured*"])
    assert not gated.runs()


EVERYTHING = """
    @sla(bucket="short")
    def test_marked(sla_run):
        sla_run()

    def test_model(sla_model): ...

    def test_rate(record_tgs):
        record_tgs(1.5, prompt_lengths="1-9", sampling="greedy", concurrency=1, memory="1 GiB")

    def test_plain(): ...
"""


def test_m_sla_selects_everything_of_ours(gated: Gated) -> None:
    """``-m sla``: items of the policy, marked tests and tests that use a fixture of the plugin."""
    gated.tests(EVERYTHING)
    result = gated.run("sla.yaml", "test_it.py", "-m", "sla")
    assert result.ret == 0
    result.assert_outcomes(passed=7 + 3, deselected=1)


def test_m_not_sla_selects_nothing_of_ours(gated: Gated) -> None:
    """``-m 'not sla'``: the rest, untouched."""
    gated.tests(EVERYTHING)
    result = gated.run("sla.yaml", "test_it.py", "-m", "not sla")
    assert result.ret == 0
    result.assert_outcomes(passed=1, deselected=7 + 3)


@pytest.mark.parametrize("args", [["--sla", "sla.yaml"], ["sla.yaml", "--sla-signoff"]])
def test_all_deselected_where_a_gate_was_asked_for(gated: Gated, args: list[str]) -> None:
    """``--sla`` and ``--sla-signoff`` ask for a verdict: with everything deselected it is red."""
    gated.tests("def test_plain(): ...", ini=False)
    result = gated.run("test_it.py", *args, "-k", "plain")
    result.assert_outcomes(passed=1, deselected=7)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["complete"] is False


def test_a_signoff_of_nothing(gated: Gated) -> None:
    """A sign-off was asked for and no gate exists: red, with the reason."""
    gated.tests("def test_plain(): ...", ini=False)
    result = gated.run("--sla-signoff")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --sla-signoff: *no SLA*"])


def test_exitfirst(gated: Gated) -> None:
    """Tests behind the first failure were not reached, and the report names them."""
    gated.policy(ttft=900)
    gated.tests(TWO.format(mark="", first=""))
    result = gated.run("-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "fail"
    assert reasons(gated)["test_it.py::test_b/ttft_p95"] == "not reached"


def test_last_failed_does_not_turn_red_green(gated: Gated) -> None:
    """Rerunning only what failed, fixed meanwhile, leaves the rest unmeasured: still red."""
    gated.policy(ttft=400)  # breaks short (300), keeps long (450)
    assert gated.run("sla.yaml").ret == pytest.ExitCode.TESTS_FAILED
    gated.policy()
    result = gated.run("sla.yaml", "--lf")
    result.assert_outcomes(passed=1, deselected=6)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "inconclusive"


def test_last_failed_that_skips_files(gated: Gated) -> None:
    """``--lf`` leaves whole files out without collecting them: known, and incomplete."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n", name="test_one")
    gated.tests("@sla(bucket='long')\ndef test_b(sla_run):\n    sla_run()\n", name="test_two")
    gated.policy(ttft=400)
    assert gated.run().ret == pytest.ExitCode.TESTS_FAILED
    gated.policy()
    result = gated.run("--lf")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "--last-failed" in reasons(gated)["selection"]


def test_last_failed_with_nothing_failed_runs_all(gated: Gated) -> None:
    """``--lf`` after a clean run is a whole run."""
    assert gated.run("sla.yaml").ret == 0
    assert gated.run("sla.yaml", "--lf").ret == 0


def test_history_shows_reruns_until_green(gated: Gated) -> None:
    """An earlier red run over the same folder stays visible in the green one's report."""
    gated.policy(ttft=900)
    gated.run("sla.yaml")
    gated.policy()
    assert gated.run("sla.yaml").ret == 0
    assert [h["verdict"] for h in gated.report()["history"]] == ["fail"]


def test_interrupted(gated: Gated) -> None:
    """Ctrl-C keeps what was measured and never passes."""
    gated.tests(TWO.format(mark="", first="raise KeyboardInterrupt"))
    result = gated.run_apart()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    verdicts = gated.verdicts()
    assert verdicts["test_it.py::test_a/ttft_p95"] == "pass"
    assert verdicts["test_it.py::test_b/ttft_p95"] == "error"
    assert gated.report()["verdict"] == "error"


def test_exit_zero_from_inside(gated: Gated) -> None:
    """``pytest.exit(returncode=0)`` in the middle does not make a gate green."""
    gated.tests(TWO.format(mark="", first="pytest.exit('enough', returncode=0)"))
    assert gated.run().ret != 0


def test_setup_error(gated: Gated) -> None:
    """A fixture that breaks is an error of pytest's, and the limit is not measured."""
    gated.tests(
        """
        @pytest.fixture
        def broken():
            raise RuntimeError("no server")

        @sla(bucket="short")
        def test_a(broken, sla_run):
            sla_run()
        """
    )
    result = gated.run()
    result.assert_outcomes(errors=1)
    assert gated.report()["verdict"] == "inconclusive"
    assert "test_it.py::test_a/ttft_p95" in reasons(gated)


def test_collection_error(gated: Gated) -> None:
    """A test file that cannot be imported stops the run; no gate passes beside it."""
    gated.tests("import no_such_module", name="test_other")
    result = gated.run("sla.yaml", "test_other.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED

"""The verdict is the same whatever of pytest is switched off or made strict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

SWITCHES = [
    "-p no:terminal",
    "-p no:cacheprovider",
    "-p no:junitxml",
    "-p no:logging",
    "-p no:xdist",
    "-p no:rerunfailures",
    "-p no:capture",
    "-s",
    "-q -q",
    "-vv",
    "--tb=no",
    "--strict-markers -W error",
    "--assert=plain",
    "--import-mode=importlib",
]
TESTS = """
    @sla(bucket="short")
    def test_kept(sla_run):
        sla_run()

    @sla(bucket="short", ttft_ms=50)
    def test_broken(sla_run):
        sla_run()
"""


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_broken_limit_is_red(gated: Gated, switch: str) -> None:
    """A broken limit is exit 1 and FAIL in the report."""
    gated.tests(TESTS)
    result = gated.run_apart("test_it.py", *switch.split())
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert gated.report()["verdict"] == "fail"


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_clean_gate_is_green(gated: Gated, switch: str) -> None:
    """A clean gate is exit 0 and PASS in the report."""
    result = gated.run_apart("sla.yaml", *switch.split())
    assert result.ret == 0, result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert gated.report()["verdict"] == "pass"


@pytest.mark.parametrize("switch", ["-p no:terminal", "-q -q", "-n1"])
def test_incomplete_is_red(gated: Gated, switch: str) -> None:
    """The exit status that falls at the end of the run does not hang on the terminal plugin."""
    result = gated.run_apart("sla.yaml::short", *switch.split())
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_plugin_switched_off(gated: Gated) -> None:
    """``-p no:llmsla``: the options are gone, so a gate that was asked for is an error."""
    assert (
        gated.run_apart("-p", "no:llmsla", "--sla", "sla.yaml").ret == pytest.ExitCode.USAGE_ERROR
    )


def test_c_locale(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an ASCII terminal the marks are ASCII, the files UTF-8, the verdict the same."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    gated.policy(itl=80)
    result = gated.run_apart("sla.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["verdict"] == "fail"
    result.stdout.fnmatch_lines(["*scripted service: FAIL*"])
    assert "INTERNALERROR" not in result.stdout.str()

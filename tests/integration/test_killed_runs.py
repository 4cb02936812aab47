"""A run that is killed is the latest one, and never stands behind an older PASS."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.reports import json_report
from pytest_llmsla.session import new_run_dir

if TYPE_CHECKING:
    from gated import Gated

KILLED = """
    import os, signal

    @sla(bucket="short")
    def test_a(sla_run):
        sla_run()
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_latest_is_the_run_that_began_last(tmp_path: Path) -> None:
    """Its folder is pointed at as soon as it is there."""
    for _ in range(2):
        run_dir = new_run_dir(tmp_path)
        assert json_report.resolve_latest(tmp_path) == run_dir.resolve()


def test_a_run_goes_on_where_nothing_can_be_pointed(tmp_path: Path) -> None:
    """What stands in the way of the pointer does not cost the measurement."""
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    assert new_run_dir(tmp_path).is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to be killed by")
def test_check_judges_the_run_that_was_killed(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PASS before it is not what ``llmsla check .llmsla`` and ``llmsla report`` speak of."""
    assert gated.run("sla.yaml").ret == pytest.ExitCode.OK
    gated.tests(KILLED)
    assert gated.run_apart().ret in (-signal.SIGTERM, 128 + signal.SIGTERM)
    capsys.readouterr()
    folder = gated.path / ".llmsla"
    assert llmsla(["check", str(folder)]) == 2
    assert "INCONCLUSIVE" in capsys.readouterr().out
    assert llmsla(["report", str(folder)]) == 4
    assert "was killed" in capsys.readouterr().err

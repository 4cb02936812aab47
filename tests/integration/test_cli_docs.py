"""Every command and program in docs/cli.md and docs/reports.md does what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from test_cli_check import gate

from pytest_llmsla.cli import run as llmsla

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a gate has run."""
    monkeypatch.chdir(tmp_path)
    gate(tmp_path)
    return tmp_path


def test_the_commands_of_the_manual(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each sh block runs as written; doctor may find something missing."""
    commands = [line.split() for block in blocks("cli.md", "sh") for line in block.splitlines()]
    assert {c[1] for c in commands} == {
        "init", "plan", "check", "report", "history", "export", "doctor",
    }  # fmt: skip
    for program, *argv in commands:
        assert program == "llmsla"
        assert llmsla(argv) in ((0, 3) if argv == ["doctor"] else (0,)), argv
        assert capsys.readouterr().out


def test_the_program_of_the_reports_page(folder: Path) -> None:
    """The Python block validates a real run against the shipped schemas."""
    (program,) = blocks("reports.md", "python")
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    assert "report" in runpy.run_path(str(path))

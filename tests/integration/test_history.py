"""``llmsla history``: a figure over stored runs, as table and picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gate_samples import SHORT, policy
from pytest_llmsla.cli import run as llmsla
from stored_runs import stored


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs of one service; the third is slow, the fourth on another machine."""
    folder = tmp_path / "runs"
    for day in (1, 2):
        stored(folder, day)
    stored(folder, 3, factor=4.0)
    stored(folder, 4, edit=lambda run: run["host"]["cpu"].update(model="CPU Y"))
    stored(folder, 5, ended=False)
    return folder


def test_the_table_tells_every_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row a run, oldest first, failures and changes of machine told."""
    assert llmsla(["history", str(runs)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line[:10] for line in lines[1:5]] == [f"2026-01-0{d}" for d in (1, 2, 3, 4)]
    assert "short/ttft_p95" in lines[0]
    assert "fail" in lines[3]
    assert "changed before 2026-01-04T12:00:00.000Z: CPU model: CPU X and CPU Y" in out
    assert "not used: " in out


def test_one_metric(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--metric narrows the table; an unknown one lists those there are."""
    assert llmsla(["history", str(runs), "--metric", "short/itl_p95"]) == 0
    assert "ttft" not in capsys.readouterr().out.splitlines()[0]
    assert llmsla(["history", str(runs), "--metric", "short/itl_p59"]) == 4
    assert "Valid: short/ttft_p95, short/itl_p95" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_picture(runs: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The picture is well-formed and names its metric."""
    pytest.importorskip("matplotlib")
    to = runs / f"picture.{kind}"
    args = ["history", str(runs), "--metric", "short/ttft_p95", "--plot", str(to)]
    assert llmsla(args) == 0
    if kind == "png":
        assert to.read_bytes().startswith(b"\x89PNG")
        return
    root = ET.parse(to).getroot()
    told = "".join(root.itertext())
    assert "short/ttft_p95 over stored runs" in told
    assert "not PASS" in told
    assert "2026-01-03 12:00" in told


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--plot", "a.svg"], "name it with --metric"),
        (["--plot", "a.gif", "--metric", "short/ttft_p95"], "ends in .svg or .png"),
    ],
)
def test_what_cannot_be_drawn(
    runs: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error that says what is valid."""
    pytest.importorskip("matplotlib")
    assert llmsla(["history", str(runs), *args]) == 4
    assert words in capsys.readouterr().err


def test_services_of_one_folder_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of each service; what changed is told from its own run before, not the other's."""
    for day, name in enumerate(("chat", "search \x1b[2J", "chat", "search \x1b[2J"), start=1):
        length = 8 if name == "chat" else 9
        loaded = policy(
            SHORT, service=name, evidence={"preset": "fast"}, workload={"max_new_tokens": length}
        )
        stored(tmp_path / "runs", day, loaded=loaded)
    folder = str(tmp_path / "runs")
    assert llmsla(["history", folder]) == 0
    out = capsys.readouterr().out
    assert "changed" not in out
    assert "\x1b" not in out
    first, second = out.strip().split("\n\n")
    assert first.splitlines()[0] == "service chat"
    assert [line[8:10] for line in first.splitlines()[2:]] == ["01", "03"]
    assert [line[8:10] for line in second.splitlines()[2:]] == ["02", "04"]


def test_several_services_make_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line through two services says nothing of either: refused, and nothing is written."""
    for day, name in ((1, "chat"), (2, "search")):
        stored(tmp_path / "runs", day, loaded=policy(SHORT, service=name))
    to = tmp_path / "a.svg"
    args = ["history", str(tmp_path / "runs"), "--metric", "short/ttft_p95", "--plot", str(to)]
    assert llmsla(args) == 4
    assert "runs of 2 services (chat, search)" in capsys.readouterr().err
    assert not to.exists()

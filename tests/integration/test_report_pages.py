"""Pages and tables of real runs: made at the end, made again, and never over a signed one."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from gated import Gated
from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.policy import load_policy
from pytest_llmsla.session import Session, finish

POLICY = """
version: 1
service: {service}
target: {{kind: scripted, script: {{ttft_ms: {ttft}, itl_ms: 20}}}}
workload: {{max_new_tokens: 8}}
buckets: [{{name: short, prompt_max: 64, ttft_ms: 300}}]
evidence: {{preset: fast}}
"""


def run(folder: Path, *, service: str = "chat", ttft: int = 100) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "sla.yaml"
    path.write_text(POLICY.format(service=service, ttft=ttft), encoding="utf-8")
    session = Session(folder / ".llmsla", release=load_policy(path))
    session.gate(None, load_policy(path)).measure()
    session.close()
    finish(session.run_dir, formats=("json", "markdown", "html"))
    return session.run_dir


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_leaves_a_page_with_its_checksums(gated: Gated) -> None:
    """Without a word in sla.yaml html is among the reports; it names the files beside it."""
    text = gated.policy().read_text(encoding="utf-8")
    gated.policy().write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith("report:")) + "\n",
        encoding="utf-8",
    )
    assert gated.run("sla.yaml").ret == 0
    [here] = gated.runs()
    page = (here / "report.html").read_text(encoding="utf-8")
    assert "SCRIPTED: no model was measured" in page
    for name in ("report.json", "timelines.jsonl"):
        assert digest(here / name) in page


def test_a_page_asked_for_and_impossible_is_a_usage_error(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named in report.formats without its extra, it stops the run before a model loads."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    gated.policy(rest="report: {formats: [terminal, json, html]}")
    result = gated.run("sla.yaml")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*report.formats: report.html needs matplotlib: pip install*"])
    assert gated.runs() == []


def test_a_page_by_default_and_impossible_is_a_note(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default makes what it can: the verdict stands, and a line says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = gated.policy()
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("report:")]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = gated.run("sla.yaml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["note: report.html needs matplotlib: pip install *"])
    assert not (gated.runs()[0] / "report.html").exists()


def test_a_partial_run_leaves_a_signed_one_as_it_is(gated: Gated) -> None:
    """Deselecting limits makes another run, incomplete, that lists the one before."""
    assert gated.run("sla.yaml").ret == 0
    [signed] = gated.runs()
    before = {path.name: digest(path) for path in signed.iterdir()}
    assert gated.run("sla.yaml", "-k", "short").ret != 0
    first, second = gated.runs()
    assert {path.name: digest(path) for path in first.iterdir()} == before
    assert "incomplete" in (second / "report.md").read_text(encoding="utf-8").splitlines()[2]
    assert f"{first.name}: PASS" in (second / "report.md").read_text(encoding="utf-8")


def test_report_renders_again_and_keeps_what_was_signed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same page is left alone; one that was changed stays, and a numbered one is added."""
    here = run(tmp_path)
    page = here / "report.html"
    before = digest(page)
    assert llmsla(["report", str(here)]) == 0
    assert sorted(p.name for p in here.glob("report*.html")) == ["report.html"]
    assert digest(page) == before
    page.write_bytes(page.read_bytes() + b"<!-- signed -->")
    assert llmsla(["report", str(here)]) == 0
    assert digest(here / "report-2.html") == before
    assert page.read_bytes().endswith(b"<!-- signed -->")
    assert "report-2.html" in capsys.readouterr().err


def test_several_services_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page and one Markdown table, in the folder of the caller; the worst exit code counts."""
    monkeypatch.chdir(tmp_path)
    good, slow = run(tmp_path / "a"), run(tmp_path / "b", service="search", ttft=900)
    assert llmsla(["report", str(good), str(slow)]) == 1
    out, err = capsys.readouterr()
    assert "2 services: 1 stopped, 1 passed" in out
    assert "services.html" in err
    text = (tmp_path / "services.md").read_text(encoding="utf-8")
    page = (tmp_path / "services.html").read_text(encoding="utf-8")
    for words in ("chat", "search", "stopped"):
        assert words in text
        assert words in page


def test_csv_has_a_row_a_request_and_a_row_an_arrival(tmp_path: Path) -> None:
    """Every request of the log, warm-up included, with its TTFT as the log gives it."""
    here = run(tmp_path)
    assert llmsla(["report", "--csv-arrivals", str(here)]) == 0
    lines = [json.loads(line) for line in (here / "timelines.jsonl").read_text().splitlines()]
    asked = [line for line in lines if line["type"] == "request"]
    with (here / "requests.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [line["id"] for line in asked]
    assert {row["ttft_ms"] for row in rows} == {"100.0"}
    with (here / "arrivals.csv").open(encoding="utf-8", newline="") as file:
        arrivals = list(csv.DictReader(file))
    assert len(arrivals) == sum(len(line["arrivals"]) for line in asked)
    assert llmsla(["report", "--csv", str(here)]) == 0
    assert not (here / "requests-2.csv").exists(), "the same table is left alone"


def test_a_ci_job_gets_its_summary(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the environment names has the report once, whatever the verdict."""
    path = gated.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    gated.policy(ttft=900)
    assert gated.run("sla.yaml").ret == 1
    text = path.read_text(encoding="utf-8")
    assert text.count("# Pre-launch sign-off") == 1
    assert "**FAIL" in text


def test_a_summary_that_cannot_be_written_changes_no_verdict(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told in a line; exit code and reports are those of the run."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(gated.path / "no" / "such" / "folder"))
    result = gated.run("sla.yaml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["WARNING: GITHUB_STEP_SUMMARY cannot be written: *"])


def test_pages_are_utf_8_under_any_locale(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """LC_ALL=C and no UTF-8 mode: page, Markdown and table hold the service's own letters."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    path = gated.policy(rest="report: {formats: [json, markdown, html]}")
    text = path.read_text(encoding="utf-8").replace("scripted service", "服务 ✓ 🚀")
    path.write_text(text, encoding="utf-8")
    result = gated.run_apart("sla.yaml")
    assert result.ret == 0
    [here] = gated.runs()
    for name in ("report.html", "report.md", "report.json"):
        assert "服务 ✓ 🚀" in (here / name).read_bytes().decode("utf-8"), os.fspath(name)


@pytest.mark.parametrize(
    ("way", "key"),
    [
        (("findings", 0, "evidence"), "preset"),
        (("findings", 0), "requests"),
        (("series", "buckets", 0, "lengths"), "prompt_tokens"),
        (("tgs", 0), "kind"),
    ],
)
def test_a_report_with_a_hole_is_refused_and_nothing_is_written(
    tmp_path: Path, way: tuple[str | int, ...], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that was cut out anywhere ends in a usage error that names file and way out."""
    here = run(tmp_path)
    path = here / "report.json"
    inner = given = json.loads(path.read_bytes())
    for step in way:
        inner = inner[step]
    del inner[key]
    path.write_text(json.dumps(given), encoding="utf-8")
    before = sorted(p.name for p in here.iterdir())
    assert llmsla(["report", str(here)]) == 4
    said = capsys.readouterr().err
    for words in ("report.json: ", "damaged or was edited", key, "llmsla check"):
        assert words in said
    assert sorted(p.name for p in here.iterdir()) == before

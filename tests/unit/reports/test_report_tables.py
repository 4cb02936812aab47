"""CSV that no spreadsheet runs, services side by side, and the summary of a CI job."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from page_reader import Page
from report_samples import HOSTILE, itl, passed, report, tgs, ttft, undecided

from pytest_llmsla.reports import ci, csv_table, html, markdown, side_by_side, wording


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("x")', "+1", "-2+3", "@x", "\tx", "\rx", " =1", "＝1", "'x"]
)
def test_a_formula_is_text(text: str) -> None:
    """What a spreadsheet would run begins with an apostrophe; the text stands behind it."""
    [_, [cell, number]] = read(csv_table.dumps(("a", "b"), [{"a": text, "b": -3.5}]))
    assert cell.startswith("'")
    assert cell[1:].lstrip(" ")[0] in "=+-@\\＝'"
    assert number == "-3.5", "a number is untouched"


@pytest.mark.parametrize("text", ["x;=1+1", 'x;"=1"', "a; @x;b", "\x1b;+1"])
def test_no_formula_begins_after_a_semicolon(text: str) -> None:
    """Spreadsheets of many countries part columns there, whatever is quoted."""
    table = csv_table.dumps(("a", "b"), [{"a": "plain, text", "b": text}])
    [_, row] = csv.reader(io.StringIO(table, newline=""), delimiter=";")
    assert not any(cell.strip(' "')[:1] in tuple("=+-@") for cell in row if cell.strip(' "'))


def test_cells_come_back_as_they_were() -> None:
    """Commas, quotes and line breaks stay inside their cell; what is None is empty."""
    rows = [{"a": 'x,"y"', "b": None, "c": True}, {"a": "模型", "b": 0.1, "c": False}]
    assert read(csv_table.dumps(("a", "b", "c"), rows)) == [
        ["a", "b", "c"],
        ['x,"y"', "", "true"],
        ["模型", "0.1", "false"],
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_character_reaches_a_table(text: str) -> None:
    """One row stays one line, whatever a model's name holds."""
    table = csv_table.dumps(("a",), [{"a": text}])
    assert len(table.splitlines()) == 2
    table.encode("utf-8")


def three() -> list[tuple[str, dict[str, Any]]]:
    """The article's three services: ITL P95 62 ms, and two TGS figures without conditions."""
    stopped = report(passed(), itl(observed=62.0), service="chat")
    back = report(passed(), tgs(), service="search", verdict="fail")
    also = report(passed(), tgs(), service="code", verdict="fail")
    return [("a", stopped), ("b", back), ("c", also)]


def test_three_services_one_stopped_two_sent_back() -> None:
    """The headline counts outcomes; each rule has its own column and verdict."""
    services = side_by_side.rows(three())
    assert side_by_side.headline(services) == "3 services: 1 stopped, 2 sent back"
    assert [s.outcome for s in services] == ["stopped", "sent back", "sent back"]
    assert [[c.verdict for c in s.rules] for s in services] == [
        ["PASS", "FAIL", "–"],
        ["PASS", "–", "FAIL"],
        ["PASS", "–", "FAIL"],
    ]
    assert "62.0 ms, limit 50 ms FAIL" in services[0].rules[1].lines[0]
    assert "not documented: memory" in services[1].rules[2].lines[0]


def test_side_by_side_says_the_same_as_page_and_markdown() -> None:
    """Both forms have a row a service with the same figures, and say what is not the same."""
    given = three()
    given[1][1]["environment"] = {"hostname": "other"}
    page, text = Page(html.render_services(given)), side_by_side.markdown(given)
    for service in side_by_side.rows(given):
        for cell in service.rules:
            for line in cell.lines:
                assert line in page.shown()
                assert line.rpartition(": ")[2] in text.replace("\\", "")
    assert len([row for row in text.splitlines() if row.startswith("| ")]) == 1 + 3
    assert "not the same host: box, other" in page.shown()
    assert "not the same host: box, other" in text


def test_side_by_side_is_inert() -> None:
    """Markup in a service's name stays text, in one row."""
    given = [(text, report(ttft(id=text), service=text)) for text in HOSTILE]
    source = html.render_services(given)
    assert {e.tag for e in Page(source).elements} & {"img", "a", "iframe"} == set()
    assert len(Page(source).all("script")) == 2
    rows = [row for row in side_by_side.markdown(given).splitlines() if row.startswith("| ")]
    assert len(rows) == 1 + len(HOSTILE)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (report(passed(), verdict="pass"), "passed"),
        (report(ttft()), "stopped"),
        (report(ttft(verdict="error", reason="no token"), verdict="error"), "stopped"),
        (report(verdict="error"), "stopped"),
        (report(passed(), tgs()), "sent back"),
        (report(itl(), tgs()), "stopped"),
        (report(undecided(), verdict="inconclusive"), "sent back"),
        (report(passed(), verdict="inconclusive", complete=False), "sent back"),
        (report(passed(), verdict="pass", complete=False), "sent back"),
        (report(verdict="pass"), "sent back"),
        (report(itl(verdict="conditional"), verdict="conditional"), "on condition"),
        (report(passed(), verdict="no such verdict"), "sent back"),
    ],
)
def test_only_a_complete_pass_with_findings_passed(given: dict[str, Any], outcome: str) -> None:
    """Stopped: rules 1 and 2, failures, errors. Sent back: rule 3, undecided, incomplete."""
    assert wording.outcome(given) == outcome


def test_the_job_summary_is_appended(tmp_path: Path) -> None:
    """Where the environment names a file the report is added to it, after what stands there."""
    assert ci.append_summary(report(ttft()), {}) is None
    path = tmp_path / "summary.md"
    path.write_text("before\n", encoding="utf-8")
    assert ci.append_summary(report(ttft()), {ci.VARIABLE: str(path)}) == path
    assert path.read_text(encoding="utf-8") == "before\n" + markdown.render(report(ttft()))


def test_a_full_job_summary_is_cut_and_never_broken(tmp_path: Path) -> None:
    """GitHub drops a summary over 1 MiB whole: then only the verdict and the table are added."""
    path = tmp_path / "summary.md"
    environ = {ci.VARIABLE: str(path)}
    path.write_bytes(b"x" * (ci.MOST_BYTES - 1900))
    assert len(markdown.render(report(ttft()))) > 1900
    assert ci.append_summary(report(ttft()), environ) == path
    added = path.read_bytes()[ci.MOST_BYTES - 1900 :].decode("utf-8")
    assert "**FAIL**" in added
    assert path.stat().st_size <= ci.MOST_BYTES
    before = path.read_bytes()
    with pytest.raises(OSError, match="no room"):
        ci.append_summary(report(ttft()), environ)
    assert path.read_bytes() == before

"""A run that only its baseline stops says so in every report: which metrics, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_reader import Page
from report_samples import HOSTILE, compared, passed, report

from pytest_llmsla.reports import (
    annotate,
    baseline,
    html,
    markdown,
    side_by_side,
    terminal,
    wording,
)

REPO = annotate.Checkout(Path("/repo"), Path("/repo"))
REFUSED = "refused: no stored run may be compared with this one (runs/a: other processor)"


def beside(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A run whose limits all hold, with its comparison, as a run's end writes it."""
    return report(
        passed(),
        verdict=found["verdict"],
        reason=f"baseline: {found['reason']}" if found["reason"] else "",
        baseline=found,
        **changes,
    )


SLOWER = beside(compared())
NOT_COMPARED = beside(compared("error", rows=[], runs=[], compared=0, of=0, reason=REFUSED))
UNDECIDED = beside(compared("inconclusive", "inconclusive"))
RECORDED = {key: value for key, value in SLOWER.items() if key != "baseline"}
"""A later check of the run, without the stored runs: its record still says what was found."""


@pytest.mark.parametrize(
    ("given", "word", "metric", "outcome"),
    [
        (SLOWER, "SLOWER", "short/ttft_p95", "stopped"),
        (NOT_COMPARED, "ERROR", "other processor", "stopped"),
        (UNDECIDED, "INCONCLUSIVE", "short/ttft_p95", "sent back"),
        (RECORDED, "SLOWER", "short/ttft_p95", "stopped"),
    ],
    ids=["slower", "not compared", "undecided", "on record"],
)
def test_every_report_says_what_follows(
    given: dict[str, Any], word: str, metric: str, outcome: str
) -> None:
    """Word, metric or reason, and what to do next; no list of what follows is empty."""
    assert wording.outcome(given) == outcome
    page = Page(html.render(given))
    [follows] = [e.shown for e in page.elements if e.attributes.get("id") == "follows"]
    text = markdown.render(given)
    in_markdown = text.partition("## What follows")[2].partition("\n## ")[0]
    services = html.render_services([("x", given)])
    quality = json.loads(annotate.code_quality([given], REPO))
    assert len(quality) == 1
    for shown in (
        follows,
        in_markdown.replace("\\", ""),
        terminal.render(given, width=400),
        Page(services).shown(),
        side_by_side.markdown([("x", given)]).replace("\\", ""),
        quality[0]["description"],
        "\n".join(annotate.github(given, REPO)),
    ):
        assert word in shown
        assert metric in shown
        assert "next:" in shown.lower()
        assert "baseline" in shown.lower()
        assert "REGRESSION" not in shown


@pytest.mark.parametrize("given", [SLOWER, NOT_COMPARED, UNDECIDED])
def test_the_head_says_the_reason_once(given: dict[str, Any]) -> None:
    """The reason stands beside the verdict and not again in the line below."""
    head = Page(html.render(given)).all("header")[0].shown
    assert head.count(given["baseline"]["reason"]) == 1


def test_services_name_a_baseline_only_where_there_is_one() -> None:
    """The column of the comparison is there for all rows, or for none."""
    alone = report(passed(), verdict="pass")
    assert "Baseline" not in side_by_side.titles(side_by_side.rows([("a", alone)]))
    rows = side_by_side.rows([("a", alone), ("b", SLOWER)])
    assert side_by_side.titles(rows)[-1] == "Baseline"
    last = [side_by_side.cells_of(row, rows)[-1] for row in rows]
    assert [(cell.verdict, cell.kind) for cell in last] == [("–", "none"), ("SLOWER", "fail")]


def test_a_sound_comparison_has_nothing_to_follow() -> None:
    """PASS beside the baseline leaves the page as it is and annotates nothing."""
    given = beside(compared("pass", "ok"))
    assert baseline.follows(given) is None
    assert wording.outcome(given) == "passed"
    assert annotate.github(given, REPO) == []
    assert json.loads(annotate.code_quality([given], REPO)) == []


def test_a_pass_over_a_slower_baseline_is_never_passed() -> None:
    """A report.json that says PASS over a comparison that does not is no PASS."""
    for found in (compared(), compared("inconclusive"), compared("no such verdict")):
        assert wording.outcome({**beside(found), "verdict": "pass"}) != "passed"


def test_figures_and_their_ratio_add_up() -> None:
    """Figures have the digits that their ratio has, and no bound reads as the tolerance itself."""
    [row] = baseline.rows(SLOWER)
    assert "5.333 ms to 12.91 ms, × 2.42 (1.1003 to 4.21)" in row


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_of_a_comparison_is_inert(text: str) -> None:
    """Ids and reasons of stored runs begin no command, tag or line."""
    found = compared(reason=text, left_out=[{"run": text, "reason": text}])
    found["rows"][0].update(id=text, reason=text)
    given = beside(found)
    for line in annotate.github(given, REPO):
        assert line.isprintable()
    assert "<img" not in html.render(given)
    assert "<img" not in html.render_services([("x", given)])
    assert len(side_by_side.markdown([("x", given)]).splitlines()) == 5
    shown = terminal.render(given, width=200).replace("\n", "")
    assert not any(ch < " " or "\x7f" <= ch <= "\x9f" for ch in shown)

"""What a sign-off says first: may it launch, why, and each of the three rules in a line."""

from __future__ import annotations

from typing import Any

import pytest
from page_reader import Page
from report_samples import HOSTILE, compared, itl, passed, report, tgs, tgs_entry, ttft, undecided

from pytest_llmsla.reports import front, html, markdown, terminal
from pytest_llmsla.reports.escape import in_order

LOOK = {"evidence": {"preset": "observed", "min_units": None}}


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (report(passed(), verdict="pass"), "Yes: every limit of the policy was measured and holds"),
        (report(passed(), verdict="pass", target={"kind": "scripted"}),
         "No: no model was measured"),
        (report(passed(), itl()), "No: rule 2 (ITL) is broken"),
        (report(ttft(), itl(verdict="error"), tgs()),
         "No: rule 1 (TTFT) is broken; rule 2 (ITL) could not be measured"),
        (report(passed(), tgs()), "Not yet: rule 3 (TGS) is not documented"),
        (report(undecided(), verdict="inconclusive"), "Not yet: rule 1 (TTFT) is undecided"),
        (report(passed(), verdict="inconclusive", complete=False),
         "Not yet: limits were not measured"),
        (report(itl(verdict="conditional"), verdict="conditional"),
         "On condition: rule 2 (ITL) is over its limit with a KV-cache plan"),
        (report(passed(), baseline=compared()), "No: it is slower than the baseline"),
        (report(ttft(rule="error", metric="error_rate")), "No: the limit on failures is broken"),
        (report(verdict="error", reason="nothing ran"), "No: nothing ran"),
        (report(verdict="pass"), "Not yet: nothing was judged"),
    ],
)  # fmt: skip
def test_the_first_question_has_an_answer(given: dict[str, Any], answer: str) -> None:
    """Yes, no, not yet or on condition, with the rules that it comes from, on page and sheet."""
    assert front.launch(given) == answer
    [shown] = Page(html.render(given)).all("p", class_="answer")
    assert shown.shown == f"May it launch? {answer}."
    assert f"- May it launch? {answer}" in markdown.render(given).replace("\\", "")


def test_every_rule_has_its_line() -> None:
    """All three always stand there, others if they do not hold; what is not PASS has figures."""
    given = report(passed(), itl(), ttft(rule="error", id="short/error_rate"))
    assert [(title, cell.verdict) for title, cell in front.rules(given)] == [
        ("Rule 1: TTFT", "PASS"),
        ("Rule 2: ITL", "FAIL"),
        ("Rule 3: TGS", "–"),
        ("Failures", "FAIL"),
    ]
    [line] = dict(front.rules(given))["Rule 2: ITL"].lines
    assert line == "short/itl_p95: 61.2 ms, limit 50 ms FAIL"
    head = Page(html.render(given)).all("header")[0].shown
    assert line in head
    assert line.rpartition(": ")[2] in markdown.render(given)


@pytest.mark.parametrize(
    ("found", "verdict", "kind"),
    [
        (passed(), "PASS", "pass"),
        (passed(**LOOK), "PASS (observed)", "inconclusive"),
        (passed(reason="over; report.conditional_passes"),
         "PASS (by KV-cache plan)", "conditional"),
    ],
)  # fmt: skip
def test_only_a_full_pass_of_a_rule_looks_like_one(found: Any, verdict: str, kind: str) -> None:
    """A look and a plan are marked where a rule is told in one word."""
    cell = dict(front.rules(report(found)))["Rule 1: TTFT"]
    assert (cell.verdict, cell.kind) == (verdict, kind)


@pytest.mark.parametrize(
    "text", [*HOSTILE, "x" * 10_000, "a\u2028b\u2029c", "\x1b]8;;http://x\x07y"]
)
def test_foreign_text_in_front_is_inert(text: str) -> None:
    """Ids, rules and reasons stand in the head as text, cut where they are long."""
    for given in (report(ttft(id=text, rule=text)), report(verdict="error", reason=text)):
        page = Page(html.render(given))
        assert not page.all("img")
        for head in page.all("header"):
            assert len(head.shown) < 4000
            assert head.shown.isprintable()
        assert "<img" not in markdown.render(given)
        shown = terminal.render(given, width=200).replace("\n", "")
        assert not any(ch < " " or "\x7f" <= ch <= "\x9f" for ch in shown)


def test_a_right_to_left_name_leaves_its_figure_behind_it() -> None:
    """A mark keeps name and figure in order where the eye would swap them, and only there."""
    entry = tgs_entry(conditions={"prompt_lengths": {"طويل": 30, "short": 4}})
    given = report(tgs(), tgs=[entry])
    assert "طويل\u200e: 30, short: 4" in html.render(given)
    assert "طويل&lrm;: 30, short: 4" in markdown.render(given)
    assert "طويل: 30" in terminal.render(given, width=200)
    assert in_order("نموذج דגם: short") == "نموذج דגם: short"

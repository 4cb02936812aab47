"""report.md: a sign-off whose foreign text is inert, checked with a real Markdown parser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_samples import HOSTILE, itl, passed, report, tgs, tgs_entry, ttft, undecided

from pytest_llmsla.reports import markdown
from pytest_llmsla.reports.escape import markdown as md

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
ACTIVE = {"html_inline", "html_block", "link_open", "image", "code_inline", "s_open", "em_open"}


def tokens(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield token
        yield from token.children or ()


def rows_of_limits(text: str) -> int:
    return sum(token.type == "tr_open" for token in tokens(text)) - 1


@pytest.mark.parametrize("text", HOSTILE)
def test_inline_text_is_shown_and_nothing_else(text: str) -> None:
    """Escaped text parses as plain text on one line, in a paragraph, a list and a cell."""
    for frame in ("{}\n", "- {}\n", "- name: {}\n", "| a |\n|---|\n| {} |\n"):
        parsed = list(tokens(frame.format(md(text))))
        assert not {t.type for t in parsed} & (ACTIVE | {"strong_open", "hr", "heading_open"})
        assert sum(t.type == "list_item_open" for t in parsed) <= 1
        shown = "".join(t.content for t in parsed if t.type == "text")
        assert "\n" not in shown
        assert not any(ch < " " for ch in shown)


def test_exactly_one_table_row_for_each_limit() -> None:
    """Hostile ids, buckets, reasons, errors and facts neither add nor remove a row."""
    findings = [
        make(id=text, bucket=text, reason=text, source=text, notes=(text,), diagnosis=(text,))
        for text in HOSTILE
        for make in (ttft, itl, passed, undecided)
    ]
    text = markdown.render(
        report(
            *findings,
            service="\n".join(HOSTILE),
            target={h: h for h in HOSTILE},
            environment={"gpus": [{"name": h} for h in HOSTILE]},
            errors=[{"error": h, "count": 3} for h in HOSTILE],
            not_measured=[{"id": h, "reason": h} for h in HOSTILE],
            tgs=[tgs_entry(kind=h) for h in HOSTILE],
        ),
        history=[{"run": h, "verdict": h, "complete": False, "policy_sha256": h} for h in HOSTILE],
    )
    text.encode("utf-8")
    parsed = list(tokens(text))
    assert rows_of_limits(text) == len(findings)
    assert not {t.type for t in parsed} & ACTIVE
    assert sum(t.type == "table_open" for t in parsed) == 1


def test_it_reads_as_a_sign_off() -> None:
    """Everything a board asks for stands in it."""
    text = markdown.render(
        report(
            ttft(),
            itl(),
            undecided(id="medium/ttft_p95", bucket="medium"),
            tgs(),
            complete=False,
            not_measured=[{"id": "long/ttft_p95", "reason": "deselected"}],
            errors=[{"error": "out of memory", "count": 5000}],
            tgs=[tgs_entry(), tgs_entry(kind="peak", documented=False, conditions={})],
        ),
        digests={"report.json": "c" * 64, "timelines.jsonl": "d" * 64},
        history=[
            {"run": "2026-11-28T09-00-00Z", "verdict": "fail", "complete": True},
            {"run": "2026-11-28T10-00-00Z", "verdict": "no report", "complete": False},
        ],
    )
    for part in (
        "**FAIL, incomplete**",
        "P50 400.1 ms · P95 412.6 ms · P99 412.6 ms",
        "measured 31/97/128",
        "worst_ms: 5000",
        "packages.torch: 2.13.0",
        "long/ttft_p95: deselected",
        "5000 × out of memory",
        "temperature: 0.8",
        "memory: NOT DOCUMENTED",
        "not documented",
        "Stopped",
        "Sent back",
        "2026-11-28T10-00-00Z: NO REPORT, incomplete",
        "SHA-256 of report.json: `" + "c" * 64,
        "Release manager",
        "at most 5 %",
    ):
        assert part in text, part


def test_a_pass_has_nobody_to_stop() -> None:
    """A clean report names no broken limit and asks for no reason."""
    text = markdown.render(report(passed(), verdict="pass"))
    assert "**PASS**" in text
    assert "Every limit of the policy was measured and holds." in text
    for part in ("Stopped", "Sent back", "Reason:"):
        assert part not in text


def test_long_texts_are_cut_and_their_length_told() -> None:
    """A prompt of a megabyte in an error leaves a small report."""
    text = markdown.render(report(ttft(), errors=[{"error": "x" * 1_000_000, "count": 1}]))
    assert len(text) < 20_000
    assert "(1000000 characters)" in text.replace("\\", "")


def test_a_very_large_run_stays_readable() -> None:
    """200 gates, thousands of kinds of errors: one row a limit, lists cut with their length."""
    findings = [ttft(id=f"t.py::test_{i}/ttft_p95", percentiles={"p95": 1.5}) for i in range(200)]
    errors = [{"reason": f"odd error {i}", "count": 1, "bucket": "short"} for i in range(5000)]
    text = markdown.render(report(*findings, errors=errors))
    assert rows_of_limits(text) == 200
    assert "5000 in all" in text
    assert len(text) < 500_000

"""What every report promises: the verdict as it is, every limit, and what is missing."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gate_samples import LONG, SHORT, broken, log_lines_of, plain_json, policy, timeline, write_log
from pytest_llmsla.finding import Finding
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.reports import html, markdown, terminal, text

CLEAN = [timeline(n) for n in range(38)]
RUNS: dict[str, tuple[list[Any], str]] = {
    "passes": (CLEAN, "pass"),
    "breaks TTFT": ([timeline(n, ttft=900) for n in range(38)], "fail"),
    "breaks ITL": ([timeline(n, gaps=(90,) * 7) for n in range(38)], "fail"),
    "one failure": ([*CLEAN, broken(38)], "fail"),
    "only failures": ([broken(n) for n in range(5)], "fail"),
    "no gaps": ([timeline(n, gaps=()) for n in range(38)], "error"),
    "too few": (CLEAN[:20], "inconclusive"),
    "short prompts": ([timeline(n, prompt=5) for n in range(38)], "inconclusive"),
    "nothing": ([], "inconclusive"),
}


def report_of(tmp_path: Path, timelines: list[Any], *buckets: Any) -> dict[str, Any]:
    loaded = policy(*buckets or (SHORT,), evidence={"preset": "fast"})
    log = read_run(write_log(tmp_path / "t.jsonl", log_lines_of(loaded, timelines)))
    return build_report(log, judge_log(log))


def renderings(report: dict[str, Any]) -> dict[str, str]:
    page = html.render(report)
    return {
        "HTML": _text(page),
        "terminal": terminal.render(report, width=200),
        "ASCII terminal": terminal.render(report, width=60, unicode=False),
        "Markdown": markdown.render(report),
    }


def _text(page: str) -> str:
    """What a reader sees, a line an element; the title first."""
    shown = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = [unescape(line).strip() for line in re.sub(r"<[^>]*>", "\n", shown).splitlines()]
    return "\n".join(line for line in lines if line)


@pytest.mark.parametrize("name", RUNS)
def test_the_headline_is_the_verdict(tmp_path: Path, name: str) -> None:
    """In every rendering the first words are those of the verdict, and no other."""
    timelines, verdict = RUNS[name]
    report = report_of(tmp_path, timelines)
    assert report["verdict"] == verdict
    for where, shown in renderings(report).items():
        head = "\n".join(shown.splitlines()[:4])
        assert verdict.upper() in head, where
        assert verdict == "pass" or "PASS" not in head, where
        assert report["complete"] or "incomplete" in head, where


@pytest.mark.parametrize("name", RUNS)
def test_every_limit_and_everything_missing_is_named(tmp_path: Path, name: str) -> None:
    """A bucket that was never asked is listed with its limits; nothing is left out."""
    report = report_of(tmp_path, RUNS[name][0], SHORT, LONG)
    assert report["complete"] is False
    for where, shown in renderings(report).items():
        for found in report["findings"]:
            assert where not in ("Markdown", "HTML") or found["id"] in shown.replace("/\n", "/")
            assert found["verdict"].upper() in shown, where
        for missing in report["not_measured"]:
            assert missing["id"] in shown, where
    assert plain_json(report) == report


@pytest.mark.parametrize("name", RUNS)
def test_every_finding_has_its_words(tmp_path: Path, name: str) -> None:
    """Verdict, limit and where the limit is written stand in the block of a failure."""
    for row in report_of(tmp_path, RUNS[name][0])["findings"]:
        found = Finding(**{**row, "evidence": None, "diagnosis": (), "notes": (), "attempts": ()})
        block = text.failure_block(found)
        assert found.verdict.upper() in block
        assert found.source in block
        assert found.limit is None or f"{found.limit:g}" in block

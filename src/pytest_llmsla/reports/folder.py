"""What stands in a run folder and in the report folder around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import html, json_report, markdown

MARKDOWN_NAME = "report.md"
TIMELINES_NAME = "timelines.jsonl"
RUNS = "runs"


def write_reports(
    report: Mapping[str, Any], run_dir: Path, *, formats: tuple[str, ...] = ("json", "markdown")
) -> None:
    """Write report.json, report.md, report.html and the ``latest`` pointer of a run.

    report.json is always written, and first: it is what the others are made from.

    Args:
        report: the dict of report.json.
        run_dir: ``<report dir>/runs/<UTC>``.
        formats: names of ``report.formats``; ``markdown`` adds report.md, ``html`` report.html
            where the extra ``[html]`` is installed (:func:`html.missing` says whether).

    Raises:
        InternalError: a number is not finite.
        OSError: a file cannot be written.
    """
    json_report.write(report, run_dir)
    if "markdown" in formats:
        write_markdown(report, run_dir)
    if "html" in formats and not html.missing():
        write_html(report, run_dir)
    if run_dir.parent.name == RUNS:
        json_report.point_latest(run_dir)


def write_markdown(report: Mapping[str, Any], run_dir: Path) -> Path:
    """Write ``run_dir/report.md`` from ``report`` and the files beside it; returns its path.

    Raises:
        OSError: the file cannot be written.
    """
    text = markdown.render(report, digests=digests(run_dir), history=history(run_dir))
    path = run_dir / MARKDOWN_NAME
    json_report.write_text(path, text)
    return path


def write_html(report: Mapping[str, Any], run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` from ``report`` and the files beside it; returns its path.

    Raises:
        UsageError: the extra ``[html]`` is not installed.
        OSError: it cannot be written.
    """
    path = run_dir / html.REPORT_HTML
    text = html.render(report, digests=digests(run_dir), history=history(run_dir))
    json_report.write_text(path, text)
    return path


def write_beside(path: Path, text: str) -> Path:
    """Write ``text`` to ``path``, or to ``name-2`` and on where another text stands there.

    A file that differs may carry signatures, so it is kept. Returns the file that holds the text.

    Raises:
        OSError: it cannot be written.
    """
    number = 1
    while True:
        here = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        if not here.exists():
            json_report.write_text(here, text)
            return here
        if here.read_bytes() == text.encode("utf-8"):
            return here
        number += 1


def digests(run_dir: Path) -> dict[str, str]:
    """SHA-256 of report.json and timelines.jsonl, of those that are there."""
    names = (json_report.REPORT_NAME, TIMELINES_NAME)
    return {n: json_report.sha256(run_dir / n) for n in names if (run_dir / n).is_file()}


def history(run_dir: Path) -> list[dict[str, Any]]:
    """Earlier runs beside ``run_dir``, oldest first; unreadable and unfinished ones are named.

    Each is ``run``, ``verdict``, ``complete``, ``policy_sha256``.
    """
    if run_dir.parent.name != RUNS:
        return []
    earlier = sorted(d for d in run_dir.parent.iterdir() if d.is_dir() and d.name < run_dir.name)
    return [_entry(d) for d in earlier]


def _entry(run_dir: Path) -> dict[str, Any]:
    path = run_dir / json_report.REPORT_NAME
    if not path.exists():
        return {"run": run_dir.name, "verdict": "no report", "complete": False}
    try:
        report = json_report.read(path)
    except UsageError:
        return {"run": run_dir.name, "verdict": "unreadable report", "complete": False}
    return {
        "run": run_dir.name,
        "verdict": report.get("verdict", "?"),
        "complete": report.get("complete") is True,
        "policy_sha256": (report.get("policy") or {}).get("sha256"),
    }

"""``llmsla report``: render a stored report.json again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..reports import folder, json_report, markdown


def load(path: Path) -> tuple[dict[str, Any], Path]:
    """The report that ``path`` means, and the folder of its run.

    Args:
        path: a run folder, a report folder (its latest run) or a report.json.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    if path.is_file():
        run_dir, file = path.parent, path
    elif (path / json_report.REPORT_NAME).is_file():
        run_dir, file = path, path / json_report.REPORT_NAME
    else:
        latest = json_report.resolve_latest(path) if path.is_dir() else None
        if latest is None and (path / folder.TIMELINES_NAME).is_file():
            latest = path
        if latest is not None and not (latest / json_report.REPORT_NAME).is_file():
            raise UsageError(
                f"{latest}: this run has no {json_report.REPORT_NAME}: it was killed, or it has "
                f"not ended. Judge what it measured with: llmsla check {path}"
            )
        if latest is None:
            raise UsageError(
                f"{path}: holds no {json_report.REPORT_NAME} and no latest run that has one. Give "
                "a run folder (.llmsla/runs/<UTC>) or a report folder (.llmsla)"
            )
        run_dir, file = latest, latest / json_report.REPORT_NAME
    report = json_report.read(file)
    for key in ("verdict", "complete", "findings"):
        if key not in report:
            raise UsageError(
                f"{file}: lacks {key!r}. Judge its {folder.TIMELINES_NAME} again with llmsla check"
            )
    return report, run_dir


def write_again(report: dict[str, Any], run_dir: Path) -> Path:
    """Write report.md anew; returns the file that holds it.

    A report.md that differs may carry signatures, so it is kept: the new one is numbered.

    Raises:
        OSError: it cannot be written.
    """
    text = markdown.render(report, digests=folder.digests(run_dir), history=folder.history(run_dir))
    number = 1
    while True:
        path = run_dir / (folder.MARKDOWN_NAME if number == 1 else f"report-{number}.md")
        if not path.exists():
            json_report.write_text(path, text)
            return path
        if path.read_text(encoding="utf-8", errors="replace") == text:
            return path
        number += 1

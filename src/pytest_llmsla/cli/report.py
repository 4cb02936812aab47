"""``llmsla report``: render a stored report.json again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..reports import (
    annotate,
    csv_table,
    folder,
    html,
    json_report,
    markdown,
    side_by_side,
    terminal,
)

SERVICES_MD = "services.md"


@contextmanager
def _whole(file: object) -> Iterator[None]:
    """What a damaged report lacks comes out while it is shown: that is no fault of this program."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise UsageError(
            f"{file}: cannot be shown, it is damaged or was edited ({type(err).__name__}: {err}). "
            f"Judge its {folder.TIMELINES_NAME} again with llmsla check"
        ) from err


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
    with _whole(file):
        terminal.render(report)
    return report, run_dir


def write_again(report: dict[str, Any], run_dir: Path) -> list[Path]:
    """Write report.md and report.html anew; returns the files that hold them.

    Files that differ may carry signatures, so they are kept: the new one is numbered.

    Raises:
        UsageError: the report is damaged.
        OSError: one cannot be written.
    """
    beside: dict[str, Any] = {
        "digests": folder.digests(run_dir),
        "history": folder.history(run_dir),
    }
    page = ""
    with _whole(run_dir / json_report.REPORT_NAME):
        text = markdown.render(report, **beside)
        if not html.missing():
            page = html.render(report, **beside)
    out = [folder.write_beside(run_dir / folder.MARKDOWN_NAME, text)]
    if page:
        out.append(folder.write_beside(run_dir / html.REPORT_HTML, page))
    return out


def headline(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """``3 services: 1 stopped, 2 sent back``."""
    return side_by_side.headline(side_by_side.rows(reports))


def lacking() -> str:
    """Why no page was written; empty when one was."""
    return html.missing()


def write_services(reports: Sequence[tuple[str, Mapping[str, Any]]], where: Path) -> list[Path]:
    """Write services.md and services.html into ``where``; returns the files that hold them.

    Raises:
        OSError: one cannot be written.
    """
    out = [folder.write_beside(where / SERVICES_MD, side_by_side.markdown(reports))]
    if not html.missing():
        page = html.render_services(reports)
        out.append(folder.write_beside(where / html.SERVICES_HTML, page))
    return out


def write_csv(run_dir: Path, *, arrivals: bool) -> list[Path]:
    """Write requests.csv from a run's timelines, and ``arrivals`` also arrivals.csv.

    Raises:
        UsageError: there is no timelines.jsonl, or it is damaged.
        OSError: one cannot be written.
    """
    from .. import series
    from ..log import read_run

    timelines = read_run(run_dir / folder.TIMELINES_NAME).timelines
    rows = csv_table.dumps(series.REQUEST_COLUMNS, series.request_rows(timelines))
    out = [folder.write_beside(run_dir / csv_table.REQUESTS_CSV, rows)]
    if arrivals:
        rows = csv_table.dumps(series.ARRIVAL_COLUMNS, series.arrival_rows(timelines))
        out.append(folder.write_beside(run_dir / csv_table.ARRIVALS_CSV, rows))
    return out


def write_code_quality(reports: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write GitLab's Code Quality report of all ``reports``; paths from the working directory.

    Raises:
        OSError: the file cannot be written.
    """
    checkout = annotate.Checkout.of(os.environ, Path.cwd())
    path.write_text(annotate.code_quality(reports, checkout), encoding="utf-8")

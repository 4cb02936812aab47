"""Which run a path means: a file, a run folder, or a report folder's latest run."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from . import json_report
from .folder import TIMELINES_NAME


def timelines_at(path: Path) -> Path:
    """The timelines.jsonl that ``path`` means.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise UsageError(
            f"{path}: no such file or folder. Give a timelines.jsonl, a run folder "
            "(.llmsla/runs/<UTC>) or a report folder (.llmsla)"
        )
    here = path / TIMELINES_NAME
    if here.is_file():
        return here
    latest = json_report.resolve_latest(path)
    if latest is not None and (latest / TIMELINES_NAME).is_file():
        return latest / TIMELINES_NAME
    raise UsageError(
        f"{path}: holds no {TIMELINES_NAME} and no latest run. Give a run folder "
        "(.llmsla/runs/<UTC>), a report folder (.llmsla) or the file itself"
    )

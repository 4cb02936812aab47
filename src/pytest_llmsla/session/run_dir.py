"""The folder of a run, and which one is the latest."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from pathlib import Path

from ..errors import TargetError
from ..reports import json_report


def new_run_dir(report_dir: Path) -> Path:
    """Make ``report_dir/runs/<UTC>``; a second run in the same second gets a suffix.

    ``latest`` points at it from now on, where that can be written.
    """
    runs = report_dir / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    stem = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for n in range(1000):
        path = runs / (stem if n == 0 else f"{stem}-{n:03d}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        # From its start, so that a run that is killed is the latest one, not the run before it.
        with contextlib.suppress(OSError):
            json_report.point_latest(path)
        return path
    raise TargetError(f"{runs}: no free folder name for this run.")

"""The summary page of a CI job, where the environment names a file for it."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import markdown

VARIABLE = "GITHUB_STEP_SUMMARY"
MOST_BYTES = 1024 * 1024
"""What GitHub takes of one step; a larger file is dropped whole."""


def append_summary(report: Mapping[str, Any], environ: Mapping[str, str]) -> Path | None:
    """Append the report to the job's summary; the file, or None where none is named.

    Where the page has no room for all of it, verdict and table are appended only.

    Raises:
        OSError: the file that is named cannot be written, or has no room for these either.
    """
    name = environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name)
    room = MOST_BYTES - (path.stat().st_size if path.is_file() else 0)
    text = markdown.render(report)
    if len(text.encode("utf-8")) > room:
        text = markdown.brief(report)
    data = text.encode("utf-8")
    if len(data) > room:
        raise OSError(errno.EFBIG, f"no room: a summary page holds {MOST_BYTES} bytes", str(path))
    with path.open("ab") as file:
        file.write(data)
    return path

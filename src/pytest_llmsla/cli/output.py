"""Writing to a terminal or a pipe: any encoding, any width, and a closed pipe is no crash."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from ..reports import json_report, terminal
from ..reports.escape import fit, speaks_unicode, visible


def say(text: str) -> None:
    """Write lines to standard output."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Write one message to standard error; foreign characters in it are inert."""
    _write(sys.stderr, f"llmsla: {visible(text, keep_newlines=True)}")


def show_report(report: Mapping[str, Any]) -> None:
    """The terminal table of a report."""
    text = terminal.render(
        report,
        width=shutil.get_terminal_size((100, 24)).columns,
        unicode=speaks_unicode(sys.stdout.encoding),
        color=sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    )
    _write(sys.stdout, text.rstrip("\n"))


def show_json(report: Mapping[str, Any]) -> None:
    """The report.json object, and nothing else, in characters that any encoding carries."""
    _write(sys.stdout, json_report.dumps(report, ascii_only=True).rstrip("\n"))


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(fit(text, stream.encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        # The reader has gone (`| head`). The exit code still tells the verdict.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

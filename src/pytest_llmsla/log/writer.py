"""The writing side: one line after another, each flushed before the call returns."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from ..timeline import Arrivals, Timeline
from .request_lines import to_line
from .strict_json import plain
from .whole import Lines, lines_of

SCHEMA = "llmsla-timelines/1"


def utc_now() -> str:
    """The wall clock, UTC, ISO 8601 with Z and milliseconds; never used for durations."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunWriter:
    """Appends lines to one timelines.jsonl, each flushed before the call returns.

    Safe to call from several threads. Raises OSError where the disk refuses.
    """

    def __init__(self, path: Path, *, keep_text: bool = False, segments: int | None = None) -> None:
        """``segments``: the file is a run's that goes on, and holds so many clock segments."""
        self.path = path
        self._keep_text = keep_text
        path.parent.mkdir(parents=True, exist_ok=True)
        # A run that goes on has lines already; another's words after its end are none of these.
        self._lines = Lines() if segments is None else lines_of(path)
        self._file: TextIO = path.open("a", encoding="utf-8", newline="\n")
        self._lock = threading.Lock()
        self._segment = (segments or 0) - 1
        self._origin = 0

    def line(self, record: Mapping[str, Any]) -> None:
        """Write one line of any type; a value that JSON cannot hold is written as its text.

        An ``end`` line is given how many lines of each kind stand before it.
        """
        self._write(plain(record))

    def _write(self, record: Mapping[str, Any]) -> None:
        kind = str(record.get("type", "run"))
        with self._lock:
            if kind == "end":
                if record.get("reason") == "interrupted":
                    # The signal may have come between a line and its count.
                    self._lines = lines_of(self.path)
                record = {**record, "lines": self._lines.listed()}
            text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
            self._file.write(text + "\n")
            self._lines.add(kind)
            self._file.flush()

    def segment(self, origin_ns: int, **extra: Any) -> int:
        """Open a new clock segment whose zero is ``origin_ns``; returns its index."""
        self._segment += 1
        self._origin = origin_ns
        self.line({"type": "segment", "segment": self._segment, "t0_utc": utc_now(), **extra})
        return self._segment

    @property
    def current(self) -> int:
        """Index of the segment that requests are written under."""
        return max(self._segment, 0)

    @property
    def origin_ns(self) -> int:
        """Zero of the current segment on the target's clock."""
        return self._origin

    def start(self, t: Mapping[str, Any]) -> None:
        """Say that a request is being sent."""
        self.line({"type": "start", **t})

    def request(self, t: Timeline) -> None:
        """Write a finished request."""
        t = replace(t, segment=self.current)
        line = to_line(t, keep_text=self._keep_text, origin_ns=self._origin)
        if isinstance(t.arrivals, Arrivals):  # whole numbers of 64 bits: JSON can hold them
            arrivals, line["arrivals"] = line["arrivals"], ()
            line = plain(line)
            line["arrivals"] = arrivals
            self._write(line)
        else:
            self.line(line)

    def close(self) -> None:
        """Flush to disk and close. Idempotent."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()

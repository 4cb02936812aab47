"""timelines.jsonl: typed lines, flushed one by one, enough to reproduce a verdict exactly.

Line types: ``run`` (first), ``gate`` (a Python test's own policy), ``target`` (facts of a loaded
target), ``segment`` (a clock's origin in UTC), ``start``, ``request``, ``resources``, ``tgs``
(a figure measured elsewhere), ``problem`` (why a bucket could not be measured), ``end``.
Times are nanoseconds since their segment's origin. What each line holds: :mod:`log_lines`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from . import log_lines
from .errors import UsageError
from .log_lines import to_line
from .timeline import Timeline

SCHEMA = "llmsla-timelines/1"


def utc_now() -> str:
    """The wall clock, UTC, ISO 8601 with Z and milliseconds; never used for durations."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunWriter:
    """Appends lines to one timelines.jsonl, each flushed before the call returns.

    Safe to call from several threads. Raises OSError where the disk refuses.
    """

    def __init__(self, path: Path, *, keep_text: bool = False) -> None:
        self.path = path
        self._keep_text = keep_text
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8", newline="\n")
        self._lock = threading.Lock()
        self._segment = -1
        self._origin = 0

    def line(self, record: Mapping[str, Any]) -> None:
        """Write one line of any type; a value that JSON cannot hold is written as its text."""
        text = json.dumps(
            log_lines.plain(record), ensure_ascii=True, allow_nan=False, separators=(",", ":")
        )
        with self._lock:
            self._file.write(text + "\n")
            self._file.flush()

    def segment(self, origin_ns: int, **extra: Any) -> int:
        """Open a new clock segment whose zero is ``origin_ns``; returns its index."""
        self._segment += 1
        self._origin = origin_ns
        self.line({"type": "segment", "segment": self._segment, "t0_utc": utc_now(), **extra})
        return self._segment

    @property
    def origin_ns(self) -> int:
        """Zero of the current segment on the target's clock."""
        return self._origin

    def start(self, t: Mapping[str, Any]) -> None:
        """Say that a request is being sent."""
        self.line({"type": "start", **t})

    def request(self, t: Timeline) -> None:
        """Write a finished request."""
        self.line(
            to_line(
                replace(t, segment=max(self._segment, 0)),
                keep_text=self._keep_text,
                origin_ns=self._origin,
            )
        )

    def close(self) -> None:
        """Flush to disk and close. Idempotent."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()


@dataclass
class RunLog:
    """A timelines.jsonl as read back. ``timelines`` are in start order."""

    path: str
    run: Mapping[str, Any]
    timelines: list[Timeline] = field(default_factory=list)
    gates: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: list[Mapping[str, Any]] = field(default_factory=list)
    segments: list[Mapping[str, Any]] = field(default_factory=list)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    tgs: list[Mapping[str, Any]] = field(default_factory=list)
    problems: list[Mapping[str, Any]] = field(default_factory=list)
    outcomes: list[Mapping[str, Any]] = field(default_factory=list)
    """What the test runner said of the limits: the last ``outcomes`` line of each file."""
    end: Mapping[str, Any] | None = None
    in_flight: int = 0
    """Requests with a ``start`` and no answer; each is also an error in ``timelines``."""
    truncated: bool = False
    """The last line was cut (a killed run)."""


def read_run(path: Path) -> RunLog:
    """Read a timelines.jsonl back.

    A cut last line is tolerated (a killed run) and noted; anything else that is not a line of
    this format is refused, because evidence that cannot be read cannot pass.

    Raises:
        UsageError: missing, empty, not this format, a broken line (named by its number), or
            requests missing from the middle.
    """
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise UsageError(
            f"{path}: cannot be read ({e.strerror or e}). Give a timelines.jsonl."
        ) from e
    if not raw.strip():
        raise UsageError(f"{path}: is empty; a timelines.jsonl starts with a 'run' line.")
    lines = raw.split(b"\n")
    reader: _Reader | None = None
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        try:
            record = log_lines.parse(data)
        except ValueError as e:
            # Only the last line can lack its line break: the run was killed while it wrote.
            if number == len(lines) and reader is not None:
                reader.log.truncated = True
                break
            raise UsageError(
                f"{path}:{number}: not a line of JSON ({e}). "
                "The file is damaged or of another kind."
            ) from e
        if reader is None:
            reader = _Reader(_open_log(path, record))
            continue
        try:
            reader.take(record)
        except (KeyError, TypeError, ValueError) as e:
            what = f"lacks {e}" if isinstance(e, KeyError) else str(e)
            raise UsageError(
                f"{path}:{number}: {what}. The file is damaged or of another version."
            ) from e
    assert reader is not None  # a file that is not blank has a first line
    return reader.finished()


def _open_log(path: Path, record: object) -> RunLog:
    if (
        not isinstance(record, dict)
        or record.get("schema") != SCHEMA
        or (record.get("type", "run") != "run")
    ):
        seen = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise UsageError(
            f'{path}:1: the first line must be a \'run\' with "schema": "{SCHEMA}"; '
            f"found {seen!r:.80}. Other tools' result files cannot be judged by this version."
        )
    try:
        log_lines.check_run(record)
    except TypeError as e:
        raise UsageError(f"{path}:1: {e}. The file is damaged or of another version.") from e
    return RunLog(path=str(path), run=record)


class _Reader:
    """Takes line after line into a :class:`RunLog`."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self._begun: dict[str, Timeline] = {}
        self._starts: dict[str, Mapping[str, Any]] = {}
        self._done: dict[str, Timeline] = {}
        self._segment = 0

    def take(self, record: object) -> None:
        """One line after the first.

        Raises:
            KeyError, TypeError, ValueError: it cannot be used.
        """
        log = self.log
        if not isinstance(record, dict):
            raise TypeError(f"a line must be an object, found {type(record).__name__}")
        kind = record.get("type")
        if log.end is not None and kind != "outcomes":
            raise ValueError("a line after the 'end' line: two runs in one file")
        if kind == "request":
            self._request(log_lines.from_line(record, self._segment))
        elif kind == "start":
            t = log_lines.lost(record, self._segment)
            if t.id in self._begun:
                raise ValueError(f"start id {t.id!r} appears twice")
            self._begun[t.id], self._starts[t.id] = t, record
        elif isinstance(kind, str) and kind in log_lines.OTHER_TYPES:
            log_lines.check_other(kind, record)
            self._other(kind, record)
        else:
            raise ValueError(f"unknown line type {kind!r:.80}")

    def _request(self, t: Timeline) -> None:
        if t.id in self._done:
            raise ValueError(f"request id {t.id!r} appears twice")
        begun = self._starts.get(t.id)
        if begun is not None and (wrong := log_lines.disagreement(begun, t)):
            raise ValueError(wrong)
        self._done[t.id] = t

    def _other(self, kind: str, record: Mapping[str, Any]) -> None:
        log = self.log
        if kind == "gate":
            if record["gate"] in log.gates:
                raise ValueError(f"gate {record['gate']!r} is declared twice")
            log.gates[record["gate"]] = record
        elif kind == "end":
            log.end = record
        elif kind == "outcomes":
            log.outcomes = [record]
        else:
            if kind == "segment":
                # A line without a number opens the next one.
                self._segment = record.get("segment", len(log.segments))
            rows = {
                "segment": log.segments,
                "resources": log.resources,
                "tgs": log.tgs,
                "problem": log.problems,
                "target": log.targets,
            }
            rows[kind].append(record)

    def finished(self) -> RunLog:
        """The log, once all lines are taken.

        Raises:
            UsageError: a bucket's units have gaps, so requests are missing.
        """
        for name, t in self._begun.items():
            if name not in self._done:
                self._done[name] = t
                self.log.in_flight += 1
        self.log.timelines = sorted(self._done.values(), key=lambda t: (t.segment, t.start_ns))
        _check_gapless(self.log)
        return self.log


def _check_gapless(log: RunLog) -> None:
    """Units are numbered from 0 in each bucket; one that is missing was cut out of the file."""
    seen: dict[tuple[str | None, str, str | None, int], set[int]] = {}
    for t in log.timelines:
        if not t.warmup:
            seen.setdefault((t.gate, t.bucket, t.purpose, t.attempt), set()).add(t.unit)
    for (_, bucket, _, _), units in seen.items():
        if max(units) + 1 != len(units):
            first = next(n for n in range(len(units)) if n not in units)
            raise UsageError(
                f"{log.path}: bucket {bucket!r} has a request of unit {max(units)} and none of "
                f"unit {first}. Requests are missing from the file, and what is missing may have "
                "failed: give the whole file."
            )


def write_all(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write whole records at once (tests, conversions)."""
    writer = RunWriter(path)
    for record in records:
        writer.line(record)
    writer.close()

"""timelines.jsonl: typed lines, flushed one by one, enough to reproduce a verdict exactly.

Line types: ``run`` (first), ``gate`` (a Python test's own policy), ``target`` (facts of a loaded
target), ``segment`` (a clock's origin in UTC), ``start``, ``request``, ``resources``, ``tgs``
(a figure measured elsewhere), ``problem`` (why a bucket could not be measured), ``end``.
Times are nanoseconds since their segment's origin.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO, cast

from .errors import UsageError
from .timeline import Timeline

SCHEMA = "llmsla-timelines/1"
_IN_FLIGHT = "no answer on record: the run ended while this request was in flight"


def utc_now() -> str:
    """The wall clock, UTC, ISO 8601 with Z and milliseconds; never used for durations."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_line(t: Timeline, *, keep_text: bool = False, origin_ns: int = 0) -> dict[str, Any]:
    """The ``request`` line of a timeline, times relative to ``origin_ns``."""
    out: dict[str, Any] = {
        "type": "request",
        "id": t.id,
        "bucket": t.bucket,
        "unit": t.unit,
        "prompt_tokens": t.prompt_tokens,
        "max_new_tokens": t.max_new_tokens,
        "scheduled_ns": None if t.scheduled_ns is None else t.scheduled_ns - origin_ns,
        "start_ns": t.start_ns - origin_ns,
        "arrivals": [[at - origin_ns, k] for at, k in t.arrivals],
        "end_ns": t.end_ns - origin_ns,
        "output_tokens": t.output_tokens,
        "token_source": t.token_source,
        "finish_reason": t.finish_reason,
        "status": t.status,
        "error": t.error,
        "warmup": t.warmup,
        "concurrency": t.concurrency,
        "attempt": t.attempt,
        "segment": t.segment,
        "stages": {f"{name}_ns": ns for name, ns in t.stages.items()},
        "sampling": dict(t.sampling),
        "cached_tokens": t.cached_tokens,
        "stamp": t.stamp,
    }
    if t.gate is not None:
        out["gate"] = t.gate
    if t.purpose is not None:
        out["purpose"] = t.purpose
    if t.notes:
        out["notes"] = list(t.notes)
    if keep_text:
        out["text"], out["prompt"] = t.text, t.prompt
    return out


def from_line(line: Mapping[str, Any]) -> Timeline:
    """A timeline from its ``request`` line.

    Raises:
        KeyError, TypeError, ValueError: the line lacks a field or holds one of another type.
    """
    status = line["status"]
    if status not in ("ok", "error"):
        raise ValueError(f"status is {status!r}; valid: 'ok', 'error'")
    arrivals: list[tuple[int, int]] = []
    for at, tokens in line["arrivals"]:
        arrivals.append((_whole(at, "arrivals time"), _whole(tokens, "arrivals tokens")))
    start, end = _whole(line["start_ns"], "start_ns"), _whole(line["end_ns"], "end_ns")
    stages = {
        str(name).removesuffix("_ns"): _whole(ns, f"stages.{name}")
        for name, ns in (line.get("stages") or {}).items()
    }
    warmup = line.get("warmup", False)
    if not isinstance(warmup, bool):
        raise TypeError(f"warmup is {warmup!r}; valid: true, false")
    if not isinstance(line["id"], str) or not isinstance(line["bucket"], str):
        raise TypeError("id and bucket must be strings")
    return Timeline(
        id=line["id"],
        bucket=line["bucket"],
        start_ns=start,
        end_ns=end,
        arrivals=tuple(arrivals),
        prompt_tokens=_maybe(line.get("prompt_tokens"), "prompt_tokens"),
        output_tokens=_maybe(line.get("output_tokens"), "output_tokens"),
        max_new_tokens=_whole(line["max_new_tokens"], "max_new_tokens"),
        token_source=line.get("token_source"),
        finish_reason=line.get("finish_reason"),
        status=status,
        error=line.get("error"),
        scheduled_ns=_maybe(line.get("scheduled_ns"), "scheduled_ns"),
        warmup=warmup,
        unit=_whole(line.get("unit", 0), "unit"),
        concurrency=_whole(line.get("concurrency", 1), "concurrency"),
        attempt=_whole(line.get("attempt", 1), "attempt"),
        segment=_whole(line.get("segment", 0), "segment"),
        stages=stages,
        sampling=dict(line.get("sampling") or {}),
        cached_tokens=_maybe(line.get("cached_tokens"), "cached_tokens"),
        stamp=line.get("stamp", "host"),
        gate=line.get("gate"),
        purpose=line.get("purpose"),
        notes=tuple(line.get("notes") or ()),
        text=line.get("text"),
        prompt=line.get("prompt"),
    )


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; valid: a whole number")
    return value


def _maybe(value: object, name: str) -> int | None:
    return None if value is None else _whole(value, name)


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
        """Write one line of any type."""
        text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
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
        UsageError: missing, empty, not this format, or a broken line (named by its number).
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
    whole_last = lines[-1] == b""
    log: RunLog | None = None
    starts: dict[str, Mapping[str, Any]] = {}
    done: dict[str, Timeline] = {}
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        last = number == len(lines) and not whole_last
        try:
            record = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        except ValueError as e:
            if last and log is not None:
                log.truncated = True
                break
            raise UsageError(
                f"{path}:{number}: not a line of JSON ({e}). "
                "The file is damaged or of another kind."
            ) from e
        if log is None:
            log = _open_log(path, record)
            continue
        _take(path, number, record, log, starts, done)
    if log is None:
        raise UsageError(f"{path}: has no 'run' line.")
    for missing in starts.keys() - done.keys():
        done[missing] = _lost(starts[missing])
        log.in_flight += 1
    log.timelines = sorted(done.values(), key=lambda t: (t.segment, t.start_ns))
    return log


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number here")


def _open_log(path: Path, record: object) -> RunLog:
    if (
        not isinstance(record, dict)
        or record.get("schema") != SCHEMA
        or (record.get("type", "run") != "run")
    ):
        seen = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise UsageError(
            f'{path}:1: the first line must be a \'run\' with "schema": "{SCHEMA}"; '
            f"found {seen!r}. Other tools' result files cannot be judged by this version."
        )
    return RunLog(path=str(path), run=cast("Mapping[str, Any]", record))


def _take(
    path: Path,
    number: int,
    record: object,
    log: RunLog,
    starts: dict[str, Mapping[str, Any]],
    done: dict[str, Timeline],
) -> None:
    if not isinstance(record, dict):
        raise UsageError(
            f"{path}:{number}: a line must be an object, found {type(record).__name__}."
        )
    kind = record.get("type")
    try:
        if kind == "request":
            t = from_line(record)
            if t.id in done:
                raise ValueError(f"request id {t.id!r} appears twice")
            done[t.id] = t
        elif kind == "start":
            if record["id"] in starts:
                raise ValueError(f"start id {record['id']!r} appears twice")
            starts[record["id"]] = record
        elif kind == "gate":
            log.gates[record["gate"]] = record
        elif kind == "end":
            log.end = record
        elif kind in ("segment", "resources", "tgs", "problem", "target"):
            rows: dict[str, list[Mapping[str, Any]]] = {
                "segment": log.segments,
                "resources": log.resources,
                "tgs": log.tgs,
                "problem": log.problems,
                "target": log.targets,
            }
            rows[kind].append(record)
        else:
            raise ValueError(f"unknown line type {kind!r}")
    except (KeyError, TypeError, ValueError) as e:
        what = f"lacks {e}" if isinstance(e, KeyError) else str(e)
        raise UsageError(
            f"{path}:{number}: {what}. The file is damaged or of another version."
        ) from e


def _lost(start: Mapping[str, Any]) -> Timeline:
    at = _whole(start.get("start_ns", 0), "start_ns")
    return Timeline(
        id=str(start["id"]),
        bucket=str(start.get("bucket", "")),
        start_ns=at,
        end_ns=at,
        prompt_tokens=start.get("prompt_tokens"),
        max_new_tokens=int(start.get("max_new_tokens", 0)),
        status="error",
        error=_IN_FLIGHT,
        warmup=bool(start.get("warmup", False)),
        unit=int(start.get("unit", 0)),
        segment=int(start.get("segment", 0)),
        attempt=int(start.get("attempt", 1)),
        gate=start.get("gate"),
        purpose=start.get("purpose"),
        sampling=dict(start.get("sampling") or {}),
    )


def write_all(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write whole records at once (tests, conversions)."""
    writer = RunWriter(path)
    for record in records:
        writer.line(record)
    writer.close()

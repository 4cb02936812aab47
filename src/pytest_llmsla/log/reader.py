"""The reading side: every line in its place, or the file is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..timeline import Timeline
from . import other_lines, request_lines
from .strict_json import parse
from .values import LARGEST
from .whole import Lines, lacking
from .writer import SCHEMA


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
    levels: list[Mapping[str, Any]] = field(default_factory=list)
    """Where a level of load begins: ``level`` lines, each with its clock segment."""
    servers: list[Mapping[str, Any]] = field(default_factory=list)
    """What a server said of itself over a gate's measured window."""
    outcomes: list[Mapping[str, Any]] = field(default_factory=list)
    """What the test runner said of the limits: the last ``outcomes`` line of each file."""
    resumes: list[Mapping[str, Any]] = field(default_factory=list)
    """Where another process went on: one line for each part but the first."""
    end: Mapping[str, Any] | None = None
    in_flight: int = 0
    """Requests with a ``start`` and no answer; each is also an error in ``timelines``."""
    truncated: bool = False
    """The last line was cut (a killed run)."""
    unreported: bool = False
    """It ended before what became of its tests was written, as it was to be."""
    lacking: list[str] = field(default_factory=list)
    """What its run wrote and the file does not hold, or holds elsewhere or twice."""


def read_run(path: Path) -> RunLog:
    """Read a timelines.jsonl back.

    A cut last line is tolerated (a killed run) and noted; anything else that is not a line of
    this format is refused, because evidence that cannot be read cannot pass.

    Raises:
        UsageError: missing, empty, not this format, a broken line (named by its number), or
            requests missing from the middle.
    """
    try:
        with path.open("rb") as file:  # line by line: a long run's log is larger than its requests
            reader = _read(path, file)
    except OSError as e:
        raise UsageError(
            f"{path}: cannot be read ({e.strerror or e}). Give a timelines.jsonl."
        ) from e
    if reader is None:
        raise UsageError(f"{path}: is empty; a timelines.jsonl starts with a 'run' line.")
    return reader.finished()


def _read(path: Path, lines: Iterable[bytes]) -> _Reader | None:
    """Take every line; None where there is none."""
    reader: _Reader | None = None
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        try:
            record = parse(data)
        except ValueError as e:
            # Only the last line can lack its line break: the run was killed while it wrote.
            if not data.endswith(b"\n") and reader is not None:
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
    return reader


def _open_log(path: Path, record: object) -> RunLog:
    if (
        not isinstance(record, dict)
        or record.get("schema") != SCHEMA
        or (record.get("type", "run") != "run")
    ):
        seen = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise UsageError(
            f'{path}:1: the first line must be a \'run\' with "schema": "{SCHEMA}"; '
            f"found {seen!r:.80}. Other tools' results are read under names of their own."
        )
    try:
        other_lines.check_run(record)
    except TypeError as e:
        raise UsageError(f"{path}:1: {e}. The file is damaged or of another version.") from e
    return RunLog(path=str(path), run=record)


class _Reader:
    """Takes line after line into a :class:`RunLog`."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self._begun: dict[str, tuple[Timeline, Mapping[str, Any]]] = {}
        """Requests without an answer so far: as a lost one, and their ``start`` line."""
        self._known: dict[str, int | None] = {}
        """Every ``start`` line in its place: when it says that the request was sent."""
        self._done: dict[str, Timeline] = {}
        self._segment = 0
        self._lines = Lines()
        self._lines.add("run")

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
            self._request(request_lines.from_line(record, self._segment))
        elif kind == "start":
            t = request_lines.lost(record, self._segment)
            if t.id in self._known:
                raise ValueError(f"start id {t.id!r} appears twice")
            self._known[t.id] = t.start_ns if "start_ns" in record else None
            self._begin(t, record)
        elif isinstance(kind, str) and kind in other_lines.OTHER_TYPES:
            other_lines.check_other(kind, record)
            self._other(kind, record)
        else:
            raise ValueError(f"unknown line type {kind!r:.80}")
        if log.end is None:
            self._lines.add(kind)

    def _begin(self, t: Timeline, start: Mapping[str, Any]) -> None:
        done = self._done.get(t.id)
        if done is None:
            self._begun[t.id] = (t, start)
        elif wrong := request_lines.disagreement(start, done):
            raise ValueError(wrong)

    def _request(self, t: Timeline) -> None:
        if t.id in self._done:
            raise ValueError(f"request id {t.id!r} appears twice")
        begun = self._begun.pop(t.id, None)
        if begun is not None and (wrong := request_lines.disagreement(begun[1], t)):
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
            if kind in ("level", "resources"):
                record = {"segment": self._segment, **record}
            rows = {
                "segment": log.segments,
                "level": log.levels,
                "resources": log.resources,
                "tgs": log.tgs,
                "problem": log.problems,
                "target": log.targets,
                "server": log.servers,
                "resume": log.resumes,
            }
            rows[kind].append(record)

    def finished(self) -> RunLog:
        """The log, once all lines are taken.

        Raises:
            UsageError: a bucket's units have gaps, so requests are missing.
        """
        self._done.update((name, t) for name, (t, _) in self._begun.items())
        self.log.in_flight = len(self._begun)
        follow = (self.log.end or {}).get("outcomes_follow") is True
        self.log.unreported = follow and not self.log.outcomes
        turn = {name: n for n, name in enumerate(self._known)}
        self.log.timelines = sorted(
            self._done.values(), key=lambda t: (t.segment, self._sent(t), turn.get(t.id, len(turn)))
        )
        _check_gapless(self.log)
        self.log.lacking = list(self._lacking())
        return self.log

    def _lacking(self) -> Iterator[str]:
        log = self.log
        measured = ((t.gate, t.segment) for t in log.timelines)
        yield from lacking(log.run, log.gates, log.targets, log.segments, measured)
        if log.end is None:
            return  # so it is not whole anyway
        said = log.end.get("lines")
        if said is not None:
            yield from self._lines.differ(said)
        elif log.run.get("version") is not None:
            yield "how many lines it has (lines of the end line)"

    def _sent(self, t: Timeline) -> int:
        """When it was sent. A start line is written then, in the order of sending; a request's own
        stamp is made in its thread, a little later and in no order."""
        said = self._known.get(t.id)
        if said is None and t.id in self._begun:
            return LARGEST  # nobody says when: after those that are known
        return t.start_ns if said is None else said


def _check_gapless(log: RunLog) -> None:
    """Units are numbered from 0 in each bucket and level, ``block`` requests each, in the order of
    starts; where one is missing it was cut out of the file."""
    seen: dict[tuple[str | None, str, int, int | None], int] = {}
    for t in log.timelines:
        if t.warmup or t.purpose is not None:
            continue  # no bucket's evidence: a gate may ask for them again
        key = (t.gate, t.bucket, t.attempt, t.level)
        index = seen.get(key, 0)
        seen[key] = index + 1
        if t.unit != index // t.block:
            raise UsageError(
                f"{log.path}: request {t.id!r:.80} of bucket {t.bucket!r} is of unit {t.unit}, and "
                f"by what is before it it would be of unit {index // t.block}. Requests are "
                "missing from the file, and what is missing may have failed: give the whole file."
            )

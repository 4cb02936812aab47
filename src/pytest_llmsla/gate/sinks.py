"""The records of a runner or driver, on their way into log, judge and progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..asker import say
from ..targets.base import Target
from ..timeline import PEAK, Timeline
from .record import ONE_AT_A_TIME, Record


class RunSink:
    """Of a runner: one request at a time, so the order they end in is the one they began in."""

    def __init__(self, record: Record, target: Target, notes: Sequence[str] = ()) -> None:
        self._record = record
        self._target = target
        self._notes = notes
        self._level: int | None = ONE_AT_A_TIME

    def started(self, request: Mapping[str, Any]) -> None:
        """A request is being sent."""
        writer = self._record.run.writer
        due = request.get("scheduled_ns")
        line = {**request, "start_ns": request["start_ns"] - writer.origin_ns}
        if due is not None:
            line["scheduled_ns"] = due - writer.origin_ns
        writer.start(line)

    def finished(self, t: Timeline) -> Timeline:
        """A request ended: judged, then written."""
        if self._notes:
            t = replace(t, notes=(*t.notes, *self._notes))
        judged = self._record.judge(t)
        self._record.run.writer.request(judged)
        return judged

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Memory figures after a request."""
        origin = self._record.run.writer.origin_ns
        self._record.remember(bucket, phase, memory, self._target.clock() - origin, self._level)

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket (None: all that follow) cannot be measured."""
        if bucket is None:
            self._record.run.retire(self._target, reason)
        self._record.stop(bucket, reason)

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""
        if bucket != PEAK:
            self._record.run.progress.phase(self._record.key, bucket, name)


class LevelSink(RunSink):
    """Of a driver: written as they end, judged in the order they were started."""

    def __init__(self, record: Record, target: Target, level: int | None) -> None:
        super().__init__(record, target)
        self._level = level

    def ended(self, t: Timeline) -> None:
        """A request ended; it is on record from now on, judged or not."""
        self._record.run.writer.request(t)

    def judge(self, t: Timeline) -> Timeline:
        """The next request in start order."""
        return self._record.judge(t)

    def read_memory(self, buckets: Sequence[str]) -> None:
        """Read what memory the level has taken, where it answered anything."""
        if not self._record.answered(self._level):
            return
        try:
            memory: Mapping[str, Any] = dict(self._target.memory())
        except Exception as e:  # a probe that fails is an unknown figure
            memory = {"problem": say(e)}
        for name in buckets:
            self.resources(name, "measured", memory)

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket cannot be measured at this level."""
        if bucket is None:
            self._record.run.retire(self._target, reason)
        self._record.stop(bucket, reason, self._level)

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""
        title = self._record.title(bucket, self._level)
        self._record.run.progress.phase(self._record.key, title, name)

    def say(self, text: str) -> None:
        """Something that takes time begins."""
        self._record.run.progress.say(text)

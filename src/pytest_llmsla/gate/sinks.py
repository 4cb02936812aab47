"""The records of a runner or driver, on their way into log, judge and progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..asker import say
from ..targets.base import Target
from ..timeline import PEAK, Timeline

if TYPE_CHECKING:
    from .core import Gate


class RunSink:
    """Of a runner: one request at a time, so the order they end in is the one they began in."""

    def __init__(self, gate: Gate, target: Target, notes: Sequence[str] = ()) -> None:
        self._gate = gate
        self._target = target
        self._notes = notes
        self._level: int | None = 1

    def started(self, request: Mapping[str, Any]) -> None:
        """A request is being sent."""
        writer = self._gate.session.writer
        due = request.get("scheduled_ns")
        line = {**request, "start_ns": request["start_ns"] - writer.origin_ns}
        if due is not None:
            line["scheduled_ns"] = due - writer.origin_ns
        writer.start(line)

    def finished(self, t: Timeline) -> Timeline:
        """A request ended: judged, then written."""
        if self._notes:
            t = replace(t, notes=(*t.notes, *self._notes))
        judged = self._gate.judge(t)
        self._gate.session.writer.request(judged)
        return judged

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Memory figures after a request."""
        origin = self._gate.session.writer.origin_ns
        self._gate.remember(bucket, phase, memory, self._target.clock() - origin, self._level)

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket (None: all that follow) cannot be measured."""
        if bucket is None:
            self._gate.session.retire(self._target, reason)
        self._gate.stop(bucket, reason)

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""
        if bucket != PEAK:
            self._gate.session.progress.phase(self._gate.key, bucket, name)


class LevelSink(RunSink):
    """Of a driver: written as they end, judged in the order they were started."""

    def __init__(self, gate: Gate, target: Target, level: int | None) -> None:
        super().__init__(gate, target)
        self._level = level

    def ended(self, t: Timeline) -> None:
        """A request ended; it is on record from now on, judged or not."""
        self._gate.session.writer.request(t)

    def judge(self, t: Timeline) -> Timeline:
        """The next request in start order."""
        return self._gate.judge(t)

    def read_memory(self, buckets: Sequence[str]) -> None:
        """Read what memory the level has taken, where it answered anything."""
        if not self._gate.answered(self._level):
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
            self._gate.session.retire(self._target, reason)
        self._gate.stop(bucket, reason, self._level)

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""
        title = self._gate.title(bucket, self._level)
        self._gate.session.progress.phase(self._gate.key, title, name)

    def say(self, text: str) -> None:
        """Something that takes time begins."""
        self._gate.session.progress.say(text)

"""Scripts played side by side on one virtual clock: exact times under load, nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import InternalError
from ..timeline import NS_PER_MS, Timeline
from .base import Answer, Ask, Job, Recorder, Timeouts
from .recording import answered, failed, late, say


@dataclass(frozen=True)
class Part:
    """A script laid on the clock: what it stamps and how it ends."""

    arrivals: tuple[tuple[float, int], ...]
    """(delay since the previous event in ms, tokens)."""
    outcome: Answer | BaseException
    stages_ns: dict[str, int]


class ScriptedCrew:
    """Plays up to ``size`` requests together; with ``slots``, a server that serves so many.

    Args:
        part_of: the script of a request, asked when it is started.
        now, move: the virtual clock, and how to move it.
        slots: requests the scripted server works on at once, the others wait in its queue; None:
            all of them.
    """

    mode = "script"
    hung: str | None = None

    def __init__(
        self,
        part_of: Callable[[Ask], Part],
        now: Callable[[], int],
        move: Callable[[int], None],
        size: int,
        timeouts: Timeouts,
        slots: int | None = None,
    ) -> None:
        self.size = size
        self._part_of = part_of
        self._now = now
        self._move = move
        self._timeouts = timeouts
        self._free_at = [0] * (slots or size)
        self._flying: list[tuple[int, int, Timeline]] = []
        self._count = 0

    @property
    def in_flight(self) -> int:
        """Requests started and not yet returned."""
        return len(self._flying)

    def prepare(self, ask: Ask) -> Ask:
        """Nothing to prepare."""
        return ask

    def start(self, job: Job) -> None:
        """Lay the request's script on the clock, from now or from when a slot is free."""
        if len(self._flying) >= self.size:
            raise InternalError(f"{self.size} requests are in flight already")
        start = self._now()
        part = self._part_of(job.ask)
        at = max(start, heapq.heappop(self._free_at))
        record = Recorder(self._now)
        record.start_ns = start
        for delay_ms, tokens in part.arrivals:
            at += round(delay_ms * NS_PER_MS)
            record.arrivals.append((at, tokens))
        record.end_ns = at
        record.stages.update(part.stages_ns)
        heapq.heappush(self._free_at, at)
        self._count += 1
        heapq.heappush(self._flying, (at, self._count, self._timeline(job.blank, record, part)))

    def _timeline(self, blank: Timeline, record: Recorder, part: Part) -> Timeline:
        if isinstance(part.outcome, BaseException):
            return failed(blank, record, say(part.outcome))
        t = answered(blank, record, part.outcome)
        reason = late(t, record.end_ns or 0, self._timeouts)
        return t if reason is None else failed(blank, record, reason)

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Move the clock to the next end, or to ``until_ns``; those that end there."""
        if not self._flying or (until_ns is not None and self._flying[0][0] > until_ns):
            if until_ns is not None:
                self._move(max(until_ns, self._now()))
            return []
        at = self._flying[0][0]
        self._move(max(at, self._now()))
        out = []
        while self._flying and self._flying[0][0] <= at:
            out.append(heapq.heappop(self._flying)[2])
        return out

    def cancel(self) -> None:
        """End what is in flight now."""
        now, flying = self._now(), self._flying
        self._flying = []
        for at, number, t in flying:
            if at <= now:
                heapq.heappush(self._flying, (at, number, t))
                continue
            record = Recorder(self._now)
            record.start_ns, record.end_ns = t.start_ns, now
            record.arrivals = [(when, k) for when, k in t.arrivals if when <= now]
            reason = "the run was ended while it was in flight"
            heapq.heappush(self._flying, (now, number, failed(t, record, reason)))

    def close(self) -> None:
        """Nothing to release."""

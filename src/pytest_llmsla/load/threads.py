"""A crew of threads, for targets that answer one request per call."""

from __future__ import annotations

import queue
import threading
from collections import deque

from ..asker import Asker, HungError
from ..errors import InternalError
from ..targets.base import Ask, Job, Target, Timeouts
from ..targets.recording import never_sent
from ..timeline import NS_PER_S, Timeline


class ThreadCrew:
    """``size`` threads that call the target's ``generate``; deadlines as for a single request.

    A target that has ``together(many)`` is told when many begin and end.
    """

    mode = "threads"

    def __init__(self, target: Target, size: int, timeouts: Timeouts) -> None:
        self.size = size
        self._target = target
        self._together = getattr(target, "together", None)
        if self._together is not None:
            self._together(True)
        self._ended: queue.SimpleQueue[Timeline] = queue.SimpleQueue()
        self._slots = [_Slot(target, timeouts, self._ended, n) for n in range(size)]
        self._free = deque(self._slots)
        self._busy: dict[str, _Slot] = {}

    @property
    def in_flight(self) -> int:
        """Requests started and not yet returned."""
        return len(self._busy)

    @property
    def hung(self) -> str | None:
        """The first generation that did not stop when told to."""
        return next((s.asker.hung for s in self._slots if s.asker.hung is not None), None)

    def prepare(self, ask: Ask) -> Ask:
        """Nothing to prepare."""
        return ask

    def start(self, job: Job) -> None:
        """Hand the request to a free thread."""
        if not self._free:
            raise InternalError(f"{self.size} requests are in flight already")
        slot = self._free.popleft()
        self._busy[job.blank.id] = slot
        slot.jobs.put(job)

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Those that ended; see :class:`~pytest_llmsla.targets.base.Crew`."""
        if not self._busy and until_ns is None:
            return []
        timeout = None
        if until_ns is not None:
            timeout = max(0.0, (until_ns - self._target.clock()) / NS_PER_S)
        out: list[Timeline] = []
        try:
            out.append(self._ended.get(timeout=timeout))
            while True:
                out.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        for t in out:
            self._free.append(self._busy.pop(t.id))
        return out

    def cancel(self) -> None:
        """Tell every generation to stop at its next token."""
        for slot in self._busy.values():
            slot.asker.cancel("the run was ended while it was in flight")

    def close(self) -> None:
        """End the threads. Idempotent."""
        for slot in self._slots:
            slot.close()
        if self._together is not None:
            self._together(False)


class _Slot:
    """One thread that asks, and the worker thread of its asker that generates."""

    def __init__(
        self,
        target: Target,
        timeouts: Timeouts,
        ended: queue.SimpleQueue[Timeline],
        number: int,
    ) -> None:
        self.asker = Asker(target, timeouts)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._clock = target.clock
        self._ended = ended
        self._thread = threading.Thread(
            target=self._work, name=f"llmsla-crew-{number}", daemon=True
        )
        self._thread.start()

    def _work(self) -> None:
        with self.asker as asker:
            while (job := self.jobs.get()) is not None:
                try:
                    t = asker.ask(job.ask, job.blank)
                except HungError as e:
                    t = never_sent(job.blank, self._clock, str(e))
                self._ended.put(t)

    def close(self) -> None:
        self.jobs.put(None)
        if self.asker.hung is None:
            self._thread.join(timeout=5.0)

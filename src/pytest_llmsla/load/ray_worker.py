"""One worker of a Ray cluster: sends what it is given, and stamps it, on its own clock."""

from __future__ import annotations

import heapq
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InternalError, LlmslaError
from ..targets.base import Ask, Crew, Job, Timeouts
from ..targets.recording import never_sent, say
from ..timeline import NS_PER_S, Timeline
from .blocks import Block, pack

_STEP_NS = 1_000_000  # how soon a request that was handed over is seen
_MOST_IN_A_BLOCK = 256
_STUCK_NS = 30 * NS_PER_S
"""The thread that sends is at work every few milliseconds; so long after, it will not be again."""

Given = tuple[Ask, Timeline, int | None]
"""What to ask, its identity, and when it is due on this worker's clock (None: now)."""


class Worker:
    """Runs in a process of its own, as a Ray actor with several threads.

    Args:
        spec: the ``target`` mapping of sla.yaml.
        known: what was learnt of the server (:mod:`pytest_llmsla.targets.http.elsewhere`).
        size: requests in flight at most.
        timeouts: of each request.
    """

    def __init__(
        self, spec: Mapping[str, Any], known: Mapping[str, Any], size: int, timeouts: Timeouts
    ) -> None:
        from ..targets.http.elsewhere import again

        self._problem: str | None = None
        self._ended_by: BaseException | None = None
        self._at_work = time.perf_counter_ns()
        try:
            self._target = again(spec, known)
        except LlmslaError as e:
            self._problem = str(e)
            return
        self._exact = bool(known["exact"])
        self._counts: dict[str, int | None] = {}
        self._crew: Crew = self._target.crew(size, timeouts)
        self._given: queue.SimpleQueue[Sequence[Given] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Timeline] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmsla-worker", daemon=True)
        self._thread.start()

    # -- called from the head

    def clock(self) -> int:
        """This process's monotonic clock, ns."""
        return time.perf_counter_ns()

    def facts(self) -> dict[str, Any]:
        """Where this worker runs, and why it cannot work (``problem``).

        ``clock_of`` is equal where two processes share one clock.
        """
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "clock_of": clock_of(),
            "problem": self._problem,
        }

    def submit(self, jobs: Sequence[Given]) -> None:
        """Requests to send, each when it is due.

        Raises:
            LlmslaError: the thread that sends has ended, or is stuck.
        """
        self._demand()
        self._given.put(jobs)

    def take(self, seconds: float) -> Block:
        """Requests that ended, as soon as there is one; an empty block after ``seconds``.

        Raises:
            LlmslaError: the thread that sends has ended, or is stuck, and with it what was in
                flight.
        """
        out: list[Timeline] = []
        if self._ended.empty():
            self._demand()
        try:
            out.append(self._ended.get(timeout=seconds))
            while len(out) < _MOST_IN_A_BLOCK:
                out.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        return pack(out)

    def cancel(self) -> None:
        """End what is in flight, and what is not sent yet, as errors."""
        self._cancelled.set()

    def close(self) -> None:
        """Release the connections."""
        self._given.put(None)
        self._thread.join(timeout=5.0)

    def _demand(self) -> None:
        if self._ended_by is not None:
            raise InternalError(f"the thread that sends has ended: {say(self._ended_by)}")
        if time.perf_counter_ns() - self._at_work > _STUCK_NS:
            raise InternalError(
                f"the thread that sends has stood still for {_STUCK_NS // NS_PER_S} s"
            )

    # -- the thread that sends and stamps

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as e:
            self._ended_by = e  # told by the next call: nobody waits for what will not come

    def _send_all(self) -> None:
        due: list[tuple[int, int, Ask, Timeline, int | None]] = []
        count = 0
        try:
            while True:
                self._at_work = time.perf_counter_ns()
                for jobs in self._new(wait=not due and not self._crew.in_flight):
                    if jobs is None:
                        return
                    for ask, blank, at in jobs:
                        count += 1
                        heapq.heappush(due, (at or 0, count, ask, blank, at))
                if self._cancelled.is_set():
                    self._crew.cancel()
                    while due:
                        self._lose(heapq.heappop(due)[3], "the run was ended before it was sent")
                    self._cancelled.clear()
                self._step(due)
        finally:
            self._crew.close()
            self._target.close()

    def _new(self, *, wait: bool) -> list[Sequence[Given] | None]:
        out: list[Sequence[Given] | None] = []
        try:
            if wait:
                out.append(self._given.get(timeout=0.05))
            while True:
                out.append(self._given.get_nowait())
        except queue.Empty:
            return out

    def _step(self, due: list[tuple[int, int, Ask, Timeline, int | None]]) -> None:
        crew = self._crew
        now = time.perf_counter_ns()
        while due and due[0][0] <= now and crew.in_flight < crew.size:
            _, _, ask, blank, at = heapq.heappop(due)
            if at is not None:
                waited = blank.stages.get("client_queue", 0)
                blank = replace(blank, late_ns=max(0, time.perf_counter_ns() - at - waited))
            self._counts[blank.id] = blank.prompt_tokens
            try:
                crew.start(Job(ask, blank))
            except Exception as e:  # whatever it is, the head must hear of this request
                self._lose(blank, say(e))
        until = now + _STEP_NS
        if due and crew.in_flight < crew.size:
            until = min(until, due[0][0])
        if crew.in_flight or due:
            for t in crew.wait(max(until, now + 1)):
                self._ended.put(self._with_length(t))

    def _with_length(self, t: Timeline) -> Timeline:
        """Where the server did not tell the prompt's length, an exact count made before stands."""
        own = self._counts.pop(t.id, None)
        if t.ok and t.prompt_tokens is None and self._exact:
            return replace(t, prompt_tokens=own)
        return t

    def _lose(self, blank: Timeline, reason: str) -> None:
        self._ended.put(never_sent(blank, time.perf_counter_ns, reason))


def clock_of() -> str | None:
    """What two processes share whose monotonic clocks are one; None: cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot = f.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None


def seconds_until(at_ns: int) -> float:
    """From now, on this process's clock; 0 for what has passed."""
    return max(0.0, (at_ns - time.perf_counter_ns()) / NS_PER_S)

"""What every in-process crew does alike: seats, deadlines, and timelines made outside the engine.

An engine (continuous batching, static batches) runs in a thread of its own and only notes what
happened to a seat; the thread that called :meth:`HfCrew.wait` decodes texts and makes timelines,
so that no request pays for another's bookkeeping.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InternalError, TargetError
from ..timeline import NS_PER_S, Timeline
from .base import Ask, Clock, Job, Recorder, Timeouts
from .hf_request import Requests
from .recording import answered, failed, say

CANCELLED = "the run was ended while it was in flight"


@dataclass(eq=False, slots=True)
class Seat:
    """One request in flight."""

    job: Job
    record: Recorder
    notes: list[str]
    prompt: list[int] = field(default_factory=list)
    out: list[int] = field(default_factory=list)
    """Generated ids that are on the host."""
    cached: int | None = None
    """Prompt tokens that came from a prefix cache; None where it does not tell."""
    key: str = ""
    """Its name in the engine: an id may be used again."""
    said: str | None = None
    """What the engine said when it gave the request up; the cause may be known a moment later."""
    failure: str | None = None
    over: bool = False
    """It ended, well or not; nothing of it changes any more."""
    leaving: str | None = None
    """Why it was told to stop; None while it may go on."""
    leave_by: float = 0.0
    """``time.monotonic()`` at which it must be gone."""

    @property
    def ask(self) -> Ask:
        """What was asked."""
        return self.job.ask

    def arrive(self, at_ns: int, token: int) -> None:
        """One token id reached the host."""
        self.record.arrivals.append((at_ns, 1))
        self.out.append(token)


class HfCrew(ABC):
    """Seats and their deadlines; see :class:`~pytest_llmsla.targets.base.Crew`."""

    mode: str

    def __init__(self, requests: Requests, size: int, timeouts: Timeouts) -> None:
        self.size = size
        self.hung: str | None = None
        self._requests = requests
        self._timeouts = timeouts
        self._clock: Clock = time.perf_counter_ns
        self._changed = threading.Condition()
        self._seats: dict[str, Seat] = {}
        self._ended: list[Seat] = []
        self._hurry = False
        """Something is about to be known: look often."""
        self._look_s = min(1.0, timeouts.first_token_s / 10, timeouts.idle_s / 10)

    # -- what an engine does

    @abstractmethod
    def _enter(self, seat: Seat) -> None:
        """Give the request to the engine; raises when it cannot be taken."""

    @abstractmethod
    def _leave(self, seat: Seat) -> None:
        """Tell the engine to stop the request; returns at once."""

    @abstractmethod
    def _gone(self, seat: Seat) -> bool:
        """Whether the engine has let go of a request that was told to stop."""

    @abstractmethod
    def _dead(self) -> str | None:
        """Why the engine will answer nothing any more; None while it may."""

    @abstractmethod
    def _stop(self, within_s: float) -> bool:
        """End the engine's thread; false when it did not end in time."""

    # -- the protocol

    @property
    def in_flight(self) -> int:
        """Requests started and not yet returned."""
        return len(self._seats)

    def start(self, job: Job) -> None:
        """Send it; what goes wrong is in its timeline."""
        if len(self._seats) >= self.size:
            raise InternalError(f"{self.size} requests are in flight already")
        record = Recorder(self._clock)
        record.start()
        seat = Seat(job, record, self._requests.notes(job.ask))
        self._seats[job.blank.id] = seat
        try:
            if self.hung is not None:
                raise TargetError(self.hung)
            entered = record.clock()
            seat.prompt = self._requests.ids(job.ask)
            record.stage("tokenise", record.clock() - entered)
            self._enter(seat)
        except Exception as e:  # a tokenizer or an engine may raise anything; it is a result
            self._fail([seat], say(e))

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Those that ended; see :class:`~pytest_llmsla.targets.base.Crew`."""
        while True:
            with self._changed:
                if not self._ended and not self._due(until_ns):
                    self._changed.wait(self._patience(until_ns))
                ended, self._ended = self._ended, []
            if ended:
                out = [self._timeline(seat) for seat in ended]
                for seat in ended:
                    del self._seats[seat.job.blank.id]
                return out
            if self._due(until_ns):
                return []
            self._watch()

    def facts(self) -> Mapping[str, Any]:
        """How the requests share the model, for the report; JSON-ready."""
        return {}

    def cancel(self) -> None:
        """End what is in flight as errors."""
        for seat in list(self._seats.values()):
            self._ask_to_leave(seat, CANCELLED)
        self._watch()

    def close(self) -> None:
        """End the engine. Idempotent."""
        self.cancel()
        stopped = self._stop(self._timeouts.grace_s)
        if not stopped and self.hung is None:
            self.hung = (
                f"the {self.mode} engine did not end within {self._timeouts.grace_s:g} s of being "
                "told to, so the target cannot be used any more"
            )
        self._fail(self._seats.values(), self.hung or CANCELLED)

    # -- called from the engine's thread

    def _end(self, seats: Iterable[Seat]) -> None:
        """These are complete."""
        with self._changed:
            for seat in seats:
                self._over(seat)
            self._changed.notify_all()

    def _fail(self, seats: Iterable[Seat], reason: str) -> None:
        """These ended without an answer."""
        with self._changed:
            for seat in list(seats):
                if not seat.over:
                    seat.failure = seat.leaving or reason
                    self._over(seat)
            self._changed.notify_all()

    def _look_now(self) -> None:
        """Wake whoever waits: the engine said something."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def _over(self, seat: Seat) -> None:
        if not seat.over:
            seat.over = True
            seat.record.end_ns = self._clock()
            self._ended.append(seat)

    # -- deadlines

    def _due(self, until_ns: int | None) -> bool:
        return not self._seats if until_ns is None else self._clock() >= until_ns

    def _patience(self, until_ns: int | None) -> float | None:
        """Seconds to sleep: arrivals wake nobody, so deadlines are looked for now and then."""
        look = self._look_s if self._seats else None
        if self._hurry or any(s.leaving for s in self._seats.values()):
            look = 0.005
        if until_ns is None:
            return look
        left = max(0.0, (until_ns - self._clock()) / NS_PER_S)
        return left if look is None else min(look, left)

    def _watch(self) -> None:
        """Tell late ones to stop, and see whether those told before did."""
        live = [s for s in self._seats.values() if not s.over]
        if not live:
            return
        dead = self._dead()
        if dead is not None:
            self._fail(live, dead)
            return
        now_ns, now = self._clock(), time.monotonic()
        for seat in live:
            if seat.leaving is None:
                start, arrivals = seat.record.start_ns or 0, seat.record.arrivals
                late = overdue(start, arrivals[-1:], now_ns, self._timeouts)
                if late is not None:
                    self._ask_to_leave(seat, late)
            elif self._gone(seat):
                self._fail([seat], seat.leaving)
            elif now > seat.leave_by:
                self.hung = (
                    f"{seat.leaving}; it did not stop within {self._timeouts.grace_s:g} s of being "
                    "told to, so the target cannot be used any more"
                )
                self._fail(live, self.hung)
                return

    def _ask_to_leave(self, seat: Seat, reason: str) -> None:
        if seat.over or seat.leaving is not None:
            return
        seat.leave_by = time.monotonic() + self._timeouts.grace_s
        seat.leaving = reason
        self._leave(seat)

    # -- timelines

    def _timeline(self, seat: Seat) -> Timeline:
        blank, record = seat.job.blank, seat.record
        if seat.failure is None:
            seat.failure = self._unfit(seat)
        if seat.failure is not None:
            return failed(blank, record, seat.failure)
        try:
            answer = self._requests.answer(seat.ask, record, len(seat.prompt), seat.out, seat.notes)
            t = answered(blank, record, replace(answer, cached_tokens=seat.cached))
        except Exception as e:  # a tokenizer that cannot decode
            return failed(blank, record, say(e))
        late = overdue(t.start_ns, t.arrivals, t.end_ns, self._timeouts, all_gaps=True)
        return t if late is None else replace(t, status="error", error=late)

    def _unfit(self, seat: Seat) -> str | None:
        """Why what came back is no answer to measure."""
        if not seat.out:
            return "the model gave no token."
        if len(seat.out) > seat.ask.max_new_tokens:
            return (
                f"the model gave {len(seat.out)} tokens, {seat.ask.max_new_tokens} were asked for."
            )
        alone = len(seat.out) == 1 and seat.out[0] in self._requests.ends.eos
        if alone and not (seat.ask.force_length and seat.ask.max_new_tokens == 1):
            return (
                f"the model ended at once: its first token is the end token {seat.out[0]}. There "
                "is no answer to measure. Check the prompt, the chat template and the end tokens."
            )
        return None


def overdue(
    start_ns: int,
    arrivals: Iterable[tuple[int, int]],
    now_ns: int,
    limits: Timeouts,
    *,
    all_gaps: bool = False,
) -> str | None:
    """Which deadline a request has missed by ``now_ns``, in words; None when it is in time.

    With ``all_gaps`` the arrivals are all there are and each gap counts, else only the silence
    since the last one.
    """
    times = [at for at, _ in arrivals]
    first = times[0] if times and all_gaps else now_ns
    if (not times or all_gaps) and first - start_ns > limits.first_token_s * NS_PER_S:
        return (
            f"timed out: no first token after {limits.first_token_s:g} s (timeouts.first_token_s)"
        )
    for before, after in zip(times, [*times[1:], now_ns], strict=False):
        if after - before > limits.idle_s * NS_PER_S:
            return f"timed out: no further token for {limits.idle_s:g} s (timeouts.idle_s)"
    if now_ns - start_ns > limits.total_s * NS_PER_S:
        return f"timed out: not complete after {limits.total_s:g} s (timeouts.total_s)"
    return None

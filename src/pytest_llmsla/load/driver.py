"""Keeps one level of load up: warm-up flows into measuring, and nothing drains between them.

Requests are written as they end and judged in the order they were started, so that a replay of
the log sees what the live run saw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ..asker import say
from ..runner import blank_of, start_of
from ..targets.base import Crew, Job, Target
from ..timeline import NS_PER_S, Timeline
from .bucket import Bucket
from .mix import Mix
from .plan import Due, LevelPlan
from .shared_luck import SharedLuck
from .start_order import StartOrder
from .stock import Stock

_MEMORY_EVERY_NS = NS_PER_S
_GRACE_S = 5.0  # for what was told to end
_LOOK_NS = 250_000_000  # how long to wait at most before budgets are looked at again


class Sink(Protocol):
    """Where a level's records go; called from the driver's thread."""

    def started(self, request: Mapping[str, Any]) -> None:
        """A request is being sent."""

    def ended(self, t: Timeline) -> None:
        """A request ended; called at once, in the order they end."""

    def judge(self, t: Timeline) -> Timeline:
        """A request that ended, in the order they were started; its status as judged."""

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Memory figures while the level runs."""

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket (None: all of this level and after it) cannot be measured."""

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""

    def say(self, text: str) -> None:
        """Something that takes time begins."""


class Driver:
    """Runs one level on a loaded target, telling ``sink`` everything."""

    def __init__(self, target: Target, crew: Crew, sink: Sink, next_id: Callable[[], str]) -> None:
        self._target = target
        self._clock = target.clock
        self._crew = crew
        self._sink = sink
        self._next_id = next_id

    def run(self, plan: LevelPlan, wants: Callable[[str], bool]) -> str:
        """Measure until ``wants(bucket)`` is false for all, or a budget is spent.

        Returns the reason it ended: ``decided``, ``requests``, ``seconds``, ``schedule`` (an open
        loop's trace is over), ``prompts`` (those that keep the mix whole are used up) or
        ``problem``.
        """
        level = _Level(self, plan, wants)
        try:
            return level.run()
        except BaseException:
            level.abandon()
            raise


class _Level:
    """The state of one running level."""

    def __init__(self, driver: Driver, plan: LevelPlan, wants: Callable[[str], bool]) -> None:
        self._target, self._crew = driver._target, driver._crew
        self._sink, self._next_id = driver._sink, driver._next_id
        self._clock = driver._clock
        self._lead = getattr(driver._crew, "lead_ns", 0)
        self._plan = plan
        self._wants = wants
        self._closed = plan.concurrency is not None
        self._block = plan.concurrency or 1
        weights = {b.bucket: float(plan.weights.get(b.bucket, 1.0)) for b in plan.buckets}
        waves = _first_wave(weights, plan.concurrency or 1)
        self._mix = Mix(weights)
        self._buckets = {
            b.bucket: Bucket(b, Stock(b, self._crew.prepare, self._dry), max(1, waves[b.bucket]))
            for b in plan.buckets
        }
        self._measuring = False
        self._order = StartOrder()
        self._luck = SharedLuck(bursty=plan.bursty)
        self._memory_at = 0
        self._deadline = time.monotonic() + plan.max_seconds
        self._no_peaks: str | None = None
        self._used_up = False
        """Prompts that only keep the load up are used up."""

    # -- the loop

    def run(self) -> str:
        self._make_ahead()
        if not self._buckets:
            return "problem"
        for name in self._buckets:
            self._sink.phase(name, "warm-up")
        self._t0 = self._clock()
        self._begin_measuring_if_warm()
        ended = self._run_closed() if self._closed else self._run_open()
        while self._crew.in_flight and self._crew.hung is None:
            self.take(self._crew.wait(self._clock() + _LOOK_NS))
        if self._crew.hung is not None:
            self.abandon()
            self._sink.problem(None, self._crew.hung)
            return "problem"
        self.judge_rest()
        if self._measuring:
            self._remember(force=True)
        return ended

    def _run_closed(self) -> str:
        while True:
            while self._crew.in_flight < self._allowed():
                stop = self._stop_reason()
                if stop is not None:
                    return stop
                if not self._send(self._mix.next(), None):
                    continue
            self.take(self._crew.wait(self._clock() + _LOOK_NS))

    def _allowed(self) -> int:
        """Requests that may be in flight now; grows during the ramp."""
        full = self._plan.concurrency or 1
        ramp = self._plan.ramp_s * NS_PER_S
        passed = self._clock() - self._t0
        if passed >= ramp:
            return full
        return max(1, math.ceil(full * passed / ramp))

    def _run_open(self) -> str:
        """Everything is sent when it is due, or as soon after as a place is free."""
        due: Iterator[Due] = iter(self._plan.schedule or ())
        following = next(due, None)
        free_since = self._t0
        while True:
            stop = self._stop_reason()
            if stop is not None:
                return stop
            now = self._clock()
            # As many as have a place: what is due beyond them waits in the schedule, which may
            # hold any number of requests for one moment.
            for _ in range(self._crew.size - self._crew.in_flight):
                if following is None or self._t0 + following.at_ns > now + self._lead:
                    break
                self._send_due(following, free_since)
                following = next(due, None)
            if following is None:
                return "schedule"
            until = now + _LOOK_NS
            full = self._crew.in_flight >= self._crew.size
            if not full:
                until = min(until, self._t0 + following.at_ns - self._lead)
            ended = self._crew.wait(until)
            if full and ended:
                free_since = max(t.end_ns for t in ended)
            self.take(ended)

    def _send_due(self, due: Due, free_since: int) -> None:
        if not self._mix.names:
            return
        name = due.bucket if due.bucket in self._buckets else self._mix.next()
        at = self._t0 + due.at_ns
        self._send(name, at, possible=max(at, free_since))

    def abandon(self) -> None:
        """End what is in flight, and put it on record."""
        self._crew.cancel()
        until = time.monotonic() + _GRACE_S
        while self._crew.in_flight and time.monotonic() < until:
            self.take(self._crew.wait(self._clock() + _LOOK_NS))
        self.judge_rest()

    # -- one request

    def _send(self, name: str, due_ns: int | None, possible: int = 0) -> bool:
        """Start one request; False when no prompt can be made for it."""
        bucket = self._buckets[name]
        warmup = not self._measuring
        ready = bucket.stock.take(warmup=warmup)
        if ready is None:
            return False
        prompt, ask = ready
        plan, now = bucket.plan, self._clock()
        if warmup:
            unit, block = 0, 1
            bucket.warm_started += 1
        else:
            unit, block = bucket.started // self._block, self._block
            bucket.started += 1
        blank = blank_of(
            plan,
            prompt,
            self._next_id(),
            warmup=warmup,
            unit=unit,
            block=block,
            scheduled_ns=due_ns,
            late_ns=None if due_ns is None else max(0, now - max(due_ns, possible)),
            stages={}
            if due_ns is None or possible <= due_ns
            else {"client_queue": possible - due_ns},
            concurrency=self._plan.concurrency or self._crew.in_flight + 1,
        )
        line = start_of(blank, now)
        load = {name: getattr(blank, name) for name in ("block", "concurrency", "scheduled_ns")}
        self._sink.started({**line, **load})
        self._order.started(blank.id)
        self._luck.began(blank.id, now if due_ns is None else due_ns)
        self._crew.start(Job(ask, blank))
        return True

    def take(self, ended: list[Timeline]) -> None:
        """Requests that ended: on record at once, judged as far as start order allows."""
        for t in ended:
            self._luck.ended(t.id, t.end_ns)
            self._sink.ended(t)
            self._order.ended(t)
        for t in self._order.ready():
            self._judge(t)
        if ended:
            self._begin_measuring_if_warm()
            self._remember()

    def judge_rest(self) -> None:
        """What ended is judged, whatever was lost before it."""
        for t in self._order.rest():
            self._judge(t)

    def _judge(self, t: Timeline) -> None:
        t = self._sink.judge(t)
        bucket = self._buckets.get(t.bucket)
        if bucket is not None and (why := bucket.judged(t)) is not None:
            self._drop(t.bucket, why)

    def _dry(self, name: str, reason: str) -> None:
        """No prompt is left. A bucket whose own evidence is there only kept the load up: without
        it the level is over, and what is open stays undecided."""
        if self._measuring and (not self._wants(name) or self._spent(name)):
            self._used_up = True
            self._sink.say(f"the load cannot be kept up: {reason}")
        else:
            self._drop(name, reason)

    def _drop(self, name: str, reason: str) -> None:
        """A bucket leaves the mix for good."""
        self._sink.problem(name, reason)
        self._buckets.pop(name, None)
        self._mix.drop(name)

    # -- when to go on, when to stop

    def _begin_measuring_if_warm(self) -> None:
        if self._measuring or not all(b.warm for b in self._buckets.values()):
            return
        if self._clock() - self._t0 < self._plan.ramp_s * NS_PER_S:
            return
        if not self._closed:
            if not self._luck.seen(sum(b.warmups_most for b in self._buckets.values())):
                return
            if any(b.warm_started for b in self._buckets.values()):
                self._block = self._luck.block(self._t0, self._clock())
        self._measuring = True
        self._luck.settle()
        try:
            self._target.reset_peaks()
        except Exception as e:  # then every peak holds the warm-up too: no figure is known
            self._no_peaks = f"the window of memory peaks could not be started: {say(e)}"
        for name in self._buckets:
            self._sink.phase(name, "measure")

    def _stop_reason(self) -> str | None:
        if not self._buckets:
            return "problem"
        if self._crew.hung is not None:
            return "problem"
        if time.monotonic() >= self._deadline:
            return "seconds"
        if self._used_up:
            return "prompts"
        if not self._measuring:
            return None
        # The mix stays whole until no bucket needs a request: dropping one changes the load.
        open_ = [n for n in self._buckets if self._wants(n)]
        if not open_:
            return "decided"
        if all(self._spent(n) for n in open_):
            return "requests"
        return None

    def _spent(self, name: str) -> bool:
        return self._buckets[name].started >= self._plan.budget(name, self._block)

    # -- around the requests

    def _make_ahead(self) -> None:
        n = sum(self._plan.likely(b.bucket, self._block) for b in self._plan.buckets)
        self._sink.say(f"making {n} prompts …")
        for name, bucket in list(self._buckets.items()):
            bucket.make_ahead(self._plan.likely(name, self._block))

    def _remember(self, *, force: bool = False) -> None:
        """Memory figures, once a second at most: reading them takes time."""
        now = self._clock()
        if not self._measuring or not (force or now - self._memory_at >= _MEMORY_EVERY_NS):
            return
        self._memory_at = now
        memory: dict[str, Any]
        if self._no_peaks is not None:
            memory = {"problem": self._no_peaks}
        else:
            try:
                memory = dict(self._target.memory())
            except Exception as e:  # a probe that fails is an unknown figure
                memory = {"problem": say(e)}
        for name in self._buckets:
            self._sink.resources(name, "measured", memory)


def _first_wave(weights: Mapping[str, float], n: int) -> dict[str, int]:
    """How many of a level's first ``n`` requests belong to each bucket."""
    mix = Mix(weights)
    out = dict.fromkeys(weights, 0)
    for _ in range(n if weights else 0):
        out[mix.next()] += 1
    return out

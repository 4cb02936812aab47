"""Ask, warm up, repeat until told to stop. Judges nothing.

Buckets are measured interleaved, one request at a time; a generation that never returns ends the
run. What one request goes through: :mod:`asker`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .asker import Asker, HungError, Timeouts, say
from .errors import LlmslaError
from .stats import WarmupMonitor
from .targets.base import Ask, Target
from .timeline import NS_PER_MS, Timeline
from .workload import Prompt

__all__ = ["Asker", "BucketPlan", "HungError", "RunPlan", "Runner", "Sink", "Timeouts", "say"]

_STOP_AFTER_FAILURES = 5
_STOP_WARMUP_AFTER_ERRORS = 3


@dataclass(frozen=True)
class BucketPlan:
    """One stream of requests of the same shape."""

    bucket: str
    prompts: Iterator[Prompt]
    warmup_prompts: Iterator[Prompt]
    max_new_tokens: int
    sampling: Mapping[str, Any]
    force_length: bool
    max_requests: int
    """Measured requests, at most."""
    warmup_max: int
    gate: str | None = None
    purpose: str | None = None
    attempt: int = 1
    already: int = 0
    """Measured requests on record before this run (a resumed or repeated one)."""


@dataclass(frozen=True)
class RunPlan:
    """What to ask, and the limits of patience."""

    buckets: Sequence[BucketPlan]
    max_seconds: float
    timeouts: Timeouts = field(default_factory=Timeouts)


def ask_of(plan: BucketPlan, prompt: Prompt) -> Ask:
    """What is sent for a prompt of a bucket."""
    return Ask(
        prompt=prompt.text,
        max_new_tokens=plan.max_new_tokens,
        sampling=plan.sampling,
        system=prompt.system,
        force_length=plan.force_length,
    )


def blank_of(
    plan: BucketPlan, prompt: Prompt, name: str, *, warmup: bool, unit: int, **load: Any
) -> Timeline:
    """The timeline of a request that is to be sent; ``load``: fields that say under which."""
    return Timeline(
        id=name,
        bucket=plan.bucket,
        start_ns=0,
        end_ns=0,
        prompt_tokens=prompt.tokens,
        max_new_tokens=plan.max_new_tokens,
        warmup=warmup,
        unit=unit,
        attempt=plan.attempt,
        sampling=plan.sampling,
        gate=plan.gate,
        purpose=plan.purpose,
        prompt=prompt.text,
        **load,
    )


def start_of(blank: Timeline, start_ns: int) -> dict[str, Any]:
    """The ``start`` line of a request: what its ``request`` line has to agree with."""
    return {
        "id": blank.id,
        "bucket": blank.bucket,
        "unit": blank.unit,
        "prompt_tokens": blank.prompt_tokens,
        "max_new_tokens": blank.max_new_tokens,
        "start_ns": start_ns,
        "warmup": blank.warmup,
        "attempt": blank.attempt,
        "gate": blank.gate,
        "purpose": blank.purpose,
    }


class Sink(Protocol):
    """Where a run's records go. Called from the runner's thread, between requests."""

    def started(self, request: Mapping[str, Any]) -> None:
        """A request is being sent."""

    def finished(self, t: Timeline) -> Timeline:
        """A request ended; returns it, with its status corrected where it is unusable."""

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Memory figures after a request."""

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket (None: all that follow) cannot be measured."""

    def phase(self, bucket: str, name: str) -> None:
        """``warm-up`` or ``measure`` begins for a bucket."""


class Runner:
    """Runs a plan on a loaded target, telling ``sink`` everything."""

    def __init__(self, target: Target, sink: Sink, next_id: Callable[[], str]) -> None:
        self._target = target
        self._sink = sink
        self._next_id = next_id
        self._no_peaks: str | None = None

    def run(self, plan: RunPlan, wants: Callable[[str], bool]) -> str:
        """Measure until ``wants(bucket)`` is false for all, or a budget is spent.

        Returns the reason it ended: ``decided``, ``requests``, ``seconds`` or ``problem``.
        """
        deadline = time.monotonic() + plan.max_seconds
        with Asker(self._target, plan.timeouts) as asker:
            try:
                live = [
                    b for b in plan.buckets if wants(b.bucket) and self._warm_up(asker, b, deadline)
                ]
                self._reset_peaks()
                return self._measure(asker, live, wants, deadline)
            except HungError as e:
                self._sink.problem(None, str(e))
                return "problem"

    def ask_once(self, plan: BucketPlan, prompt: Prompt, timeouts: Timeouts) -> Timeline:
        """One measured request, outside any loop (``timed_generate``)."""
        with Asker(self._target, timeouts) as asker:
            t = self._ask(asker, plan, prompt, warmup=False, unit=plan.already)
            self._remember(plan, "measured")
            if asker.hung is not None:
                self._sink.problem(None, asker.hung)
            return t

    def warm_once(self, plan: BucketPlan, timeouts: Timeouts) -> None:
        """One warm-up request, outside any loop; a failure is on record like any other."""
        with Asker(self._target, timeouts) as asker:
            prompt = self._next(plan, plan.warmup_prompts)
            if prompt is not None:
                self._ask(asker, plan, prompt, warmup=True, unit=0)
            if asker.hung is not None:
                self._sink.problem(None, asker.hung)
            else:
                self._reset_peaks()

    def _warm_up(self, asker: Asker, plan: BucketPlan, deadline: float) -> bool:
        """Warm one bucket's shape; False when the bucket cannot be measured."""
        self._sink.phase(plan.bucket, "warm-up")
        if plan.warmup_max < 1:
            return True
        monitor = WarmupMonitor(plan.warmup_max)
        errors = asked = 0
        while asked < plan.warmup_max and not monitor.done and time.monotonic() < deadline:
            prompt = self._next(plan, plan.warmup_prompts)
            if prompt is None:
                return False
            t = self._ask(asker, plan, prompt, warmup=True, unit=0)
            asked += 1
            if t.ok:
                errors = 0
                monitor.add((t.end_ns - t.start_ns) / NS_PER_MS)
            else:
                errors += 1
                if asker.hung is not None:
                    raise HungError(asker.hung)
                if errors >= _STOP_WARMUP_AFTER_ERRORS:
                    self._sink.problem(
                        plan.bucket, f"{errors} consecutive warm-up requests failed: {t.error}"
                    )
                    return False
        return True

    def _measure(
        self,
        asker: Asker,
        live: list[BucketPlan],
        wants: Callable[[str], bool],
        deadline: float,
    ) -> str:
        asked = {b.bucket: b.already for b in live}
        broken = dict.fromkeys(asked, 0)
        for b in live:
            self._sink.phase(b.bucket, "measure")
        spent = False
        while live:
            for plan in list(live):
                if not wants(plan.bucket):
                    live.remove(plan)
                    continue
                if asked[plan.bucket] >= plan.max_requests:
                    spent = True
                    live.remove(plan)
                    continue
                if time.monotonic() >= deadline:
                    return "seconds"
                prompt = self._next(plan, plan.prompts)
                if prompt is None:
                    live.remove(plan)
                    continue
                unit = asked[plan.bucket]
                t = self._ask(asker, plan, prompt, warmup=False, unit=unit)
                asked[plan.bucket] += 1
                self._remember(plan, "measured")
                if asker.hung is not None:
                    raise HungError(asker.hung)
                if t.ok or unit - plan.already >= _STOP_AFTER_FAILURES:
                    continue
                broken[plan.bucket] += 1
                if broken[plan.bucket] == _STOP_AFTER_FAILURES:
                    self._sink.problem(
                        plan.bucket,
                        f"the first {_STOP_AFTER_FAILURES} measured requests all failed: {t.error}",
                    )
                    live.remove(plan)
        return "requests" if spent else "decided"

    def _ask(
        self, asker: Asker, plan: BucketPlan, prompt: Prompt, *, warmup: bool, unit: int
    ) -> Timeline:
        blank = blank_of(plan, prompt, self._next_id(), warmup=warmup, unit=unit)
        self._sink.started(start_of(blank, self._target.clock()))
        return self._sink.finished(asker.ask(ask_of(plan, prompt), blank))

    def _next(self, plan: BucketPlan, prompts: Iterator[Prompt]) -> Prompt | None:
        """The next prompt; None, with the problem told, when there is none for this bucket."""
        try:
            return next(prompts)
        except StopIteration:
            reason = "no prompt is left"
        except LlmslaError as e:
            reason = str(e)
        except Exception as e:  # a target counts the tokens of a prompt while it is made
            reason = f"making a prompt raised {say(e)}"
        self._sink.problem(plan.bucket, reason)
        return None

    def _reset_peaks(self) -> None:
        try:
            self._target.reset_peaks()
            self._no_peaks = None
        except Exception as e:  # then every peak holds the warm-up too: no figure is known
            self._no_peaks = f"the window of memory peaks could not be started: {say(e)}"

    def _remember(self, plan: BucketPlan, phase: str) -> None:
        try:
            memory = dict(self._target.memory())
        except Exception as e:  # a probe that fails is an unknown figure, not a failed request
            memory = {"problem": say(e)}
        if self._no_peaks is not None:
            memory = {"problem": self._no_peaks}
        self._sink.resources(plan.bucket, phase, memory)

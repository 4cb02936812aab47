"""Ask, warm up, repeat until told to stop. Judges nothing.

Buckets are measured interleaved, one request at a time, in a worker thread of the run's own; a
deadline cancels a generation at its next token, and one that never returns ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Protocol

from .errors import GenerationAborted, TargetError
from .stats import WarmupMonitor
from .targets.base import Answer, Ask, Recorder, Target
from .timeline import NS_PER_MS, NS_PER_S, Timeline
from .workload import Prompt

_GRACE_S = 5.0
_MAX_ERROR_CHARS = 500
_STOP_AFTER_FAILURES = 5
_STOP_WARMUP_AFTER_ERRORS = 3


@dataclass(frozen=True)
class Timeouts:
    """Seconds; ``first_token_s`` and ``idle_s`` bound silence, ``total_s`` the whole request."""

    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 300.0


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


class HungError(TargetError):
    """A generation did not stop after its deadline; the target cannot be used any more."""


class Asker:
    """One worker thread that runs generations for as long as the context is open."""

    def __init__(self, target: Target, timeouts: Timeouts) -> None:
        self._target = target
        self._timeouts = timeouts
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.hung: str | None = None

    def __enter__(self) -> Asker:
        self._thread = threading.Thread(target=self._work, name="llmsla-target", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        if self._thread is not None and self.hung is None:
            self._thread.join(timeout=_GRACE_S)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def ask(self, ask: Ask, blank: Timeline) -> Timeline:
        """Run one generation; ``blank`` carries the identity of the request.

        Every failure of the target becomes a Timeline with status ``error``.

        Raises:
            HungError: an earlier generation is still running.
        """
        if self.hung is not None:
            raise HungError(self.hung)
        record = Recorder(self._target.clock)
        done = threading.Event()
        box: list[Answer | BaseException] = []

        def job() -> None:
            try:
                record.start()
                box.append(self._target.generate(ask, record))
            except BaseException as e:  # a model may raise anything; it becomes a result
                box.append(e)
            finally:
                record.end_ns = self._target.clock()
                done.set()

        self._jobs.put(job)
        late = self._wait(record, done)
        if late is not None and not done.is_set():
            self.hung = (
                f"{late}; it did not stop within {_GRACE_S:.0f} s of being told to, so the "
                "target cannot be used any more"
            )
            now = self._target.clock()
            return _failed(blank, record, now, self.hung)
        outcome = box[0]
        end = record.end_ns if record.end_ns is not None else self._target.clock()
        if isinstance(outcome, BaseException):
            reason = late if isinstance(outcome, GenerationAborted) and late else say(outcome)
            return _failed(blank, record, end, reason)
        late = late or self._late(record, end)
        t = _answered(blank, record, outcome, end)
        return t if late is None else replace(t, status="error", error=late)

    def _wait(self, record: Recorder, done: threading.Event) -> str | None:
        """Wait for the end or a deadline (real time); the deadline's words, or None."""
        began = time.monotonic()
        seen, since = 0, began
        limits = self._timeouts
        try:
            while True:
                now = time.monotonic()
                got = len(record.arrivals)
                if got != seen:
                    seen, since = got, now
                silence = limits.idle_s if seen else limits.first_token_s
                left = min(began + limits.total_s, since + silence) - now
                if left <= 0:
                    break
                if done.wait(left):
                    return None
                if len(record.arrivals) != seen:
                    continue
        except BaseException:
            record.cancel()
            done.wait(_GRACE_S)
            raise
        record.cancel()
        done.wait(_GRACE_S)
        if now - began >= limits.total_s:
            return f"timed out: not complete after {limits.total_s:g} s (timeouts.total_s)"
        if seen:
            return f"timed out: no further token for {limits.idle_s:g} s (timeouts.idle_s)"
        return (
            f"timed out: no first token after {limits.first_token_s:g} s (timeouts.first_token_s)"
        )

    def _late(self, record: Recorder, end: int) -> str | None:
        """The same deadlines on the target's own clock, for answers that came all the same."""
        limits, start = self._timeouts, record.start_ns or 0
        if record.arrivals and record.arrivals[0][0] - start > limits.first_token_s * NS_PER_S:
            return (
                f"timed out: the first token took longer than {limits.first_token_s:g} s "
                "(timeouts.first_token_s)"
            )
        if end - start > limits.total_s * NS_PER_S:
            return f"timed out: took longer than {limits.total_s:g} s (timeouts.total_s)"
        return None


def say(e: BaseException) -> str:
    """An exception as one line: its type and message, cut to a readable length."""
    text = " ".join(str(e).split())
    name = type(e).__name__
    line = f"{name}: {text}" if text else name
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


def _failed(blank: Timeline, record: Recorder, end: int, reason: str) -> Timeline:
    start = record.start_ns if record.start_ns is not None else end
    return replace(
        blank,
        start_ns=start,
        end_ns=max(end, start),
        arrivals=tuple(record.arrivals),
        stages=dict(record.stages),
        status="error",
        error=reason,
    )


def _answered(blank: Timeline, record: Recorder, answer: Answer, end: int) -> Timeline:
    arrivals = tuple(record.arrivals)
    start = record.start_ns if record.start_ns is not None else end
    return replace(
        blank,
        start_ns=start,
        end_ns=arrivals[-1][0] if arrivals else end,
        arrivals=arrivals,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        token_source=answer.token_source,
        finish_reason=answer.finish_reason,
        cached_tokens=answer.cached_tokens,
        stages=dict(record.stages),
        notes=answer.notes,
        text=answer.text,
    )


class Runner:
    """Runs a plan on a loaded target, telling ``sink`` everything."""

    def __init__(self, target: Target, sink: Sink, next_id: Callable[[], str]) -> None:
        self._target = target
        self._sink = sink
        self._next_id = next_id

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
                self._target.reset_peaks()
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
            self._ask(asker, plan, next(plan.warmup_prompts), warmup=True, unit=0)
            self._target.reset_peaks()

    def _warm_up(self, asker: Asker, plan: BucketPlan, deadline: float) -> bool:
        """Warm one bucket's shape; False when the bucket cannot be measured."""
        self._sink.phase(plan.bucket, "warm-up")
        if plan.warmup_max < 1:
            return True
        monitor = WarmupMonitor(plan.warmup_max)
        errors = asked = 0
        while asked < plan.warmup_max and not monitor.done and time.monotonic() < deadline:
            t = self._ask(asker, plan, next(plan.warmup_prompts), warmup=True, unit=0)
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
        broken: dict[str, list[str]] = {b.bucket: [] for b in live}
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
                unit = asked[plan.bucket]
                t = self._ask(asker, plan, next(plan.prompts), warmup=False, unit=unit)
                asked[plan.bucket] += 1
                self._remember(plan, "measured")
                if asker.hung is not None:
                    raise HungError(asker.hung)
                if unit < _STOP_AFTER_FAILURES and not t.ok:
                    broken[plan.bucket].append(t.error or "")
                    if len(broken[plan.bucket]) == _STOP_AFTER_FAILURES:
                        self._sink.problem(
                            plan.bucket,
                            f"the first {_STOP_AFTER_FAILURES} measured requests all failed: "
                            f"{t.error}",
                        )
                        live.remove(plan)
        return "requests" if spent else "decided"

    def _ask(
        self, asker: Asker, plan: BucketPlan, prompt: Prompt, *, warmup: bool, unit: int
    ) -> Timeline:
        ask = Ask(
            prompt=prompt.text,
            max_new_tokens=plan.max_new_tokens,
            sampling=plan.sampling,
            system=prompt.system,
            force_length=plan.force_length,
        )
        blank = Timeline(
            id=self._next_id(),
            bucket=plan.bucket,
            start_ns=0,
            end_ns=0,
            prompt_tokens=prompt.tokens,
            max_new_tokens=plan.max_new_tokens,
            warmup=warmup,
            unit=unit,
            attempt=plan.attempt,
            sampling=dict(plan.sampling),
            gate=plan.gate,
            purpose=plan.purpose,
            prompt=prompt.text,
        )
        self._sink.started(
            {
                "id": blank.id,
                "bucket": blank.bucket,
                "unit": unit,
                "prompt_tokens": prompt.tokens,
                "max_new_tokens": plan.max_new_tokens,
                "start_ns": self._target.clock(),
                "warmup": warmup,
                "attempt": plan.attempt,
                "gate": plan.gate,
                "purpose": plan.purpose,
            }
        )
        return self._sink.finished(asker.ask(ask, blank))

    def _remember(self, plan: BucketPlan, phase: str) -> None:
        try:
            memory = self._target.memory()
        except Exception as e:  # a probe that fails is an unknown figure, not a failed request
            memory = {"problem": say(e)}
        self._sink.resources(plan.bucket, phase, memory)

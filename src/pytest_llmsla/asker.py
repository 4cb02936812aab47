"""Ask a target once: in a worker thread, under deadlines, every failure a result.

A deadline cancels a generation at its next token; one that never returns makes the target
unusable. Nothing a target does or returns may raise here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from .errors import GenerationAborted, TargetError
from .targets.base import Answer, Ask, Recorder, Target, Timeouts
from .targets.recording import answered, as_ns, failed, say
from .targets.recording import late as too_late
from .timeline import Timeline

__all__ = ["Asker", "HungError", "Timeouts", "say"]

_CONNECTING_S = 60.0  # more than any target may take to connect before its deadlines begin


class HungError(TargetError):
    """A generation did not stop after its deadline; the target cannot be used any more."""


class Asker:
    """One worker thread that runs generations for as long as the context is open."""

    def __init__(self, target: Target, timeouts: Timeouts) -> None:
        self._target = target
        self._timeouts = timeouts
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._own_deadlines = bool(getattr(target, "keeps_deadlines", False))
        self._record: Recorder | None = None
        self._ended_because: str | None = None
        self.hung: str | None = None

    def cancel(self, reason: str) -> None:
        """End the generation that runs, if one does, as an error; from another thread."""
        self._ended_because = reason
        record = self._record
        if record is not None:
            record.cancel()

    def _limits(self) -> Timeouts:
        """A target that keeps the deadlines itself is only watched for not doing so."""
        limits = self._timeouts
        if not self._own_deadlines:
            return limits
        whole = limits.total_s + _CONNECTING_S
        return replace(limits, first_token_s=whole, idle_s=whole, total_s=whole)

    def __enter__(self) -> Asker:
        self._thread = threading.Thread(target=self._work, name="llmsla-target", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        if self._thread is not None and self.hung is None:
            self._thread.join(timeout=self._timeouts.grace_s)

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
        record = self._record = Recorder(self._target.clock)
        if self._ended_because is not None:
            record.cancel()
        done = threading.Event()
        box: list[Answer | BaseException] = []

        def job() -> None:
            try:
                record.start()
                box.append(self._target.generate(ask, record))
            except BaseException as e:  # a model may raise anything; it becomes a result
                box.append(e)
            try:
                record.end_ns = record.clock()
            except BaseException as e:
                box[:] = [e]
            done.set()

        self._jobs.put(job)
        late = self._wait(record, done)
        if late is not None and not done.is_set():
            self.hung = (
                f"{late}; it did not stop within {self._timeouts.grace_s:g} s of being told to, so "
                "the target cannot be used any more"
            )
            return failed(blank, record, self.hung)
        outcome = box[0]
        if isinstance(outcome, BaseException):
            reason = say(outcome)
            if isinstance(outcome, GenerationAborted):
                reason = late or self._ended_because or reason
            return failed(blank, record, reason)
        try:
            t = answered(blank, record, outcome)
            if not self._own_deadlines:
                late = late or too_late(t, as_ns(record.end_ns), self._timeouts)
        except TargetError as e:
            return failed(blank, record, str(e))
        return t if late is None else replace(t, status="error", error=late)

    def _wait(self, record: Recorder, done: threading.Event) -> str | None:
        """Wait for the end or a deadline (real time); the deadline's words, or None."""
        began = time.monotonic()
        seen, since = 0, began
        limits = self._limits()
        # Arrivals wake nobody (that would cost the generation time), so they are looked for.
        step = min(1.0, limits.first_token_s / 10, limits.idle_s / 10)
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
                if done.wait(min(left, step)):
                    return None
        except BaseException:
            record.cancel()
            done.wait(self._timeouts.grace_s)
            raise
        record.cancel()
        done.wait(self._timeouts.grace_s)
        if now - began >= limits.total_s:
            return f"timed out: not complete after {limits.total_s:g} s (timeouts.total_s)"
        if seen:
            return f"timed out: no further token for {limits.idle_s:g} s (timeouts.idle_s)"
        return (
            f"timed out: no first token after {limits.first_token_s:g} s (timeouts.first_token_s)"
        )

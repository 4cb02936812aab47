"""Ask a target once: in a worker thread, under deadlines, every failure a result.

A deadline cancels a generation at its next token; one that never returns makes the target
unusable. Nothing a target does or returns may raise here.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, get_args

from .errors import GenerationAborted, TargetError
from .targets.base import Answer, Ask, Recorder, Target
from .timeline import NS_PER_S, Timeline, TokenSource

_MAX_ERROR_CHARS = 500
_SOURCES = (None, *get_args(TokenSource))


@dataclass(frozen=True)
class Timeouts:
    """Seconds; ``first_token_s`` and ``idle_s`` bound silence, ``total_s`` the whole request.

    ``grace_s`` is how long a generation that was told to stop may take to do so.
    """

    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 300.0
    grace_s: float = 5.0


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
        record = Recorder(self._target.clock)
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
            return _failed(blank, record, self.hung)
        outcome = box[0]
        if isinstance(outcome, BaseException):
            reason = late if isinstance(outcome, GenerationAborted) and late else say(outcome)
            return _failed(blank, record, reason)
        try:
            t = _answered(blank, record, outcome)
            late = late or self._late(t, _ns(record.end_ns))
        except TargetError as e:
            return _failed(blank, record, str(e))
        return t if late is None else replace(t, status="error", error=late)

    def _wait(self, record: Recorder, done: threading.Event) -> str | None:
        """Wait for the end or a deadline (real time); the deadline's words, or None."""
        began = time.monotonic()
        seen, since = 0, began
        limits = self._timeouts
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

    def _late(self, t: Timeline, returned_ns: int) -> str | None:
        """The same deadlines on the target's own clock, for answers that came all the same."""
        limits = self._timeouts
        end = max(returned_ns, t.end_ns)
        if t.arrivals and t.arrivals[0][0] - t.start_ns > limits.first_token_s * NS_PER_S:
            return (
                f"timed out: the first token took longer than {limits.first_token_s:g} s "
                "(timeouts.first_token_s)"
            )
        ends = [*(at for at, _ in t.arrivals[1:]), end]
        for (before, _), after in zip(t.arrivals, ends, strict=False):
            if after - before > limits.idle_s * NS_PER_S:
                return (
                    f"timed out: no further token for {limits.idle_s:g} s (timeouts.idle_s), "
                    "though one came later"
                )
        if end - t.start_ns > limits.total_s * NS_PER_S:
            return f"timed out: took longer than {limits.total_s:g} s (timeouts.total_s)"
        return None


def say(e: BaseException) -> str:
    """An exception as one line: its type and message, cut to a readable length."""
    name = type(e).__name__
    try:
        text = " ".join(str(e).split())
    except Exception:  # its __str__ is broken too
        text = "(its message cannot be shown)"
    line = f"{name}: {text}" if text else name
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


def _failed(blank: Timeline, record: Recorder, reason: str) -> Timeline:
    """What arrived before the failure is kept, unless its times are no times."""
    try:
        start, arrivals = _ns(record.start_ns or 0), _arrivals(record)
        end = max(start, _ns(record.end_ns or 0), *(at for at, _ in arrivals))
        stages = _stages(record)
    except TargetError:
        start = end = 0
        arrivals, stages = (), {}
    return replace(
        blank,
        start_ns=start,
        end_ns=end,
        arrivals=arrivals,
        stages=stages,
        status="error",
        error=reason,
    )


def _answered(blank: Timeline, record: Recorder, answer: object) -> Timeline:
    """The timeline of an answer.

    Raises:
        TargetError: the target gave something that is no answer, no time or no count.
    """
    if not isinstance(answer, Answer):
        raise TargetError(f"generate() returned {type(answer).__name__}; valid: an Answer")
    if answer.token_source not in _SOURCES:
        raise TargetError(f"token_source is {answer.token_source!r:.60}; valid: {_SOURCES}")
    arrivals = _arrivals(record)
    return replace(
        blank,
        start_ns=_ns(record.start_ns),
        end_ns=arrivals[-1][0] if arrivals else _ns(record.end_ns),
        arrivals=arrivals,
        prompt_tokens=_count(answer.prompt_tokens, "prompt_tokens"),
        output_tokens=_count(answer.output_tokens, "output_tokens"),
        token_source=answer.token_source,
        finish_reason=_words(answer.finish_reason),
        cached_tokens=_count(answer.cached_tokens, "cached_tokens"),
        stages=_stages(record),
        notes=tuple(str(note) for note in answer.notes),
        text=_words(answer.text),
    )


def _arrivals(record: Recorder) -> tuple[tuple[int, int], ...]:
    return tuple((_ns(at), _count(k, "tokens of an arrival") or 0) for at, k in record.arrivals)


def _stages(record: Recorder) -> dict[str, int]:
    return {str(name): _ns(ns) for name, ns in record.stages.items()}


def _ns(value: object) -> int:
    """A time of the target's clock."""
    found = _index(value)
    if found is None:
        raise TargetError(
            f"the target's clock gave {value!r:.60}; valid: whole nanoseconds that only go up"
        )
    return found


def _count(value: object, name: str) -> int | None:
    if value is None:
        return None
    found = _index(value)
    if found is None or found < 0:
        raise TargetError(f"{name} is {value!r:.60}; valid: a whole number from 0, or None")
    return found


def _index(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        found = operator.index(value)
    except TypeError:
        return None
    return found if abs(found) < 2**63 else None


def _words(value: object) -> str | None:
    return None if value is None else str(value)

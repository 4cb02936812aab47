"""The timeline of one request, made of what a recorder saw and a target returned.

Nothing here raises for what a target does: a value that is none is a failed request.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, get_args

from ..errors import TargetError
from ..timeline import NS_PER_S, Arrivals, Stamp, Timeline, TokenSource
from .base import Answer, Clock, Recorder, Timeouts

_MAX_ERROR_CHARS = 500
_SOURCES = (None, *get_args(TokenSource))
_STAMPS = get_args(Stamp)


def say(e: BaseException) -> str:
    """An exception as one line: its type and message, cut to a readable length."""
    name = type(e).__name__
    try:
        text = " ".join(str(e).split())
    except Exception:  # its __str__ is broken too
        text = "(its message cannot be shown)"
    line = f"{name}: {text}" if text else name
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


def failed(blank: Timeline, record: Recorder, reason: str) -> Timeline:
    """What arrived before the failure is kept, unless its times are no times."""
    try:
        start, arrivals = as_ns(record.start_ns or 0), _arrivals(record)
        end = max(start, as_ns(record.end_ns or 0), *(at for at, _ in arrivals))
        stages = _stages(record)
    except TargetError:
        start = end = 0
        arrivals, stages = Arrivals(), {}
    return replace(
        blank,
        start_ns=start,
        end_ns=end,
        arrivals=arrivals,
        stages={**blank.stages, **stages},
        status="error",
        error=reason,
        **_measured(record),
    )


def _measured(record: Recorder) -> dict[str, Any]:
    """How the request was stamped, and what the client knows of itself."""
    return {
        "stamp": record.stamp if record.stamp in _STAMPS else "host",
        "retries": record.retries,
        "merged": record.merged,
        "lag_ns": record.lag_ns,
    }


def never_sent(blank: Timeline, clock: Clock, reason: str) -> Timeline:
    """A request that failed before anything was sent."""
    record = Recorder(clock)
    record.start()
    record.end_ns = record.start_ns
    return failed(blank, record, reason)


def answered(blank: Timeline, record: Recorder, answer: object) -> Timeline:
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
        start_ns=as_ns(record.start_ns),
        end_ns=arrivals[-1][0] if arrivals else as_ns(record.end_ns),
        arrivals=arrivals,
        prompt_tokens=_count(answer.prompt_tokens, "prompt_tokens"),
        output_tokens=_count(answer.output_tokens, "output_tokens"),
        token_source=answer.token_source,
        finish_reason=_words(answer.finish_reason),
        cached_tokens=_count(answer.cached_tokens, "cached_tokens"),
        stages={**blank.stages, **_stages(record)},
        notes=tuple(str(note) for note in answer.notes),
        text=_words(answer.text),
        estimated=_words(answer.estimated),
        first_visible_ns=None
        if answer.first_visible_ns is None
        else as_ns(answer.first_visible_ns),
        server_ms=dict(answer.server_ms),
        **_measured(record),
    )


def _arrivals(record: Recorder) -> Arrivals:
    return Arrivals(
        [(as_ns(at), _count(k, "tokens of an arrival") or 0) for at, k in record.arrivals]
    )


def _stages(record: Recorder) -> dict[str, int]:
    return {str(name): as_ns(ns) for name, ns in record.stages.items()}


def as_ns(value: object) -> int:
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


def late(t: Timeline, returned_ns: int, limits: Timeouts) -> str | None:
    """Which deadline an answer broke on the target's own clock, though it came; None: none."""
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

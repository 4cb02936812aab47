"""One request as lines: a timeline to its ``request`` line and back, and a ``start`` left alone.

Reading trusts nothing: a field that is missing, of another type, or at odds with another field
is refused, because evidence that cannot be understood cannot pass. Keys that are unknown are
left alone; a key that stands twice is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, get_args

from ..timeline import PEAK, Arrivals, Stamp, Timeline, TokenSource
from .values import (
    LARGEST,
    count_or_none,
    flag,
    identifier,
    listed,
    mapping,
    one_of,
    text,
    text_or_none,
    times_ms,
    whole,
    whole_or_none,
)

_SOURCES = get_args(TokenSource)
_STAMPS = get_args(Stamp)
PURPOSES = (None, PEAK)
"""What a request, or a reading beside it, may be for."""
_SELDOM = ("estimated", "retries", "merged")
"""Fields that are written only when they say something."""

IN_FLIGHT = "no answer on record: the run ended while this request was in flight"


def to_line(t: Timeline, *, keep_text: bool = False, origin_ns: int = 0) -> dict[str, Any]:
    """The ``request`` line of a timeline, times relative to ``origin_ns``."""
    out: dict[str, Any] = {
        "type": "request",
        "id": t.id,
        "bucket": t.bucket,
        "unit": t.unit,
        "prompt_tokens": t.prompt_tokens,
        "max_new_tokens": t.max_new_tokens,
        "scheduled_ns": None if t.scheduled_ns is None else t.scheduled_ns - origin_ns,
        "start_ns": t.start_ns - origin_ns,
        "arrivals": [[at - origin_ns, k] for at, k in t.arrivals],
        "end_ns": t.end_ns - origin_ns,
        "output_tokens": t.output_tokens,
        "token_source": t.token_source,
        "finish_reason": t.finish_reason,
        "status": t.status,
        "error": t.error,
        "warmup": t.warmup,
        "concurrency": t.concurrency,
        "block": t.block,
        "attempt": t.attempt,
        "segment": t.segment,
        "stages": {f"{name}_ns": ns for name, ns in t.stages.items()},
        "sampling": dict(t.sampling),
        "cached_tokens": t.cached_tokens,
        "stamp": t.stamp,
    }
    if t.gate is not None:
        out["gate"] = t.gate
    if t.purpose is not None:
        out["purpose"] = t.purpose
    for name in _SELDOM:
        value = getattr(t, name)
        if value:
            out[name] = value
    if t.first_visible_ns is not None:
        out["first_visible_ns"] = t.first_visible_ns - origin_ns
    if t.lag_ns is not None:
        out["lag_ns"] = t.lag_ns
    if t.late_ns is not None:
        out["late_ns"] = t.late_ns
    if t.server_ms:
        out["server_ms"] = dict(t.server_ms)
    if t.notes:
        out["notes"] = list(t.notes)
    if keep_text:
        out["text"], out["prompt"] = t.text, t.prompt
    return out


def from_line(line: Mapping[str, Any], segment: int = 0) -> Timeline:
    """A timeline from its ``request`` line; ``segment`` is the one it stands in.

    Raises:
        KeyError, TypeError, ValueError: the line lacks a field, holds one of another type, or
            contradicts itself.
    """
    status = one_of(line["status"], ("ok", "error"), "status")
    error = text_or_none(line, "error")
    if status == "ok" and error is not None:
        raise ValueError(f"status is 'ok' beside the error {error!r:.80}")
    arrivals = _arrivals(line["arrivals"])
    stages = mapping(line, "stages")
    return Timeline(
        id=identifier(line),
        bucket=text(line["bucket"], "bucket"),
        start_ns=whole(line["start_ns"], "start_ns"),
        end_ns=whole(line["end_ns"], "end_ns"),
        arrivals=arrivals,
        prompt_tokens=count_or_none(line, "prompt_tokens"),
        output_tokens=count_or_none(line, "output_tokens"),
        max_new_tokens=whole(line["max_new_tokens"], "max_new_tokens", least=0),
        token_source=one_of(line.get("token_source"), (None, *_SOURCES), "token_source"),
        finish_reason=text_or_none(line, "finish_reason"),
        status=status,
        error=error,
        segment=whole(line.get("segment", segment), "segment", least=0),
        stages={
            name.removesuffix("_ns"): whole(ns, f"stages.{name}") for name, ns in stages.items()
        },
        cached_tokens=count_or_none(line, "cached_tokens"),
        stamp=one_of(line.get("stamp", "host"), _STAMPS, "stamp"),
        estimated=text_or_none(line, "estimated"),
        first_visible_ns=whole_or_none(line, "first_visible_ns"),
        retries=whole(line.get("retries", 0), "retries", least=0),
        merged=whole(line.get("merged", 0), "merged", least=0),
        lag_ns=count_or_none(line, "lag_ns"),
        late_ns=count_or_none(line, "late_ns"),
        server_ms=times_ms(line, "server_ms"),
        notes=tuple(text(n, "notes") for n in listed(line.get("notes") or [], "notes")),
        text=text_or_none(line, "text"),
        prompt=text_or_none(line, "prompt"),
        **_identity(line),
    )


def _arrivals(given: object) -> Arrivals:
    pairs = listed(given, "arrivals")
    # A glance at all of them; one by one, and with words, only where something is wrong.
    if set(map(type, pairs)) <= {list} and set(map(len, pairs)) <= {2}:
        flat = list(chain.from_iterable(pairs))
        if set(map(type, flat)) <= {int} and (not flat or _fits(flat[0::2], flat[1::2])):
            return Arrivals(pairs)
    return Arrivals(
        [(whole(at, "arrivals time"), whole(k, "arrivals tokens", least=0)) for at, k in pairs]
    )


def _fits(times: list[int], tokens: list[int]) -> bool:
    return (
        min(times) >= -LARGEST
        and max(times) <= LARGEST
        and 0 <= min(tokens) <= max(tokens) <= LARGEST
    )


def lost(start: Mapping[str, Any], segment: int) -> Timeline:
    """The failed request that a ``start`` line without an answer amounts to.

    Raises:
        KeyError, TypeError, ValueError: as :func:`from_line`.
    """
    at = whole(start.get("start_ns", 0), "start_ns")
    return Timeline(
        id=identifier(start),
        bucket=text(start["bucket"], "bucket"),
        start_ns=at,
        end_ns=at,
        prompt_tokens=count_or_none(start, "prompt_tokens"),
        max_new_tokens=whole(start.get("max_new_tokens", 0), "max_new_tokens", least=0),
        status="error",
        error=IN_FLIGHT,
        segment=whole(start.get("segment", segment), "segment", least=0),
        **_identity(start),
    )


def was_lost(t: Timeline) -> bool:
    """Whether ``t`` is a :func:`lost` one: when it ended is not known."""
    return t.error == IN_FLIGHT and t.end_ns == t.start_ns and not t.arrivals


def _identity(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``start`` line and its ``request`` line have in common, checked."""
    return {
        "warmup": flag(line, "warmup"),
        "unit": whole(line.get("unit", 0), "unit", least=0),
        "scheduled_ns": whole_or_none(line, "scheduled_ns"),
        "concurrency": whole(line.get("concurrency", 1), "concurrency", least=1),
        "block": whole(line.get("block", 1), "block", least=1),
        "attempt": whole(line.get("attempt", 1), "attempt", least=1),
        "gate": text_or_none(line, "gate"),
        "purpose": one_of(line.get("purpose"), PURPOSES, "purpose"),
        "sampling": dict(mapping(line, "sampling")),
    }


_SAME = (
    "bucket",
    "warmup",
    "unit",
    "scheduled_ns",
    "concurrency",
    "block",
    "attempt",
    "gate",
    "purpose",
    "max_new_tokens",
)


def disagreement(start: Mapping[str, Any], request: Timeline) -> str | None:
    """Where a request says otherwise than its ``start`` line, in words; None: they agree.

    A ``start`` line need only hold its id and bucket; what it does not say is not compared.
    """
    for name in _SAME:
        was, now = start.get(name), getattr(request, name)
        if name in start and was != now:
            return f"request {request.id!r} began with {name} {was!r} and ended with {now!r}"
    return None

"""One line of timelines.jsonl: a timeline written as a ``request`` line, and every type checked.

Reading trusts nothing: a field that is missing, of another type, or at odds with another field
is refused, because evidence that cannot be understood cannot pass. Keys that are unknown are
left alone; a key that stands twice is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from .timeline import PEAK, Stamp, Timeline, TokenSource

_LARGEST = 2**63 - 1
"""Times and counts fit 64 bits with sign; larger ones are damage and overflow a float."""
_SOURCES = get_args(TokenSource)
_STAMPS = get_args(Stamp)
_PURPOSES = (None, PEAK)

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
    status = _one_of(line["status"], ("ok", "error"), "status")
    error = _text_or_none(line, "error")
    if status == "ok" and error is not None:
        raise ValueError(f"status is 'ok' beside the error {error!r:.80}")
    arrivals = tuple(
        (whole(at, "arrivals time"), whole(k, "arrivals tokens", least=0))
        for at, k in _list(line["arrivals"], "arrivals")
    )
    stages = _mapping(line, "stages")
    return Timeline(
        id=_id(line),
        bucket=_text(line["bucket"], "bucket"),
        start_ns=whole(line["start_ns"], "start_ns"),
        end_ns=whole(line["end_ns"], "end_ns"),
        arrivals=arrivals,
        prompt_tokens=_count_or_none(line, "prompt_tokens"),
        output_tokens=_count_or_none(line, "output_tokens"),
        max_new_tokens=whole(line["max_new_tokens"], "max_new_tokens", least=0),
        token_source=_one_of(line.get("token_source"), (None, *_SOURCES), "token_source"),
        finish_reason=_text_or_none(line, "finish_reason"),
        status=status,
        error=error,
        scheduled_ns=None
        if line.get("scheduled_ns") is None
        else whole(line["scheduled_ns"], "scheduled_ns"),
        concurrency=whole(line.get("concurrency", 1), "concurrency", least=1),
        segment=whole(line.get("segment", segment), "segment", least=0),
        stages={
            name.removesuffix("_ns"): whole(ns, f"stages.{name}") for name, ns in stages.items()
        },
        cached_tokens=_count_or_none(line, "cached_tokens"),
        stamp=_one_of(line.get("stamp", "host"), _STAMPS, "stamp"),
        notes=tuple(_text(n, "notes") for n in _list(line.get("notes") or [], "notes")),
        text=_text_or_none(line, "text"),
        prompt=_text_or_none(line, "prompt"),
        **_identity(line),
    )


def lost(start: Mapping[str, Any], segment: int) -> Timeline:
    """The failed request that a ``start`` line without an answer amounts to.

    Raises:
        KeyError, TypeError, ValueError: as :func:`from_line`.
    """
    at = whole(start.get("start_ns", 0), "start_ns")
    return Timeline(
        id=_id(start),
        bucket=_text(start["bucket"], "bucket"),
        start_ns=at,
        end_ns=at,
        prompt_tokens=_count_or_none(start, "prompt_tokens"),
        max_new_tokens=whole(start.get("max_new_tokens", 0), "max_new_tokens", least=0),
        status="error",
        error=IN_FLIGHT,
        segment=whole(start.get("segment", segment), "segment", least=0),
        **_identity(start),
    )


def _identity(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``start`` line and its ``request`` line have in common, checked."""
    return {
        "warmup": _flag(line, "warmup"),
        "unit": whole(line.get("unit", 0), "unit", least=0),
        "attempt": whole(line.get("attempt", 1), "attempt", least=1),
        "gate": _text_or_none(line, "gate"),
        "purpose": _one_of(line.get("purpose"), _PURPOSES, "purpose"),
        "sampling": dict(_mapping(line, "sampling")),
    }


_SAME = ("bucket", "warmup", "unit", "attempt", "gate", "purpose", "max_new_tokens")


def disagreement(start: Mapping[str, Any], request: Timeline) -> str | None:
    """Where a request says otherwise than its ``start`` line, in words; None: they agree.

    A ``start`` line need only hold its id and bucket; what it does not say is not compared.
    """
    for name in _SAME:
        was, now = start.get(name), getattr(request, name)
        if name in start and was != now:
            return f"request {request.id!r} began with {name} {was!r} and ended with {now!r}"
    return None


# -- the other types of line


def check_run(line: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError where a ``run`` line cannot be used."""
    for name in ("host", "sources", "target"):
        _mapping(line, name)


def check_other(kind: str, line: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError where a line of another type cannot be used."""
    if kind != "gate":
        _text_or_none(line, "gate")
    _CHECKS[kind](line)


def _check_gate(line: Mapping[str, Any]) -> None:
    if not _text(line["gate"], "gate"):
        raise ValueError("gate is empty; valid: a test's node id")
    _mapping(line, "sources")


def _check_target(line: Mapping[str, Any]) -> None:
    whole(line.get("template_tokens") or 0, "template_tokens", least=0)
    _list(line.get("warnings") or [], "warnings")


def _check_resources(line: Mapping[str, Any]) -> None:
    _text_or_none(line, "bucket")
    _one_of(line.get("purpose"), _PURPOSES, "purpose")
    _mapping(line, "memory")


def _check_tgs(line: Mapping[str, Any]) -> None:
    _text(line["id"], "id")
    value = line["value"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < _LARGEST:
        raise ValueError(f"value is {value!r}; valid: a finite rate above 0, tokens/s")


def _check_problem(line: Mapping[str, Any]) -> None:
    _text_or_none(line, "bucket")
    _text(line["reason"], "reason")


def _check_end(line: Mapping[str, Any]) -> None:
    _text(line["reason"], "reason")
    for note in _list(line.get("prompt_notes") or [], "prompt_notes"):
        _text(note, "prompt_notes")
    for each in _list(line.get("measuring") or [], "measuring"):
        if not isinstance(each, Mapping):
            raise TypeError(f"measuring holds {each!r:.40}; valid: objects of gate and reason")
        _text_or_none(each, "gate")
        _text(each["reason"], "measuring reason")


def _check_outcomes(line: Mapping[str, Any]) -> None:
    said = line["outcomes"]
    if not isinstance(said, Mapping):
        raise TypeError(f"outcomes is {said!r:.40}; valid: an object by limit")
    for name, each in said.items():
        if not isinstance(each, Mapping):
            raise TypeError(f"outcome of {name!r:.80} is {each!r:.40}; valid: an object")
        _text(each["status"], "status")
        _text(each.get("reason") or "", "reason")
        whole(each.get("reruns", 0), "reruns", least=0)
    for pair in _list(line.get("missing") or [], "missing"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise TypeError(f"missing holds {pair!r:.40}; valid: pairs of what and why")
        _text(pair[0], "missing"), _text(pair[1], "missing")
    _flag(line, "signoff")


def _check_segment(line: Mapping[str, Any]) -> None:
    if "segment" in line:
        whole(line["segment"], "segment", least=0)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "gate": _check_gate,
    "target": _check_target,
    "resources": _check_resources,
    "tgs": _check_tgs,
    "problem": _check_problem,
    "segment": _check_segment,
    "end": _check_end,
    "outcomes": _check_outcomes,
}
OTHER_TYPES = tuple(_CHECKS)
"""Types of line besides ``run``, ``start`` and ``request``."""


# -- values


def whole(value: object, name: str, *, least: int = -_LARGEST) -> int:
    """``value`` as a whole number from ``least``, within 64 bits.

    Raises:
        TypeError: it is none (a boolean and 1.0 are none).
        ValueError: it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r:.80}; valid: a whole number")
    if not least <= value <= _LARGEST:
        bound = "a whole number of at most 64 bits" if abs(value) > _LARGEST else f"from {least}"
        raise ValueError(f"{name} is out of range; valid: {bound}")
    return value


def _count_or_none(line: Mapping[str, Any], name: str) -> int | None:
    value = line.get(name)
    return None if value is None else whole(value, name, least=0)


def _flag(line: Mapping[str, Any], name: str) -> bool:
    value = line.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.80}; valid: true, false")
    return value


def _id(line: Mapping[str, Any]) -> str:
    found = _text(line["id"], "id")
    if not found:
        raise ValueError("id is empty; valid: text, another for every request")
    return found


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.80}; valid: text")
    return value


def _text_or_none(line: Mapping[str, Any], name: str) -> str | None:
    value = line.get(name)
    return None if value is None else _text(value, name)


def _one_of(value: object, valid: tuple[Any, ...], name: str) -> Any:
    if not (value is None or isinstance(value, str)) or value not in valid:
        words = ", ".join("null" if v is None else repr(v) for v in valid)
        raise ValueError(f"{name} is {value!r:.80}; valid: {words}")
    return value


def _mapping(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = line.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.80}; valid: an object")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r:.80}; valid: a list")
    return value


# -- JSON


def parse(data: bytes) -> object:
    """One line of strict JSON: no NaN, no infinity, no number over 64 bits, no key twice.

    Raises:
        ValueError: it is not.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            parse_int=_int64,
            parse_float=_finite,
            object_pairs_hook=_no_key_twice,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number here")


def _int64(text: str) -> int:
    if len(text) > len(str(-_LARGEST)) or abs(value := int(text)) > _LARGEST:
        raise ValueError(f"{text[:20]}… is over 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return out


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: what it cannot (an object, NaN, ∞) becomes its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value)

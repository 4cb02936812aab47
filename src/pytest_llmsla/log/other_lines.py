"""Lines of every type but a request's own, checked: one that cannot be used is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from ..finding import Verdict
from .request_lines import PURPOSES
from .values import (
    LARGEST,
    flag,
    listed,
    mapping,
    one_of,
    text,
    text_or_none,
    whole,
)

_VERDICTS = get_args(Verdict)


def check_run(line: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError where a ``run`` line cannot be used."""
    for name in ("host", "sources", "target", "inputs"):
        mapping(line, name)


def check_other(kind: str, line: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError where a line of another type cannot be used."""
    if kind != "gate":
        text_or_none(line, "gate")
    _CHECKS[kind](line)


def _check_gate(line: Mapping[str, Any]) -> None:
    if not text(line["gate"], "gate"):
        raise ValueError("gate is empty; valid: a test's node id")
    mapping(line, "sources")
    mapping(line, "inputs")


def _check_target(line: Mapping[str, Any]) -> None:
    whole(line.get("template_tokens") or 0, "template_tokens", least=0)
    listed(line.get("warnings") or [], "warnings")


def _check_resources(line: Mapping[str, Any]) -> None:
    text_or_none(line, "bucket")
    one_of(line.get("purpose"), PURPOSES, "purpose")
    mapping(line, "memory")
    if "concurrency" in line:
        _level_or_none(line)
    whole(line.get("answered", 0), "answered", least=0)
    if line.get("phase") == "sample" or "columns" in line:
        _check_columns(mapping(line, "columns"))
        mapping(line, "reasons"), mapping(line, "about")


def _check_columns(columns: Mapping[str, Any]) -> None:
    """A time series: ``t_ns`` and figures, lists of one length."""
    times = listed(columns["t_ns"], "columns.t_ns")
    for at in times:
        whole(at, "columns.t_ns")
    for name, values in columns.items():
        if len(listed(values, f"columns.{name}")) != len(times):
            raise ValueError(
                f"columns.{name} has {len(values)} values for {len(times)} times; valid: one each"
            )
        for value in values:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not number:
                raise TypeError(f"columns.{name} holds {value!r:.40}; valid: numbers and null")


def _check_level(line: Mapping[str, Any]) -> None:
    _level_or_none(line)
    whole(line["t_ns"], "t_ns")
    mapping(line, "asked")
    text_or_none(line, "mode")
    if "segment" in line:
        whole(line["segment"], "segment", least=0)


def _level_or_none(line: Mapping[str, Any]) -> int | None:
    """Requests in flight; null: open loop."""
    value = line["concurrency"]
    return None if value is None else whole(value, "concurrency", least=1)


def _check_tgs(line: Mapping[str, Any]) -> None:
    text(line["id"], "id")
    value = line["value"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < LARGEST:
        raise ValueError(f"value is {value!r}; valid: a finite rate above 0, tokens/s")


def _check_problem(line: Mapping[str, Any]) -> None:
    text_or_none(line, "bucket")
    text(line["reason"], "reason")
    if "concurrency" in line:
        _level_or_none(line)


def _check_server(line: Mapping[str, Any]) -> None:
    mapping(line, "server")


def _check_resume(line: Mapping[str, Any]) -> None:
    text(line["from"], "from")
    text(line["sha256"], "sha256")
    whole(line.get("requests", 0), "requests", least=0)
    text_or_none(line, "utc")
    mapping(line, "host")


def _check_end(line: Mapping[str, Any]) -> None:
    text(line["reason"], "reason")
    flag(line, "outcomes_follow")
    for note in listed(line.get("prompt_notes") or [], "prompt_notes"):
        text(note, "prompt_notes")
    for each in listed(line.get("measuring") or [], "measuring"):
        if not isinstance(each, Mapping):
            raise TypeError(f"measuring holds {each!r:.40}; valid: objects of gate and reason")
        text_or_none(each, "gate")
        text(each["reason"], "measuring reason")
        if "concurrency" in each:
            _level_or_none(each)
    for section in [] if line.get("lines") is None else listed(line["lines"], "lines"):
        if not isinstance(section, Mapping):
            raise TypeError(f"lines holds {section!r:.40}; valid: an object of counts by type")
        for kind, count in section.items():
            whole(count, f"lines of {kind}", least=1)


def _check_outcomes(line: Mapping[str, Any]) -> None:
    said = line["outcomes"]
    if not isinstance(said, Mapping):
        raise TypeError(f"outcomes is {said!r:.40}; valid: an object by limit")
    for name, each in said.items():
        if not isinstance(each, Mapping):
            raise TypeError(f"outcome of {name!r:.80} is {each!r:.40}; valid: an object")
        text(each["status"], "status")
        text(each.get("reason") or "", "reason")
        whole(each.get("reruns", 0), "reruns", least=0)
    for pair in listed(line.get("missing") or [], "missing"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise TypeError(f"missing holds {pair!r:.40}; valid: pairs of what and why")
        text(pair[0], "missing"), text(pair[1], "missing")
    flag(line, "signoff")
    compared = mapping(line, "compared")
    if compared:
        one_of(text(compared["verdict"], "compared verdict"), _VERDICTS, "compared verdict")
        text(compared["reason"], "compared reason")


def _check_segment(line: Mapping[str, Any]) -> None:
    if "segment" in line:
        whole(line["segment"], "segment", least=0)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "gate": _check_gate,
    "target": _check_target,
    "level": _check_level,
    "resources": _check_resources,
    "server": _check_server,
    "tgs": _check_tgs,
    "problem": _check_problem,
    "segment": _check_segment,
    "resume": _check_resume,
    "end": _check_end,
    "outcomes": _check_outcomes,
}
OTHER_TYPES = tuple(_CHECKS)
"""Types of line besides ``run``, ``start`` and ``request``."""

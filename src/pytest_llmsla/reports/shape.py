"""Whether a stored report has the types of its schema and says of itself what its findings say.

A report.json may come from elsewhere, be cut, or be edited: what shows it can rely on its types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..finding import EXIT_CODES, worst
from .escape import shortened

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}

_NEEDED = {
    "finding": ("id", "rule", "metric", "unit", "verdict", "reason", "requests", "units",
                "samples", "exceeded"),
    "tgs": ("kind", "tokens_per_s", "concurrency"),
}  # fmt: skip
"""Keys that no finding and no rate is shown without."""


def misfit(report: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What is not of the type that ``schema`` gives it: ``findings[3].requests is "5", …``.

    Empty where all of it is. Of the keys only those are asked for that nothing can be shown
    without: an older version may not have written the others.
    """
    return _misfit(report, schema, schema["$defs"], "report")


def contradiction(report: Mapping[str, Any]) -> str:
    """Why a report cannot be as it was written: it says better of itself than its parts do.

    Empty where it says no better. An unknown verdict of a part counts as ``error``.
    """
    said: Any = report.get("verdict")
    if said not in EXIT_CODES:
        return ""
    parts = [(str(f["id"]), f["verdict"]) for f in report.get("findings") or ()]
    parts.append(("its baseline", (report.get("baseline") or {}).get("verdict", said)))
    for name, verdict in parts:
        if worst((said, verdict if verdict in EXIT_CODES else "error")) != said:
            return f"it says {said}, but {shortened(name)} says {shortened(verdict)}"
    if report.get("complete") is True and report.get("not_measured"):
        return "it says that it is complete, and lists limits that were not measured"
    return ""


def _misfit(value: object, schema: Mapping[str, Any], known: Mapping[str, Any], place: str) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        lacking = [k for k in _NEEDED.get(name, ()) if isinstance(value, dict) and k not in value]
        if lacking:
            return f"{place} lacks {lacking[0]!r}"
        return _misfit(value, known[name], known, place)
    if "anyOf" in schema:
        found = [_misfit(value, each, known, place) for each in schema["anyOf"]]
        return "" if "" in found else found[-1]
    if text := _wrong(value, schema.get("type")) or _no_word(value, schema.get("enum")):
        return f"{place} {text}"
    if isinstance(value, dict):
        return _misfit_inside(value, schema, known, place)
    if isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            if text := _misfit(each, schema["items"], known, f"{place}[{index}]"):
                return text
    return ""


def _misfit_inside(
    value: Mapping[str, Any], schema: Mapping[str, Any], known: Mapping[str, Any], place: str
) -> str:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, each in value.items():
        inner = properties.get(key, others)
        if isinstance(inner, Mapping):
            text = _misfit(each, inner, known, f"{place}.{shortened(key, 60)}")
            if text:
                return text
    return ""


def _wrong(value: object, wanted: str | list[str] | None) -> str:
    """``is "5", must be integer``; empty where the type is right or none is asked for."""
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if not names or any(_is(value, name) for name in names):
        return ""
    return f"is {shortened(repr(value), 60)}, must be {' or '.join(names)}"


def _no_word(value: object, words: list[object] | None) -> str:
    """What is wrong with a value that can be none of ``words``; an unknown word is no misfit."""
    if words is None or type(value) in {type(word) for word in words}:
        return ""
    return f"is {shortened(repr(value), 60)}, must be one of {', '.join(map(str, words))}"


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])

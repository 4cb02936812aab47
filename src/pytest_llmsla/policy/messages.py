"""pydantic's errors in our words: what was given, what is valid, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from .credentials import hidden
from .keys import TEXT, VALID
from .models import Policy
from .problems import Path, Problem, dig
from .target_models import TARGETS

_TTFT = "a TTFT limit always names its prompt length: give each bucket its own ttft_ms (rule 1)"
_HEADERS: Path = ("target", "headers")
_NAMED = "a memory limit names which number it is about: "


def problems_of(error: ValidationError, raw: Mapping[str, Any]) -> list[Problem]:
    """One problem for each key that pydantic refused."""
    out: dict[Path, Problem] = {}
    for e in error.errors(include_url=False, include_context=False):
        kind = e["type"]
        path, info = _locate(e["loc"], raw)
        if path in out or (kind == "value_error" and not path):
            continue  # unions give one error a branch; rules across keys are reported apart
        if kind == "too_short" and dig(raw, *path):
            continue  # older pydantic counts only the valid items of a list
        if kind == "extra_forbidden":
            out[path] = Problem(path, unknown_key(path, raw))
        elif kind == "missing":
            out[path] = Problem(path, f"missing; valid: {valid_words(info)}")
        else:
            out[path] = Problem(path, _bad_value(path, dig(raw, *path), info))
    return list(out.values())


def _locate(loc: tuple[int | str, ...], raw: Mapping[str, Any]) -> tuple[Path, FieldInfo | None]:
    """The key path of a pydantic location (without union branches), and the key's field."""
    path: Path = ()
    model: type[BaseModel] | None = Policy
    info: FieldInfo | None = None
    for step in loc:
        if isinstance(step, int):
            path = (*path, step)
        elif model is not None and step in model.model_fields:
            path, info = (*path, step), model.model_fields[step]
            model = _model_of(path, info, raw)
        elif path == ("target",) and step in TARGETS:
            model = TARGETS[step]
        elif path == _HEADERS or (model is None and step in _keys_at(raw, path)):
            path = (*path, step)
        elif model is not None and step == loc[-1]:
            return (*path, step), None
        else:
            break  # a union branch: the message is about the whole key
    return path, info


def _keys_at(raw: Mapping[str, Any], path: Path) -> Mapping[Any, Any]:
    """The mapping at ``path``, whose keys are the user's own; empty where there is none."""
    found = dig(raw, *path)
    return found if isinstance(found, Mapping) else {}


def _model_of(path: Path, info: FieldInfo, raw: Mapping[str, Any]) -> type[BaseModel] | None:
    """The group of keys below a field, if there is one."""
    if path == ("target",):
        return TARGETS.get(str(dig(raw, "target", "kind", default="transformers")))
    queue = [info.annotation]
    while queue:
        t = queue.pop()
        # Python 3.10 takes tuple[Bucket, ...] for a type, and then refuses it in issubclass.
        if get_origin(t) is None and isinstance(t, type) and issubclass(t, BaseModel):
            return t
        queue.extend(get_args(t))
    return None


def valid_words(info: FieldInfo | None) -> str:
    """What is valid for a key, in words."""
    extra = info.json_schema_extra if info is not None else None
    return str(extra[VALID]) if isinstance(extra, dict) else "a key of the reference"


def describe(value: object) -> str:
    """A given value as messages show it. Only values of known keys, none of which is a secret."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(describe(v) for v in value)
        return f"[{inner}]" if len(inner) <= 60 else f"a list of {len(value)}"
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _bad_value(path: Path, given: object, info: FieldInfo | None) -> str:
    words = valid_words(info)
    if path[0] == "buckets" and isinstance(path[-1], int):
        words = "a mapping such as {name: short, prompt_max: 128, ttft_ms: 300}"
    if path[:-1] == _HEADERS:
        words = TEXT
    if hidden(path):
        text = f"got {_sort_of(given)}; valid: {words}"
        return f"{text}. Write it in quotes." if _is_number(given) else text
    text = f"got {describe(given)}; valid: {words}"
    item = isinstance(path[-1], int) and words.startswith("a list")
    hint = "" if item else _hint(given, words)
    return f"{text}. {hint}" if hint else text


def _sort_of(given: object) -> str:
    """What a value is, without the value: it may be a credential."""
    if given is None or isinstance(given, (bool, Mapping)):
        return describe(given)
    if _is_number(given):
        return "a number"
    if isinstance(given, (list, tuple)):
        return "a list"
    return "text" if given else "empty text"


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def _hint(given: object, words: str) -> str:
    numeric = "number" in words
    if isinstance(given, str):
        if given in ("true", "false", "null") and given in words:
            return "Remove the quotes."
        close = nearest(given, _options(words))
        if close and close != given:
            return f"Did you mean {close}?"
        if numeric and re.fullmatch(r"\s*[-+]?[0-9.]+(e[-+]?[0-9]+)?\s*", given, re.I):
            return "Remove the quotes."
        unit = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s|%|gib|gb|mib|tok/s|tokens)\s*", given, re.I)
        if numeric and unit:
            return f"Write the bare number, in the unit the key names ({unit[1]} {unit[2]} given)."
    if isinstance(given, float):
        if "such as 95" in words and 0 < given < 1:
            return f"Did you mean {given * 100:g}?"
        if "whole number" in words and given.is_integer():
            return f"Write {int(given)}."
    if isinstance(given, (int, float)) and _is_number(given):
        if words.startswith("a share") and 1 <= given < 100:
            return f"Did you mean {given / 100:g}?"
        if words.startswith(("text", "the path")):
            return "Write it in quotes."
        if words.startswith("a list"):
            return f"Write [{given}]."
    return ""


def _options(words: str) -> list[str]:
    """The single words of "fast, normal or strict"."""
    return [w for w in re.split(r", | or | and ", words) if re.fullmatch(r"[\w-]+", w)]


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known word most like ``given``, if any is close."""
    names = list(known)
    lowered = {n.lower(): n for n in names}
    found = difflib.get_close_matches(given.lower(), list(lowered), n=3, cutoff=0.6)
    found.sort(key=lambda f: sorted(f) != sorted(given.lower()))  # p59 is a swapped p95, not p99
    return lowered[found[0]] if found else None


def unknown_key(path: Path, raw: Mapping[str, Any]) -> str:
    """Why a key is not accepted: it belongs elsewhere, is misspelt, or does not exist."""
    name, parent = str(path[-1]), path[:-1]
    known = known_keys(parent, raw)
    special = _special(name, parent)
    if special:
        return f"unknown key; {special}"
    close = nearest(name, known)
    owners = _kinds_with(path) if path[0] == "target" else []
    if owners:
        kind = dig(raw, "target", "kind", default="transformers")
        *more, last = owners
        listed = f"{', '.join(more)} and {last}" if more else last
        return f"belongs to target kind {listed}, not to {kind}: remove it"
    guess = f" Did you mean {close}?" if close else ""
    return f"unknown key.{guess} Valid here: {', '.join(known)}"


def _kinds_with(path: Path) -> list[str]:
    """The kinds of target that have the key at ``path``."""
    return [k for k in TARGETS if path[-1] in known_keys(path[:-1], {"target": {"kind": k}})]


def _special(name: str, parent: Path) -> str:
    if (not parent and name == "ttft_ms") or (parent == ("ttft",) and name != "percentiles"):
        return _TTFT
    if parent == ("memory",) and nearest(name, known_keys(parent, {})) is None:
        return _NAMED + ", ".join(known_keys(parent, {}))
    return ""


def known_keys(parent: Path, raw: Mapping[str, Any]) -> list[str]:
    """Keys that may stand in the group at ``parent``, this version's only."""
    model: type[BaseModel] | None = Policy
    for i, step in enumerate(parent):
        if isinstance(step, int) or model is None:
            continue
        info = model.model_fields.get(step)
        model = None if info is None else _model_of(parent[: i + 1], info, raw)
    if model is None:
        return []
    return [k for k in model.model_fields if k != "prompt_min"]

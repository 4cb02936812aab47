"""Values that the format has and this version cannot do yet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .problems import Problem, dig

_NOT_YET = "not implemented in this version"


def split_pending(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """``raw`` as plain values, pending ones at their default, and a problem for each of them."""
    out = _copied(raw)
    return out, list(_pending_values(out))


def _pending_values(out: dict[str, Any]) -> Iterator[Problem]:
    """Takes pending values out, so that the rest is checked as well."""
    if dig(out, "workload", "prompts") == "synthetic":
        out["workload"]["prompts"] = "builtin"
        yield Problem(
            ("workload", "prompts"), f"synthetic is {_NOT_YET}: use builtin, or give a file"
        )
    if dig(out, "target", "cache") == "quantized":
        out["target"]["cache"] = "dynamic"
        yield Problem(("target", "cache"), f"quantized is {_NOT_YET}: use dynamic or static")


def _copied(value: Any) -> Any:
    """Plain dicts, lists and text, as YAML would give them."""
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value

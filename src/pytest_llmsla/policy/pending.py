"""Keys that the format has and this version does not: allowed only at their default."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .checks import Path, Problem, dig, whole

NOT_YET = "not implemented in this version"
PENDING_KINDS = ("openai", "tgi", "llamacpp", "mii")

_PENDING_GROUPS: tuple[Path, ...] = (("workload", "load"), ("goodput",), ("baseline",))
# Path of a key → its default.
PENDING: Mapping[Path, Any] = {
    ("workload", "load", "kind"): "closed",
    ("workload", "load", "rate"): None,
    ("workload", "load", "burstiness"): None,
    ("workload", "load", "trace"): None,
    ("workload", "load", "workers"): "local",
    ("memory", "growth_mib_per_request"): None,
    ("goodput", "min_share"): None,
    ("baseline", "path"): None,
    ("baseline", "tolerance"): 0.10,
    ("baseline", "min_runs"): 3,
    ("target", "batching"): "continuous",
    ("target", "base_url"): None,
    ("target", "api"): "chat",
    ("target", "api_key_env"): None,
    ("target", "headers"): {},
    ("target", "extra_body"): {},
    ("target", "verify_tls"): True,
    ("target", "proxy"): None,
    ("target", "connect_in_ttft"): False,
    ("target", "metrics_url"): None,
    ("target", "retries"): 0,
    ("target", "memory_gib"): None,
    ("target", "memory_source"): None,
    ("target", "timeouts", "connect_s"): 10,
}


def split_pending(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """``raw`` without pending keys, and a problem for each that is not at its default.

    Groups that hold nothing but pending keys disappear.
    """
    problems: list[Problem] = []
    out = _copied(raw)
    their_own_kind = dig(out, "target", "kind") in PENDING_KINDS
    for path, default in PENDING.items():
        parent = dig(out, *path[:-1])
        if not isinstance(parent, dict) or path[-1] not in parent:
            continue
        value = parent.pop(path[-1])
        if not same(value, default) and not (their_own_kind and path[0] == "target"):
            words = _words(default)
            problems.append(
                Problem(path, f"{NOT_YET}: remove it" + (f" (only {words})" if words else ""))
            )
    for path in _PENDING_GROUPS:
        parent = dig(out, *path[:-1])
        if isinstance(parent, dict) and path[-1] in parent:
            left = parent.pop(path[-1])
            if isinstance(left, dict):
                known = ", ".join(str(p[-1]) for p in PENDING if p[:-1] == path)
                problems += [Problem((*path, k), f"unknown key. Valid here: {known}") for k in left]
            elif left is not None:
                problems.append(Problem(path, f"{NOT_YET}: remove it"))
    problems.extend(_pending_values(out))
    return out, problems


def _pending_values(out: dict[str, Any]) -> Iterator[Problem]:
    """Values, of keys that exist, which this version cannot do; replaced by the default."""
    if dig(out, "workload", "prompts") == "synthetic":
        out["workload"]["prompts"] = "builtin"
        yield Problem(
            ("workload", "prompts"), f"synthetic is {NOT_YET}: use builtin, or give a file"
        )
    if dig(out, "target", "cache") == "quantized":
        out["target"]["cache"] = "dynamic"
        yield Problem(("target", "cache"), f"quantized is {NOT_YET}: use dynamic or static")
    formats = dig(out, "report", "formats")
    if isinstance(formats, list) and "html" in formats:
        out["report"]["formats"] = [f for f in formats if f != "html"] or ["terminal"]
        yield Problem(("report", "formats"), f"html is {NOT_YET}: use terminal, json and markdown")
    concurrency = dig(out, "tgs", "concurrency")
    if isinstance(concurrency, Sequence) and not isinstance(concurrency, str):
        numbers = [whole(c) for c in concurrency]
        if numbers and None not in numbers and min(n or 0 for n in numbers) >= 1 and numbers != [1]:
            yield Problem(
                ("tgs", "concurrency"), f"got {numbers}; more than [1] is {NOT_YET}: write [1]"
            )
            out["tgs"]["concurrency"] = [1]
            if isinstance(out["tgs"].get("min_tokens_per_s"), Mapping):
                del out["tgs"]["min_tokens_per_s"]


def same(value: object, default: object) -> bool:
    """Equal, where 3 and 3.0 are equal and true and 1 are not."""
    if isinstance(value, bool) or isinstance(default, bool):
        return value is default
    return value == default


def _words(default: object) -> str:
    if default is None or default == {}:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _copied(value: Any) -> Any:
    """Plain dicts, lists and text, as YAML would give them."""
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value

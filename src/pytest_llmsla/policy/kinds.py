"""Which kind of target a policy names, and which of its keys belong to that kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from .http_models import HttpTarget, HttpTimeouts, MiiTarget
from .messages import describe, nearest
from .problems import Problem
from .target_models import DEFAULTS, TARGETS


def with_known_kind(raw: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """``raw`` with a kind of target that exists, and no keys at the default of another kind."""
    target = raw.get("target")
    if not isinstance(target, dict):
        return raw, []
    kind = target.get("kind", "transformers")
    model = TARGETS.get(kind) if isinstance(kind, str) else None
    if model is not None:
        return {**raw, "target": {**_own_keys(target, model), "kind": kind}}, []
    close = nearest(kind, TARGETS) if isinstance(kind, str) else None
    guess = f". Did you mean {close}?" if close else ""
    text = f"got {describe(kind)}; valid: {', '.join(TARGETS)}{guess}"
    # The other keys of an unknown kind cannot be judged: leave the target out.
    return {k: v for k, v in raw.items() if k != "target"}, [Problem(("target", "kind"), text)]


def _own_keys(target: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """``target`` without keys of other kinds that stand at the format's default."""
    own = model.model_fields
    kept = {
        k: v
        for k, v in target.items()
        if k in own or k not in DEFAULTS or not _same(v, DEFAULTS[k])
    }
    if model is MiiTarget and _same(kept.get("api"), DEFAULTS["api"]):
        del kept["api"]
    times = kept.get("timeouts")
    if isinstance(times, dict) and not issubclass(model, HttpTarget):
        connect = HttpTimeouts().connect_s
        kept["timeouts"] = {
            k: v for k, v in times.items() if k != "connect_s" or not _same(v, connect)
        }
    return kept


def _same(value: object, default: object) -> bool:
    """Equal, where 3 and 3.0 are equal and true and 1 are not."""
    if isinstance(value, bool) or isinstance(default, bool):
        return value is default
    return value == default

"""The things under test, one file a kind. Nothing heavy is imported until a target is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..errors import UsageError
from .base import Answer, Ask, Clock, Recorder, Target

__all__ = ["Answer", "Ask", "Clock", "Recorder", "Target", "load"]

_BUILT_IN = {
    "transformers": "pytest_llmsla.targets.transformers:TransformersTarget",
    "python": "pytest_llmsla.targets.python:PythonTarget",
    "scripted": "pytest_llmsla.targets.scripted:ScriptedTarget",
    "openai": "pytest_llmsla.targets.http.loading:HttpLoader",
    "tgi": "pytest_llmsla.targets.http.loading:HttpLoader",
    "llamacpp": "pytest_llmsla.targets.http.loading:HttpLoader",
    "mii": "pytest_llmsla.targets.http.loading:HttpLoader",
}
_GROUP = "pytest_llmsla.targets"


def load(spec: Mapping[str, Any], *, say: Callable[[str], None] = lambda _: None) -> Target:
    """Load the target a policy names.

    ``spec`` is the ``target`` mapping of sla.yaml. ``say`` is told what takes long. Third parties
    add kinds through the entry-point group ``pytest_llmsla.targets``.

    Raises:
        UsageError: unknown kind, or a missing extra.
        TargetError: the model cannot be loaded.
    """
    kind = str(spec.get("kind"))
    if kind in _BUILT_IN:
        module, _, name = _BUILT_IN[kind].partition(":")
        factory = getattr(import_module(module), name)
    else:
        found = [e for e in entry_points(group=_GROUP) if e.name == kind]
        if not found:
            raise UsageError(
                f"target.kind {kind!r} is not known; valid: {', '.join(sorted(_BUILT_IN))} "
                f"or a kind installed under the entry-point group {_GROUP!r}."
            )
        factory = found[0].load()
    target = factory.load(spec, say=say)
    if not isinstance(target, Target):
        raise UsageError(f"target.kind {kind!r}: {factory!r} does not make a Target.")
    return target

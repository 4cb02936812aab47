"""What the log says first of a run, of a gate and of a target: what a later judge goes by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..log import SCHEMA, utc_now
from ..policy import LoadedPolicy
from ..probes import host
from ..resume import inputs_of
from ..targets.base import Target
from ..verdict import limits_of


def run_line(release: LoadedPolicy | None, *, signoff: bool) -> dict[str, Any]:
    """The ``run`` line, which opens the log; ``release``: the policy of the gated sla.yaml."""
    from ..version import __version__

    line: dict[str, Any] = {
        "type": "run",
        "schema": SCHEMA,
        "version": __version__,
        "started": utc_now(),
        "signoff": signoff,
        "host": host.facts(),
        "pid": os.getpid(),
    }
    return line if release is None else {**line, **_recorded(release, None)}


def gate_line(key: str, loaded: LoadedPolicy) -> dict[str, Any]:
    """The ``gate`` line of a test's own gate."""
    return {"type": "gate", "gate": key, **_recorded(loaded, key)}


def target_line(
    target: Target, gate: str | None, loaded: LoadedPolicy
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The ``target`` line of a gate; and what of it the judge needs."""
    facts = dict(target.describe())
    system = loaded.policy.workload.system_prompt
    needed = _needed(target, facts)
    if system is not None:  # every prompt begins with it, as with the template's own words
        more = target.count("a", system) - target.count("a", None)
        needed["template_tokens"] = max(0, needed["template_tokens"] + more)
    return {**facts, "type": "target", "gate": gate, **needed}, needed


def _needed(target: Target, facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts.get("template_prefix_tokens")
    known = isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 2**31
    warnings = facts.get("warnings") or []
    return {
        "warnings": list(warnings) if isinstance(warnings, (list, tuple)) else [warnings],
        "kind": str(target.kind),
        "start_point": str(target.start_point),
        "template_tokens": tokens if known else 0,
    }


def _recorded(loaded: LoadedPolicy, key: str | None) -> dict[str, Any]:
    policy = loaded.policy
    return {
        "service": policy.service,
        "policy": policy.model_dump(mode="json"),
        "policy_path": None if loaded.path is None else str(loaded.path),
        "policy_base": str(loaded.base.absolute()),
        "policy_sha256": loaded.sha256,
        "inputs": inputs_of(loaded),
        "written_preset": loaded.written_preset,
        "target": {"kind": policy.target.kind, "model": getattr(policy.target, "model", None)},
        "sources": {limit.id: limit.source for limit in limits_of(loaded, key)},
        "evidence": {
            "alpha_pass": policy.alpha_pass,
            "alpha_fail": policy.alpha_fail,
            "M": {"ttft": 1, "itl": max(policy.workload.max_new_tokens - 1, 1)},
            "seed": policy.workload.seed,
        },
    }

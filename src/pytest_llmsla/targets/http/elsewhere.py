"""The same server asked from another process, without learning it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .choose import dialect_of
from .dialect import Options
from .spec import HttpSpec
from .target import HttpTarget


def learnt(target: HttpTarget) -> dict[str, Any]:
    """What was learnt of a server, without any secret: it may cross a network."""
    return {
        "model": target.spec.model,
        "extra_body": dict(target.spec.extra_body),
        "refused": sorted(target.options.refused),
        "renders": target.renders,
        "reuses": target.client.reuses,
        "exact": target.lengths is not None and not target.lengths.margin,
    }


def again(spec: Mapping[str, Any], known: Mapping[str, Any]) -> HttpTarget:
    """A target of the same server. Keys come from this process's own environment and files.

    Raises:
        UsageError: a key is not set here.
    """
    given = replace(
        HttpSpec.from_mapping(spec), model=known["model"], extra_body=dict(known["extra_body"])
    )
    target = HttpTarget(given, dialect_of(given))
    target.options = Options(frozenset(known["refused"]))
    target.renders = bool(known["renders"])
    target.client.reuses = bool(known["reuses"])
    return target

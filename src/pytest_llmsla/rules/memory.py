"""Optional memory limits. The limit's name says which number; unreadable is ``error``, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..finding import Finding, Limit

FIGURES = ("allocated_peak", "reserved_peak", "device_used_peak", "rss_peak")
"""The four named figures, GiB. They are never mixed: docs/metrics.md."""


def peaks(resources: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The largest reading of each figure over the measured window, GiB; None when never read."""
    out: dict[str, float | None] = dict.fromkeys(FIGURES)
    for line in resources:
        if line.get("phase") != "measured":
            continue
        memory = line.get("memory") or {}
        for name in FIGURES:
            value = memory.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                before = out[name]
                out[name] = float(value) if before is None else max(before, float(value))
    return out


def reasons(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Why a figure could not be read, as the probe said it last."""
    out: dict[str, str] = {}
    for line in resources:
        memory = line.get("memory") or {}
        for name in FIGURES:
            why = memory.get(f"{name}_reason")
            if isinstance(why, str):
                out[name] = why
        if isinstance(memory.get("problem"), str):
            out.update(dict.fromkeys(FIGURES, str(memory["problem"])))
    return out


def finding(limit: Limit, resources: list[Mapping[str, Any]], requests: int) -> Finding | None:
    """Judge one memory limit on the measured peak; None when nothing was measured."""
    if not requests:
        return None
    value = peaks(resources)[limit.metric]
    if value is None:
        why = reasons(resources).get(limit.metric, "no reading on record")
        verdict, reason = "error", f"{limit.metric} is not readable: {why}"
    elif limit.limit is not None and value <= limit.limit:
        verdict, reason = "pass", f"highest reading over {requests} requests"
    else:
        verdict, reason = "fail", f"highest reading over {requests} requests"
    return Finding(
        id=limit.id,
        rule="memory",
        metric=limit.metric,
        bucket=None,
        percentile=None,
        limit=limit.limit,
        unit="GiB",
        verdict=verdict,  # type: ignore[arg-type]  # the three literals above
        reason=reason,
        observed=value,
        requests=requests,
        units=requests,
        samples=requests,
        exceeded=int(verdict == "fail"),
        source=limit.source,
    )

"""Optional memory limits. The limit's name says which number; unreadable is ``error``, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..finding import Finding, Limit

FIGURES = ("allocated_peak", "reserved_peak", "device_used_peak", "rss_peak")
"""The four named figures, GiB. They are never mixed: docs/metrics.md."""

_LARGEST_GIB = 2.0**40


def peaks(resources: Iterable[Mapping[str, Any]], answered: int = 0) -> dict[str, float | None]:
    """The largest reading of each figure over the measured window, GiB; None when unknown.

    A peak over some of the readings would be too small: a figure that one reading lacks, or that
    was read fewer times than ``answered`` (requests that got an answer), is unknown. So is one
    that is not above 0.
    """
    read = [line.get("memory") or {} for line in resources if line.get("phase") == "measured"]
    out: dict[str, float | None] = {}
    for name in FIGURES:
        values = [_reading(memory.get(name)) for memory in read]
        known = [v for v in values if v is not None]
        whole = known and len(known) == len(values) and len(values) >= answered
        out[name] = max(known) if whole else None
    return out


def _reading(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < _LARGEST_GIB else None


def reasons(resources: Iterable[Mapping[str, Any]], answered: int = 0) -> dict[str, str]:
    """Why a figure is unknown: as the probe said it last, else what its readings lack."""
    out: dict[str, str] = {}
    read = [line.get("memory") or {} for line in resources if line.get("phase") == "measured"]
    for name in FIGURES:
        known = sum(1 for memory in read if _reading(memory.get(name)) is not None)
        if len(read) < answered:
            out[name] = f"read after {len(read)} of {answered} requests"
        elif known < len(read):
            wrong = next(m.get(name) for m in read if _reading(m.get(name)) is None)
            given = "" if wrong is None else f" (one is {wrong!r:.40})"
            out[name] = f"{len(read) - known} of {len(read)} readings lack it{given}"
    for memory in read:
        for name in FIGURES:
            why = memory.get(f"{name}_reason", memory.get("problem"))
            if isinstance(why, str) and name in out:
                out[name] = why
    return out


def finding(
    limit: Limit, resources: list[Mapping[str, Any]], requests: int, answered: int
) -> Finding | None:
    """Judge one memory limit on the measured peak; None when nothing was measured.

    ``requests`` were measured, ``answered`` of them got an answer.
    """
    if not requests:
        return None
    value = peaks(resources, answered)[limit.metric] if answered else None
    if not answered:
        verdict, reason = (
            "error",
            "no request was answered, so none used memory as it does",
        )
    elif value is None:
        why = reasons(resources, answered).get(limit.metric, "no reading on record")
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

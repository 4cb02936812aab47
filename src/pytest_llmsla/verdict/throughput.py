"""TGS of a gate: every level's entry, what a level loses against one at a time, and the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..diagnose.loss import Load, attribute
from ..diagnose.samples import samples_of
from ..finding import Finding, Limit
from ..rules import tgs
from .record import Record


def tgs_entries(record: Record, limits: Sequence[Limit]) -> list[dict[str, Any]]:
    """TGS of every level and peak TGS, with their conditions.

    No entry where no request was answered. ``efficiency`` of a level is its rate over that
    of as many requests one at a time.
    """
    out = []
    for n, level in record.levels.items():
        out += [e for e in level.tgs_entries(record.readings(n)) if e["tokens_per_s"] is not None]
    alone = next((e["tokens_per_s"] for e in out if e["kind"] == "steady"), None)
    for e in out:
        if e["kind"] == "concurrent":
            n = e["concurrency"]
            e["efficiency"] = e["tokens_per_s"] / (n * alone) if n and alone else None
            e["losses"] = _losses(record, n, e["tokens_per_s"], alone)
    first = next((x.id for x in limits if x.rule == "tgs"), None)
    peak = None if first is None else _peak_entry(record, first)
    if peak is not None and peak["tokens_per_s"] is not None:
        out.insert(1 if out else 0, peak)
    return out


def with_peak(found: Finding, record: Record) -> Finding:
    """A peak request that failed leaves rule 3 without one of its two figures.

    A peak figure without its four conditions is as undocumented as a steady one.
    """
    peak = record.peak
    entry = _peak_entry(record, found.id)
    if entry is not None and entry["undocumented"] and peak.ok:
        return replace(found, verdict="fail", reason=f"peak: {entry['undocumented']}")
    reason = peak.problem
    if peak.failed:
        reason = f"{len(peak.failed)} of {peak.count} peak requests failed: {peak.failed[0][1]}"
    if reason is None or found.verdict == "fail":
        return found
    return replace(found, verdict="error", reason=reason)


def _peak_entry(record: Record, finding_id: str) -> dict[str, Any] | None:
    return tgs.peak_entry(record.peak, record.peak_readings(), finding_id)


def _losses(
    record: Record, n: int | None, rate: float, alone: float | None
) -> list[dict[str, Any]]:
    """Why a level gives less than ``n`` times one; empty where one alone was not measured."""
    if not n or not alone or 1 not in record.levels:
        return []
    return attribute(_load(record, n, rate), _load(record, 1, alone), record.target)


def _load(record: Record, n: int, rate: float) -> Load:
    level = record.levels[n]
    samples = samples_of(record.resources, level.ok)
    return Load(n, rate, level.ok, samples, level.mode)

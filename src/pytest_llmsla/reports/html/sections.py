"""The sections of a page: one a gate, bucket and concurrency, with its findings and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import phrases, summary
from ..escape import shortened
from .pictures import latency, strips
from .pictures.canvas import Picture

MOST_PICTURED = 12
"""Sections with pictures; the others have their figures only. Those that do not pass come first."""

_TOO_MANY = (
    f"no pictures: {MOST_PICTURED} buckets have them, first those that do not pass; report.json "
    "holds the series of all"
)
_NO_SERIES = "no picture: this report.json holds no series"

_DRAWN = (
    latency.ttft,
    latency.lengths,
    latency.stages,
    latency.itl,
    latency.positions,
    strips.slowest,
)


@dataclass(frozen=True)
class Section:
    """One bucket at one load."""

    id: str
    title: str
    scope: str
    load: str
    counted: str
    findings: tuple[phrases.FindingDict, ...]
    group: Mapping[str, Any] | None
    """Its entry of ``series.buckets``; None where the report has none."""
    pictures: tuple[Picture, ...]
    why_bare: str = "no picture: no request was answered"


def sections(report: summary.ReportDict) -> list[Section]:
    """Every bucket that was measured or judged, in the report's order."""
    series = report.get("series")
    groups: Sequence[Mapping[str, Any]] = series["buckets"] if isinstance(series, Mapping) else ()
    found = list(zip(groups, _assigned(report, groups), strict=True))
    pictured = _pictured(found)
    out = [
        _section(f"b{n}", group, findings, pictured=n in pictured)
        for n, (group, findings) in enumerate(found)
    ]
    seen = {id(f) for _, findings in found for f in findings}
    for title, findings in summary.buckets(report).items():
        left = tuple(f for f in findings if id(f) not in seen)
        if left:
            out.append(_bare(f"x{len(out)}", title, left))
    return out


_Key = tuple[str | None, str]


def _assigned(
    report: summary.ReportDict, groups: Sequence[Mapping[str, Any]]
) -> list[tuple[phrases.FindingDict, ...]]:
    """For each group the findings that rest on its requests."""
    keys = sorted({str(g["gate"]) for g in groups if g["gate"] is not None}, key=len, reverse=True)
    by_bucket: dict[_Key, list[phrases.FindingDict]] = {}
    for f in report["findings"]:
        if f.get("bucket"):
            by_bucket.setdefault((_owner(f, keys), f["bucket"]), []).append(f)
    levels = Counter((g["gate"], g["bucket"]) for g in groups)
    out = []
    for g in groups:
        key = (g["gate"], g["bucket"])
        found = by_bucket.get(key, ())
        out.append(
            tuple(f for f in found if levels[key] == 1 or f.get("concurrency") == g["concurrency"])
        )
    return out


def _owner(f: phrases.FindingDict, keys: Sequence[str]) -> str | None:
    """The gate whose key begins the id; the longest, for one key may begin another."""
    return next((key for key in keys if str(f["id"]).startswith(f"{key}/")), None)


def _pictured(
    found: Sequence[tuple[Mapping[str, Any], tuple[phrases.FindingDict, ...]]],
) -> set[int]:
    def sound(n: int) -> bool:
        return all(f["verdict"] == "pass" for f in found[n][1])

    return set(sorted(range(len(found)), key=lambda n: (sound(n), n))[:MOST_PICTURED])


def _section(
    name: str,
    group: Mapping[str, Any],
    findings: tuple[phrases.FindingDict, ...],
    *,
    pictured: bool,
) -> Section:
    gate = "" if group["gate"] is None else f" of {shortened(group['gate'])}"
    scope = next((phrases.scope(f) for f in findings if phrases.scope(f)), "")
    failed = f", {group['failed']} of them failed" if group["failed"] else ""
    drawn = (draw(f"{name}-{n}", group, findings) for n, draw in enumerate(_DRAWN))
    pictures = tuple(p for p in drawn if p is not None) if pictured else ()
    return Section(
        id=name,
        title=f"{shortened(group['bucket'])}{gate}",
        scope=scope or shortened(group["range"]),
        load="" if any(f.get("load") for f in findings) else latency.level(group),
        counted=f"{group['requests']} requests{failed}",
        findings=findings,
        group=group,
        pictures=pictures,
        **({} if pictured else {"why_bare": _TOO_MANY}),
    )


def _bare(name: str, title: str, findings: tuple[phrases.FindingDict, ...]) -> Section:
    scope = next((phrases.scope(f) for f in findings if phrases.scope(f)), "")
    return Section(name, title, scope, "", "", findings, None, (), _NO_SERIES)

"""A figure over stored runs: what each run observed, oldest first, whatever its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..judging import build_report
from .same import differences
from .store import StoredRun


@dataclass(frozen=True)
class Point:
    """One limit in one run."""

    observed: float | None
    limit: float | None
    unit: str
    verdict: str


@dataclass(frozen=True)
class Past:
    """One stored run: when, its verdict as a whole, and each limit's figure."""

    path: str
    service: str
    started: str
    verdict: str
    points: dict[str, Point]
    changed: tuple[str, ...]
    """What differs from the service's run before it: where a line in a plot breaks."""


def past(runs: Sequence[StoredRun]) -> list[Past]:
    """The runs in order of start, judged by the policies they recorded."""
    out: list[Past] = []
    last: dict[str, StoredRun] = {}
    for run in runs:
        report = build_report(run.log, list(run.gates))
        points = {
            f["id"]: Point(f["observed"], f["limit"], f["unit"], f["verdict"])
            for f in report["findings"]
        }
        service = str(report["service"])
        before = last.get(service)
        changed = () if before is None else tuple(differences(before.log, run.log))
        out.append(Past(str(run.path), service, run.started, report["verdict"], points, changed))
        last[service] = run
    return out

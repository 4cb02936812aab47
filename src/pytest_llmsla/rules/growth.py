"""Does memory grow with every request? A slope over equal requests; one step up is no leak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from ..finding import Finding, Limit, Verdict
from . import memory

_HOST = ("rss_now",)
_DEVICE = ("allocated_peak", "device_used_own", "device_used_peak")
"""Peaks only go up, so what is kept of every request lifts them by as much."""
_FEWEST = 3
_MOST_POINTS = 200
_PAGE_MIB = 4096 / 2**20
_TELLING_MIB = 16.0
_TELLING_SHARE = 0.02
_MIB = 1024.0


@dataclass(frozen=True)
class Growth:
    """How one figure of memory moved over the measured requests of a level."""

    figure: str
    mib_per_request: float
    first_gib: float
    last_gib: float
    requests: int

    def __str__(self) -> str:
        return (
            f"{self.figure} {self.mib_per_request:.3g} MiB a request "
            f"({self.first_gib:.3g} to {self.last_gib:.3g} GiB over {self.requests} requests)"
        )

    @property
    def telling(self) -> bool:
        """Large enough to tell a reader who set no limit."""
        rise = (self.last_gib - self.first_gib) * _MIB
        over = max(_TELLING_MIB, _TELLING_SHARE * self.first_gib * _MIB)
        return self.mib_per_request > _PAGE_MIB and rise > over


def growth(resources: Iterable[Mapping[str, Any]], figures: Sequence[str]) -> Growth | None:
    """Slope of the first of ``figures`` that was read after at least three equal requests.

    Equal are requests of one bucket. The slope is the median over all pairs of readings (Theil
    and Sen), so that one step up, such as a cache that is kept, is not taken for a leak; less
    than a page (4 KiB) a request counts as 0.
    """
    lines = [line for line in resources if line.get("phase") == "measured"]
    for figure in figures:
        found = _of_figure(lines, figure)
        if found is not None:
            return found
    return None


def _of_figure(lines: Sequence[Mapping[str, Any]], figure: str) -> Growth | None:
    by_bucket: dict[str | None, list[tuple[int, float]]] = {}
    every: list[tuple[int, float]] = []
    for index, line in enumerate(lines, 1):
        value = memory.reading((line.get("memory") or {}).get(figure))
        said = line.get("answered", index)
        if value is None or isinstance(said, bool) or not isinstance(said, int):
            return None  # a slope over some of the readings is that of another series
        by_bucket.setdefault(line.get("bucket"), []).append((said, value * _MIB))
        every.append((said, value))
    slopes = [
        (y2 - y1) / (x2 - x1)
        for points in by_bucket.values()
        if len(points) >= _FEWEST
        for (x1, y1), (x2, y2) in combinations(_thinned(points), 2)
        if x2 > x1
    ]
    if len(slopes) < _FEWEST:
        return None
    slope = median(slopes)
    slope = 0.0 if abs(slope) < _PAGE_MIB else slope
    return Growth(figure, slope, every[0][1], every[-1][1], max(x for x, _ in every))


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    step = -(-len(points) // _MOST_POINTS)
    return points[::step]


def of_level(resources: Sequence[Mapping[str, Any]]) -> tuple[list[Growth], str]:
    """Growth of the host's and of the card's memory, and why one of them is unknown."""
    found, missing = [], []
    wanted: list[tuple[str, Sequence[str]]] = [("host memory", _HOST)]
    if memory.on_card(resources):
        wanted.append(("memory of the card", _DEVICE))
    for name, figures in wanted:
        grown = growth(resources, figures)
        if grown is None:
            missing.append(f"{name} ({' or '.join(figures)})")
        else:
            found.append(grown)
    if not missing:
        return found, ""
    return found, (
        f"{' and '.join(missing)} was not read after at least {_FEWEST} equal requests, so its "
        "growth is unknown"
    )


def finding(limit: Limit, levels: memory.Readings, requests: int) -> Finding | None:
    """Judge the limit on growth; None when nothing was measured.

    Levels (and parts of a resumed run) with too few readings are left out where another has
    enough.
    """
    if not requests:
        return None
    looked = [of_level(lines) for lines, answered in levels if answered]
    whole = [grown for grown, missing in looked if not missing]
    every = [g for grown in whole for g in grown]
    worst = max(every, key=lambda g: g.mib_per_request, default=None)
    verdict, reason = _conclude(limit, worst, looked)
    return Finding.of(
        limit,
        verdict,
        reason,
        observed=None if worst is None else worst.mib_per_request,
        requests=requests,
        units=requests,
        samples=requests,
        exceeded=int(verdict == "fail"),
        notes=tuple(str(g) for g in every),
    )


def _conclude(
    limit: Limit, worst: Growth | None, looked: Sequence[tuple[list[Growth], str]]
) -> tuple[Verdict, str]:
    if not looked:
        return "error", "no request was answered, so none used memory as it does"
    if worst is None:
        return "error", looked[0][1]
    if limit.limit is not None and worst.mib_per_request <= limit.limit:
        return "pass", f"at most {worst}"
    return "fail", f"grows: {worst}"


def warnings(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to tell where no limit is set: a figure that grew by far more than noise."""
    found, _ = of_level(resources)
    return [
        f"memory grew: {g}. memory.growth_mib_per_request holds it to a limit"
        for g in found
        if g.telling
    ]

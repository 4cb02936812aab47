"""The machine, the server and the cards while a level ran: of ``resources`` lines, its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ..timeline import Timeline


@dataclass(frozen=True)
class Samples:
    """Figures by column, in order of time, without those that could not be read."""

    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    def median(self, column: str) -> float | None:
        """The usual value; None where there is none."""
        values = self.columns.get(column)
        return median(values) if values else None

    def mean(self, column: str) -> float | None:
        """The mean over time; None where there is none."""
        values = self.columns.get(column)
        return fmean(values) if values else None

    def most(self, column: str) -> float | None:
        """The largest value; None where there is none."""
        return max(self.columns.get(column) or (), default=None)

    def named(self, ending: str) -> list[str]:
        """Columns of cards that end so (``gpu_util``, ``gpu1_util``)."""
        return [c for c in self.columns if c.startswith("gpu") and c.endswith(f"_{ending}")]


def samples_of(lines: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]) -> Samples:
    """What was sampled between the first start and the last start of ``timelines``."""
    spans: dict[int, tuple[int, int]] = {}
    for t in timelines:
        lo, hi = spans.get(t.segment, (t.start_ns, t.start_ns))
        spans[t.segment] = (min(lo, t.start_ns), max(hi, t.start_ns))
    columns: dict[str, list[float]] = {}
    about: dict[str, str] = {}
    for line in lines:
        if line.get("phase") != "sample":
            continue
        about.update({str(k): str(v) for k, v in (line.get("about") or {}).items()})
        span = spans.get(line.get("segment", 0))
        given = line.get("columns") or {}
        if span is None:
            continue
        inside = [i for i, at in enumerate(given.get("t_ns") or ()) if span[0] <= at <= span[1]]
        for name, values in given.items():
            if name != "t_ns":
                found = [values[i] for i in inside if values[i] is not None]
                columns.setdefault(name, []).extend(found)
    return Samples({name: values for name, values in columns.items() if values}, about)

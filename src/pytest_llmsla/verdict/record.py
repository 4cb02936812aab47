"""What one gate has on record: requests by level of load, peak requests, readings, facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..rules.base import Requests
from ..rules.level import Level
from ..rules.limits import level_name
from ..rules.parts import Part, parts_of
from ..timeline import PEAK, Timeline


@dataclass
class Record:
    """The evidence of one gate. A level is a number in flight, None for the open loop."""

    levels: Mapping[int | None, Level]
    """In the order of the policy; at least one."""
    peak: Requests = field(default_factory=lambda: Requests(bucket=None))
    """Those of peak TGS: no bucket's evidence."""
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    """Its ``resources`` lines, of every phase and purpose."""
    target: Mapping[str, Any] = field(default_factory=dict)
    """Its ``target`` line: facts of what is under test."""

    @property
    def first(self) -> int | None:
        """The first level: its limits have the plain ids."""
        return next(iter(self.levels))

    def buckets(self) -> Iterator[Requests]:
        """The requests of every bucket at every level."""
        return (r for level in self.levels.values() for r in level.requests.values())

    def add_peak(self, t: Timeline, bad: str | None) -> None:
        """One more peak request; ``bad`` is why it counts as failed."""
        if t.warmup:
            self.peak.warmup.append(t)
        elif bad is None:
            self.peak.ok.append(t)
        else:
            self.peak.failed.append((t, bad))

    def readings(self, concurrency: int | None) -> list[Mapping[str, Any]]:
        """Readings of memory at a level; a line that names none is of the first."""
        return [
            line
            for line in self.resources
            if line.get("purpose") is None
            and line.get("phase") != "sample"
            and line.get("concurrency", self.first) == concurrency
        ]

    def parts(self) -> list[Part]:
        """What was answered and read at each level in each part of the run."""
        every = (parts_of(level.ok, self.readings(n)) for n, level in self.levels.items())
        return [part for parts in every for part in parts]

    def peak_readings(self) -> list[Mapping[str, Any]]:
        """Readings of memory beside peak requests."""
        return [line for line in self.resources if line.get("purpose") == PEAK]

    def title(self, bucket: str, concurrency: int | None) -> str:
        """``short``; at a further level ``short/concurrency-4``."""
        return bucket if concurrency == self.first else f"{bucket}/{level_name(concurrency)}"

    def failures(self) -> dict[tuple[str, str], int]:
        """Failed measured requests: (bucket, with its level from the second on; reason) → count."""
        out: dict[tuple[str, str], int] = {}
        for n, level in self.levels.items():
            for name, requests in level.requests.items():
                for _, reason in requests.failed:
                    key = (self.title(name, n), reason)
                    out[key] = out.get(key, 0) + 1
        for _, reason in self.peak.failed:
            out[PEAK, reason] = out.get((PEAK, reason), 0) + 1
        return out

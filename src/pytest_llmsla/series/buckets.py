"""Series of one bucket: TTFT, ITL, stages and its slowest requests, per gate and concurrency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..replay import JudgedGate
from ..stats import nearest_rank
from ..timeline import Timeline
from .shapes import by_position, histogram, ms, thinned
from .slowest import slowest


@dataclass(frozen=True)
class Room:
    """How much one bucket may hold; less where there are many of them."""

    points: int
    bins: int
    positions: int
    requests: int
    ticks: int


_AMPLE = Room(points=300, bins=40, positions=100, requests=8, ticks=200)
_SCARCE = Room(points=60, bins=24, positions=32, requests=2, ticks=60)
_MANY = 16


@dataclass
class _Group:
    """Measured requests of one gate, bucket and concurrency."""

    gate: str | None
    bucket: str
    concurrency: int | None
    prompt_range: str
    ok: list[Timeline] = field(default_factory=list)
    failed: int = 0


def buckets_of(gates: Sequence[JudgedGate]) -> list[dict[str, Any]]:
    """One entry a gate, bucket and concurrency, in the order they were declared and measured."""
    groups = [group for gate in gates for group in _groups(gate)]
    room = _AMPLE if len(groups) <= _MANY else _SCARCE
    return [_entry(group, room) for group in groups]


def _groups(gate: JudgedGate) -> Iterable[_Group]:
    found: dict[tuple[str, int | None], _Group] = {}
    for t in gate.requests:
        if t.warmup or t.purpose is not None or t.bucket not in gate.keeper.ranges:
            continue
        key = (t.bucket, t.level)
        if key not in found:
            bucket_range = str(gate.keeper.ranges[t.bucket])
            found[key] = _Group(gate.key, t.bucket, t.level, bucket_range)
        if t.ok:
            found[key].ok.append(t)
        else:
            found[key].failed += 1
    order = {name: n for n, name in enumerate(gate.keeper.ranges)}
    return sorted(found.values(), key=lambda g: (order[g.bucket], g.concurrency or 0))


def _entry(group: _Group, room: Room) -> dict[str, Any]:
    gaps = [t.itl_ms() for t in group.ok]
    return {
        "gate": group.gate,
        "bucket": group.bucket,
        "concurrency": group.concurrency,
        "range": group.prompt_range,
        "requests": len(group.ok) + group.failed,
        "failed": group.failed,
        "ttft": histogram([v for t in group.ok if (v := t.ttft_ms) is not None], room.bins),
        "lengths": _lengths(group.ok, room.points),
        "stages": _stages(group.ok),
        "itl": histogram([v for values in gaps for v in values], room.bins),
        "positions": by_position(
            [t.arrivals[0][1] + 1 if t.arrivals else 1 for t in group.ok], gaps, room.positions
        ),
        "slowest": slowest(group.ok, room.requests, room.ticks),
    }


def _lengths(timelines: Sequence[Timeline], most: int) -> dict[str, Any] | None:
    """TTFT beside prompt length, one point a request; the slowest are never thinned away."""
    points = [
        (t.prompt_tokens, round(v, 3))
        for t in timelines
        if t.prompt_tokens is not None and (v := t.ttft_ms) is not None
    ]
    if not points:
        return None
    kept = thinned(points, [v for _, v in points], most)
    return {
        "prompt_tokens": [n for n, _ in kept],
        "ttft_ms": [v for _, v in kept],
        "of": len(points),
    }


def _stages(timelines: Sequence[Timeline]) -> dict[str, dict[str, float | None]]:
    """Median and P95 of every stage that the target told apart, ms, in recorded order."""
    values: dict[str, list[float]] = {}
    for t in timelines:
        for name, ns in t.stages.items():
            values.setdefault(name, []).append(ms(ns))
    return {
        name: {"median_ms": nearest_rank(v, 0.50), "p95_ms": nearest_rank(v, 0.95), "n": len(v)}
        for name, v in values.items()
    }

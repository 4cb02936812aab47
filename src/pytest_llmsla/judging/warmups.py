"""Warm-up of every bucket, and whether it was warm by then."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..replay import JudgedGate
from ..stats import WarmupMonitor
from ..timeline import NS_PER_MS, Timeline
from ..verdict import Gatekeeper


def warmups(gate: JudgedGate) -> dict[str, dict[str, Any]]:
    """By bucket, with its level from the second on; buckets without a warm-up are absent."""
    out = {}
    keeper, most = gate.keeper, gate.loaded.policy.workload.warmup.max_requests
    for level in keeper.levels:
        waves = _first_wave(keeper, level)
        for bucket in keeper.ranges:
            done = keeper.warmups(bucket, concurrency=level)
            if done:
                out[keeper.title(bucket, level)] = _warmup(done, most, waves.get(bucket, 1))
    return out


def _first_wave(keeper: Gatekeeper, level: int | None) -> Counter[str]:
    """How many of the requests that began a level together were each bucket's."""
    every = [t for b in keeper.ranges for t in keeper.warmups(b, concurrency=level)]
    every.sort(key=lambda t: (t.attempt, t.segment, t.start_ns))
    return Counter(t.bucket for t in every[: level or 1])


def _warmup(done: list[Timeline], most: int, wave: int) -> dict[str, Any]:
    """``wave``: requests of the bucket that found everything cold; they are dropped."""
    monitor = WarmupMonitor(max(most + wave - 1, 1), dropped=wave)
    spans = [(t.end_ns - t.start_ns) / NS_PER_MS for t in done]
    for t, span in zip(done, spans, strict=True):
        if t.ok and not monitor.done:
            monitor.add(span)
    failed = sum(1 for t in done if not t.ok)
    steady = monitor.steady
    return {
        "requests": len(done),
        "failed": failed,
        "worst_ms": max(spans),
        "last_ms": spans[-1],
        "steady": steady,
        "note": f"{len(done)} warm-up, worst {max(spans):.0f} ms"
        + ("" if steady else "; not steady by then"),
    }

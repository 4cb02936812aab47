"""Timelines as rows of a table: one a request, or one an arrival. Milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..timeline import NS_PER_MS, Timeline

REQUEST_COLUMNS = (
    "id",
    "gate",
    "bucket",
    "purpose",
    "warmup",
    "attempt",
    "unit",
    "concurrency",
    "status",
    "error",
    "prompt_tokens",
    "output_tokens",
    "max_new_tokens",
    "token_source",
    "finish_reason",
    "cached_tokens",
    "stamp",
    "retries",
    "segment",
    "scheduled_ms",
    "start_ms",
    "end_ms",
    "ttft_ms",
    "tpot_ms",
    "largest_gap_ms",
)
"""``start_ms`` and the like are since the origin of the segment."""

ARRIVAL_COLUMNS = ("id", "gate", "bucket", "arrival", "t_ms", "tokens", "gap_ms")
"""``t_ms`` is since the request's start; ``gap_ms`` since the arrival before."""


def request_rows(timelines: Iterable[Timeline]) -> Iterator[dict[str, Any]]:
    """One row a request, with the keys of :data:`REQUEST_COLUMNS`; None where nothing is known."""
    for t in timelines:
        gaps = t.chunk_gaps_ns()
        yield {
            **{name: getattr(t, name) for name in REQUEST_COLUMNS if not name.endswith("_ms")},
            "scheduled_ms": _ms(t.scheduled_ns),
            "start_ms": _ms(t.start_ns),
            "end_ms": _ms(t.end_ns),
            "ttft_ms": t.ttft_ms,
            "tpot_ms": t.tpot_ms,
            "largest_gap_ms": _ms(max(gaps, default=None)),
        }


def arrival_rows(timelines: Iterable[Timeline]) -> Iterator[dict[str, Any]]:
    """One row an arrival, with the keys of :data:`ARRIVAL_COLUMNS`."""
    for t in timelines:
        before: int | None = None
        for number, (at, tokens) in enumerate(t.arrivals, 1):
            yield {
                "id": t.id,
                "gate": t.gate,
                "bucket": t.bucket,
                "arrival": number,
                "t_ms": _ms(at - t.start_ns),
                "tokens": tokens,
                "gap_ms": None if before is None else _ms(at - before),
            }
            before = at


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS

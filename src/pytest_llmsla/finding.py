"""What a judged limit looks like: the only thing reports read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Verdict = Literal["pass", "fail", "inconclusive", "conditional", "error"]
Rule = Literal["ttft", "itl", "tgs", "error", "memory", "goodput"]
Condition = Literal["prompt_lengths", "sampling", "concurrency", "memory"]

CONDITIONS: tuple[str, ...] = get_args(Condition)
"""The four conditions of rule 3: without one of them a TGS figure is none."""

_WORST_FIRST: tuple[Verdict, ...] = ("fail", "error", "inconclusive", "conditional", "pass")

EXIT_CODES: Mapping[Verdict, int] = {
    "pass": 0,
    "fail": 1,
    "inconclusive": 2,
    "conditional": 2,
    "error": 3,
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of ``fail > error > inconclusive > conditional > pass``.

    Nothing judged is ``error``: an empty gate must never pass.
    """
    seen = set(verdicts)
    for v in _WORST_FIRST:
        if v in seen:
            return v
    return "error"


@dataclass(frozen=True)
class Limit:
    """One number that may not be exceeded, and where it was written.

    ``id`` is ``short/ttft_p95``, ``short/concurrency-4/ttft_p95`` (a further level of load),
    ``tgs/concurrency-1``, ``memory/rss_peak``; gates of Python tests prefix it with their node id
    and ``/``.
    """

    id: str
    rule: Rule
    metric: str
    """ttft | itl | stall | error_rate | tgs | rss_peak | allocated_peak | …"""
    bucket: str | None
    limit: float | None
    unit: str
    percentile: float | None = None
    source: str = ""
    """Where it stands: ``sla.yaml:5 buckets.short.ttft_ms``."""
    concurrency: int | None = 1
    """Requests in flight at its level; None: open loop. A memory limit has the first level."""
    load: str = ""
    """The level in words, ``at concurrency 4``; empty where one request at a time is all."""


@dataclass(frozen=True)
class Evidence:
    """State of the sequential test at the decision, else at the end. Wealths before the guard."""

    preset: str
    alpha_pass: float | None
    alpha_fail: float | None
    M: int | None
    log_e_pass: float | None
    log_e_fail: float | None
    h: float | None
    min_units: int | None


@dataclass(frozen=True)
class Finding:
    """One limit, judged. Every number is finite or None; ``reason`` says why in words."""

    id: str
    rule: Rule
    metric: str
    bucket: str | None
    percentile: float | None
    limit: float | None
    unit: str
    verdict: Verdict
    reason: str
    observed: float | None = None
    lower: float | None = None
    upper: float | None = None
    confidence: float | None = None
    requests: int = 0
    units: int = 0
    samples: int = 0
    exceeded: int = 0
    decided_at: int | None = None
    prompt_tokens: Mapping[str, float | None] = field(default_factory=dict)
    """``min``, ``median``, ``max`` of measured prompt lengths."""
    percentiles: Mapping[str, float | None] = field(default_factory=dict)
    """``p50``, ``p95``, ``p99``, nearest rank, in ``unit``."""
    evidence: Evidence | None = None
    source: str = ""
    start_point: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Share of TTFT (0–1) per stage, where the target can tell stages apart."""
    diagnosis: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bucket_range: str = ""
    """``1–128 tokens`` or ``513+ tokens (measured to 1024)``."""
    attempts: tuple[Mapping[str, Any], ...] = ()
    """Per rerun attempt: requests, observed. More than one entry means pooled reruns."""
    concurrency: int | None = 1
    """Requests in flight at its level; None: open loop. A memory finding has the first level."""
    load: str = ""
    """The level in words: ``at concurrency 4``, ``open loop, 3 requests/s``; empty for [1]."""
    block: int = 1
    """Requests of one statistical unit."""

    @classmethod
    def of(cls, limit: Limit, verdict: Verdict, reason: str, **measured: Any) -> Finding:
        """The finding on ``limit``, which says what it is about; ``measured``: other fields."""
        return cls(
            id=limit.id,
            rule=limit.rule,
            metric=limit.metric,
            bucket=limit.bucket,
            percentile=limit.percentile,
            limit=limit.limit,
            unit=limit.unit,
            verdict=verdict,
            reason=reason,
            source=limit.source,
            **measured,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict: tuples become lists, keys as in the report schema."""
        out = asdict(self)
        for key in ("diagnosis", "notes", "attempts"):
            out[key] = list(out[key])
        return out

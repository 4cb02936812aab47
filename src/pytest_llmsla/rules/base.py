"""What every rule shares: the evidence asked for, and a bucket's requests as judged so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..finding import Evidence, Limit
from ..stats import GateSpec, SequentialGate, clean_units_to_pass
from ..stats.samples import rank_of_sorted, sorted_samples
from ..timeline import Timeline
from .checks import Range

OBSERVED_REQUESTS = 5
"""Requests asked under ``evidence: observed`` where the test does not ask itself."""


@dataclass(frozen=True)
class Demand:
    """The evidence a policy asks for; ``alpha_pass`` None is the preset ``observed``."""

    preset: str
    alpha_pass: float | None
    alpha_fail: float
    guard: bool
    release: bool
    """True for a sla.yaml gate, where observed evidence cannot pass."""

    def gate(self, quantile: float, limit: float, max_samples: int) -> SequentialGate | None:
        """A fresh sequential test, None under ``observed``."""
        if self.alpha_pass is None:
            return None
        return SequentialGate(
            GateSpec(
                quantile=quantile,
                limit=limit,
                max_samples=max_samples,
                alpha_pass=self.alpha_pass,
                alpha_fail=self.alpha_fail,
                guard=self.guard,
            )
        )

    def min_units(self, quantile: float) -> int | None:
        """Fewest clean requests to PASS a percentile, None under ``observed``."""
        return None if self.alpha_pass is None else clean_units_to_pass(quantile, self.alpha_pass)

    def evidence(self, gate: SequentialGate | None, quantile: float, m: int | None) -> Evidence:
        """The state to report."""
        return Evidence(
            preset=self.preset,
            alpha_pass=self.alpha_pass,
            alpha_fail=None if self.alpha_pass is None else self.alpha_fail,
            M=m,
            log_e_pass=None if gate is None else finite(gate.log_e_pass),
            log_e_fail=None if gate is None else finite(gate.log_e_fail),
            h=None if gate is None else finite(gate.h),
            min_units=self.min_units(quantile),
        )


@dataclass
class Requests:
    """A bucket's measured requests in start order: sound ones and failed ones with the reason."""

    bucket: Range | None
    ok: list[Timeline] = field(default_factory=list)
    failed: list[tuple[Timeline, str]] = field(default_factory=list)
    warmup: list[Timeline] = field(default_factory=list)
    problem: str | None = None
    """Why the bucket was stopped or never measured."""
    template_tokens: int = 0
    start_point: str = ""
    ended: str = ""
    """Why the run ended: decided, requests, seconds, problem, interrupted."""

    @property
    def count(self) -> int:
        """Measured requests, failed ones included."""
        return len(self.ok) + len(self.failed)

    def lengths(self, *, sound: bool = False) -> list[int]:
        """Prompt lengths of all measured requests that have one; ``sound``: of those that count."""
        every = self.ok if sound else [*self.ok, *(t for t, _ in self.failed)]
        return [t.prompt_tokens for t in every if t.prompt_tokens is not None]

    def length_summary(self) -> Mapping[str, float | None]:
        """min, median, max of the measured prompt lengths."""
        lengths = self.lengths()
        if not lengths:
            return {"min": None, "median": None, "max": None}
        return {"min": min(lengths), "median": median(lengths), "max": max(lengths)}

    def first_failure(self) -> str:
        """The commonest failure with its count: ``RuntimeError: boom (5 of 5 requests)``."""
        if not self.failed:
            return ""
        reason, times = Counter(reason for _, reason in self.failed).most_common(1)[0]
        return f"{reason} ({times} of {self.count} requests)"

    def attempts(self) -> list[int]:
        """Rerun attempts that have requests here, ascending."""
        every = [*self.ok, *(t for t, _ in self.failed)]
        return sorted({t.attempt for t in every})


def percentiles(values: Sequence[float]) -> Mapping[str, float | None]:
    """p50, p95, p99 by nearest rank; None where the rank falls on a failed request (infinite)."""
    ordered = sorted_samples(values)
    return {f"p{p}": finite(rank_of_sorted(ordered, p / 100)) for p in (50, 95, 99)}


def finite(value: float | None) -> float | None:
    """``value``, or None where it is infinite, NaN or missing: reports hold finite numbers only."""
    return value if value is not None and math.isfinite(value) else None


def where(limit: Limit) -> str:
    """``ttft p95, bucket short`` for reasons."""
    percentile = "" if limit.percentile is None else f" p{limit.percentile:g}"
    bucket = "" if limit.bucket is None else f", bucket {limit.bucket}"
    return f"{limit.metric}{percentile}{bucket}"

"""What every rule shares: the evidence asked for, and a bucket's requests as judged so far."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..finding import Evidence, Limit
from ..shelf import Keep, in_memory
from ..stats import GateSpec, SequentialGate, clean_units_to_pass
from ..stats.pool import SortedPool
from ..stats.samples import finite, rank_of_sorted, sorted_samples
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
    keep: Keep = in_memory
    """Where the samples of a request are held."""

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
    server: list[Mapping[str, Any]] = field(default_factory=list)
    """What the server said of itself over windows that hold requests of this gate."""
    template_tokens: int = 0
    start_point: str = ""
    ended: str = ""
    """Why the run ended: decided, requests, seconds, problem, interrupted."""

    @property
    def count(self) -> int:
        """Measured requests, failed ones included."""
        return len(self.ok) + len(self.failed)

    @property
    def measured(self) -> list[Timeline]:
        """Measured requests: sound ones, then failed ones."""
        return [*self.ok, *(t for t, _ in self.failed)]

    def lengths(self, *, sound: bool = False) -> list[int]:
        """Prompt lengths of all measured requests that have one; ``sound``: of those that count."""
        return lengths_of(self.ok if sound else self.measured)

    def first_failure(self) -> str:
        """The commonest failure with its count: ``RuntimeError: boom (5 of 5 requests)``."""
        if not self.failed:
            return ""
        reason, times = Counter(reason for _, reason in self.failed).most_common(1)[0]
        return f"{reason} ({times} of {self.count} requests)"

    def attempts(self) -> list[int]:
        """Rerun attempts that have requests here, ascending."""
        return sorted({t.attempt for t in self.measured})


def lengths_of(timelines: Iterable[Timeline]) -> list[int]:
    """The prompt lengths that are known, tokens."""
    return [t.prompt_tokens for t in timelines if t.prompt_tokens is not None]


def length_summary(timelines: Iterable[Timeline]) -> dict[str, float | None]:
    """min, median, max of the prompt lengths, tokens."""
    lengths = lengths_of(timelines)
    if not lengths:
        return {"min": None, "median": None, "max": None}
    return {"min": min(lengths), "median": median(lengths), "max": max(lengths)}


def percentiles(values: Sequence[float]) -> Mapping[str, float | None]:
    """p50, p95, p99 by nearest rank; None where the rank falls on a failed request (infinite).

    A pool and an array (:func:`stats.pool.in_order`) are in order already.
    """
    ordered = values if isinstance(values, (SortedPool, array)) else sorted_samples(values)
    return {f"p{p}": finite(rank_of_sorted(ordered, p / 100)) for p in (50, 95, 99)}


def where(limit: Limit) -> str:
    """``ttft p95, bucket short`` for reasons."""
    percentile = "" if limit.percentile is None else f" p{limit.percentile:g}"
    bucket = "" if limit.bucket is None else f", bucket {limit.bucket}"
    return f"{limit.metric}{percentile}{bucket}"

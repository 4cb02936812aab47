"""Goodput: the share of requests that met every limit of their bucket, and how many a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..finding import Finding, Limit, Verdict
from ..stats import SequentialGate, nearest_rank
from ..stats.samples import finite
from ..timeline import NS_PER_MS, NS_PER_S, Timeline
from .base import OBSERVED_REQUESTS, Demand, length_summary
from .blocks import Blocks, at_the_end, units_text
from .checks import itl_samples_ms, misplaced

_GOOD, _BAD = 0.0, 1.0


@dataclass(frozen=True)
class Promise:
    """What one request of a bucket has to meet, by the limits of its bucket."""

    limits: Sequence[Limit]
    bursts_allowed: bool
    estimates: bool

    def broken(self, t: Timeline) -> str | None:
        """The metric a sound request does not meet, or that cannot be told of it; None: good.

        A percentile of ITL is that of the request's own samples, by nearest rank.
        """
        gaps: list[float] | None = None
        for limit in self.limits:
            if limit.metric == "ttft":
                value = t.ttft_ms
            elif misplaced(t, estimates=self.estimates) is not None:
                value = None
            elif limit.metric == "stall":
                value = max((g / NS_PER_MS for g in t.chunk_gaps_ns()), default=None)
            else:
                if gaps is None:
                    gaps = itl_samples_ms(t, bursts_allowed=self.bursts_allowed)
                value = nearest_rank(gaps, (limit.percentile or 0) / 100)
            if value is None or limit.limit is None or not value <= limit.limit:
                return limit.metric
        return None


class GoodputJudge:
    """The share of good requests of a level, by the sequential test on requests.

    Failed requests, and those of which a metric is unknown, are not good and are counted.
    """

    def __init__(self, limit: Limit, demand: Demand, promises: Mapping[str, Promise]) -> None:
        if limit.limit is None:
            raise ValueError(f"{limit.id}: a share needs a number")
        self.limit = limit
        self._share = limit.limit
        self._demand = demand
        self._promises = promises
        self._gate = demand.gate(self._share, 0.5, 1)
        self._blocks: dict[str, Blocks[tuple[list[float], bool]]] = {}
        self._seen: list[Timeline] = []
        self._good: list[Timeline] = []
        self._missed: Counter[str] = Counter()

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request of any bucket; ``bad`` is why it counts as failed."""
        missed = "failed" if bad is not None else self._promises[t.bucket].broken(t)
        self._seen.append(t)
        if missed is None:
            self._good.append(t)
        else:
            self._missed[missed] += 1
        given = ([_GOOD if missed is None else _BAD], bad is not None)
        for block, size in self._blocks.setdefault(t.bucket, Blocks()).add(t, given):
            if self._gate is not None:
                self._gate.add_block(block, size)

    @property
    def failed(self) -> bool:
        """True once it has failed for good."""
        return self._gate is not None and self._gate.failed

    @property
    def undecided(self) -> bool:
        """True while more requests can change the outcome from "not yet"."""
        if self._gate is None:
            return len(self._seen) < OBSERVED_REQUESTS * self._size
        return self._gate.decision is None

    @property
    def _size(self) -> int:
        return max((b.size for b in self._blocks.values()), default=1)

    def _ended(self) -> SequentialGate | None:
        rest = [block for b in self._blocks.values() for block in b.rest()]
        return at_the_end(self._gate, rest)

    def finding(self, problem: str | None) -> Finding | None:
        """The finding, None when nothing was measured. ``problem``: why a bucket was stopped."""
        n, gate = len(self._seen), self._ended()
        if not n:
            return None
        verdict, reason = self._conclude(gate, problem)
        return Finding(
            id=self.limit.id,
            rule="goodput",
            metric=self.limit.metric,
            bucket=None,
            percentile=None,
            limit=self._share,
            unit="share",
            verdict=verdict,
            reason=reason,
            observed=finite(len(self._good) / n),
            confidence=None if gate is None else round(1 - (self._demand.alpha_pass or 0), 4),
            requests=n,
            units=n if gate is None else gate.units,
            block=self._size,
            samples=n,
            exceeded=n - len(self._good),
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=length_summary(self._seen),
            evidence=self._demand.evidence(gate, self._share, 1),
            source=self.limit.source,
            notes=self._notes(),
        )

    def _conclude(self, gate: SequentialGate | None, problem: str | None) -> tuple[Verdict, str]:
        n, good = len(self._seen), len(self._good)
        words = f"{good} of {n} requests met every limit of their bucket"
        if self._missed:
            most = ", ".join(f"{metric} {times}" for metric, times in self._missed.most_common())
            words += f" (not met: {most})"
        if gate is None:
            label = f"observed, n={n}: not release evidence"
            if good < self._share * n:
                return "fail", f"{words}; {label}"
            if problem is not None:
                return "error", problem
            return ("inconclusive" if self._demand.release else "pass"), f"{words}; {label}"
        verdict: Verdict = gate.verdict()
        if verdict == "inconclusive":
            if problem is not None:
                return "error", problem
            need = self._demand.min_units(self._share) or 0
            if gate.units < need:
                words += f"; {gate.units} of at least {units_text(need, self._size)}"
            return verdict, words
        return verdict, f"{words}; decided after {units_text(gate.decided_at or 0, self._size)}"

    def _notes(self) -> tuple[str, ...]:
        rate = self.rate
        return () if rate is None else (f"goodput {rate:.3g} requests/s",)

    @property
    def rate(self) -> float | None:
        """Good requests per second, None before any time has passed.

        One at a time: over the time they took. Under load: those that ended between the first
        and the last start, over that time, so that the drain is out.
        """
        if self.limit.concurrency == 1:
            span = sum(max(t.end_ns - t.start_ns, 0) for t in self._seen)
            return len(self._good) * NS_PER_S / span if span else None
        good = span = 0
        for key in {(t.attempt, t.segment) for t in self._seen}:
            starts = [t.start_ns for t in self._seen if (t.attempt, t.segment) == key]
            first, last = min(starts), max(starts)
            good += sum(
                first <= t.end_ns < last for t in self._good if (t.attempt, t.segment) == key
            )
            span += last - first
        return good * NS_PER_S / span if span else None

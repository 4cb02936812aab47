"""One latency limit on one bucket, judged request by request: shared by TTFT, ITL and stall."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from ..finding import Evidence, Finding, Limit, Verdict
from ..stats import SequentialGate
from ..stats.pool import in_order
from ..stats.samples import finite, rank_of_sorted
from ..stats.unit import Kept, answer_of
from ..timeline import NS_PER_MS, Timeline
from .base import OBSERVED_REQUESTS, Demand, Requests, length_summary, percentiles
from .blocks import Blocks, at_the_end, units_text
from .checks import covers

Samples = Callable[[Timeline], Sequence[float]]
Unmeasurable = Callable[[Requests], "str | None"]
Remarks = Callable[[Requests], Sequence[str]]

# The measurability of a running bucket is looked at again after so many more requests, later
# after so large a share more. A look takes time in which nobody reads: it is one at the latest
# requests, and one at all only where these say that going on is of no use.
_LOOK_FIRST, _LOOK_EVERY, _LOOK_SHARE, _LOOK_BACK = 20, 10, 0.25, 100
_COLD = 5.0  # a first request this many times slower than the median of the rest is cold


class LatencyJudge:
    """Feeds a :class:`SequentialGate` and words its outcome.

    ``samples`` gives a sound request's values in ms; ``max_samples`` is M. ``unmeasurable`` says
    why the metric cannot be read from these requests (then the finding is ``error``).
    """

    def __init__(
        self,
        limit: Limit,
        demand: Demand,
        requests: Requests,
        *,
        samples: Samples,
        max_samples: int,
        unmeasurable: Unmeasurable,
        remarks: Remarks = lambda _: (),
    ) -> None:
        if limit.limit is None or limit.percentile is None:
            raise ValueError(f"{limit.id}: a latency limit needs a number and a percentile")
        self.limit = limit
        self._bound = limit.limit
        self._quantile = limit.percentile / 100
        self._demand = demand
        self._requests = requests
        self._samples = samples
        self._m = max_samples
        self._unmeasurable = unmeasurable
        self._remarks = remarks
        self._gate = demand.gate(self._quantile, self._bound, max_samples)
        self._blocks: Blocks[tuple[Kept, bool]] = Blocks()
        self._by_request: list[tuple[int, Sequence[float]]] = []
        self._look_at, self._measurable = _LOOK_FIRST, True

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request; ``bad`` is why it counts as failed."""
        values = [math.inf] * self._m if bad is not None else self._samples(t)
        kept = self._demand.keep(answer_of(values))
        for block, size in self._blocks.add(t, (Kept(kept), bad is not None)):
            if self._gate is not None:
                self._gate.add_block(block, size)
        self._by_request.append((t.attempt, kept))

    @property
    def failed(self) -> bool:
        """True once it has failed for good."""
        return self._gate is not None and self._gate.failed

    @property
    def undecided(self) -> bool:
        """True while more requests can change the outcome from "not yet"."""
        n = len(self._by_request)
        if self._gate is None:
            return n < OBSERVED_REQUESTS * self._blocks.size
        if self._gate.decision is not None:
            return False
        if n >= self._look_at and self._requests.ok:
            self._look_at = n + max(_LOOK_EVERY, round(n * _LOOK_SHARE))
            self._measurable = self._is_measurable()
        return self._measurable

    def _is_measurable(self) -> bool:
        every = self._requests
        latest = replace(every, ok=every.ok[-_LOOK_BACK:])
        return self._unmeasurable(latest) is None or self._unmeasurable(every) is None

    @property
    def running(self) -> float | None:
        """The observed percentile so far, ms; None without one."""
        if self._gate is not None:
            return finite(self._gate.observed())  # its samples are in order: cheap each time
        return finite(rank_of_sorted(self._samples_of(None), self._quantile))

    def _samples_of(self, gate: SequentialGate | None) -> Sequence[float]:
        """Every sample so far, ascending, those of failed requests infinite."""
        if gate is not None and not gate.pool.rounded:
            return gate.pool
        return in_order(values for _, values in self._by_request)

    def _ended(self) -> SequentialGate | None:
        return at_the_end(self._gate, self._blocks.rest())

    def finding(self) -> Finding | None:
        """The finding, None when nothing was measured and nothing went wrong."""
        requests = self._requests
        if requests.count == 0 and requests.problem is None:
            return None
        gate = self._ended()
        samples = self._samples_of(gate)
        verdict, reason = self._conclude(gate)
        evidence: Evidence = self._demand.evidence(gate, self._quantile, self._m)
        observed = rank_of_sorted(samples, self._quantile)
        lower = upper = None
        if gate is not None and requests.ok:
            lower, upper = (finite(b) for b in gate.bounds(observed))
        return Finding(
            id=self.limit.id,
            rule=self.limit.rule,
            metric=self.limit.metric,
            bucket=self.limit.bucket,
            percentile=self.limit.percentile,
            limit=self._bound,
            unit=self.limit.unit,
            verdict=verdict,
            reason=reason,
            observed=finite(observed),
            lower=lower,
            upper=upper,
            confidence=None if gate is None else round(1 - (self._demand.alpha_pass or 0), 4),
            requests=requests.count,
            units=requests.count if gate is None else gate.units,
            block=self._blocks.size,
            samples=len(samples),
            exceeded=len(samples) - bisect_right(samples, self._bound)
            if gate is None
            else gate.exceeded,
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=length_summary(requests.measured),
            percentiles=percentiles(samples),
            evidence=evidence,
            source=self.limit.source,
            start_point=requests.start_point,
            notes=self._notes(),
            bucket_range="" if requests.bucket is None else str(requests.bucket),
            attempts=self._attempts(),
        )

    def _conclude(self, gate: SequentialGate | None) -> tuple[Verdict, str]:
        requests = self._requests
        if not requests.ok:
            cause = requests.first_failure() or requests.problem or "nothing was measured"
            return "error", cause if requests.problem is None else f"{requests.problem}"
        wrong = self._unmeasurable(requests)
        if wrong is not None:
            return "error", wrong
        if gate is None:
            return self._observed()
        verdict: Verdict = gate.verdict()
        if verdict == "fail":
            return "fail", self._fail_reason(gate)
        if verdict == "pass":
            gap = covers(requests.lengths(sound=True), requests.bucket) if requests.bucket else None
            if gap is not None:
                return "inconclusive", gap
            return "pass", f"decided after {self._units(gate.decided_at or 0)}"
        if requests.problem is not None:
            return "error", requests.problem
        return "inconclusive", self._open_reason(gate)

    def _units(self, count: int) -> str:
        return units_text(count, self._blocks.size)

    def _observed(self) -> tuple[Verdict, str]:
        n = self._requests.count
        label = f"observed, n={n}: not release evidence"
        value = rank_of_sorted(self._samples_of(None), self._quantile)
        if value is None:
            return "error", "no sample"
        if not value <= self._bound:
            return "fail", label
        return ("inconclusive" if self._demand.release else "pass"), label

    def _fail_reason(self, gate: SequentialGate) -> str:
        failed = len(self._requests.failed)
        base = f"{gate.exceeded} of {gate.samples} samples over the limit"
        if gate.decided_at is not None:
            base = f"decided after {self._units(gate.decided_at)}; {base}"
        if failed:
            base += f"; {failed} failed: {self._requests.first_failure()}"
        return base

    def _open_reason(self, gate: SequentialGate) -> str:
        if gate.decision == "pass":
            return "was passed, but the percentile over all requests exceeds the limit"
        alone = self._blocks.size == 1
        n, need = self._requests.count, self._demand.min_units(self._quantile)
        if not alone:
            n = gate.units
        spent = {
            "seconds": "the time budget is spent",
            "requests": "the request budget is spent",
            "schedule": "the schedule is over",
            "prompts": "a bucket whose requests are part of the load has no prompt left",
        }
        why = spent.get(self._requests.ended, "measuring ended")
        if need is not None and n < need:
            return f"{why}: {n} of at least {self._units(need)}"
        return f"{why}: {self._units(n)} could not tell"

    def _notes(self) -> tuple[str, ...]:
        notes: list[str] = []
        if self._requests.failed:
            notes.append(
                f"{len(self._requests.failed)} failed requests count as over the limit: "
                f"{self._requests.first_failure()}"
            )
        firsts = [max(values) for _, values in self._by_request if values]
        if not self._requests.warmup and len(firsts) >= 3:
            rest = median(firsts[1:])
            if firsts[0] > _COLD * rest:
                notes.append(
                    f"cold: without warm-up the first request took {firsts[0]:.1f} ms, the median "
                    f"of the rest is {rest:.1f} ms; it is kept"
                )
        wave = self._first_wave()
        if wave:
            notes.append(wave)
        notes.extend(self._remarks(self._requests))
        retried = [t.retries for t in self._requests.ok if t.retries]
        if retried:
            notes.append(
                f"{sum(retried)} retries in {len(retried)} requests: the server refused first; "
                "their clock began at the first attempt"
            )
        merged = sum(t.merged for t in self._requests.ok)
        if merged:
            events = sum(len(t.arrivals) for t in self._requests.ok)
            notes.append(f"{merged} of {events} arrivals shared a read with the one before")
        tries = self._requests.attempts()
        if len(tries) > 1:
            notes.append(f"attempts {tries} are pooled: a rerun adds evidence, it replaces none")
        return tuple(notes)

    def _first_wave(self) -> str:
        """Without warm-up the requests that begin a level together find everything cold."""
        n = self._blocks.size
        largest = [max(values) for _, values in self._by_request if values]
        if n == 1 or self._requests.warmup or len(largest) < 3 * n:
            return ""
        first, rest = median(largest[:n]), median(largest[n:])
        if first <= _COLD * rest:
            return ""
        return (
            f"first wave: without warm-up the first {n} requests took {first:.1f} ms in the "
            f"median, the rest {rest:.1f} ms; they are kept (workload.warmup leaves them out)"
        )

    def _attempts(self) -> tuple[dict[str, float | int | None], ...]:
        out = []
        for attempt in self._requests.attempts():
            mine = [values for a, values in self._by_request if a == attempt]
            observed = rank_of_sorted(in_order(mine), self._quantile)
            out.append({"attempt": attempt, "requests": len(mine), "observed": finite(observed)})
        return tuple(out)


def ms(ns: int) -> float:
    """Nanoseconds in milliseconds."""
    return ns / NS_PER_MS

"""One latency limit on one bucket, judged request by request: shared by TTFT, ITL and stall."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from ..finding import Evidence, Finding, Limit, Verdict
from ..stats import nearest_rank
from ..timeline import NS_PER_MS, Timeline
from .base import OBSERVED_REQUESTS, Demand, Requests, finite, percentiles
from .checks import covers

Samples = Callable[[Timeline], Sequence[float]]
Unmeasurable = Callable[[Requests], "str | None"]

# How often the measurability of a running bucket is looked at again: it costs a pass over all.
_LOOK_FIRST, _LOOK_EVERY, _LOOK_LATER = 20, 10, 100
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
        self._gate = demand.gate(self._quantile, self._bound, max_samples)
        self._values: list[float] = []
        self._by_request: list[tuple[int, list[float]]] = []
        self._looked = (0, True)

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request; ``bad`` is why it counts as failed."""
        values = [] if bad is not None else list(self._samples(t))
        if self._gate is not None:
            self._gate.add(values, failed=bad is not None)
        over = [math.inf] * self._m if bad is not None else values
        self._values.extend(over)
        self._by_request.append((t.attempt, over))

    @property
    def undecided(self) -> bool:
        """True while more requests can change the outcome from "not yet"."""
        n = len(self._by_request)
        if self._gate is None:
            return n < OBSERVED_REQUESTS
        if self._gate.decision is not None:
            return False
        every = _LOOK_EVERY if n < _LOOK_LATER else _LOOK_LATER
        if n >= _LOOK_FIRST and n % every == 0 and self._requests.ok:
            if self._looked[0] != n:
                self._looked = (n, self._unmeasurable(self._requests) is None)
            return self._looked[1]
        return True

    @property
    def running(self) -> float | None:
        """The observed percentile so far, ms; None without one."""
        return finite(self._percentile())

    def _percentile(self) -> float | None:
        if self._gate is not None:
            return self._gate.observed()  # keeps its samples in order: cheap at every request
        return nearest_rank(self._values, self._quantile)

    def finding(self) -> Finding | None:
        """The finding, None when nothing was measured and nothing went wrong."""
        requests = self._requests
        if requests.count == 0 and requests.problem is None:
            return None
        verdict, reason = self._conclude()
        gate = self._gate
        evidence: Evidence = self._demand.evidence(gate, self._quantile, self._m)
        lower = upper = None
        if gate is not None and requests.ok:
            lower, upper = (finite(b) for b in gate.bounds())
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
            observed=self.running,
            lower=lower,
            upper=upper,
            confidence=None if gate is None else round(1 - (self._demand.alpha_pass or 0), 4),
            requests=requests.count,
            units=requests.count if gate is None else gate.units,
            samples=len(self._values),
            exceeded=sum(1 for v in self._values if not v <= self._bound),
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=requests.length_summary(),
            percentiles=percentiles(self._values),
            evidence=evidence,
            source=self.limit.source,
            start_point=requests.start_point,
            notes=self._notes(),
            bucket_range="" if requests.bucket is None else str(requests.bucket),
            attempts=self._attempts(),
        )

    def _conclude(self) -> tuple[Verdict, str]:
        requests = self._requests
        if not requests.ok:
            cause = requests.first_failure() or requests.problem or "nothing was measured"
            return "error", cause if requests.problem is None else f"{requests.problem}"
        wrong = self._unmeasurable(requests)
        if wrong is not None:
            return "error", wrong
        if self._gate is None:
            return self._observed()
        verdict: Verdict = self._gate.verdict()
        if verdict == "fail":
            return "fail", self._fail_reason()
        if verdict == "pass":
            gap = covers(requests.lengths(sound=True), requests.bucket) if requests.bucket else None
            if gap is not None:
                return "inconclusive", gap
            return "pass", f"decided after {self._gate.decided_at} requests"
        if requests.problem is not None:
            return "error", requests.problem
        return "inconclusive", self._open_reason()

    def _observed(self) -> tuple[Verdict, str]:
        n = self._requests.count
        label = f"observed, n={n}: not release evidence"
        value = self._percentile()
        if value is None:
            return "error", "no sample"
        if not value <= self._bound:
            return "fail", label
        return ("inconclusive" if self._demand.release else "pass"), label

    def _fail_reason(self) -> str:
        failed = len(self._requests.failed)
        over = sum(1 for v in self._values if not v <= self._bound)
        gate = self._gate
        at = None if gate is None else gate.decided_at
        base = f"{over} of {len(self._values)} samples over the limit"
        if at is not None:
            base = f"decided after {at} requests; {base}"
        if failed:
            base += f"; {failed} failed: {self._requests.first_failure()}"
        return base

    def _open_reason(self) -> str:
        gate = self._gate
        if gate is not None and gate.decision == "pass":
            return "was passed, but the percentile over all requests exceeds the limit"
        n, need = self._requests.count, self._demand.min_units(self._quantile)
        spent = {"seconds": "the time budget is spent", "requests": "the request budget is spent"}
        why = spent.get(self._requests.ended, "measuring ended")
        if need is not None and n < need:
            return f"{why}: {n} of at least {need} requests"
        return f"{why}: {n} requests could not tell"

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
        tries = self._requests.attempts()
        if len(tries) > 1:
            notes.append(f"attempts {tries} are pooled: a rerun adds evidence, it replaces none")
        return tuple(notes)

    def _attempts(self) -> tuple[dict[str, float | int | None], ...]:
        out = []
        for attempt in self._requests.attempts():
            values = [v for a, vs in self._by_request if a == attempt for v in vs]
            observed = nearest_rank(values, self._quantile)
            out.append(
                {
                    "attempt": attempt,
                    "requests": sum(1 for a, _ in self._by_request if a == attempt),
                    "observed": finite(observed),
                }
            )
        return tuple(out)


def ms(ns: int) -> float:
    """Nanoseconds in milliseconds."""
    return ns / NS_PER_MS

"""The share of failed requests of a bucket; limit 0 by default, so a single one is red."""

from __future__ import annotations

from ..finding import Finding, Limit, Verdict
from ..stats import SequentialGate
from ..stats.samples import finite
from ..timeline import Timeline
from .base import OBSERVED_REQUESTS, Demand, Requests, length_summary
from .blocks import Blocks, at_the_end, units_text
from .checks import Range

_DEFAULT_QUANTILE = 0.95  # how many requests "no failure" must rest on: those of a clean P95


class FailureJudge:
    """Limit 0: any failure is FAIL; none among the requests that were asked is PASS.

    How many are asked is up to the bucket's other limits; without any (``alone``) it is as many
    as a clean P95 takes. A limit above 0 is a share judged by the same sequential test (p0 = the
    limit).
    """

    def __init__(
        self, limit: Limit, demand: Demand, requests: Requests, *, alone: bool = False
    ) -> None:
        self.limit = limit
        self._alone = alone
        self._share = limit.limit or 0.0
        self._demand = demand
        self._requests = requests
        self._gate = demand.gate(1 - self._share, 0.5, 1) if self._share > 0 else None
        self._blocks: Blocks[tuple[list[float], bool]] = Blocks()
        self._n = 0
        self._failed = 0

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request."""
        self._n += 1
        self._failed += bad is not None
        given = ([0.0] if bad is None else [], bad is not None)
        for block, size in self._blocks.add(t, given):
            if self._gate is not None:
                self._gate.add_block(block, size)

    def _ended(self) -> SequentialGate | None:
        return at_the_end(self._gate, self._blocks.rest())

    @property
    def _units(self) -> int:
        return self._n if self._blocks.size == 1 else self._blocks.complete

    @property
    def failed(self) -> bool:
        """True once it has failed for good."""
        if self._gate is None:
            return self._share == 0 and self._failed > 0
        return self._gate.failed

    @property
    def undecided(self) -> bool:
        """A share of 0 drives requests of its own only when nothing else does."""
        if self._demand.alpha_pass is None:
            return self._n < OBSERVED_REQUESTS * self._blocks.size
        if self._gate is not None:
            return self._gate.decision is None
        if not self._alone:
            return False
        need = self._demand.min_units(_DEFAULT_QUANTILE) or 0
        return self._failed == 0 and self._units < need

    def finding(self) -> Finding | None:
        """The finding, None when nothing was measured."""
        requests = self._requests
        if self._n == 0 and requests.problem is None:
            return None
        gate = self._ended()
        verdict, reason = self._conclude(gate)
        quantile = 1 - self._share if gate is not None else _DEFAULT_QUANTILE
        return Finding(
            id=self.limit.id,
            rule="error",
            metric=self.limit.metric,
            bucket=self.limit.bucket,
            percentile=None,
            limit=self._share,
            unit="share",
            verdict=verdict,
            reason=reason,
            observed=finite(self._failed / self._n) if self._n else None,
            requests=self._n,
            units=self._units,
            block=self._blocks.size,
            samples=self._n,
            exceeded=self._failed,
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=length_summary(requests.measured),
            evidence=self._demand.evidence(gate, quantile, 1),
            source=self.limit.source,
            bucket_range=_range(requests.bucket),
        )

    def _conclude(self, gate: SequentialGate | None) -> tuple[Verdict, str]:
        requests = self._requests
        if self._n == 0:
            return "error", requests.problem or "nothing was measured"
        label = f"{self._failed} of {self._n} requests failed"
        if self._failed:
            label += f": {requests.first_failure()}"
        if self._failed == self._n:
            return ("fail" if self._share < 1 else "error"), label
        if gate is None:
            return self._without_test(label)
        verdict: Verdict = gate.verdict()
        if verdict == "inconclusive" and requests.problem is not None:
            return "error", requests.problem
        need = self._demand.min_units(1 - self._share) or 0
        if verdict == "inconclusive" and self._units < need:
            label += f"; {self._units} of at least {self._text(need)}"
        return verdict, label

    def _without_test(self, label: str) -> tuple[Verdict, str]:
        """A limit of 0, or the preset ``observed``; ``label`` says what was seen."""
        requests = self._requests
        if self._failed > self._share * self._n:
            return "fail", label
        if requests.problem is not None:
            return "error", requests.problem
        if self._demand.alpha_pass is None:
            tag = f"observed, n={self._n}: not release evidence"
            return ("inconclusive" if self._demand.release else "pass"), f"{label}; {tag}"
        need = self._demand.min_units(_DEFAULT_QUANTILE) or 0
        if self._alone and self._units < need:
            return "inconclusive", f"{label}: {self._units} of at least {self._text(need)}"
        return "pass", label

    def _text(self, units: int) -> str:
        return units_text(units, self._blocks.size)


def _range(bucket: Range | None) -> str:
    return "" if bucket is None else str(bucket)

"""The share of failed requests of a bucket; limit 0 by default, so a single one is red."""

from __future__ import annotations

from ..finding import Finding, Limit, Verdict
from ..timeline import Timeline
from .base import OBSERVED_REQUESTS, Demand, Requests, finite
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
        self._n = 0
        self._failed = 0

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request."""
        self._n += 1
        self._failed += bad is not None
        if self._gate is not None:
            self._gate.add([0.0] if bad is None else [], failed=bad is not None)

    @property
    def undecided(self) -> bool:
        """A share of 0 drives requests of its own only when nothing else does."""
        if self._demand.alpha_pass is None:
            return self._n < OBSERVED_REQUESTS
        if self._gate is not None:
            return self._gate.decision is None
        if not self._alone:
            return False
        need = self._demand.min_units(_DEFAULT_QUANTILE) or 0
        return self._failed == 0 and self._n < need

    def finding(self) -> Finding | None:
        """The finding, None when nothing was measured."""
        requests = self._requests
        if self._n == 0 and requests.problem is None:
            return None
        verdict, reason = self._conclude()
        gate = self._gate
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
            units=self._n,
            samples=self._n,
            exceeded=self._failed,
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=requests.length_summary(),
            evidence=self._demand.evidence(gate, quantile, 1),
            source=self.limit.source,
            bucket_range=_range(requests.bucket),
        )

    def _conclude(self) -> tuple[Verdict, str]:
        requests = self._requests
        if self._n == 0:
            return "error", requests.problem or "nothing was measured"
        label = f"{self._failed} of {self._n} requests failed"
        if self._failed:
            label += f": {requests.first_failure()}"
        if self._failed == self._n:
            return ("fail" if self._share < 1 else "error"), label
        if self._gate is None:
            if self._failed > self._share * self._n:
                return "fail", label
            if requests.problem is not None:
                return "error", requests.problem
            if self._demand.alpha_pass is None:
                tag = f"observed, n={self._n}: not release evidence"
                return ("inconclusive" if self._demand.release else "pass"), f"{label}; {tag}"
            need = self._demand.min_units(_DEFAULT_QUANTILE) or 0
            if self._alone and self._n < need:
                return "inconclusive", f"{label}: {self._n} of at least {need} requests"
            return "pass", label
        verdict: Verdict = self._gate.verdict()
        if verdict == "inconclusive" and requests.problem is not None:
            return "error", requests.problem
        need = self._demand.min_units(1 - self._share) or 0
        if verdict == "inconclusive" and self._n < need:
            label += f"; {self._n} of at least {need} requests"
        return verdict, label


def _range(bucket: Range | None) -> str:
    return "" if bucket is None else str(bucket)

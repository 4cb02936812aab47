"""The sequential gate: is at most a share 1−q of samples over the limit?

It looks after every request, stops as soon as it can tell and stays valid however often it
looks. The formulae and what they promise: docs/verdicts.md.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InternalError
from .bounds import HEADROOM, lower_bound, observed_of, upper_bound
from .guard import guard_factor
from .pool import SortedPool
from .samples import rank_of_sorted
from .spec import GateSpec
from .unit import Answer, Kept, Unit, answer_of
from .wealth import FAIL_BETS, PASS_BETS, Bets, factor_logs, mixture_log, scaled

Decision = Literal["pass", "fail"]
GateVerdict = Literal["pass", "fail", "inconclusive"]
Request = tuple["Iterable[float | None] | Kept", bool]
"""``(values, failed)`` of one request."""


@dataclass(frozen=True)
class Reading:
    """State of the test after ``units`` units. Natural logs of wealth, before the guard."""

    units: int
    log_e_pass: float
    log_e_fail: float
    log_e_pass_quarter: float
    """log E_pass at a quarter of the limit: fourfold headroom decides without the guard."""
    h: float


class _Wealth:
    """Running log wealth of every bet of one mixture."""

    def __init__(self, p0: float, bets: Bets) -> None:
        self._p0, self._bets = p0, bets
        self._totals = [0.0] * len(bets)

    def add(self, share: float) -> None:
        for i, step in enumerate(factor_logs(share, self._p0, self._bets)):
            self._totals[i] += step

    def copy(self) -> _Wealth:
        other = _Wealth(self._p0, self._bets)
        other._totals = list(self._totals)
        return other

    @property
    def log_e(self) -> float:
        return mixture_log(self._totals, self._bets)

    def reaches(self, need: float) -> bool:
        # A mean is at most its largest part: that answers most of the time, and cheaply.
        return max(self._totals) >= need and self.log_e >= need


class SequentialGate:
    """The test of one limit. Feed it every request in start order; ask it at any time.

    A request is one unit of evidence however many samples it has. A request that did not fail
    but gave no sample (one token has no gap) is counted in :attr:`requests` and is no evidence:
    it changes neither wealth nor guard nor :attr:`units`, so it can bring no PASS nearer.
    """

    def __init__(self, spec: GateSpec) -> None:
        self.spec = spec
        self.requests = 0
        self.samples = 0
        self.exceeded = 0
        self._units: list[Unit] = []
        self._closeness: list[float] = []
        self._pool = SortedPool(edge=spec.limit)
        self._fresh: list[Answer] = []
        """What is not in the pool yet: a replay looks into it once, at its end."""
        self._pass = _Wealth(spec.p0, PASS_BETS)
        self._fail = _Wealth(spec.p0, FAIL_BETS)
        self._quarter = _Wealth(spec.p0, PASS_BETS)
        self._first: tuple[Decision, Reading] | None = None
        self._failed: Reading | None = None
        self._h: tuple[int, float] = (0, 1.0)
        self._bounds: dict[tuple[int, float], tuple[float | None, float | None]] = {}

    # -- evidence in

    def add(self, values: Iterable[float | None], failed: bool = False) -> None:
        """One request. ``values`` in the unit of the limit; ignored when it failed.

        A failed request exceeds with all ``max_samples``; None, NaN, ∞ and negative values
        exceed. Raises :class:`InternalError` for more values than ``max_samples``.
        """
        self.add_block([(values, failed)])

    def add_block(self, requests: Sequence[Request], size: int | None = None) -> None:
        """One unit of several requests in flight together; their evidence is averaged.

        ``size`` (default: as many as given) is the full size of a block. An incomplete block
        keeps its samples for the percentile but is no evidence, except for its failures:
        these count, with the rest of the block taken as neutral.
        """
        size = len(requests) if size is None else size
        if not 0 < len(requests) <= size:
            raise InternalError(
                f"block: got {len(requests)} requests for a block of {size}; valid is 1 to the "
                "size; form blocks of consecutive starts"
            )
        answers = [self._answer(values, failed) for values, failed in requests]
        for answer in answers:
            self._pool_answer(answer)
        if len(answers) < size:
            answers = [a for a in answers if a is None]
        telling = tuple(a for a in answers if a is None or a)
        if telling:
            self._add_unit(Unit(telling, size - len(telling), self.spec.max_samples))

    def fork(self) -> SequentialGate:
        """The same state, to be fed apart: what a gate would say if it ended here."""
        other = copy.copy(self)
        other._units, other._closeness = list(self._units), list(self._closeness)
        other._pool, other._fresh = self.pool.copy(), []
        other._pass, other._fail = self._pass.copy(), self._fail.copy()
        other._quarter = self._quarter.copy()
        other._bounds = dict(self._bounds)
        return other

    def _answer(self, values: Iterable[float | None] | Kept, failed: bool) -> Answer | None:
        if failed:
            return None
        answer = values.answer if isinstance(values, Kept) else answer_of(values)
        if len(answer) > self.spec.max_samples:
            raise InternalError(
                f"samples of one request: got {len(answer)}; valid is at most max_samples "
                f"{self.spec.max_samples}, fixed before the run; raise max_samples or find out "
                "why the request gave more tokens than asked for"
            )
        return answer

    def _pool_answer(self, answer: Answer | None) -> None:
        m, limit = self.spec.max_samples, self.spec.limit
        added = (math.inf,) * m if answer is None else answer
        self.requests += 1
        self.samples += len(added)
        self.exceeded += len(added) - bisect_right(added, limit)
        self._fresh.append(added)

    def _add_unit(self, unit: Unit) -> None:
        limit, p0 = self.spec.limit, self.spec.p0
        self._units.append(unit)
        self._closeness.append(unit.closeness(limit))
        over = unit.share_over(limit, p0)
        self._pass.add(over)
        self._fail.add(over)
        self._quarter.add(unit.share_over(limit / HEADROOM, p0))
        self._decide()

    def _decide(self) -> None:
        if self._failed is None and self._fails():
            self._failed = self._reading()
            if self._first is None:
                self._first = ("fail", self._failed)
        elif self._first is None and self._passes():
            self._first = ("pass", self._reading())

    # The wealth is asked first: the guard only ever lowers it, and costs a pass over the series.
    def _passes(self) -> bool:
        need = self.spec.need_pass
        return self._quarter.reaches(need) or self._holds(self._pass, need)

    def _fails(self) -> bool:
        return self.units >= self.spec.min_fail and self._holds(self._fail, self.spec.need_fail)

    def _holds(self, wealth: _Wealth, need: float) -> bool:
        return wealth.reaches(need) and scaled(wealth.log_e, self._h_now()) >= need

    def _h_now(self) -> float:
        if not self.spec.guard:
            return 1.0
        if self._h[0] != self.units:
            self._h = (self.units, guard_factor(self._closeness))
        return self._h[1]

    def _reading(self) -> Reading:
        return Reading(
            units=self.units,
            log_e_pass=self._pass.log_e,
            log_e_fail=self._fail.log_e,
            log_e_pass_quarter=self._quarter.log_e,
            h=self._h_now(),
        )

    # -- what it says

    @property
    def pool(self) -> SortedPool:
        """Every sample so far, ascending; a failed request's are infinite."""
        fresh, self._fresh = self._fresh, []
        self._pool.take(fresh)
        return self._pool

    @property
    def units(self) -> int:
        """Units that gave evidence so far: requests, or blocks under concurrency."""
        return len(self._units)

    @property
    def decision(self) -> Decision | None:
        """The first decision. It is kept; :meth:`verdict` says whether it still stands."""
        return self._first[0] if self._first else None

    @property
    def failed(self) -> bool:
        """True once FAIL was reached: nothing that follows takes it back."""
        return self._failed is not None

    @property
    def decided_at(self) -> int | None:
        """Units at the first decision."""
        return self._first[1].units if self._first else None

    @property
    def evidence(self) -> Reading:
        """The reading at the first decision, else that of now."""
        return self._first[1] if self._first else self._reading()

    @property
    def log_e_pass(self) -> float:
        """log E_pass at the first decision, else now; before the guard."""
        return self.evidence.log_e_pass

    @property
    def log_e_fail(self) -> float:
        """log E_fail at the first decision, else now; before the guard."""
        return self.evidence.log_e_fail

    @property
    def log_e_pass_quarter(self) -> float:
        """log E_pass at a quarter of the limit, at the first decision, else now."""
        return self.evidence.log_e_pass_quarter

    @property
    def h(self) -> float:
        """The guard at the first decision, else now; 1 when it is off."""
        return self.evidence.h

    def verdict(self) -> GateVerdict:
        """What every request on record amounts to.

        FAIL when it was ever reached, also after a PASS. PASS when that was decided and the
        percentile of all samples still keeps the limit. Everything else is inconclusive.
        """
        if self._failed is not None:
            return "fail"
        observed = self.observed()
        if self.decision == "pass" and observed is not None and observed <= self.spec.limit:
            return "pass"
        return "inconclusive"

    def observed(self) -> float | None:
        """Nearest-rank percentile of all samples, failed requests as ∞; None without a sample.

        ``inf`` when so many failed that the rank falls among them: there is no such number.
        """
        return rank_of_sorted(self.pool, self.spec.quantile)

    def bounds(self, observed: float | None = None) -> tuple[float | None, float | None]:
        """``(lower, upper)`` of the percentile, valid at any time; None: no such bound yet.

        Lower at confidence 1−α_fail, upper at 1−α_pass, from every request on record. Where
        later requests have loosened a bound past the limit, the one of the decision stands:
        PASS ⇒ upper ≤ limit, FAIL ⇒ lower > limit. Both are widened to the observed percentile
        (samples of blocks that are not full are in it), but for one: after a FAIL that later
        requests have brought back under the limit, the lower bound says why it failed.
        Lower is ``inf`` when failed requests alone break every limit.

        ``observed``: the percentile to the last bit, where the pool has rounded its samples.
        """
        lower, upper = self._bounds_at(self.units, self._h_now())
        limit, verdict = self.spec.limit, self.verdict()
        observed = self.observed() if observed is None else observed
        if verdict == "pass" and self._first and (upper is None or upper > limit):
            upper = self._upper_at(self._first[1])
        recovered = verdict == "fail" and observed is not None and observed <= limit
        if verdict == "fail" and self._failed and (lower is None or lower <= limit):
            lower = self._lower_at(self._failed)
        if lower is not None and observed is not None and not recovered:
            lower = min(lower, observed)
        if upper is not None and observed is not None:
            upper = max(upper, observed) if math.isfinite(observed) else None
        if recovered and lower is not None and upper is not None and upper < lower:
            upper = None  # the two contradict: the verdict's stays
        return lower, upper

    def _upper_at(self, then: Reading) -> float | None:
        return self._bounds_at(then.units, then.h)[1]

    def _lower_at(self, then: Reading) -> float | None:
        return self._bounds_at(then.units, then.h)[0]

    def _bounds_at(self, count: int, h: float) -> tuple[float | None, float | None]:
        key = (count, h)
        if key not in self._bounds:
            units, spec = self._units[:count], self.spec
            values, lower = observed_of(units), None
            if count >= spec.min_fail:
                lower = lower_bound(units, values, spec.p0, h, spec.need_fail)
            self._bounds[key] = (lower, upper_bound(units, values, spec.p0, h, spec.need_pass))
        return self._bounds[key]

"""One level of load of a gate: its requests, their judges, and whether the load was there."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..errors import InternalError
from ..finding import Finding, Limit
from ..log.request_lines import was_lost
from ..policy import Policy
from ..policy.load_models import Load as LoadKeys
from ..timeline import Timeline
from . import itl, ttft
from .base import Demand, Requests
from .checks import Range, covers
from .conditions import ALONE
from .failures import FailureJudge
from .goodput import GoodputJudge, Promise
from .held import (
    Condition,
    Epoch,
    Flight,
    InFlight,
    closed_condition,
    each_run_condition,
    in_flight,
    mix_condition,
    open_condition,
    places_condition,
    schedule_condition,
)
from .latency import LatencyJudge
from .limits import load_words
from .parts import DIFFER, in_words
from .tgs import TgsJudge

_SPREAD: Mapping[str, Callable[[LoadKeys], float]] = {
    "constant": lambda _: 0.0,
    "poisson": lambda _: 1.0,
    "gamma": lambda load: 1 / (load.burstiness or 1.0),
}
"""Variance of the gaps between arrivals, in squares of their mean."""


class _Judge(Protocol):
    limit: Limit

    def add(self, t: Timeline, bad: str | None) -> None: ...

    @property
    def undecided(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    def finding(self) -> Finding | None: ...


@dataclass(frozen=True)
class _Load:
    """What the requests of a level say of the load, as of ``count`` requests."""

    count: int
    from_start: InFlight
    condition: Condition | None


class Level:
    """Judges the requests of one level; ``concurrency`` None is the open loop."""

    def __init__(
        self,
        policy: Policy,
        concurrency: int | None,
        limits: Sequence[Limit],
        demand: Demand,
        ranges: Mapping[str, Range],
    ) -> None:
        self.concurrency = concurrency
        self._policy = policy
        self._demand = demand
        self.requests = {name: Requests(bucket=r) for name, r in ranges.items()}
        mine = [x for x in limits if x.rule != "memory" and x.concurrency == concurrency]
        self.limits = tuple(mine)
        self._judges: dict[str, list[_Judge]] = {
            name: [self._judge(x, mine) for x in mine if x.bucket == name] for name in ranges
        }
        self.rates = [
            TgsJudge(
                x,
                demand,
                force_length=policy.workload.force_length,
                estimates=policy.itl.estimated == "allow",
            )
            for x in mine
            if x.rule == "tgs"
        ]
        self._goodput = [
            GoodputJudge(x, demand, {name: self._promise(name) for name in ranges})
            for x in mine
            if x.rule == "goodput"
        ]
        self.mode: str | None = None
        """How requests in flight share the model, as the level's opening says."""
        self.answered: Counter[int] = Counter()
        """Sound measured requests, by clock segment."""
        self._openings: list[tuple[int, int]] = []
        self._modes: dict[int, str | None] = {}
        """By clock segment: each part of a run begins its levels itself."""
        self._flights: list[Flight] = []
        self._began: dict[Epoch, Counter[str]] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._load: _Load | None = None

    def _judge(self, limit: Limit, all_of_level: Sequence[Limit]) -> _Judge:
        policy, requests = self._policy, self.requests[str(limit.bucket)]
        if limit.rule == "ttft":
            warm = policy.workload.warm_cache
            return ttft.judge(limit, self._demand, requests, warm_cache=warm)
        if limit.rule == "itl":
            return itl.judge(
                limit,
                self._demand,
                requests,
                max_new_tokens=policy.workload.max_new_tokens,
                bursts_allowed=policy.itl.bursts == "allow",
                force_length=policy.workload.force_length,
                estimates=policy.itl.estimated == "allow",
            )
        others = [x for x in all_of_level if x.bucket == limit.bucket and x.rule != "error"]
        return FailureJudge(limit, self._demand, requests, alone=not others)

    def _promise(self, bucket: str) -> Promise:
        return Promise(
            [x for x in self.limits if x.bucket == bucket and x.rule in ("ttft", "itl")],
            bursts_allowed=self._policy.itl.bursts == "allow",
            estimates=self._policy.itl.estimated == "allow",
        )

    # -- evidence in

    def opened(self, t_ns: int, segment: int, mode: str | None) -> None:
        """The level begins, or begins anew: what was in flight before belongs to another run."""
        self._openings = sorted([*self._openings, (segment, t_ns)])
        self.mode = self._modes[segment] = mode

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more request of a bucket of this policy; ``bad`` is why it counts as failed.

        Raises:
            InternalError: it is not in the order in which requests were started.
        """
        requests, epoch = self.requests[t.bucket], self._epoch(t)
        if self.concurrency != 1:
            self._flights.append(
                Flight(epoch, t.due_ns, t.start_ns, t.end_ns, not t.warmup, was_lost(t))
            )
        if t.warmup:
            requests.warmup.append(t)
            for rate in self.rates:
                rate.warm(t, bad, epoch)
            return
        self._check_order(t)
        self._began.setdefault(epoch, Counter())[t.bucket] += 1
        if bad is None:
            requests.ok.append(t)
            self.answered[t.segment] += 1
        else:
            requests.failed.append((t, bad))
        for judge in self._judges[t.bucket]:
            judge.add(t, bad)
        for rate in self.rates:
            rate.add(t, bad, epoch)
        for share in self._goodput:
            share.add(t, bad)

    def _epoch(self, t: Timeline) -> Epoch:
        at = bisect_right(self._openings, (t.segment, t.start_ns))
        return t.attempt, t.segment, at

    def _check_order(self, t: Timeline) -> None:
        """Blocks are of consecutive starts: a request out of order would mix two of them."""
        key = (t.bucket, t.attempt)
        before = self._counts.get(key, 0)
        self._counts[key] = before + 1
        # More is no harm: what was lost for good in between is never added.
        if t.block > 1 and t.unit < before // t.block:
            raise InternalError(
                f"request {t.id} of bucket {t.bucket} is number {before} in start order and says "
                f"it is of unit {t.unit} (blocks of {t.block}); give requests in start order"
            )

    # -- what it says

    def undecided(self, bucket: str) -> bool:
        """True while a limit that this bucket's requests feed is open."""
        if bucket not in self._judges or self.requests[bucket].problem is not None:
            return False
        return (
            any(j.undecided for j in self._judges[bucket])
            or any(r.undecided for r in self.rates)
            or any(g.undecided for g in self._goodput)
        )

    @property
    def failed(self) -> bool:
        """True once a limit has failed for good: this level will not pass."""
        return (
            any(j.failed for judges in self._judges.values() for j in judges)
            or any(r.failed for r in self.rates)
            or any(g.failed for g in self._goodput)
        )

    def open_limits(self, bucket: str) -> list[str]:
        """Ids of the bucket's undecided limits."""
        return [j.limit.id for j in self._judges.get(bucket, ()) if j.undecided]

    def running(self, bucket: str) -> dict[str, float]:
        """Observed percentile so far per latency limit, ms, by metric and percentile."""
        out: dict[str, float] = {}
        for judge in self._judges.get(bucket, ()):
            if isinstance(judge, LatencyJudge) and (value := judge.running) is not None:
                out[f"{judge.limit.metric} p{judge.limit.percentile:g}"] = value
        return out

    @property
    def ok(self) -> list[Timeline]:
        """Sound measured requests of all buckets."""
        return [t for r in self.requests.values() for t in r.ok]

    @property
    def count(self) -> int:
        """Measured requests of all buckets."""
        return sum(r.count for r in self.requests.values())

    def finding(self, limit: Limit, resources: Sequence[Mapping[str, Any]]) -> Finding | None:
        """One limit of this level, judged; None when nothing of it was measured."""
        found: Finding | None = None
        for rate in self.rates:
            if rate.limit is limit:
                found = rate.finding(resources, self.actual)
        for share in self._goodput:
            if share.limit is limit:
                found = self._of_all_buckets(share)
        for judge in self._judges.get(str(limit.bucket), ()):
            if judge.limit is limit:
                found = judge.finding()
        if found is None:
            return None
        return self._under_load(replace(found, concurrency=limit.concurrency, load=limit.load))

    def _of_all_buckets(self, share: GoodputJudge) -> Finding | None:
        """Goodput rests on every latency limit: where one cannot be judged, neither can it."""
        problem = next((r.problem for r in self.requests.values() if r.problem), None)
        found = share.finding(problem)
        if found is None or found.verdict == "error":
            return found
        every = [j.finding() for judges in self._judges.values() for j in judges]
        broken = [f for f in every if f is not None and f.verdict == "error" and f.rule != "error"]
        if broken:
            why = f"rests on {broken[0].id}, which could not be judged: {broken[0].reason}"
            return replace(found, verdict="error", reason=why)
        if found.verdict != "pass":
            return found
        for name, requests in self.requests.items():
            gap = requests.bucket and covers(requests.lengths(sound=True), requests.bucket)
            if gap:
                return replace(found, verdict="inconclusive", reason=f"bucket {name}: {gap}")
        return found

    def _under_load(self, found: Finding) -> Finding:
        """Without the load that was asked for there is no verdict; at least no PASS.

        Failed requests are failed under any load: of their share only a PASS is taken.
        """
        condition = self.load.condition
        if condition is None or found.verdict == "error":
            return found
        if found.rule == "error" and found.verdict != "pass":
            return found
        if condition.error:
            return replace(found, verdict="error", reason=condition.reason)
        if found.verdict != "pass":
            return found
        return replace(found, verdict="inconclusive", reason=condition.reason)

    @property
    def load(self) -> _Load:
        """Whether the load was there."""
        if self._load is None or self._load.count != len(self._flights):
            self._load = self._look()
        return self._load

    def _look(self) -> _Load:
        count, n = len(self._flights), self.concurrency
        found = in_flight(self._flights)
        if n == 1 or not self.ok:
            return _Load(count, found, None)
        if n is None:
            due = in_flight(self._flights, due=True)
            load = self._policy.load
            slow = None
            if load.rate is not None and load.kind in _SPREAD:
                slow = schedule_condition(self._flights, load.rate, _SPREAD[load.kind](load))
            told = slow or open_condition(self.ok, due, bursty=load.bursty)
            if load.max_in_flight is None:
                told = told or places_condition(self.ok)
            told = told or self._mix()
            return _Load(count, found, told)
        measured = [*self.ok, *(t for r in self.requests.values() for t, _ in r.failed)]
        told = closed_condition(n, measured, found) or each_run_condition(n, self._flights)
        return _Load(count, found, told or self._mix())

    @property
    def _modes_used(self) -> list[str | None]:
        """How each part of the run that answered something had requests share the model."""
        return [self._modes.get(segment) for segment in sorted({t.segment for t in self.ok})]

    def _mix(self) -> Condition | None:
        load = self._policy.load
        if load.kind == "trace":
            return None  # it says itself which bucket comes when
        given = load.mix or {}
        return mix_condition(self._began, {name: given.get(name, 1.0) for name in self.requests})

    @property
    def actual(self) -> Mapping[str, Any]:
        """Concurrency as asked for, and as it was over the measured window."""
        if self.concurrency == 1:
            return ALONE
        mean = self.load.from_start.mean
        asked = self.concurrency or load_words(self._policy, None)
        if len(set(self._modes_used)) > 1:
            return {DIFFER: in_words([f"{asked} in flight by {how}" for how in self._modes_used])}
        return {"asked": asked, "actual": None if mean is None else round(mean, 3)}

    def tgs_entries(self, resources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The level's rate with its conditions; empty where no request was answered."""
        entries = [rate.entry(resources, self.actual) for rate in self.rates]
        if self.concurrency == 1:
            return [e for e in entries if e is not None]
        return [{**e, "mode": self.mode} for e in entries if e is not None]

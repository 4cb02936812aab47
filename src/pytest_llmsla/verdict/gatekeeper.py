"""The judge of one gate: fed line by line, asked what is open, and for its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from ..finding import Finding, Limit
from ..policy import LoadedPolicy
from ..rules.base import Demand
from ..rules.level import Level
from ..rules.limits import limits_of
from ..shelf import Keep, in_memory
from ..timeline import PEAK, Timeline
from .admission import Admission, as_judged, ranges_of
from .findings import Findings, KvPlanState
from .record import Record
from .throughput import tgs_entries

FIRST: Final = "first"
"""The first level of a policy."""
EVERY: Final = "every"
"""All levels of a policy."""

OneLevel = int | Literal["first"] | None
"""Requests in flight together, None for the open loop, or the first level of a policy."""
AllOrOne = int | Literal["every"] | None
"""Requests in flight together, None for the open loop, or every level of a policy."""


class Gatekeeper:
    """Judges one gate request by request, each at its level of load.

    Feed it the gate's timelines in start order (:meth:`add`), its ``resources`` lines, problems
    and the end; ask :meth:`undecided` while running and :meth:`findings` at any time. A level is
    a number of requests in flight, None for the open loop; where it is left out the first one is
    meant, or every one.
    """

    def __init__(
        self,
        loaded: LoadedPolicy,
        *,
        gate: str | None = None,
        kv_plan: KvPlanState | None = None,
        other_levels: bool = False,
        keep: Keep = in_memory,
    ) -> None:
        """``other_levels``: requests at levels this policy does not have are no reason to doubt
        the rest, because the run was made under another policy. ``keep``: where the samples of
        requests are held."""
        policy = loaded.policy
        self.gate = gate
        self.limits = limits_of(loaded, gate)
        self.ranges = ranges_of(policy)
        self._foreign = 0
        self._other_levels = other_levels
        demand = Demand(
            preset=policy.evidence.preset,
            alpha_pass=policy.alpha_pass,
            alpha_fail=policy.alpha_fail,
            guard=policy.evidence.guard,
            release=gate is None,
            keep=keep,
        )
        self._levels = {
            n: Level(policy, n, self.limits, demand, self.ranges) for n in policy.levels
        }
        self._record = Record(self._levels)
        self._admission = Admission(self.ranges, policy.workload.max_new_tokens)
        self._findings = Findings(policy, self.limits, self._record, kv_plan or KvPlanState())

    @property
    def levels(self) -> tuple[int | None, ...]:
        """Levels of load of the policy."""
        return tuple(self._levels)

    def _at(self, concurrency: OneLevel) -> Level:
        return self._levels[self._record.first if concurrency == FIRST else concurrency]

    # -- evidence in

    def facts(self, target: Mapping[str, Any]) -> None:
        """What is known of the loaded target (a ``target`` line)."""
        self._record.target = target
        for requests in (*self._record.buckets(), self._record.peak):
            requests.start_point = str(target.get("start_point", ""))
            requests.template_tokens = int(target.get("template_tokens") or 0)

    def opened(
        self, concurrency: int | None, t_ns: int, *, segment: int = 0, mode: str | None = None
    ) -> None:
        """A level begins (a ``level`` line), before its first request; ``t_ns`` as in theirs.

        A level the policy does not have is none of its business.
        """
        if concurrency in self._levels:
            self._levels[concurrency].opened(t_ns, segment, mode)

    def add(self, t: Timeline) -> Timeline:
        """Take one request; returns it with status ``error`` where it is unusable.

        Requests of buckets or levels this policy does not have are ignored (and never make a
        PASS; those of other levels take it away, unless they belong to another policy).

        Raises:
            InternalError: under load, a request that was not given in start order.
        """
        if t.purpose == PEAK:
            bad = self._admission.of_peak(t)
            t = as_judged(t, bad)
            self._record.add_peak(t, bad)
            return t
        if t.bucket not in self.ranges:
            return t
        level = self._levels.get(t.level)
        if level is None:
            self._foreign += 1
            self._admission.passed(t)
            return t
        bad = self._admission.of_bucket(t, alone=level.concurrency == 1)
        t = as_judged(t, bad)
        level.add(t, bad)
        return t

    def resources(self, line: Mapping[str, Any]) -> None:
        """A ``resources`` line."""
        self._record.resources.append(line)

    def server(self, line: Mapping[str, Any]) -> None:
        """What the server said of itself over a window of this gate (a ``server`` line)."""
        for requests in self._record.buckets():
            requests.server.append(line)

    def problem(self, bucket: str | None, reason: str, concurrency: AllOrOne = EVERY) -> None:
        """A bucket (None: every one) cannot be measured on, at one level or at all of them.

        The first reason stays.
        """
        for n, level in self._levels.items():
            if concurrency in (EVERY, n):
                for name, requests in level.requests.items():
                    if bucket in (None, name) and requests.problem is None:
                        requests.problem = reason
        peak = self._record.peak
        if concurrency == EVERY and bucket in (None, PEAK) and peak.problem is None:
            peak.problem = reason

    def end(self, reason: str, concurrency: AllOrOne = EVERY) -> None:
        """Why measuring ended, at one level or at all of them."""
        for n, level in self._levels.items():
            if concurrency in (EVERY, n):
                for requests in level.requests.values():
                    requests.ended = reason

    # -- while running

    def undecided(self, bucket: str, concurrency: OneLevel = FIRST) -> bool:
        """True while a limit that this bucket's requests feed is open."""
        return self._at(concurrency).undecided(bucket)

    def failed(self, concurrency: OneLevel = FIRST) -> bool:
        """True once a limit of a level has failed for good."""
        return self._at(concurrency).failed

    def open_limits(self, bucket: str, concurrency: OneLevel = FIRST) -> list[str]:
        """Ids of the bucket's undecided limits, for progress."""
        return self._at(concurrency).open_limits(bucket)

    def count(self, bucket: str, concurrency: OneLevel = FIRST) -> int:
        """Measured requests of a bucket."""
        return self._at(concurrency).requests[bucket].count

    def answered(self, concurrency: OneLevel = FIRST, *, segment: int | None = None) -> int:
        """Sound measured requests of a level: what a reading of memory made now covers.

        ``segment``: of that clock segment only; a process read nothing of what another answered.
        """
        answered = self._at(concurrency).answered
        return sum(answered.values()) if segment is None else answered[segment]

    def running(self, bucket: str, concurrency: OneLevel = FIRST) -> dict[str, float]:
        """Observed percentile so far per latency limit, ms, by metric and percentile."""
        return self._at(concurrency).running(bucket)

    def warmups(self, bucket: str, concurrency: OneLevel = FIRST) -> list[Timeline]:
        """Warm-up requests of a bucket."""
        return list(self._at(concurrency).requests[bucket].warmup)

    # -- what it says

    def findings(self) -> list[Finding]:
        """Every limit that was measured or could not be; limits never reached are absent."""
        found = (self._judged(limit) for limit in self.limits)
        return [f for f in found if f is not None]

    def finding(self, limit_id: str) -> Finding | None:
        """One finding by id; None when nothing of it was measured."""
        return next((self._judged(x) for x in self.limits if x.id == limit_id), None)

    def _judged(self, limit: Limit) -> Finding | None:
        """A run with requests at a load that was never asked for is not the run of its policy."""
        found = self._findings.of(limit)
        if not self._foreign or self._other_levels or found is None or found.verdict != "pass":
            return found
        reason = (
            f"{self._foreign} requests are on record at a concurrency, or by a schedule, that the "
            "policy does not have: the record is damaged, or of another policy"
        )
        return replace(found, verdict="error", reason=reason)

    def tgs_entries(self) -> list[dict[str, Any]]:
        """TGS of every level and peak TGS, with their conditions."""
        return tgs_entries(self._record, self.limits)

    def failures(self) -> dict[tuple[str, str], int]:
        """Failed measured requests: (bucket, with its level from the second on; reason) → count."""
        return self._record.failures()

    def notes(self) -> list[str]:
        """What a reader must know that no limit is about."""
        return self._findings.notes()

    def untold(self) -> list[str]:
        """Why nobody can tell whether a server answered this gate's prompts from a cache."""
        return self._findings.untold()

    def title(self, bucket: str, concurrency: int | None) -> str:
        """``short``; at a further level ``short/concurrency-4``."""
        return self._record.title(bucket, concurrency)

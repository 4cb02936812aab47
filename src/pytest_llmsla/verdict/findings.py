"""One limit, judged on all that its gate has on record: of its level, and beside other levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .. import diagnose
from ..finding import Finding, Limit
from ..policy import Policy
from ..rules import growth, itl, memory, prefix_cache, ttft
from ..rules.base import Requests
from ..timeline import Timeline
from .record import Record
from .throughput import with_peak


@dataclass(frozen=True)
class KvPlanState:
    """A KV-cache plan as considered today: its one-line summary, or why it is none."""

    summary: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Findings:
    """Judges the limits of one gate, at any time and as often as asked."""

    policy: Policy
    limits: Sequence[Limit]
    record: Record
    kv_plan: KvPlanState

    def of(self, limit: Limit) -> Finding | None:
        """The finding on ``limit``; None when nothing of it was measured."""
        record = self.record
        if limit.rule == "memory":
            found = self._memory(limit)
            return found and replace(found, concurrency=limit.concurrency)
        level = record.levels[limit.concurrency]
        found = level.finding(limit, record.readings(limit.concurrency))
        if found is None:
            return None
        if limit.rule == "tgs":
            first = next(x for x in self.limits if x.rule == "tgs")
            return _explained(with_peak(found, record) if limit is first else found, level.ok)
        if limit.rule == "goodput":
            return _explained(found, level.ok)
        found = self._of_bucket(found, level.requests[str(limit.bucket)])
        return self._beside_lower_levels(found, limit)

    def _memory(self, limit: Limit) -> Finding | None:
        """Of the whole run, whatever the level."""
        judge = growth.finding if limit.metric == "growth" else memory.finding
        return judge(
            limit,
            [(part.resources, len(part.ok)) for part in self.record.parts()],
            sum(level.count for level in self.record.levels.values()),
        )

    def _of_bucket(self, found: Finding, requests: Requests) -> Finding:
        found = itl.with_kv_plan(
            found,
            plan=self.kv_plan.summary,
            problem=self.kv_plan.problem,
            passes=self.policy.itl.conditional_passes,
        )
        if found.rule == "ttft":
            found = replace(found, stages=ttft.stage_shares(requests.ok))
        if found.rule == "error":
            return _explained(found, [*requests.ok, *(t for t, _ in requests.failed)])
        return _explained(found, requests.ok)

    def _beside_lower_levels(self, found: Finding, limit: Limit) -> Finding:
        """A limit that holds with fewer in flight: the load breaks it, not the request."""
        n = limit.concurrency
        if found.verdict != "fail" or found.rule not in ("ttft", "itl") or n is None:
            return found
        fewer = [
            x
            for x in self.limits
            if (x.metric, x.bucket, x.percentile) == (limit.metric, limit.bucket, limit.percentile)
            and x.concurrency is not None
            and x.concurrency < n
        ]
        for lower in sorted(fewer, key=lambda x: -(x.concurrency or 0)):
            level = self.record.levels[lower.concurrency]
            held = level.finding(lower, self.record.readings(lower.concurrency))
            if held is not None and held.verdict == "pass":
                return replace(found, diagnosis=(diagnose.of_levels(found, held),))
        return found

    def notes(self) -> list[str]:
        """What a reader must know that no limit is about."""
        return [*self._growth(), *self.untold()]

    def untold(self) -> list[str]:
        """Why nobody can tell whether a server answered this gate's prompts from a cache."""
        work = self.policy.workload
        if getattr(self.policy.target, "base_url", None) is None or work.warm_cache:
            return []
        servers = next((r.server for r in self.record.buckets()), [])
        ok = [t for level in self.record.levels.values() for t in level.ok]
        return prefix_cache.untold(servers, ok, from_files=work.prompts != "builtin")

    def _growth(self) -> list[str]:
        if any(limit.metric == "growth" for limit in self.limits):
            return []
        every = [line for part in self.record.parts() for line in growth.warnings(part.resources)]
        return list(dict.fromkeys(every))


def _explained(found: Finding, timelines: list[Timeline]) -> Finding:
    if found.verdict == "pass":
        return found
    return replace(found, diagnosis=diagnose.explain(found, timelines))

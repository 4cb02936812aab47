"""Policy and timelines in, findings out. Pure, and the same code live and in every replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import diagnose
from .finding import Finding, Limit
from .policy import LoadedPolicy, Policy
from .rules import itl, memory, tgs, ttft
from .rules.base import Demand, Requests
from .rules.checks import Range, defect
from .rules.failures import FailureJudge
from .rules.latency import LatencyJudge
from .timeline import PEAK, Timeline


@dataclass(frozen=True)
class KvPlanState:
    """A KV-cache plan as considered today: its one-line summary, or why it is none."""

    summary: str | None = None
    problem: str | None = None


class _Judge(Protocol):
    limit: Limit

    def add(self, t: Timeline, bad: str | None) -> None: ...

    @property
    def undecided(self) -> bool: ...

    def finding(self) -> Finding | None: ...


def limits_of(loaded: LoadedPolicy, gate: str | None = None) -> tuple[Limit, ...]:
    """Every limit a policy declares, in the order of the rules; loads nothing.

    ``gate`` is a test's node id for a gate of its own: ids become ``<node id>/ttft_p95`` (with
    several buckets ``<node id>/short/ttft_p95``), TGS is judged only with a ``min_tokens_per_s``
    (and documented all the same).
    """
    policy, out = loaded.policy, list[Limit]()
    several = len(policy.buckets) > 1
    for b in policy.buckets:
        within = f"{b.name}/" if gate is None or several else ""
        stem = within if gate is None else f"{gate}/{within}"
        out += _bucket_limits(loaded, policy, b.name, b.ttft_ms, stem)
    floor = _min_rate(policy)
    if gate is None or floor is not None:
        stem = "" if gate is None else f"{gate}/"
        for n in policy.tgs.concurrency:
            name = f"{stem}tgs/concurrency-{n}" if gate is None else f"{stem}tgs"
            key = "tgs.min_tokens_per_s" if floor is not None else "tgs.concurrency"
            out.append(Limit(name, "tgs", "tgs", None, floor, "tokens/s", 50, loaded.source(key)))
    stem = "" if gate is None else f"{gate}/"
    for figure in memory.FIGURES:
        value = getattr(policy.memory, f"{figure}_gib")
        if value is not None:
            source = loaded.source(f"memory.{figure}_gib")
            out.append(
                Limit(f"{stem}memory/{figure}", "memory", figure, None, value, "GiB", None, source)
            )
    return tuple(out)


def _bucket_limits(
    loaded: LoadedPolicy, policy: Policy, name: str, ttft_ms: float | None, stem: str
) -> Iterable[Limit]:
    if ttft_ms is not None:
        q = policy.ttft.percentile
        source = loaded.source(f"buckets.{name}.ttft_ms")
        yield Limit(f"{stem}ttft_p{q:g}", "ttft", "ttft", name, ttft_ms, "ms", q, source)
    for q in (50, 95, 99):
        value = getattr(policy.itl, f"p{q}_ms")
        if value is not None:
            source = loaded.source(f"itl.p{q}_ms")
            yield Limit(f"{stem}itl_p{q}", "itl", "itl", name, value, "ms", q, source)
    stall = policy.itl.stall_p95_ms
    if stall is not None:
        source = loaded.source("itl.stall_p95_ms")
        yield Limit(f"{stem}stall_p95", "itl", "stall", name, stall, "ms", 95, source)
    rate, source = policy.errors.max_error_rate, loaded.source("errors.max_error_rate")
    yield Limit(f"{stem}error_rate", "error", "error_rate", name, rate, "share", None, source)


def _min_rate(policy: Policy) -> float | None:
    given = policy.tgs.min_tokens_per_s
    if isinstance(given, Mapping):
        return given.get(1)
    return given


def ranges_of(policy: Policy) -> dict[str, Range]:
    """The buckets' prompt lengths by name."""
    return {
        b.name: Range(b.name, b.prompt_min, b.prompt_max, b.measured_to) for b in policy.buckets
    }


class Gatekeeper:
    """Judges one gate request by request.

    Feed it the gate's timelines in start order (:meth:`add`), its ``resources`` lines, problems
    and the end; ask :meth:`undecided` while running and :meth:`findings` at any time.
    """

    def __init__(
        self,
        loaded: LoadedPolicy,
        *,
        gate: str | None = None,
        kv_plan: KvPlanState | None = None,
    ) -> None:
        policy = loaded.policy
        self.gate = gate
        self.limits = limits_of(loaded, gate)
        self.ranges = ranges_of(policy)
        self._policy = policy
        self._kv_plan = kv_plan or KvPlanState()
        self._demand = Demand(
            preset=policy.evidence.preset,
            alpha_pass=policy.alpha_pass,
            alpha_fail=policy.alpha_fail,
            guard=policy.evidence.guard,
            release=gate is None,
        )
        self._requests = {name: Requests(bucket=r) for name, r in self.ranges.items()}
        self._peak = Requests(bucket=None)
        self._resources: list[Mapping[str, Any]] = []
        self._judges: dict[str, list[_Judge]] = {
            name: [self._judge(limit) for limit in self.limits if limit.bucket == name]
            for name in self.ranges
        }
        self._rates = [
            tgs.TgsJudge(limit, self._demand, force_length=policy.workload.force_length)
            for limit in self.limits
            if limit.rule == "tgs"
        ]
        self._before: Timeline | None = None

    def _judge(self, limit: Limit) -> _Judge:
        policy, requests = self._policy, self._requests[str(limit.bucket)]
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
            )
        others = [x for x in self.limits if x.bucket == limit.bucket and x.rule != "error"]
        return FailureJudge(limit, self._demand, requests, alone=not others)

    def facts(self, target: Mapping[str, Any]) -> None:
        """What is known of the loaded target (a ``target`` line)."""
        for requests in (*self._requests.values(), self._peak):
            requests.start_point = str(target.get("start_point", ""))
            requests.template_tokens = int(target.get("template_tokens") or 0)

    def add(self, t: Timeline) -> Timeline:
        """Take one request; returns it with status ``error`` where it is unusable.

        Requests of buckets this policy does not have are ignored (and never make a PASS).
        """
        requests = self._peak if t.purpose == PEAK else self._requests.get(t.bucket)
        if requests is None:
            return t
        bad = defect(t, requests.bucket) or self._overlap(t)
        self._before = t
        if bad is not None and t.ok:
            t = replace(t, status="error", error=bad)
        if t.purpose == PEAK:
            self._sort(t, self._peak, bad)
            return t
        if t.warmup:
            requests.warmup.append(t)
            for rate in self._rates:
                rate.warm(t)
            return t
        if t.max_new_tokens > self._policy.workload.max_new_tokens and bad is None:
            bad = (
                f"{t.max_new_tokens} tokens were asked for, the policy judges "
                f"{self._policy.workload.max_new_tokens} (workload.max_new_tokens)"
            )
            t = replace(t, status="error", error=bad)
        self._sort(t, requests, bad)
        for judge in self._judges[t.bucket]:
            judge.add(t, bad)
        for rate in self._rates:
            rate.add(t, bad)
        return t

    def _overlap(self, t: Timeline) -> str | None:
        """One request at a time is judged, so the one before must have ended."""
        before = self._before
        if before is None or before.segment != t.segment or t.start_ns >= before.end_ns:
            return None
        return (
            f"it began before request {before.id} had ended: they shared the model, and one at a "
            "time is judged"
        )

    @staticmethod
    def _sort(t: Timeline, requests: Requests, bad: str | None) -> None:
        if t.warmup:
            requests.warmup.append(t)
        elif bad is None:
            requests.ok.append(t)
        else:
            requests.failed.append((t, bad))

    def resources(self, line: Mapping[str, Any]) -> None:
        """A ``resources`` line."""
        self._resources.append(line)

    def problem(self, bucket: str | None, reason: str) -> None:
        """A bucket (None: every one) cannot be measured on; the first reason stays."""
        for name, requests in (*self._requests.items(), (PEAK, self._peak)):
            if bucket in (None, name) and requests.problem is None:
                requests.problem = reason

    def end(self, reason: str) -> None:
        """Why measuring ended."""
        for requests in self._requests.values():
            requests.ended = reason

    def undecided(self, bucket: str) -> bool:
        """True while a limit that this bucket's requests feed is open."""
        if bucket not in self._judges or self._requests[bucket].problem is not None:
            return False
        return any(j.undecided for j in self._judges[bucket]) or any(
            r.undecided for r in self._rates
        )

    def open_limits(self, bucket: str) -> list[str]:
        """Ids of the bucket's undecided limits, for progress."""
        return [j.limit.id for j in self._judges.get(bucket, ()) if j.undecided]

    def count(self, bucket: str) -> int:
        """Measured requests of a bucket."""
        return self._requests[bucket].count

    def running(self, bucket: str) -> dict[str, float]:
        """Observed percentile so far per latency limit, ms, by metric and percentile."""
        out: dict[str, float] = {}
        for judge in self._judges.get(bucket, ()):
            if isinstance(judge, LatencyJudge) and (value := judge.running) is not None:
                out[f"{judge.limit.metric} p{judge.limit.percentile:g}"] = value
        return out

    def warmups(self, bucket: str) -> list[Timeline]:
        """Warm-up requests of a bucket."""
        return list(self._requests[bucket].warmup)

    def problem_of(self, bucket: str) -> str | None:
        """Why a bucket was stopped, None when it was not."""
        return self._requests[bucket].problem

    def findings(self) -> list[Finding]:
        """Every limit that was measured or could not be; limits never reached are absent."""
        found = (self._found(limit) for limit in self.limits)
        return [f for f in found if f is not None]

    def finding(self, limit_id: str) -> Finding | None:
        """One finding by id; None when nothing of it was measured."""
        return next((self._found(x) for x in self.limits if x.id == limit_id), None)

    def _found(self, limit: Limit) -> Finding | None:
        if limit.rule == "memory":
            every = self._requests.values()
            total, answered = sum(r.count for r in every), sum(len(r.ok) for r in every)
            return memory.finding(limit, self._measured(), total, answered)
        for rate in self._rates:
            if rate.limit is limit:
                found = rate.finding(self._measured())
                if found is None:
                    return None
                return self._explained(self._with_peak(found), self._every())
        for judge in self._judges.get(str(limit.bucket), ()):
            if judge.limit is limit:
                found = judge.finding()
                requests = self._requests[str(limit.bucket)]
                return None if found is None else self._finish(found, requests)
        return None

    def _with_peak(self, found: Finding) -> Finding:
        """A peak request that failed leaves rule 3 without one of its two figures.

        A peak figure without its four conditions is as undocumented as a steady one.
        """
        entry = tgs.peak_entry(self._peak, self._measured(PEAK), found.id)
        if entry is not None and entry["undocumented"] and self._peak.ok:
            return replace(found, verdict="fail", reason=f"peak: {entry['undocumented']}")
        failed, reason = self._peak.failed, self._peak.problem
        if failed:
            reason = f"{len(failed)} of {self._peak.count} peak requests failed: {failed[0][1]}"
        if reason is None or found.verdict == "fail":
            return found
        return replace(found, verdict="error", reason=reason)

    def _finish(self, found: Finding, requests: Requests) -> Finding:
        found = itl.with_kv_plan(
            found,
            plan=self._kv_plan.summary,
            problem=self._kv_plan.problem,
            passes=self._policy.itl.conditional_passes,
        )
        if found.rule == "ttft":
            found = replace(found, stages=ttft.stage_shares(requests.ok))
        if found.rule == "error":
            return self._explained(found, [*requests.ok, *(t for t, _ in requests.failed)])
        return self._explained(found, requests.ok)

    @staticmethod
    def _explained(found: Finding, timelines: list[Timeline]) -> Finding:
        if found.verdict == "pass":
            return found
        return replace(found, diagnosis=diagnose.explain(found, timelines))

    def tgs_entries(self) -> list[dict[str, Any]]:
        """Steady and peak TGS with their conditions; no entry where no request was answered."""
        out = []
        for rate in self._rates:
            steady = rate.entry(self._measured())
            peak = tgs.peak_entry(self._peak, self._measured(PEAK), rate.limit.id)
            out += [e for e in (steady, peak) if e is not None and e["tokens_per_s"] is not None]
        return out

    def failures(self) -> dict[tuple[str, str], int]:
        """Failed measured requests: (bucket, reason) → how many."""
        out: dict[tuple[str, str], int] = {}
        for name, requests in (*self._requests.items(), (PEAK, self._peak)):
            for _, reason in requests.failed:
                out[name, reason] = out.get((name, reason), 0) + 1
        return out

    def _every(self) -> list[Timeline]:
        return [t for r in self._requests.values() for t in r.ok]

    def _measured(self, purpose: str | None = None) -> list[Mapping[str, Any]]:
        return [line for line in self._resources if line.get("purpose") == purpose]

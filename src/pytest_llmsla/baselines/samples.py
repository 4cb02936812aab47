"""What a judged gate gives to compare: for each limit on time, the samples of each request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..finding import Finding, Limit
from ..replay import JudgedGate
from ..rules.checks import itl_samples_ms
from ..timeline import NS_PER_MS, NS_PER_S, Timeline

_METRICS = ("ttft", "itl", "stall")


@dataclass(frozen=True)
class Measured:
    """One limit's samples: a list a request, in start order; a failed one as its samples of ∞."""

    limit: Limit
    quantile: float
    requests: tuple[tuple[float, ...], ...]
    problem: str | None
    """Why the metric could not be measured; None: it was."""
    unit: str


def measured(gates: tuple[JudgedGate, ...]) -> dict[str, Measured]:
    """By limit id, in the order of the gates: latencies in ms, TGS as seconds a token."""
    out: dict[str, Measured] = {}
    for gate in gates:
        found = {f.id: f for f in gate.findings()}
        for limit in gate.keeper.limits:
            if limit.metric in _METRICS:
                out[limit.id] = _latency(gate, limit, found.get(limit.id))
        out |= _rates(gate, found)
    return out


def _latency(gate: JudgedGate, limit: Limit, finding: Finding | None) -> Measured:
    policy = gate.loaded.policy
    most = max(policy.workload.max_new_tokens - 1, 1) if limit.metric == "itl" else 1
    spread = policy.itl.bursts == "allow"
    mine = [t for t in gate.requests if _belongs(t, limit)]
    requests = tuple(_samples(t, limit.metric, most, spread=spread) for t in mine)
    problem = None
    if finding is None or not mine:
        problem = "nothing of it was measured"
    elif finding.verdict == "error":
        problem = finding.reason
    return Measured(limit, (limit.percentile or 0) / 100, requests, problem, "ms")


def _belongs(t: Timeline, limit: Limit) -> bool:
    return t.bucket == limit.bucket and _at_level(t, limit)


def _at_level(t: Timeline, limit: Limit) -> bool:
    return not t.warmup and t.purpose is None and t.level == limit.concurrency


def _samples(t: Timeline, metric: str, most: int, *, spread: bool) -> tuple[float, ...]:
    if not t.ok:
        return (math.inf,) * most
    if metric == "ttft":
        return () if t.ttft_ms is None else (t.ttft_ms,)
    if metric == "stall":
        gaps = t.chunk_gaps_ns()
        return (max(gaps) / NS_PER_MS,) if gaps else ()
    return tuple(itl_samples_ms(t, bursts_allowed=spread))


def _rates(gate: JudgedGate, found: dict[str, Finding]) -> dict[str, Measured]:
    """TGS as seconds a token, so that slower is more, like a latency.

    One request at a time: of each request. Several at once: of the windows of the total rate, and
    only where a limit asked for enough of them.
    """
    out = {}
    limits = {x.id: x for x in gate.keeper.limits}
    for entry in gate.keeper.tgs_entries():
        limit = limits.get(entry["finding"])
        if limit is None or entry["kind"] not in ("steady", "concurrent"):
            continue
        rows: tuple[tuple[float, ...], ...]
        if entry["kind"] == "steady":
            rows = tuple(_seconds_a_token(t) for t in gate.requests if _at_level(t, limit))
        elif limit.limit is not None:
            rows = tuple((1 / r if r > 0 else math.inf,) for r in entry["windows"])
        else:
            continue
        finding = found.get(limit.id)
        wrong = finding is None or finding.verdict == "error"
        problem = (finding.reason if finding else "it was not judged") if wrong else None
        out[limit.id] = Measured(limit, 0.5, rows, problem, "s/token")
    return out


def _seconds_a_token(t: Timeline) -> tuple[float, ...]:
    if not t.ok or not t.tokens:
        return (math.inf,)
    return ((t.end_ns - t.start_ns) / NS_PER_S / t.tokens,)

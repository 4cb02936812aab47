"""Rule 2: ITL reports P50, P95, P99 pooled over all tokens of a bucket, and stalls beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..finding import Finding, Limit
from ..timeline import Timeline
from .base import Demand, Requests
from .checks import itl_problem, itl_samples_ms
from .latency import LatencyJudge, ms


def judge(
    limit: Limit,
    demand: Demand,
    requests: Requests,
    *,
    max_new_tokens: int,
    bursts_allowed: bool,
    force_length: bool,
    estimates: bool = False,
) -> LatencyJudge:
    """A judge of one ITL percentile, or of ``stall`` (each request's largest chunk gap).

    M is ``max_new_tokens - 1`` for ITL and 1 for stall. ``estimates``: estimated counts are judged.
    """
    stall = limit.metric == "stall"

    def samples(t: Timeline) -> Sequence[float]:
        if stall:
            gaps = t.chunk_gaps_ns()
            return [ms(max(gaps))] if gaps else []
        return itl_samples_ms(t, bursts_allowed=bursts_allowed)

    def unmeasurable(seen: Requests) -> str | None:
        return itl_problem(
            seen.ok,
            bursts_allowed=bursts_allowed,
            force_length=force_length,
            estimates=estimates,
        )

    def remarks(seen: Requests) -> list[str]:
        guessed = [t for t in seen.ok if t.estimated is not None]
        if not guessed:
            return []
        return [
            f"estimated token counts in {len(guessed)} of {len(seen.ok)} requests: "
            f"{guessed[0].estimated}"
        ]

    return LatencyJudge(
        limit,
        demand,
        requests,
        samples=samples,
        max_samples=1 if stall else max(max_new_tokens - 1, 1),
        unmeasurable=unmeasurable,
        remarks=remarks,
    )


def with_kv_plan(
    finding: Finding, *, plan: str | None, problem: str | None, passes: bool
) -> Finding:
    """Apply a KV-cache plan to a failed P95: ``conditional`` with a valid plan, else told how.

    ``plan`` describes a valid plan in one line; ``problem`` says why a given one is none.
    """
    if finding.metric != "itl" or finding.percentile != 95 or finding.verdict != "fail":
        return finding
    if problem is not None:
        return replace(
            finding, reason=f"{finding.reason}; the KV-cache plan is not valid: {problem}"
        )
    if plan is None:
        return replace(
            finding,
            reason=f"{finding.reason}; rule 2 asks for a KV-cache plan (itl.kv_plan: a file naming "
            "cause, measures, owner, expires)",
        )
    reason = f"{finding.reason}; KV-cache plan on record: {plan}"
    if passes:
        return replace(finding, verdict="pass", reason=f"{reason}; policy: conditional_passes")
    return replace(finding, verdict="conditional", reason=reason)

"""Rule 1: TTFT is bound to prompt length. One limit per bucket, at one percentile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..finding import Limit
from ..timeline import REPEATED, Timeline
from .base import Demand, Requests
from .checks import too_cached
from .latency import LatencyJudge


def judge(limit: Limit, demand: Demand, requests: Requests, *, warm_cache: bool) -> LatencyJudge:
    """A judge of one bucket's TTFT; each request is one sample, so M = 1."""

    def unmeasurable(seen: Requests) -> str | None:
        if warm_cache:
            return None
        again = [t for t in seen.ok if any(n.startswith(REPEATED) for n in t.notes)]
        if again:
            return (
                f"{len(again)} of {len(seen.ok)} requests sent a prompt that had been sent before, "
                "and workload.warm_cache is not set: a prefix cache may have answered. Send "
                "another prompt each time (sla_run() and sla_prompts do)"
            )
        cached = [t for t in seen.ok if too_cached(t, seen.template_tokens)]
        if not cached:
            return None
        worst = max(cached, key=lambda t: t.cached_tokens or 0)
        return (
            f"{len(cached)} of {len(seen.ok)} prompts were answered from a prefix cache (up to "
            f"{worst.cached_tokens} of {worst.prompt_tokens} tokens) and workload.warm_cache is "
            "not set: this TTFT is not that of a new prompt"
        )

    return LatencyJudge(
        limit, demand, requests, samples=_samples, max_samples=1, unmeasurable=unmeasurable
    )


def _samples(t: Timeline) -> Sequence[float]:
    value = t.ttft_ms
    return [] if value is None else [value]


def stage_shares(ok: Sequence[Timeline]) -> Mapping[str, float]:
    """Share of TTFT (0–1) per stage over all sound requests, largest first; {} without marks.

    Only the stages before the first token count: tokenise, queue, cache_init, prefill,
    first_sample. What no stage explains is ``other``.
    """
    total = sum(t.ttft_ns or 0 for t in ok)
    if not total or not any(t.stages for t in ok):
        return {}
    names = ("tokenise", "queue", "cache_init", "prefill", "first_sample")
    sums = {name: sum(t.stages.get(name, 0) for t in ok) for name in names}
    shares = {name: ns / total for name, ns in sums.items() if ns > 0}
    if not shares:
        return {}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))

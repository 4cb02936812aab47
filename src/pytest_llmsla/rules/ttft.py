"""Rule 1: TTFT is bound to prompt length. One limit per bucket, at one percentile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ..finding import Limit
from ..stats import nearest_rank
from ..timeline import DISPUTED, FIRST_UNSURE, NS_PER_MS, REPEATED, Timeline
from .base import Demand, Requests
from .checks import overloaded, too_cached
from .latency import LatencyJudge
from .prefix_cache import hidden_hits, unexplained_hits

_TENTH = 0.10


def judge(limit: Limit, demand: Demand, requests: Requests, *, warm_cache: bool) -> LatencyJudge:
    """A judge of one bucket's TTFT; each request is one sample, so M = 1."""

    def unmeasurable(seen: Requests) -> str | None:
        busy = overloaded(seen.ok)
        if busy is not None:
            return busy
        unsure = [t for t in seen.ok if t.estimated is not None and FIRST_UNSURE in t.estimated]
        if unsure:
            return (
                f"which event brought the first token is not known in {len(unsure)} of "
                f"{len(seen.ok)} requests: {unsure[0].estimated}"
            )
        two = [n for t in seen.ok for n in t.notes if n.startswith(DISPUTED)]
        if len(two) > _TENTH * len(seen.ok):
            return (
                f"{two[0]} ({len(two)} of {len(seen.ok)} requests): rule 1 binds TTFT to a length "
                "that is known. Look at target.tokenizer, the chat template and the server's usage"
            )
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
            return hidden_hits(seen.server, seen.template_tokens)
        worst = max(cached, key=lambda t: t.cached_tokens or 0)
        return (
            f"{len(cached)} of {len(seen.ok)} prompts were answered from a prefix cache (up to "
            f"{worst.cached_tokens} of {worst.prompt_tokens} tokens) and workload.warm_cache is "
            "not set: this TTFT is not that of a new prompt"
        )

    return LatencyJudge(
        limit,
        demand,
        requests,
        samples=_samples,
        max_samples=1,
        unmeasurable=unmeasurable,
        remarks=lambda seen: _remarks(seen, warm_cache=warm_cache),
    )


def _remarks(seen: Requests, *, warm_cache: bool) -> list[str]:
    """Cached share, and first visible output where it is later than the first token."""
    out = _from_sending(seen)
    cached = [t for t in seen.ok if t.cached_tokens]
    if cached:
        share = median((t.cached_tokens or 0) / t.prompt_tokens for t in cached if t.prompt_tokens)
        out.append(
            f"{'warm cache' if warm_cache else 'prefix cache'}: {len(cached)} of {len(seen.ok)} "
            f"prompts partly cached, {share:.0%} of their tokens in the median"
        )
    out.extend(unexplained_hits(seen.server, seen.template_tokens))
    later = [
        t.first_visible_ns - t.start_ns
        for t in seen.ok
        if t.first_visible_ns is not None and t.first_visible_ns > t.arrivals[0][0]
    ]
    if later:
        p95 = nearest_rank([ns / NS_PER_MS for ns in later], 0.95)
        out.append(
            f"first visible output (TTFO) came after the first token in {len(later)} of "
            f"{len(seen.ok)} requests: P95 {p95:.1f} ms"
        )
    return out


def _from_sending(seen: Requests) -> list[str]:
    """Open loop is judged from when a request was due; how it looks from sending is named too."""
    sent = [
        (t.arrivals[0][0] - t.start_ns) / NS_PER_MS for t in seen.ok if t.scheduled_ns is not None
    ]
    if not sent:
        return []
    out = [
        f"TTFT is counted from when each request was due; from sending it P95 is "
        f"{nearest_rank(sent, 0.95):.1f} ms"
    ]
    waits = [t.stages["client_queue"] for t in seen.ok if t.stages.get("client_queue")]
    if waits:
        out.append(
            f"{len(waits)} of {len(seen.ok)} requests waited for a place in this client "
            f"(workload.load.max_in_flight), up to {max(waits) / NS_PER_MS:.1f} ms"
        )
    return out


def _samples(t: Timeline) -> Sequence[float]:
    value = t.ttft_ms
    return [] if value is None else [value]


def stage_shares(ok: Sequence[Timeline]) -> Mapping[str, float]:
    """Share of TTFT (0–1) per stage over all sound requests, largest first; {} without marks.

    Only the stages before the first token count: client_queue (due, and no place free), tokenise,
    queue, cache_init, prefill, first_sample. What no stage explains is ``other``.
    """
    total = sum(t.ttft_ns or 0 for t in ok)
    if not total or not any(t.stages for t in ok):
        return {}
    names = ("client_queue", "tokenise", "queue", "cache_init", "prefill", "first_sample")
    sums = {name: sum(t.stages.get(name, 0) for t in ok) for name in names}
    shares = {name: ns / total for name, ns in sums.items() if ns > 0}
    if not shares:
        return {}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))

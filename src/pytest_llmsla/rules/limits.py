"""Which limits a policy declares, at which level of load; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..finding import Limit
from ..policy import LoadedPolicy, Policy
from . import memory

SEARCH = "capacity/"
"""Beginning of the gates of a capacity search: a policy's own limits, so rule 3 is one of them."""


def limits_of(loaded: LoadedPolicy, gate: str | None = None) -> tuple[Limit, ...]:
    """Every limit a policy declares, in the order of the rules; loads nothing.

    ``gate`` is a test's node id for a gate of its own: ids become ``<node id>/ttft_p95`` (with
    several buckets ``<node id>/short/ttft_p95``), TGS is judged only with a ``min_tokens_per_s``
    (and documented all the same).

    Every limit holds at every level of load. The first level has the plain ids, a further one
    ``short/concurrency-4/ttft_p95``; TGS always names its level.
    """
    policy, out = loaded.policy, list[Limit]()
    several = len(policy.buckets) > 1
    levels = policy.levels
    for b in policy.buckets:
        within = f"{b.name}/" if gate is None or several else ""
        stem = within if gate is None else f"{gate}/{within}"
        for n in levels:
            out += _bucket_limits(loaded, n, b.name, b.ttft_ms, f"{stem}{_level_stem(levels, n)}")
    stem = "" if gate is None else f"{gate}/"
    for n in levels:
        out += _tgs_limits(loaded, n, gate)
    if policy.goodput.min_share is not None:
        source = loaded.source("goodput.min_share")
        for n in levels:
            tail = "" if n == levels[0] else f"/{level_name(n)}"
            share, name = policy.goodput.min_share, f"{stem}goodput{tail}"
            out.append(Limit(name, "goodput", "goodput", None, share, "share", None, source, n))
    out += _memory_limits(loaded, stem)
    return tuple(
        x if x.rule == "memory" else replace(x, load=load_words(policy, x.concurrency)) for x in out
    )


def level_name(concurrency: int | None) -> str:
    """``concurrency-4``, ``open-loop``: a level as ids name it."""
    return "open-loop" if concurrency is None else f"concurrency-{concurrency}"


def load_words(policy: Policy, concurrency: int | None) -> str:
    """``at concurrency 4``, ``open loop, 3 requests/s``; empty where one at a time is all."""
    if concurrency is None:
        return policy.load.words
    return "" if policy.levels == (1,) else f"at concurrency {concurrency}"


def _level_stem(levels: tuple[int | None, ...], n: int | None) -> str:
    return "" if n == levels[0] else f"{level_name(n)}/"


def _bucket_limits(
    loaded: LoadedPolicy, n: int | None, name: str, ttft_ms: float | None, stem: str
) -> Iterator[Limit]:
    policy = loaded.policy
    if ttft_ms is not None:
        q = policy.ttft.percentile
        source = loaded.source(f"buckets.{name}.ttft_ms")
        yield Limit(f"{stem}ttft_p{q:g}", "ttft", "ttft", name, ttft_ms, "ms", q, source, n)
    for q in (50, 95, 99):
        value = getattr(policy.itl, f"p{q}_ms")
        if value is not None:
            source = loaded.source(f"itl.p{q}_ms")
            yield Limit(f"{stem}itl_p{q}", "itl", "itl", name, value, "ms", q, source, n)
    stall = policy.itl.stall_p95_ms
    if stall is not None:
        source = loaded.source("itl.stall_p95_ms")
        yield Limit(f"{stem}stall_p95", "itl", "stall", name, stall, "ms", 95, source, n)
    rate, source = policy.errors.max_error_rate, loaded.source("errors.max_error_rate")
    yield Limit(f"{stem}error_rate", "error", "error_rate", name, rate, "share", None, source, n)


def _tgs_limits(loaded: LoadedPolicy, n: int | None, gate: str | None) -> Iterator[Limit]:
    policy = loaded.policy
    floor = policy.min_rate(n)
    if gate is None and n is not None and not policy.tgs.concurrency:
        return  # only a test's own policy has none
    if gate is not None and floor is None and not gate.startswith(SEARCH):
        return
    stem = "tgs/" if gate is None else f"{gate}/tgs"
    tail = level_name(n)
    if gate is not None:
        tail = "" if n == policy.levels[0] else f"/{tail}"
    key = "tgs.concurrency" if floor is None else "tgs.min_tokens_per_s"
    if n is None and floor is None:
        key = "workload.load.kind"
    yield Limit(f"{stem}{tail}", "tgs", "tgs", None, floor, "tokens/s", 50, loaded.source(key), n)


def _memory_limits(loaded: LoadedPolicy, stem: str) -> Iterator[Limit]:
    """Of the whole run, whatever the level; they carry the first one."""
    policy, first = loaded.policy, loaded.policy.levels[0]
    for figure in memory.FIGURES:
        value = getattr(policy.memory, f"{figure}_gib")
        if value is not None:
            source = loaded.source(f"memory.{figure}_gib")
            yield Limit(
                f"{stem}memory/{figure}", "memory", figure, None, value, "GiB", None, source, first
            )
    growth = policy.memory.growth_mib_per_request
    if growth is not None:
        source = loaded.source("memory.growth_mib_per_request")
        yield Limit(
            f"{stem}memory/growth",
            "memory",
            "growth",
            None,
            growth,
            "MiB/request",
            None,
            source,
            first,
        )

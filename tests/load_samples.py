"""Bare timelines of requests that were in flight together, and logs as a live run writes them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gate_samples import MS, policy, reading, timeline
from pytest_llmsla.log.request_lines import to_line
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper

GAP_NS = 1000
"""From the end of one request to the next in its place: a client that loses no time."""


def shifted(t: Timeline, start_ns: int, **fields: Any) -> Timeline:
    """The same request at another time."""
    by = start_ns - t.start_ns
    arrivals = tuple((at + by, k) for at, k in t.arrivals)
    return replace(t, start_ns=start_ns, end_ns=t.end_ns + by, arrivals=arrivals, **fields)


Shape = Callable[[int], Timeline]
"""The ``index``-th request of a level, at any time: its TTFT, gaps, failure."""


def plain(index: int) -> Timeline:
    """TTFT 100 ms, gaps 20 ms."""
    return timeline(index)


def closed(
    n: int,
    requests: int,
    shape: Shape = plain,
    *,
    warmups: int = 0,
    buckets: Iterable[str] = ("short",),
    prompts: Mapping[str, int] | None = None,
    **fields: Any,
) -> list[Timeline]:
    """``requests`` measured requests with ``n`` in flight, in start order; warm-ups before.

    Buckets take turns. Places begin a little apart, as threads do.
    """
    names, lengths = list(buckets), {"short": 120, "long": 500, **(prompts or {})}
    free = [(i * MS, i) for i in range(n)]
    heapq.heapify(free)
    out: list[Timeline] = []
    counts = dict.fromkeys(names, 0)
    for index in range(warmups + requests):
        at, place = heapq.heappop(free)
        warmup, name = index < warmups, names[index % len(names)]
        t = shifted(
            shape(index),
            at,
            id=f"c{n}-{index:06d}",
            bucket=name,
            prompt_tokens=lengths[name],
            warmup=warmup,
            unit=0 if warmup else counts[name] // n,
            concurrency=n,
            block=1 if warmup else n,
        )
        counts[name] += not warmup
        out.append(replace(t, **fields) if fields else t)
        heapq.heappush(free, (t.end_ns + GAP_NS, place))
    return out


def opened(
    due_ms: Iterable[float], shape: Shape = plain, *, places: int, block: int, **fields: Any
) -> list[Timeline]:
    """One request for each due time, sent when it is due or when one of ``places`` is free."""
    free = [0] * places
    out: list[Timeline] = []
    for index, due in enumerate(due_ms):
        at = max(round(due * MS), heapq.heappop(free))
        t = shifted(
            shape(index),
            at,
            id=f"o{index:06d}",
            unit=index // block,
            block=block,
            concurrency=places - len(free),
            scheduled_ns=round(due * MS),
            late_ns=0,
        )
        out.append(replace(t, **fields) if fields else t)
        heapq.heappush(free, t.end_ns)
    return out


def at_levels(*levels: int, **groups: Any) -> LoadedPolicy:
    """A policy of one bucket at these levels."""
    return policy(tgs={"concurrency": list(levels)}, **groups)


def read_at(concurrency: int | None, answered: int, **memory: Any) -> dict[str, Any]:
    """A reading of memory at the end of a level."""
    return {**reading(**memory), "concurrency": concurrency, "answered": answered}


def seen(loaded: LoadedPolicy, *groups: Iterable[Timeline]) -> Gatekeeper:
    """A judge that has seen whole levels, each with its reading of memory."""
    keeper = Gatekeeper(loaded)
    keeper.facts({"start_point": "here"})  # as in the target line of an empty log
    for group in groups:
        every = list(group)
        for t in every:
            keeper.add(t)
        level = None if every[0].scheduled_ns is not None else every[0].concurrency
        if level in keeper.levels:
            keeper.resources(read_at(level, keeper.answered(concurrency=level)))
    keeper.end("requests")
    return keeper


def log_of(lines: list[dict[str, Any]], timelines: Iterable[Timeline]) -> list[dict[str, Any]]:
    """The lines of a level as a driver writes them: starts when sent, requests as they end.

    ``lines``: those of an empty log, its end last.
    """
    every = list(timelines)
    events: list[tuple[int, int, dict[str, Any]]] = []
    for turn, t in enumerate(every):
        start = {
            "type": "start",
            "id": t.id,
            "bucket": t.bucket,
            "unit": t.unit,
            "block": t.block,
            "concurrency": t.concurrency,
            "scheduled_ns": t.scheduled_ns,
            "max_new_tokens": t.max_new_tokens,
            "start_ns": t.start_ns,
            "warmup": t.warmup,
            "attempt": t.attempt,
        }
        events.append((t.start_ns, turn, start))
        events.append((t.end_ns, turn, to_line(t)))
    written = [line for _, _, line in sorted(events, key=lambda e: (e[0], e[1]))]
    return [*lines[:-1], *written, lines[-1]]

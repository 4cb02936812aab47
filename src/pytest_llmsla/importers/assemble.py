"""Runs of another tool as a :class:`RunLog`: buckets, blocks and what the file leaves unsaid.

The log is judged by the one Gatekeeper, like any other. Nothing here judges; what is unknown is
left unknown, and the rules see that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ..errors import UsageError
from ..log import SCHEMA, RunLog
from ..policy import LoadedPolicy, Policy
from ..timeline import NOT_FORCED, NS_PER_MS, REPEATED, Timeline
from ..verdict import ranges_of
from .base import Run

_APART_NS = NS_PER_MS  # one request ended and the next began: clocks are read a little late
_CUT = "and no finish reason on record: it may have been cut off"


def log_of(runs: Sequence[Run], loaded: LoadedPolicy) -> RunLog:
    """The requests of ``runs``, all of them with timelines, as a log under ``loaded``."""
    seen: set[str] = set()
    numbers = count()
    units: dict[tuple[str, int | None], int] = {}
    every: list[Timeline] = []
    warnings: list[str] = []
    for segment, run in enumerate(sorted(runs, key=lambda r: (r.started or "", str(r.path)))):
        placed = [_asked(t, loaded.policy, forced=bool(t.max_new_tokens)) for t in _loaded(run)]
        warnings += [note for note in run.notes if note not in warnings]
        for t in placed:
            t = replace(t, segment=segment, sampling=dict(run.sampling), notes=_repeat(t, seen))
            every += _in_buckets(t, loaded.policy, numbers, units)
    warnings += _outside(every, runs)
    return RunLog(
        path=", ".join(str(run.path) for run in runs),
        run={
            "type": "run",
            "schema": SCHEMA,
            "started": runs[0].started,
            "host": dict(runs[0].environment),
            "target": {"kind": "imported"},
        },
        timelines=every,
        targets=[target_line(runs, warnings)],
        resources=_declared(every, loaded.policy),
        end={"type": "end", "reason": "imported", "utc": None},
    )


def target_line(runs: Sequence[Run], warnings: Iterable[str]) -> dict[str, Any]:
    """The ``target`` line: which tool measured, and what its file does not say."""
    first = runs[0]
    return {
        "type": "target",
        "gate": None,
        "kind": "imported",
        "tool": first.tool,
        "tool_version": first.version,
        "model": first.model,
        "files": [str(p) for run in runs for p in (run.path, *run.beside)],
        "start_point": first.start_point,
        "warnings": [f"measured by {first.tool}, not by this gate", *_unnamed(first), *warnings],
    }


def _unnamed(run: Run) -> list[str]:
    return ["which model was measured is not on record"] if run.model is None else []


# -- load


def _loaded(run: Run) -> list[Timeline]:
    """In start order, with the requests in flight that were asked for, or that there were."""
    made = sorted(run.timelines, key=lambda t: t.start_ns)
    flights = _in_flight(sorted(made, key=lambda t: t.due_ns))
    peak = max(flights, default=1)
    if run.rate is not None:
        block = max(math.ceil(sum(flights) / max(len(flights), 1)), 1)
        return [replace(t, concurrency=n, block=block) for t, n in zip(made, flights, strict=True)]
    if run.concurrency is not None and peak > run.concurrency:
        raise UsageError(
            f"{run.path}: says at most {run.concurrency} requests were in flight, but its times "
            f"show {peak} at once. The file is damaged or edited"
        )
    asked = run.concurrency or peak
    return [replace(t, concurrency=asked, block=asked) for t in made]


def _in_flight(made: Sequence[Timeline]) -> list[int]:
    """Requests in flight when each was due, itself included; ``made`` is in that order."""
    import heapq

    ends: list[int] = []
    out = []
    for t in made:
        while ends and ends[0] <= t.due_ns + _APART_NS:
            heapq.heappop(ends)
        heapq.heappush(ends, max(t.end_ns, t.start_ns))
        out.append(len(ends))
    return out


# -- requests


def _asked(t: Timeline, policy: Policy, *, forced: bool) -> Timeline:
    """With the output length that the policy judges, where the file does not say what was asked.

    A shorter answer whose end nobody explains may have been cut off: it is no sound one.
    """
    asked = t.max_new_tokens or policy.workload.max_new_tokens
    notes = t.notes if forced else (*t.notes, f"{NOT_FORCED}: the file does not say it was")
    t = replace(t, max_new_tokens=asked, notes=notes)
    short = t.ok and t.output_tokens is not None and t.output_tokens < asked
    if short and t.finish_reason is None and policy.workload.force_length:
        return replace(t, status="error", error=f"{t.output_tokens} of {asked} tokens {_CUT}")
    return t


def _repeat(t: Timeline, seen: set[str]) -> tuple[str, ...]:
    if t.prompt is None:
        return t.notes
    if t.prompt in seen:
        return (*t.notes, f"{REPEATED}: an earlier request of the file sent the same")
    seen.add(t.prompt)
    return t.notes


def _in_buckets(
    t: Timeline,
    policy: Policy,
    numbers: Iterator[int],
    units: dict[tuple[str, int | None], int],
) -> list[Timeline]:
    """The request in its bucket. One of unknown length that failed counts in every bucket."""
    t = replace(t, prompt=None)
    ranges = ranges_of(policy)
    if t.prompt_tokens is None:
        names = list(ranges)
    else:
        names = [name for name, r in ranges.items() if t.prompt_tokens in r] or [_NOWHERE]
    out = []
    for name in names:
        place = units.setdefault((name, t.level), 0)
        units[name, t.level] += not t.warmup
        out.append(replace(t, id=f"{next(numbers)}", bucket=name, unit=place // max(t.block, 1)))
    return out


_NOWHERE = "(no bucket)"


def _outside(every: Sequence[Timeline], runs: Sequence[Run]) -> list[str]:
    out = []
    away = [t for t in every if t.bucket == _NOWHERE and not t.warmup]
    if away:
        lost = sum(not t.ok for t in away)
        lengths = sorted(t.prompt_tokens or 0 for t in away)
        out.append(
            f"{len(away)} of {len(every)} requests lie in no bucket of the policy (prompts of "
            f"{lengths[0]} to {lengths[-1]} tokens) and were not judged"
            + (f"; {lost} of them failed" if lost else "")
        )
    if all(t.prompt is None for run in runs for t in run.timelines):
        out.append(
            "prompts are not on record: whether any was repeated, and a prefix cache answered, "
            "cannot be told from this file"
        )
    if all(t.lag_ns is None for t in every):
        out.append("how late the tool itself saw tokens arrive is not on record")
    return out


def _declared(every: Sequence[Timeline], policy: Policy) -> list[Mapping[str, Any]]:
    """Memory that the policy declares for its server, with its source: rule 3 asks for it."""
    gib = getattr(policy.target, "memory_gib", None)
    source = getattr(policy.target, "memory_source", None)
    if gib is None or source is None:
        return []
    memory = {"declared": gib, "declared_source": source, "device": "server"}
    return [
        {
            "type": "resources",
            "gate": None,
            "bucket": t.bucket,
            "purpose": None,
            "phase": "measured",
            "concurrency": t.level,
            "memory": memory,
        }
        for t in every
        if not t.warmup and t.bucket != _NOWHERE
    ]

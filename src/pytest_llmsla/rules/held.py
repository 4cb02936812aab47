"""Was the load there that the limits are to hold under? Looked at over all requests of a level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..stats import nearest_rank
from ..stats.flights import squares
from ..timeline import NS_PER_MS, NS_PER_S, Timeline

_HELD = 0.9
_LATE_NS = 5 * NS_PER_MS
_RATE_SLACK = 0.02
_SIGMAS = 5.0
_ENDS = 2
_FEW = 4

Epoch = tuple[int, int, int]
"""(attempt, clock segment, opening of the level): requests of one continuous run of a level."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One request of a level while it was in flight, ns."""

    epoch: Epoch
    due_ns: int
    """When it was due (open loop), else when it was sent."""
    start_ns: int
    end_ns: int
    measured: bool
    lost: bool = False
    """Without an answer on record: when it ended is not known."""


@dataclass(frozen=True)
class InFlight:
    """Requests in flight between the first and the last measured start: neither ramp nor drain."""

    mean: float | None
    """Weighted by time; None where no time passed between the two."""
    most: int
    window_ns: int
    met: float | None = None
    """Others in flight beside a request, on average over requests: more than the mean in bursts."""


def runs_of(flights: Iterable[Flight]) -> list[list[Flight]]:
    """The continuous runs of a level, each its flights."""
    by_epoch: dict[Epoch, list[Flight]] = {}
    for f in flights:
        by_epoch.setdefault(f.epoch, []).append(f)
    return list(by_epoch.values())


def in_flight(flights: Sequence[Flight], *, due: bool = False) -> InFlight:
    """How many requests were in flight, from start (``due``: from when they were due) to end.

    Lost ones bound no window and are not among the most.
    """
    area = window = most = squared = 0
    for group in runs_of(flights):
        known = [f for f in group if not f.lost]
        begins = [_begin(f, due=due) for f in known if f.measured]
        if not begins:
            continue
        lo, hi = min(begins), max(begins)
        spans = [(_begin(f, due=due), f.end_ns) for f in known]
        most = max(most, _most(spans, lo, hi))
        spans += _at_the_end(group, known, due=due)
        area += sum(max(0, min(end, hi) - max(begin, lo)) for begin, end in spans)
        squared += squares(spans, lo, hi)
        window += hi - lo
    met = squared / area - 1 if area else None
    return InFlight(area / window if window else None, most, window, met)


def _at_the_end(
    group: Iterable[Flight], known: Sequence[Flight], *, due: bool
) -> list[tuple[int, int]]:
    """Spans of those that were in flight when the process was killed: up to the last answer.

    A lost one that began longer before it than any answer took was lost in another way, and
    counts for nothing: no line that is cut out of a log makes a load of it.
    """
    last = max(f.end_ns for f in known)
    longest = max(f.end_ns - f.start_ns for f in known)
    return [
        (_begin(f, due=due), last)
        for f in group
        if f.lost and f.start_ns < last <= f.start_ns + longest
    ]


def _begin(f: Flight, *, due: bool) -> int:
    return f.due_ns if due else f.start_ns


def _most(spans: Iterable[tuple[int, int]], lo: int, hi: int) -> int:
    """Most at one moment of ``[lo, hi]``; one that ends as another begins leaves it its place."""
    edges: list[tuple[int, int]] = []
    for begin, end in spans:
        if end > begin and end > lo and begin <= hi:
            edges += [(max(begin, lo), 1), (end, -1)]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


@dataclass(frozen=True)
class Condition:
    """Why a level's findings cannot stand. ``error``: none of them; else a PASS cannot."""

    reason: str
    error: bool


def closed_condition(n: int, measured: Sequence[Timeline], found: InFlight) -> Condition | None:
    """Whether ``n`` requests were in flight as they were to be, and judged as one unit."""
    small = min((t.block for t in measured), default=n)
    if small < n:
        return Condition(
            f"judged in units of {small} requests at concurrency {n}; valid: at least {n}, because "
            "requests in flight together are no independent evidence",
            error=True,
        )
    if found.most > n:
        return Condition(
            f"{found.most} requests were in flight at once, {n} were asked for: something else "
            "sent requests too, or the record is damaged",
            error=True,
        )
    if found.mean is None:
        return Condition(
            f"too few requests to tell whether {n} were in flight: measured ones all began at one "
            "moment",
            error=False,
        )
    return _held(n, found.mean)


def _held(n: int, mean: float) -> Condition | None:
    if mean >= _HELD * n:
        return None
    return Condition(
        f"concurrency not held: {mean:.1f} requests in flight on average, {n} were asked "
        f"for (valid: at least {_HELD * n:g}). The client or the target does not keep up "
        "starting them: run the gate on a machine that does nothing else",
        error=True,
    )


def each_run_condition(n: int, flights: Sequence[Flight]) -> Condition | None:
    """Whether ``n`` were in flight in each continuous run: a long one that was hides no other.

    Runs of fewer than :data:`_FEW` blocks are left out: their mean is mostly their ends.
    """
    for run in runs_of(flights):
        if sum(f.measured and not f.lost for f in run) < _FEW * n:
            continue
        mean = in_flight(run).mean
        told = None if mean is None else _held(n, mean)
        if told is not None:
            return told
    return None


def mix_condition(
    began: Mapping[Epoch, Mapping[str, int]], weights: Mapping[str, float]
) -> Condition | None:
    """Whether every bucket had its share of the requests: the others of a level are its load.

    ``began``: measured starts by bucket, of each continuous run. They are dealt out in turns by
    ``weights``, so a bucket can lack little at the ends of a run; a tenth more is let through.
    """
    whole = sum(weights.values())
    for counts in began.values():
        total = sum(counts.values())
        for name, weight in weights.items():
            count, share = counts.get(name, 0), weight / whole
            if count < _HELD * share * total - max(_ENDS, len(weights)):
                return Condition(
                    f"the mix was not kept: {count} of {total} requests were of bucket {name}, "
                    f"{share:.3g} of them were to be. What was in flight beside them was another "
                    "load",
                    error=False,
                )
    return None


def schedule_condition(flights: Sequence[Flight], rate: float, spread: float) -> Condition | None:
    """Whether as many requests were due as the policy asks for, requests/s.

    ``spread``: variance of the gaps in squares of their mean. Fewer than five standard deviations
    below (and 2 %) is another load; more is a harder one and no reason to doubt a PASS.
    """
    every, gaps, seconds = runs_of(f for f in flights if f.measured), 0, 0.0
    for run in every:
        due = [f.due_ns for f in run]
        gaps += len(due) - 1
        seconds += (max(due) - min(due)) / NS_PER_S
    expected = rate * seconds
    if gaps < expected * (1 - _RATE_SLACK) - _SIGMAS * math.sqrt(expected * spread):
        return Condition(
            f"the schedule was not kept: {gaps / seconds:.3g} requests/s were due, {rate:g} were "
            "asked for: requests are missing, or the record is of another load",
            error=True,
        )
    # A long run that kept it hides no other.
    each = every if len(every) > 1 else []
    found = (schedule_condition(run, rate, spread) for run in each)
    return next((told for told in found if told is not None), None)


def places_condition(ok: Sequence[Timeline]) -> Condition | None:
    """Whether as many were in flight as the arrivals and the service made of it, where the policy
    sets no bound: this client has places for so many and no more.

    A wait for a place counts in TTFT; but no other limit was held at the load that was asked for.
    """
    p95 = nearest_rank([float(t.stages.get("client_queue", 0)) for t in ok], 0.95)
    if p95 is None or p95 <= _LATE_NS:
        return None
    return Condition(
        f"all places of the client were taken: P95 of how long requests waited for one is "
        f"{p95 / NS_PER_MS:.1f} ms (valid: 5 ms), so fewer were in flight than came. Set "
        "workload.load.max_in_flight: higher, or to the bound that is meant",
        error=False,
    )


def open_condition(
    ok: Sequence[Timeline], found: InFlight, *, bursty: bool = False
) -> Condition | None:
    """Whether requests came when they were due, in units that are large enough.

    ``ok``: sound measured requests. ``found``: in flight from due to end. ``bursty``: they come
    in bursts, and those of one burst share its luck however long the pause after it.
    """
    late = [t.late_ns for t in ok]
    if not all(ns is not None for ns in late):
        return Condition(
            "how late the client sent its requests is not on record (late_ns), so latency from "
            "the schedule cannot be told from the client's own delay",
            error=True,
        )
    p95 = nearest_rank([float(ns) for ns in late if ns is not None], 0.95)
    if p95 is not None and p95 > _LATE_NS:
        return Condition(
            f"client overloaded: P95 of how late it sent requests is {p95 / NS_PER_MS:.1f} ms "
            "(valid: 5 ms). Run the gate on a machine or core that does nothing else, or at a "
            "lower rate",
            error=True,
        )
    small = min((t.block for t in ok), default=1)
    if found.mean is None:
        return Condition("too few requests to tell how many were in flight", error=False)
    if found.mean > small:
        return Condition(
            f"units too small: {found.mean:.1f} requests were in flight on average, from due to "
            f"answered, and {small} are judged as one, by what warm-up showed. If the service "
            "falls behind this rate, lower it; else raise workload.warmup.max_requests",
            error=False,
        )
    if bursty and found.met is not None and found.met > small:
        return Condition(
            f"units too small: requests come in bursts, each met {found.met:.1f} others in flight "
            f"on average, and {small} are judged as one, by what warm-up showed. Raise "
            "workload.load.ramp_s: what comes before it ends is warm-up, which has to see bursts",
            error=False,
        )
    return None

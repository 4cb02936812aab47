"""Rules of load that span keys: levels, schedules, weights, rates of a level."""

from __future__ import annotations

import hashlib
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from .load_models import OPEN
from .problems import Path, Problem, by_bucket_problems, dig, listed, number, whole
from .run_models import EvidenceSettings

_LOAD: Path = ("workload", "load")
_OF_TRACE = ("trace", "trace_unit", "trace_sha256")
_OF_OPEN = ("rate", "burstiness", *_OF_TRACE, "max_in_flight")
_MAX_SECONDS = EvidenceSettings().max_seconds


def levels_of(raw: Mapping[str, Any]) -> list[int]:
    """The numbers of requests in flight; empty under open loop."""
    if dig(raw, *_LOAD, "kind") in OPEN:
        return []
    return [n for n in map(whole, listed(raw, "tgs", "concurrency")) if n is not None and n >= 1]


def load_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything wrong about load across the keys of ``raw``."""
    kind = dig(raw, *_LOAD, "kind", default="closed")
    yield from _concurrency_problems(raw, kind)
    yield from _least_problems(raw, kind)
    if isinstance(dig(raw, *_LOAD), Mapping):
        yield from _schedule_problems(raw, kind)
        yield from by_bucket_problems(raw, (*_LOAD, "mix"), "weight", "NUMBER")
        yield from _ramp_problems(raw)


def has_pace(raw: Mapping[str, Any]) -> bool:
    """Whether requests come at a rate that the policy says."""
    return dig(raw, *_LOAD, "kind") in OPEN and dig(raw, *_LOAD, "rate") is not None


def pace_problems(raw: Mapping[str, Any], clean: int) -> Iterator[Problem]:
    """Whether a schedule brings each bucket ``clean`` requests, the fewest that can PASS, in the
    time there is."""
    rate, seconds = number(dig(raw, *_LOAD, "rate")), _seconds(raw) - _ramp(raw)
    if not has_pace(raw) or rate is None or not rate > 0 or not seconds > 0:
        return  # another message says so
    share = _least_share(raw)
    if rate * seconds * share >= clean:
        return
    yield Problem(
        (*_LOAD, "rate"),
        f"{rate:g} requests/s are {rate * seconds * share:.3g} of the rarest bucket in the "
        f"{seconds:g} s that are measured (evidence.max_seconds without ramp_s), and a PASS needs "
        f"{clean}: give at least {clean / seconds / share:.3g} requests/s, or more seconds",
    )


def pin_trace(raw: dict[str, Any], base: pathlib.Path) -> Iterator[Problem]:
    """Write the hash of the trace's file into ``raw``: a path says nothing of what was replayed.

    A file that is not there is left to who needs it.
    """
    load = dig(raw, *_LOAD)
    path, said = dig(load, "trace"), dig(load, "trace_sha256")
    if not isinstance(load, dict) or not isinstance(path, str) or not path:
        return
    try:
        found = hashlib.sha256((base / path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return
    if said is None:
        load["trace_sha256"] = found
    elif said != found:
        yield Problem(
            (*_LOAD, "trace_sha256"),
            f"the file {path} has the sha256 {found}: another trace than the one that is named. "
            "Restore it, or name this one",
        )


def _concurrency_problems(raw: Mapping[str, Any], kind: object) -> Iterator[Problem]:
    given = listed(raw, "tgs", "concurrency", default=[1])
    if kind in OPEN and given not in ([], [1]):
        yield Problem(
            ("tgs", "concurrency"),
            f"got {given}, and workload.load.kind is {kind}: how many are in flight follows from "
            "the arrivals. Remove one of the two",
        )
    for n in dict.fromkeys(map(str, given)):
        if [str(m) for m in given].count(n) > 1:
            yield Problem(("tgs", "concurrency"), f"lists {n} twice: each level is measured once")


def _least_problems(raw: Mapping[str, Any], kind: object) -> Iterator[Problem]:
    least = dig(raw, "tgs", "min_tokens_per_s")
    if not isinstance(least, Mapping):
        return
    at: Path = ("tgs", "min_tokens_per_s")
    if kind in OPEN:
        yield Problem(
            at, f"a mapping by concurrency, and workload.load.kind is {kind}: give one number"
        )
        return
    listed_ones = [str(c) for c in listed(raw, "tgs", "concurrency", default=[1])]
    for c in least:
        if str(c) not in listed_ones:
            yield Problem(at, f"names concurrency {c}, which tgs.concurrency does not list")


def _schedule_problems(raw: Mapping[str, Any], kind: object) -> Iterator[Problem]:
    def given(name: str) -> bool:
        return dig(raw, *_LOAD, name) is not None

    if kind == "closed":
        for name in filter(given, _OF_OPEN):
            yield Problem(
                (*_LOAD, name),
                "belongs to open loop, and workload.load.kind is closed: set kind (constant, "
                "poisson, gamma or trace), or remove it",
            )
        return
    if kind not in OPEN:
        return  # not a kind: another message says so
    if kind == "trace":
        if not given("trace"):
            yield Problem((*_LOAD, "trace"), "missing: name the file that holds the timestamps")
    else:
        if not given("rate"):
            yield Problem((*_LOAD, "rate"), f"missing: {kind} needs a rate, requests per second")
        for name in filter(given, _OF_TRACE):
            yield Problem((*_LOAD, name), f"belongs to kind trace, not to {kind}: remove it")
    if kind == "gamma" and not given("burstiness"):
        yield Problem(
            (*_LOAD, "burstiness"),
            "missing: gamma needs its shape, a number greater than 0 (1 is Poisson, less comes in "
            "bursts)",
        )
    if kind != "gamma" and given("burstiness"):
        yield Problem((*_LOAD, "burstiness"), f"belongs to kind gamma, not to {kind}: remove it")


def _ramp_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    ramp, seconds = _ramp(raw), _seconds(raw)
    if ramp >= seconds:
        yield Problem(
            (*_LOAD, "ramp_s"),
            f"{ramp:g} s leave nothing to measure: what comes before its end is warm-up, and the "
            f"run ends after {seconds:g} s (evidence.max_seconds). Give less, or more seconds",
        )


def _ramp(raw: Mapping[str, Any]) -> float:
    return number(dig(raw, *_LOAD, "ramp_s")) or 0.0


def _seconds(raw: Mapping[str, Any]) -> float:
    found = number(dig(raw, "evidence", "max_seconds", default=_MAX_SECONDS))
    return math.inf if found is None else found


def _least_share(raw: Mapping[str, Any]) -> float:
    """Share of the rarest bucket in what is asked; 1 of a trace, which says itself what comes."""
    if dig(raw, *_LOAD, "kind") == "trace":
        return 1.0
    mix = dig(raw, *_LOAD, "mix")
    if not isinstance(mix, Mapping):
        return 1 / max(1, len(listed(raw, "buckets")))
    weights = [w for w in map(number, mix.values()) if w is not None and w > 0]
    return min(weights) / sum(weights) if weights else 1.0

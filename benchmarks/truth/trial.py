"""One client under one load, beside the truth."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from peers.base import Failed, Load, Peer, Watched
from truth import analysis
from truth.process import TruthServer
from truth.schedule import Plan
from truth.search import Step

BUSY_CORES, BUSY_LATE_MS = 0.15, 1.0
"""Beyond either, a run says more about the machine than about the client."""
_FEWEST_EVENTS = 500
"""Below it, CPU time read from outside is too coarse."""


@dataclass(frozen=True)
class Cores:
    """The one core of each side."""

    client: int
    server: int


@dataclass(frozen=True)
class Trial:
    """What came of one run; ``failed`` says why there is nothing."""

    client: str
    concurrency: int
    plan: Plan
    failed: str | None = None
    errors: analysis.Errors | None = None
    reported: dict[str, float | None] | None = None
    cpu_s: float | None = None
    events: int = 0
    rate: float = 0.0
    merged: int | None = None
    behind_s: float | None = None
    late_ms: tuple[float, ...] = ()
    stalls: int = 0
    unreaped_s: float = 0.0
    others: float = 0.0
    """Cores that other work on the machine took, on average."""
    notes: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """True when the server kept its schedule and the machine did little else."""
        late = analysis.spread(self.late_ms)["p95"]
        return self.others <= BUSY_CORES and (late is None or late <= BUSY_LATE_MS)


def run(peer: Peer, plan: Plan, concurrency: int, rounds: int, cores: Cores) -> Trial:
    """A fresh server, a fresh client, one load."""
    began, busy, ours = time.monotonic(), _busy_s(), _ours_s()
    done = _run(peer, plan, concurrency, rounds, cores)
    used = _ours_s() - ours + done.unreaped_s
    others = (_busy_s() - busy - used) / (time.monotonic() - began)
    return replace(done, others=max(0.0, others))


def _busy_s() -> float:
    """CPU seconds of the whole machine so far, also those that its host took."""
    t = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(t, name, 0.0)) for name in names)


def _ours_s() -> float:
    """CPU seconds of this process and of all that it has started and seen end."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(who) for who in whose]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _run(peer: Peer, plan: Plan, concurrency: int, rounds: int, cores: Cores) -> Trial:
    with (
        tempfile.TemporaryDirectory(prefix="http-accuracy-") as folder,
        TruthServer(cores.server) as server,
    ):
        server.plan(plan)
        load = Load.of(server.url, concurrency, rounds, plan.tokens, cores.client, Path(folder))
        try:
            said, watched = peer.run(load, server.records)
        except Failed as e:
            return Trial(peer.name, concurrency, plan, failed=str(e))
        truth = analysis.truths(server.records())
    return _judged(peer, plan, concurrency, rounds, said, watched, truth)


def _judged(
    peer: Peer,
    plan: Plan,
    concurrency: int,
    rounds: int,
    said: analysis.Run,
    watched: Watched,
    truth: dict[str, analysis.Truth],
) -> Trial:
    if len(truth) != concurrency * rounds:
        sent = f"sent {len(truth)} of {concurrency * rounds} requests"
        return Trial(peer.name, concurrency, plan, failed=sent)
    events, end = analysis.events(truth), max(t.end_ns for t in truth.values())
    cpu = said.cpu_s
    if cpu is None and events >= _FEWEST_EVENTS:
        cpu = analysis.cpu_between(watched.samples, *analysis.window_ns(truth))
    return Trial(
        client=peer.name,
        concurrency=concurrency,
        plan=plan,
        errors=analysis.errors(truth, said.said),
        reported=analysis.reported(truth, said.said),
        cpu_s=cpu,
        events=events,
        rate=analysis.rate(truth),
        unreaped_s=watched.unreaped_s,
        merged=said.merged,
        behind_s=None if said.done_ns is None else (said.done_ns - end) / 1e9,
        late_ms=tuple(x for t in truth.values() for x in t.late_ms),
        stalls=sum(t.stalls for t in truth.values()),
        notes=said.notes,
    )


def pooled(trials: Sequence[Trial]) -> dict[str, Any]:
    """The repeats of one client at one concurrency, JSON-ready; times in ms."""
    good = [t for t in trials if t.errors is not None and t.reported is not None]
    out: dict[str, Any] = {
        "runs": len(good),
        "failed": sorted({t.failed for t in trials if t.failed is not None}),
        "notes": sorted({n for t in trials for n in t.notes}),
    }
    if not good:
        return out
    errors = analysis.Errors()
    for t in good:
        assert t.errors is not None
        errors.extend(t.errors)
    for name, values in (
        ("ttft_error", errors.ttft), ("gap_error", errors.gap), ("mean_itl_error", errors.mean_itl)
    ):  # fmt: skip
        out[name] = analysis.spread(values)
    for name in ("ttft_p50", "ttft_p95", "itl_p95"):
        read = [t.reported[name] for t in good if t.reported is not None]
        out[f"reported_{name}_minus_truth"] = _furthest(read)
    events = sum(t.events for t in good)
    cpus = [t.cpu_s for t in good]
    known = [c for c in cpus if c is not None]
    out["cpu_s_per_1000_events"] = sum(known) / events * 1000 if len(known) == len(cpus) else None
    merges = [t.merged for t in good if t.merged is not None]
    out["merged"] = sum(merges) if merges else None
    out["events"] = events
    out["doubtful"], out["lost"] = errors.doubtful, errors.lost
    out["miscounted"] = errors.miscounted
    out["others_cores"] = max(t.others for t in good)
    out["quiet"] = all(t.quiet for t in good)
    out["server_late"] = analysis.spread([x for t in good for x in t.late_ms])
    return out


def _furthest(values: Sequence[float | None]) -> float | None:
    """The largest error of the repeats, with its sign: the worst a user would have read."""
    known = [v for v in values if v is not None]
    return max(known, key=abs) if known else None


def _p95(values: Sequence[float]) -> float | None:
    found = analysis.spread(values)["p95"]
    return None if found is None else float(found)


def step(trial: Trial, offered: float) -> Step:
    """A trial of the search for the highest rate."""
    errors = trial.errors or analysis.Errors()
    shown = errors.gap or errors.mean_itl
    per_event = None if trial.cpu_s is None or not trial.events else trial.cpu_s / trial.events
    late = analysis.spread(trial.late_ms)["p95"]
    return Step(
        offered=offered,
        rate=trial.rate,
        gap_ms=trial.plan.gap_ms,
        error_p95_ms=analysis.spread(shown)["p95"] if shown else None,
        late_p95_ms=0.0 if trial.failed or late is None else float(late),
        behind_s=trial.behind_s,
        flow_s=trial.plan.flow_s(),
        lost=errors.lost + (trial.failed is not None),
        miscounted=errors.miscounted,
        stalls=trial.stalls,
        cpu_ms_per_event=None if per_event is None else per_event * 1e3,
        merged=trial.merged,
        span_error_p95=_p95(errors.span),
        quiet=trial.others <= BUSY_CORES,
    )

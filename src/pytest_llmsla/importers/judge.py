"""Other tools' runs judged: requests by the one Gatekeeper, summaries as observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import InternalError, UsageError
from ..finding import Finding
from ..judging import build_report
from ..log import SCHEMA, RunLog
from ..policy import LoadedPolicy
from ..replay import JudgedGate, judge_log
from . import read
from .assemble import log_of, target_line
from .base import Run, Value
from .conditions import refuse_other_conditions
from .explain import explained
from .observed import level_of, method, observed, rate_entry

_NO_PLACE = (
    "the file has no time of each token, so rates over windows are not known: only the rate over "
    "the whole run is, and a limit is on the median window"
)


def judge(paths: Sequence[Path], loaded: LoadedPolicy) -> tuple[dict[str, Any], list[str]]:
    """The dict of report.json and remarks, for result files of one run or of several levels.

    Raises:
        UsageError: a file is no evidence for this policy, or the files do not belong together.
    """
    runs = _together([run for path in paths for run in read(path)])
    runs = [_measured_lengths(run) for run in runs]
    _refuse_pooling(runs, loaded)
    refuse_other_conditions(runs, loaded)
    if all(run.timelines for run in runs):
        return _in_full(runs, loaded)
    return _observed(runs, loaded)


def _together(runs: list[Run]) -> list[Run]:
    """Without the summaries that belong to requests that are there too."""
    beside = {path.resolve() for run in runs for path in run.beside}
    return [run for run in runs if run.timelines or run.values or run.path.resolve() not in beside]


def _measured_lengths(run: Run) -> Run:
    """``run``; without one prompt length its requests are no bucket's, and stay observed."""
    if not run.timelines or any(t.prompt_tokens is not None for t in run.timelines):
        return run
    values = (
        Value(None, t.output_tokens, t.ttft_ms, tuple(t.itl_ms()), t.error)
        for t in run.timelines
        if not t.warmup
    )
    return replace(run, timelines=(), values=tuple(values))


def _refuse_pooling(runs: Sequence[Run], loaded: LoadedPolicy) -> None:
    """What has no requests with times stands by itself: one run at each level."""
    bare = [run for run in runs if not run.timelines]
    levels = [level_of(run, loaded) for run in runs]
    for run in bare:
        others = levels.count(level_of(run, loaded)) - 1 or len(runs) - len(bare)
        if others:
            what = "a run without times of day" if run.values else "a summary"
            raise UsageError(
                f"{run.path}: {what} cannot be pooled with {others} other runs that were given. "
                "Check it by itself, in a file of its own (of JSON lines, one line)"
            )


# -- requests


@dataclass
class _ImportedGate(JudgedGate):
    """A gate on another tool's requests: what its file cannot show is an error, whatever it is."""

    run: Run = field(kw_only=True)
    partial: str | None = None
    """Why requests may be missing; then no limit is kept for sure."""

    def findings(self) -> list[Finding]:
        """As the Gatekeeper found; ITL and windows of rates only where the file has them."""
        return [self._shown(f) for f in super().findings()]

    def _shown(self, f: Finding) -> Finding:
        if f.verdict == "pass" and self.partial is not None:
            f = replace(f, verdict="inconclusive", reason=self.partial)
        if f.rule == "itl" and self.run.no_itl is not None:
            return _not_shown(f, self.run.no_itl)
        if f.rule == "goodput" and self.run.no_itl is not None and f.verdict != "fail":
            return _not_shown(f, f"rests on inter-token latency too. {self.run.no_itl}")
        if f.rule == "tgs" and f.limit is not None and self.run.unplaced and f.verdict != "fail":
            return _not_shown(f, _NO_PLACE)
        return explained(f, self.run)


def _not_shown(f: Finding, reason: str) -> Finding:
    return replace(
        f,
        verdict="error",
        reason=reason,
        observed=None,
        lower=None,
        upper=None,
        samples=0,
        exceeded=0,
        decided_at=None,
        percentiles={},
        evidence=None,
        diagnosis=(),
        notes=(),
        attempts=(),
    )


def _in_full(runs: list[Run], loaded: LoadedPolicy) -> tuple[dict[str, Any], list[str]]:
    log = log_of(runs, loaded)
    partial = next((run.partial for run in runs if run.partial is not None), None)
    gates: list[JudgedGate] = [
        _ImportedGate(
            **{f.name: getattr(gate, f.name) for f in fields(gate)}, run=runs[0], partial=partial
        )
        for gate in judge_log(log, loaded)
    ]
    report = build_report(log, gates, missing=_not_compared(loaded))
    total = sum(len(run.timelines) for run in runs)
    return report, [
        f"{_names(runs)}: {total} requests with their times, judged like our own: percentiles are "
        f"nearest rank, the tool's own are by {runs[0].percentile_method}"
    ]


# -- summaries


@dataclass
class _ObservedGate(JudgedGate):
    """A gate on figures that somebody else made."""

    runs: Sequence[Run] = field(kw_only=True)

    def findings(self) -> list[Finding]:
        """Observed findings; none is ever a PASS."""
        return [f for run in self.runs for f in observed(run, self.loaded)]


def _observed(runs: list[Run], loaded: LoadedPolicy) -> tuple[dict[str, Any], list[str]]:
    run = runs[0]
    warnings = list(dict.fromkeys(note for run in runs for note in run.notes))
    warnings.append(f"observed only, percentiles by {method(run)}: not release evidence")
    if any(run.concurrency is None and run.rate is None for run in runs):
        warnings.append("how many requests were in flight is not on record")
    log = RunLog(
        path=", ".join(dict.fromkeys(str(run.path) for run in runs)),
        run={
            "type": "run",
            "schema": SCHEMA,
            "started": run.started,
            "host": dict(run.environment),
            "target": {"kind": "imported"},
        },
        targets=[target_line(runs, warnings)],
        end={"type": "end", "reason": "imported", "utc": None},
    )
    gates: list[JudgedGate] = [
        _ObservedGate(**{f.name: getattr(gate, f.name) for f in fields(gate)}, runs=runs)
        for gate in judge_log(log, loaded)
    ]
    report = build_report(log, gates, missing=_not_compared(loaded))
    entries = (rate_entry(run, loaded) for run in runs)
    report["tgs"] += [entry for entry in entries if entry is not None]
    if report["verdict"] == "pass":
        raise InternalError(f"{run.path}: observed figures came out as PASS")
    return report, [f"{_names(runs)}: {_what(run)}: observed, never a PASS"]


def _what(run: Run) -> str:
    if not run.values:
        return "a summary"
    if all(v.prompt_tokens is None for v in run.values):
        return "requests without their prompt lengths"
    return "requests without the times that a verdict needs"


def _not_compared(loaded: LoadedPolicy) -> list[tuple[str, str]]:
    """A policy that asks for a comparison is not met without one."""
    if loaded.policy.baseline.path is None:
        return []
    return [("baseline", "results of another tool are not compared with stored runs")]


def _names(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(f"{r.path} ({r.tool}{_version(r)})" for r in runs))


def _version(run: Run) -> str:
    return "" if run.version is None else f" {run.version}"

"""report.json of a whole run, made of its judged gates: is it complete, and what is its verdict?

The one way to a report: after a run, by a controller process, and in ``llmsla check``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .diagnose.errors import kind_of
from .finding import Finding, Limit, Verdict, worst
from .log import RunLog
from .replay import JudgedGate, judge_log, kv_plan_state
from .rules import tgs
from .stats import WarmupMonitor
from .timeline import NS_PER_MS, Timeline
from .verdict import limits_of

__all__ = ["JudgedGate", "Outcome", "build_report", "judge_log", "kv_plan_state"]

REPORT_SCHEMA = "llmsla-report/1"


class Outcome(Protocol):
    """What a test runner said of one limit."""

    @property
    def status(self) -> str:
        """passed, failed, skipped, xfailed, deselected, not reached, no result received."""

    @property
    def reason(self) -> str:
        """Why, in the runner's words; may be empty."""

    @property
    def reruns(self) -> int:
        """How often a rerun plugin tried again."""


def build_report(
    log: RunLog,
    gates: list[JudgedGate],
    outcomes: Mapping[str, Outcome] | None = None,
    *,
    signoff: bool = False,
    missing: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The dict of report.json.

    ``outcomes`` is what the test runner said per limit id; None when no runner takes part
    (``llmsla check``): then what the log recorded of one still holds, and every declared limit
    without a finding is not measured. ``missing`` adds (what, why) pairs that make the sign-off
    incomplete.
    """
    findings = [f for gate in gates for f in gate.findings()]
    not_measured = _not_measured(gates, findings, outcomes)
    if outcomes is None:
        outcomes, said, signed = _recorded(log)
        missing = [*missing, *said]
        signoff = signoff or signed
        listed = {row["id"] for row in not_measured}
        not_measured += [
            {"id": name, "reason": _words(o)}
            for name, o in outcomes.items()
            if o.status not in _RAN and name not in listed
        ]
    not_measured += [{"id": what, "reason": why} for what, why in missing]
    not_measured += _not_whole(log, gates)
    findings += _unreceived(gates, findings, outcomes)
    findings += _undocumented(log)
    if signoff:
        not_measured += _not_for_signoff(log, gates)
    complete = not not_measured
    verdict, reason = _overall(gates, findings, complete)
    release = next((g for g in gates if g.key is None), None)
    shown = release or (gates[0] if gates else None)
    return {
        "schema": REPORT_SCHEMA,
        "verdict": verdict,
        "reason": reason,
        "complete": complete,
        "not_measured": not_measured,
        "signoff": signoff,
        "service": shown.loaded.policy.service if shown else str(log.run.get("service", "")),
        "started": log.run.get("started"),
        "finished": None if log.end is None else log.end.get("utc"),
        "ended": "interrupted" if log.end is None else log.end.get("reason"),
        "policy": _policy(log, release),
        "target": _target(log),
        "environment": dict(log.run.get("host") or {}),
        "warmup": {_label(g, b): w for g in gates for b, w in _warmups(g).items()},
        "findings": [f.to_json() for f in findings],
        "tgs": [e for g in gates for e in g.keeper.tgs_entries()]
        + [tgs.recorded_entry(line) for line in log.tgs],
        "errors": _errors(log, gates),
        "requests": {
            "measured": sum(1 for t in log.timelines if not t.warmup),
            "warmup": sum(1 for t in log.timelines if t.warmup),
            "in_flight_at_the_end": log.in_flight,
            "log_cut_short": log.truncated,
        },
        "reruns": _reruns(outcomes),
        "family_alpha_fail": _family(gates, findings),
        "sampling_seed": None if shown is None else shown.loaded.policy.workload.seed,
        "prompt_notes": list((log.end or {}).get("prompt_notes") or ()),
    }


def _label(gate: JudgedGate, bucket: str) -> str:
    return bucket if gate.key is None else f"{gate.key}/{bucket}"


def _not_measured(
    gates: list[JudgedGate], findings: list[Finding], outcomes: Mapping[str, Outcome] | None
) -> list[dict[str, str]]:
    found = {f.id for f in findings}
    declared: dict[str, Limit] = {
        limit.id: limit for g in gates for limit in limits_of(g.loaded, g.key)
    }
    out: list[dict[str, str]] = []
    for name in declared:
        outcome = None if outcomes is None else outcomes.get(name)
        if outcome is not None and outcome.status in _RAN:
            if name not in found and outcome.status != "no result received":
                out.append({"id": name, "reason": "its test ran but nothing was measured"})
            continue
        if outcomes is not None:
            words = "not collected" if outcome is None else _words(outcome)
            out.append({"id": name, "reason": words})
        elif name not in found:
            out.append({"id": name, "reason": "no request of it is on record"})
    for name, outcome in (outcomes or {}).items():
        if name not in declared:
            words = _words(outcome)
            if outcome.status in ("passed", "failed"):
                words = f"{outcome.status}, but the log holds nothing of it"
            out.append({"id": name, "reason": words})
    return out


def _words(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status


_RAN = ("passed", "failed", "no result received")


@dataclass(frozen=True)
class _Recorded:
    status: str
    reason: str
    reruns: int


_WEIGHT = ("failed", "no result received", "passed")


def _recorded(log: RunLog) -> tuple[dict[str, Outcome], list[tuple[str, str]], bool]:
    """What runs put on record of their tests: outcomes by limit, what was missing, any sign-off.

    Of several runs the weightiest word on a limit stays: a failure over a pass, either over a
    test that did not run.
    """
    out: dict[str, Outcome] = {}
    for line in log.outcomes:
        for name, each in line["outcomes"].items():
            new = _Recorded(each["status"], each.get("reason") or "", each.get("reruns", 0))
            if name not in out or _rank(new.status) < _rank(out[name].status):
                out[name] = new
    missing = [(what, why) for line in log.outcomes for what, why in line.get("missing") or ()]
    return out, missing, any(line.get("signoff") is True for line in log.outcomes)


def _rank(status: str) -> int:
    return _WEIGHT.index(status) if status in _WEIGHT else len(_WEIGHT)


def _not_whole(log: RunLog, gates: list[JudgedGate]) -> list[dict[str, str]]:
    """What the log itself lacks: its end, or the policy that the run was made under."""
    out: list[dict[str, str]] = []
    if log.end is None or log.truncated:
        out.append(
            {
                "id": "log",
                "reason": "it has no 'end' line: the run was killed, or the file is cut short, and "
                "what is missing may have failed",
            }
        )
    for gate in gates:
        line = log.run if gate.key is None else log.gates[gate.key]
        said = line.get("policy_sha256")
        if not gate.given and said is not None and said != gate.loaded.sha256:
            out.append(
                {
                    "id": "policy" if gate.key is None else f"{gate.key}",
                    "reason": "the policy on record is not the one whose sha256 is on record: it "
                    "was changed, or written by another version. Give the policy with --sla",
                }
            )
    return out


def _unreceived(
    gates: list[JudgedGate], findings: list[Finding], outcomes: Mapping[str, Outcome] | None
) -> list[Finding]:
    """An ``error`` row for every limit whose test began, or was to, and never reported."""
    found = {f.id for f in findings}
    limits = {limit.id: limit for g in gates for limit in limits_of(g.loaded, g.key)}
    out = []
    for name, outcome in (outcomes or {}).items():
        if outcome.status != "no result received" or name in found:
            continue
        limit = limits.get(name) or Limit(name, "error", "result", None, None, "")
        why = f" ({outcome.reason})" if outcome.reason else ""
        out.append(
            Finding(
                id=name,
                rule=limit.rule,
                metric=limit.metric,
                bucket=limit.bucket,
                percentile=limit.percentile,
                limit=limit.limit,
                unit=limit.unit,
                verdict="error",
                reason=f"no result received{why}",
                source=limit.source,
            )
        )
    return out


def _undocumented(log: RunLog) -> list[Finding]:
    """A FAIL for every figure that was put on the record without its four conditions (rule 3)."""
    out = []
    for line in log.tgs:
        why = tgs.undocumented(line)
        if why:
            out.append(
                Finding(
                    id=f"{line['id']}-recorded",
                    rule="tgs",
                    metric="tgs",
                    bucket=None,
                    percentile=None,
                    limit=None,
                    unit="tokens/s",
                    verdict="fail",
                    reason=why,
                    observed=float(line["value"]),
                    source="record_tgs",
                )
            )
    return out


def _not_for_signoff(log: RunLog, gates: list[JudgedGate]) -> list[dict[str, str]]:
    out = [
        {"id": f"{g.key}", "reason": "observed only: not release evidence"}
        for g in gates
        if g.observed_only
    ]
    if any(t.get("kind") == "scripted" for t in log.targets):
        out.append({"id": "target", "reason": "a scripted target: no model was measured"})
    return out


def _overall(
    gates: list[JudgedGate], findings: list[Finding], complete: bool
) -> tuple[Verdict, str]:
    observed = {g.key for g in gates if g.observed_only}
    binding = [f for f in findings if not _belongs(f, observed)]
    verdict = worst(f.verdict for f in findings)
    reason = ""
    if findings and not binding and verdict == "pass":
        return "inconclusive", "observed only: not release evidence"
    if not findings and not complete:
        return "inconclusive", "nothing was measured"
    if verdict == "pass" and not complete:
        return "inconclusive", "incomplete: see not_measured"
    if not findings:
        reason = "nothing was measured"
    return verdict, reason


def _belongs(finding: Finding, keys: set[str | None]) -> bool:
    return any(key is not None and finding.id.startswith(f"{key}/") for key in keys)


def _policy(log: RunLog, release: JudgedGate | None) -> dict[str, Any]:
    recorded = log.run.get("policy_sha256")
    if release is None:
        return {"path": None, "sha256": None, "recorded_sha256": recorded}
    path = release.loaded.path
    return {
        "path": str(path) if path is not None else log.run.get("policy_path"),
        "sha256": release.loaded.sha256,
        "recorded_sha256": recorded,
        "preset": release.loaded.policy.evidence.preset,
        "alpha_pass": release.loaded.policy.alpha_pass,
        "written_preset": None if release.given else log.run.get("written_preset"),
        "max_new_tokens": release.loaded.policy.workload.max_new_tokens,
        "sampling": release.loaded.policy.workload.sampling.model_dump(mode="json"),
        "warm_cache": release.loaded.policy.workload.warm_cache,
    }


def _target(log: RunLog) -> dict[str, Any]:
    if not log.targets:
        return {"kind": (log.run.get("target") or {}).get("kind"), "loaded": False}
    first = {k: v for k, v in log.targets[0].items() if k not in ("type", "gate")}
    return {**first, "loaded": bool(log.targets[0].get("loaded", True))}


def _warmups(gate: JudgedGate) -> dict[str, dict[str, Any]]:
    out = {}
    for bucket in gate.keeper.ranges:
        done = gate.keeper.warmups(bucket)
        if done:
            out[bucket] = _warmup(done, gate.loaded.policy.workload.warmup.max_requests)
    return out


def _warmup(done: list[Timeline], most: int) -> dict[str, Any]:
    monitor = WarmupMonitor(max(most, 1))
    spans = [(t.end_ns - t.start_ns) / NS_PER_MS for t in done]
    for t, span in zip(done, spans, strict=True):
        if t.ok and not monitor.done:
            monitor.add(span)
    failed = sum(1 for t in done if not t.ok)
    steady = monitor.steady
    return {
        "requests": len(done),
        "failed": failed,
        "worst_ms": max(spans),
        "last_ms": spans[-1],
        "steady": steady,
        "note": f"{len(done)} warm-up, worst {max(spans):.0f} ms"
        + ("" if steady else "; not steady by then"),
    }


def _errors(log: RunLog, gates: list[JudgedGate]) -> list[dict[str, Any]]:
    """Failures grouped by bucket and kind (digits apart), under the first one's own words."""
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for g in gates:
        for (bucket, reason), count in g.keeper.failures().items():
            key = (_label(g, bucket), kind_of(reason))
            row = kinds.setdefault(key, {"bucket": key[0], "reason": reason, "count": 0})
            row["count"] += count
    out = list(kinds.values())
    out += [
        {"bucket": line.get("bucket"), "reason": str(line.get("reason")), "count": 1}
        for line in log.problems
    ]
    return out


def _reruns(outcomes: Mapping[str, Outcome] | None) -> list[dict[str, Any]]:
    return [
        {"id": name, "reruns": o.reruns, "status": f"{o.status} after {o.reruns} rerun(s)"}
        for name, o in (outcomes or {}).items()
        if o.reruns
    ]


def _family(gates: list[JudgedGate], findings: list[Finding]) -> float | None:
    tested = sum(1 for f in findings if f.evidence is not None and f.evidence.alpha_fail)
    alphas = [g.loaded.policy.alpha_fail for g in gates]
    return min(1.0, tested * max(alphas)) if alphas and tested else None

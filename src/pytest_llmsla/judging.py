"""A whole run from its timelines: every gate judged again, and report.json made of it.

The one way to a report: after a run, by a controller process, and in ``llmsla check``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from .errors import UsageError
from .finding import Finding, Limit, Verdict, worst
from .log import RunLog
from .policy import LoadedPolicy, policy_from_mapping
from .rules import tgs
from .stats import WarmupMonitor
from .timeline import NS_PER_MS, Timeline
from .verdict import Gatekeeper, KvPlanState, limits_of

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


def kv_plan_state(loaded: LoadedPolicy, today: date | None = None) -> KvPlanState:
    """Read the policy's KV-cache plan as of ``today`` (default: the UTC date now)."""
    path = loaded.kv_plan_path
    if path is None:
        return KvPlanState()
    from .policy.kv_plan import KvPlanProblem, load_kv_plan

    try:
        plan = load_kv_plan(path, today or _today())
    except (KvPlanProblem, OSError) as e:
        return KvPlanState(problem=str(e))
    return KvPlanState(summary=plan.summary())


def _today() -> date:
    from .log import utc_now

    return date.fromisoformat(utc_now()[:10])


@dataclass
class JudgedGate:
    """One gate with its judge fed from the log."""

    key: str | None
    loaded: LoadedPolicy
    keeper: Gatekeeper
    sources: Mapping[str, str]
    given: bool = False
    """True for a policy given to judge by, False for the one on record."""

    def findings(self) -> list[Finding]:
        """Its findings, with the source lines the run recorded."""
        out = []
        for f in self.keeper.findings():
            source = self.sources.get(f.id, f.source)
            out.append(f if source == f.source else replace(f, source=source))
        return out

    @property
    def observed_only(self) -> bool:
        """True for a Python test under ``evidence="observed"``."""
        return self.key is not None and self.loaded.policy.alpha_pass is None


def judge_log(log: RunLog, release: LoadedPolicy | None = None) -> list[JudgedGate]:
    """Judge every gate of a log, in the order they were declared.

    ``release`` judges the requests of the sla.yaml's gate instead of the policy the run recorded
    (``llmsla check --sla``).

    Raises:
        UsageError: a recorded policy is not one this version can judge by, or a line belongs to
            a gate whose policy is not on record.
    """
    gates: dict[str | None, JudgedGate] = {}
    if release is not None or log.run.get("policy") is not None:
        recorded = log.run.get("policy")
        loaded = release or _recorded(log, recorded, "policy", log.run.get("policy_base"))
        sources = {} if release is not None else dict(log.run.get("sources") or {})
        gates[None] = _gate(None, loaded, sources, given=release is not None)
    for name, line in log.gates.items():
        loaded = _recorded(log, line.get("policy"), f"gate {name}", line.get("policy_base"))
        gates[name] = _gate(name, loaded, dict(line.get("sources") or {}))
    for target in log.targets:
        _of(gates, target.get("gate"), log).facts(target)
    for t in log.timelines:
        _of(gates, t.gate, log).add(t)
    for line in log.resources:
        _of(gates, line.get("gate"), log).resources(line)
    for line in log.problems:
        _of(gates, line.get("gate"), log).problem(line.get("bucket"), str(line["reason"]))
    for key, reason in _endings(log, gates).items():
        gates[key].keeper.end(reason)
    return list(gates.values())


def _of(gates: Mapping[str | None, JudgedGate], key: str | None, log: RunLog) -> Gatekeeper:
    """The judge of a line. A line of no known gate is evidence that nothing would hear."""
    found = gates.get(key)
    if found is not None:
        return found.keeper
    if key is None:
        raise UsageError(
            f"{log.path}: the policy of its requests is not on record; give it with --sla."
        )
    raise UsageError(
        f"{log.path}: has lines of gate {key!r:.200} but not its 'gate' line. The file is damaged: "
        "give the whole file."
    )


def _endings(log: RunLog, gates: Iterable[str | None]) -> dict[str | None, str]:
    """Why measuring ended, by gate: as recorded for the gate, else as the run ended."""
    whole = "interrupted" if log.end is None else str(log.end["reason"])
    recorded = (
        {}
        if log.end is None
        else {each.get("gate"): str(each["reason"]) for each in log.end.get("measuring") or ()}
    )
    return {key: recorded.get(key, whole) for key in gates}


def _gate(
    key: str | None, loaded: LoadedPolicy, sources: Mapping[str, str], *, given: bool = False
) -> JudgedGate:
    keeper = Gatekeeper(loaded, gate=key, kv_plan=kv_plan_state(loaded))
    return JudgedGate(key, loaded, keeper, sources, given)


def _recorded(log: RunLog, policy: object, what: str, base: object) -> LoadedPolicy:
    if not isinstance(policy, Mapping):
        raise UsageError(f"{log.path}: {what} is not on record; give the policy with --sla.")
    where = Path(base) if isinstance(base, str) else None
    return policy_from_mapping(policy, f"{log.path} ({what})", base=where)


def build_report(
    log: RunLog,
    gates: list[JudgedGate],
    outcomes: Mapping[str, Outcome] | None = None,
    *,
    signoff: bool = False,
    missing: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The dict of report.json.

    ``outcomes`` is what the test runner said per limit id; None when no runner took part
    (``llmsla check``): then every declared limit without a finding is not measured. ``missing``
    adds (what, why) pairs that make the sign-off incomplete.
    """
    findings = [f for gate in gates for f in gate.findings()]
    not_measured = _not_measured(gates, findings, outcomes)
    not_measured += [{"id": what, "reason": why} for what, why in missing]
    not_measured += _not_whole(log, gates)
    findings += _unreceived(gates, findings, outcomes)
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
            status = "not collected" if outcome is None else outcome.status
            why = "" if outcome is None or not outcome.reason else f": {outcome.reason}"
            out.append({"id": name, "reason": f"{status}{why}"})
        elif name not in found:
            out.append({"id": name, "reason": "no request of it is on record"})
    for name, outcome in (outcomes or {}).items():
        if name not in declared:
            why = f": {outcome.reason}" if outcome.reason else ""
            if outcome.status in ("passed", "failed"):
                why = ", but the log holds nothing of it"
            out.append({"id": name, "reason": f"{outcome.status}{why}"})
    return out


_RAN = ("passed", "failed", "no result received")


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
    out = [
        {"bucket": _label(g, bucket), "reason": reason, "count": count}
        for g in gates
        for (bucket, reason), count in g.keeper.failures().items()
    ]
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

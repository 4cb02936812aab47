"""The dict of report.json: what was found, whether it is complete, and the verdict on both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..diagnose.errors import kind_of
from ..finding import Finding, Verdict, worst
from ..log import RunLog
from ..replay import JudgedGate
from ..rules import server_side, tgs
from ..rules.conditions import undocumented
from ..series import series_of
from .completeness import not_for_signoff, not_whole, unmeasured, unreceived
from .outcomes import RAN, Outcome, in_words, recorded
from .warmups import warmups

REPORT_SCHEMA = "llmsla-report/1"


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
    live = outcomes is not None
    findings = [f for gate in gates for f in gate.findings()]
    not_measured = unmeasured(gates, findings, outcomes)
    if outcomes is None:
        outcomes, said, signed = recorded(log)
        missing = [*missing, *said]
        signoff = signoff or signed
        listed = {row["id"] for row in not_measured}
        not_measured += [
            {"id": name, "reason": in_words(o)}
            for name, o in outcomes.items()
            if o.status not in RAN and name not in listed
        ]
    not_measured += [{"id": what, "reason": why} for what, why in missing]
    not_measured += not_whole(log, gates)
    findings += unreceived(gates, findings, outcomes)
    findings += _undocumented(log)
    if signoff:
        not_measured += not_for_signoff(log, gates)
    complete = not not_measured
    verdict, reason = _overall(gates, findings, complete)
    if not live:
        verdict, reason = _as_compared(log, verdict, reason)
    release = next((g for g in gates if g.key is None), None)
    shown = release or (gates[0] if gates else None)
    rates = [e for g in gates for e in g.keeper.tgs_entries()]
    rates += [tgs.recorded_entry(line) for line in log.tgs]
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
        "warmup": {_label(g, b): w for g in gates for b, w in warmups(g).items()},
        "findings": [f.to_json() for f in findings],
        "tgs": rates,
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
        "notes": [note for g in gates for note in g.keeper.notes()],
        "resumed": [
            {name: line.get(name) for name in ("from", "sha256", "utc", "requests", "in_flight")}
            for line in log.resumes
        ],
        "series": series_of(log, gates, rates),
    }


def _label(gate: JudgedGate, bucket: str) -> str:
    return bucket if gate.key is None else f"{gate.key}/{bucket}"


def _undocumented(log: RunLog) -> list[Finding]:
    """A FAIL for every figure that was put on the record without its four conditions (rule 3)."""
    out = []
    for line in log.tgs:
        why = undocumented(line)
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


def _as_compared(log: RunLog, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
    """What a run was found to be beside its baseline stays on it, wherever that is now."""
    for line in log.outcomes:
        said = line.get("compared")
        if said:
            worse = worst((verdict, said["verdict"]))
            if worse != verdict:
                verdict, reason = worse, f"baseline: {said['reason']}"
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
    loaded = bool(log.targets[0].get("loaded", True))
    return {**first, "loaded": loaded, **server_side.for_target(log.servers, log.timelines)}


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

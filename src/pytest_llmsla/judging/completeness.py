"""What a run lacks: limits that were not measured, an end, a policy, evidence for a release."""

from __future__ import annotations

from collections.abc import Mapping

from ..finding import Finding, Limit
from ..log import RunLog
from ..replay import JudgedGate
from ..resume import moved_on
from ..verdict import limits_of
from .outcomes import RAN, Outcome, in_words

_SHOWN = 5


def unmeasured(
    gates: list[JudgedGate], findings: list[Finding], outcomes: Mapping[str, Outcome] | None
) -> list[dict[str, str]]:
    """Declared limits without a finding, or without a test that ran: ``id``, ``reason``.

    ``outcomes`` None: no test runner takes part, and a finding is enough.
    """
    found = {f.id for f in findings}
    declared: dict[str, Limit] = {
        limit.id: limit for g in gates for limit in limits_of(g.loaded, g.key)
    }
    out: list[dict[str, str]] = []
    for name in declared:
        outcome = None if outcomes is None else outcomes.get(name)
        if outcome is not None and outcome.status in RAN:
            if name not in found and outcome.status != "no result received":
                out.append({"id": name, "reason": "its test ran but nothing was measured"})
            continue
        if outcomes is not None:
            words = "not collected" if outcome is None else in_words(outcome)
            out.append({"id": name, "reason": words})
        elif name not in found:
            out.append({"id": name, "reason": "no request of it is on record"})
    for name, outcome in (outcomes or {}).items():
        if name not in declared:
            words = in_words(outcome)
            if outcome.status in ("passed", "failed"):
                words = f"{outcome.status}, but the log holds nothing of it"
            out.append({"id": name, "reason": words})
    return out


def unreceived(
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
        out.append(Finding.of(limit, "error", f"no result received{why}"))
    return out


def not_whole(log: RunLog, gates: list[JudgedGate]) -> list[dict[str, str]]:
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
    elif log.end.get("reason") == "interrupted":
        out.append({"id": "run", "reason": _interrupted(log.in_flight)})
    if log.unreported:
        out.append(
            {
                "id": "tests",
                "reason": "what became of its tests is not on record: the run was ended before it "
                "could be written, and one may have failed",
            }
        )
    if log.lacking:
        more = f" and {len(log.lacking) - _SHOWN} more" if len(log.lacking) > _SHOWN else ""
        out.append(
            {
                "id": "log",
                "reason": "it is not the file that its run wrote, and what is missing may have "
                f"failed. It lacks or has too many: {'; '.join(log.lacking[:_SHOWN])}{more}",
            }
        )
    out += [{"id": "resume", "reason": words} for words in moved_on(log)]
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


def _interrupted(in_flight: int) -> str:
    words = "it was interrupted (Ctrl-C, SIGTERM)"
    if not in_flight:
        return words
    what = "request was" if in_flight == 1 else "requests were"
    return f"{words} while {in_flight} {what} in flight; without an answer that is a failure"


def not_for_signoff(log: RunLog, gates: list[JudgedGate]) -> list[dict[str, str]]:
    """What no release rests on: observed gates, a target that is a script."""
    out = [
        {"id": f"{g.key}", "reason": "observed only: not release evidence"}
        for g in gates
        if g.observed_only
    ]
    if any(t.get("kind") == "scripted" for t in log.targets):
        out.append({"id": "target", "reason": "a scripted target: no model was measured"})
    return out

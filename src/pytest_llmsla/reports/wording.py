"""The fixed words of a sign-off, the same on every page: rules, outcome, method, signatures.

Reads the dict of report.json. Returns text that is visible but not yet escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import baseline, numbers, phrases, summary
from .escape import shortened


@dataclass(frozen=True)
class RuleText:
    """One rule of the gate, as reports name it."""

    key: str
    """``rule`` of a finding."""
    number: str
    """``1``, ``2``, ``3``; empty for limits beside the three rules."""
    name: str
    text: str

    @property
    def title(self) -> str:
        """``Rule 1: TTFT``."""
        return f"Rule {self.number}: {self.name}" if self.number else self.name


RULES = (
    RuleText("ttft", "1", "TTFT", "Time to first token has a limit that names its prompt length."),
    RuleText(
        "itl",
        "2",
        "ITL",
        "P50, P95 and P99 of inter-token latency are reported; P95 has a limit.",
    ),
    RuleText(
        "tgs",
        "3",
        "TGS",
        "A TGS figure (tokens generated per second) carries prompt lengths, sampling, concurrency "
        "and memory.",
    ),
    RuleText("error", "", "Failures", "Failed requests stay within their limit."),
    RuleText("goodput", "", "Goodput", "Enough requests meet every limit of their bucket."),
    RuleText("memory", "", "Memory", "Memory stays within its named limit."),
)

LEGEND = (
    ("TTFT", "time to first token: from the request to the first token of its answer"),
    ("ITL", "inter-token latency: the time between two tokens of an answer"),
    ("TGS", "tokens generated per second"),
    ("P95 ≤ 47.3 ms (95 %, anytime)", "the true percentile is below that with 95 % confidence, "
     "however often it was looked at while measuring went on"),
    ("measured 31/97/128", "shortest, median and longest prompt that was measured, in tokens"),
    ("87 % of 4 times the rate of one", "4 requests in flight together gave 87 % of what 4 times "
     "one request alone would"),
    ("stopped", "a limit is broken, or something failed or could not be measured: no release"),
    ("sent back", "undocumented or undecided: to be measured again"),
)  # fmt: skip
"""Words that a reader has to know, and their meaning."""

_POLICY_NAMES = {
    "sha256": "SHA-256 of the policy that judged",
    "recorded_sha256": "SHA-256 of the policy that measured",
    "alpha_pass": "risk of passing a limit wrongly",
    "written_preset": "preset written in the policy",
    "max_new_tokens": "tokens asked of an answer",
    "warm_cache": "prompts may be in the cache",
}

ROLES = ("Service owner", "Release manager", "Reviewer")
DECISIONS = ("release", "release on condition", "stop", "measure again")

STOPPED = "Stopped: a limit is broken or could not be measured"
SENT_BACK = "Sent back: undocumented or undecided, to be measured again"
ON_CONDITION = "On condition: over the limit with a KV-cache plan"
ALL_HOLD = "Every limit of the policy was measured and holds."
ALL_BUT_BASELINE = (
    "Every limit of the policy was measured and holds; what does not is the comparison with the "
    "baseline."
)
INCOMPLETE = "The run is incomplete: see what was not measured below."


def outcome(report: summary.ReportDict) -> str:
    """What follows for the release: ``stopped``, ``sent back``, ``on condition`` or ``passed``.

    ``stopped``: rules 1 and 2 broken, failures, errors, slower than the baseline or not comparable
    with it. ``sent back``: rule 3 undocumented, undecided, incomplete. Nothing that
    is not a complete PASS is ``passed``.
    """
    found = summary.sort_findings(report)
    beside = baseline.verdict(report)
    if found.stopped or beside not in ("pass", "inconclusive", "conditional"):
        return "stopped"
    if report["verdict"] in ("fail", "error"):
        # Rule 3 alone fails by being undocumented: that is sent back, whatever its verdict.
        return "sent back" if found.sent_back else "stopped"
    if found.sent_back or beside != "pass" or not report["complete"]:
        return "sent back"
    if report["verdict"] == "conditional" or found.conditional:
        return "on condition"
    if report["verdict"] == "pass" and report["findings"]:
        return "passed"
    return "sent back"


def policy(report: summary.ReportDict) -> Mapping[str, Any]:
    """The report's policy, its keys in words where they need them."""
    given = report.get("policy") or {}
    return {_POLICY_NAMES.get(key, key): _share(key, value) for key, value in given.items()}


def _share(key: str, value: object) -> object:
    return numbers.percent(value) if key == "alpha_pass" and isinstance(value, float) else value


def all_hold(report: summary.ReportDict) -> str:
    """That every limit holds, where it does; else empty."""
    if report["verdict"] == "pass":
        return ALL_HOLD
    sound = report["complete"] and report["findings"] and baseline.follows(report)
    every = all(f["verdict"] == "pass" for f in report["findings"])
    return ALL_BUT_BASELINE if sound and every else ""


def nothing_missing(report: summary.ReportDict) -> str:
    """What stands under "not measured" where :func:`summary.missing` is empty."""
    if report.get("not_measured"):
        return "nothing besides limits under “What follows”, which say so"
    return "nothing is missing"


def how(report: summary.ReportDict) -> tuple[str, list[str]]:
    """How the verdict was reached: a paragraph, and what it means for this run."""
    intro = (
        "A limit such as P95 ≤ 50 ms is read as: at most 5 % of samples are over 50 ms. "
        "Requests are the independent units, not tokens. After every request a sequential test "
        "looks whether the evidence is enough to say PASS or FAIL; it stays valid however often "
        "it looks. When the budget is spent first, the limit is INCONCLUSIVE, which is not PASS."
    )
    alphas = {
        (e["preset"], e["alpha_pass"], e["alpha_fail"])
        for f in report["findings"]
        if (e := f.get("evidence")) and e.get("alpha_pass") is not None
    }
    points = [
        f"Preset {shortened(preset)}: a gate whose true percentile breaks its limit ends as PASS "
        f"with a probability of at most {numbers.percent(passing)}; one that keeps it ends as "
        f"FAIL with at most {numbers.percent(failing)} a limit."
        for preset, passing, failing in sorted(alphas, key=str)
    ]
    family = report.get("family_alpha_fail")
    if family is not None:
        points.append(
            f"Over all limits together, at most {numbers.percent(family)} of sound services get "
            "a FAIL."
        )
    points += [
        "The verdict of the run is the worst of its limits, and never PASS while a limit is "
        "missing.",
        "It holds for this machine and this window of time only.",
    ]
    return intro, points


def history_line(run: summary.ReportDict) -> str:
    """One earlier run: ``20261129T101500Z: FAIL, incomplete, policy 0123456789ab``."""
    state = phrases.verdict(run) + ("" if run.get("complete") else ", incomplete")
    sha = str(run.get("policy_sha256") or "")[:12]
    return (
        f"{shortened(run['run'])}: {shortened(state)}, policy {shortened(sha or numbers.NOTHING)}"
    )

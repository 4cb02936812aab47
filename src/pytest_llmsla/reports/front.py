"""What a sign-off says first: may it launch, why, and each rule in a line.

Reads the dict of report.json. Returns text that is visible but not yet escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from . import baseline, phrases, side_by_side, summary, wording
from .escape import shortened

_ANSWERS = {"passed": "Yes", "on condition": "On condition", "sent back": "Not yet"}
_MOST_LINES = 3
_BESIDE = {
    "fail": "it is slower than the baseline",
    "inconclusive": "it is undecided beside the baseline",
}


def launch(report: summary.ReportDict) -> str:
    """``No: rule 2 (ITL) is broken``: may the service be launched by this run, and why."""
    outcome = wording.outcome(report)
    if outcome == "passed" and summary.is_scripted(report):
        return "No: no model was measured"
    return f"{_ANSWERS.get(outcome, 'No')}: {'; '.join(filter(None, _why(report, outcome)))}"


def _why(report: summary.ReportDict, outcome: str) -> Sequence[str]:
    found = summary.sort_findings(report)
    if outcome == "passed":
        return ("every limit of the policy was measured and holds", summary.evidence(report))
    if outcome == "on condition":
        return tuple(_by_rule(found.conditional, _with_plan))
    stopped = outcome == "stopped"
    words = list(_by_rule(found.stopped, _broken) if stopped else _by_rule(found.sent_back, _open))
    beside = baseline.verdict(report)
    if beside != "pass":
        words.append(_BESIDE.get(beside, "the comparison with the baseline has no result"))
    if not report["complete"]:
        words.append("limits were not measured")
    return words or [summary.why(report) or _nothing_else(report)]


def _nothing_else(report: summary.ReportDict) -> str:
    if not report["findings"]:
        return "nothing was judged"
    return f"the run as a whole is {phrases.verdict(report)}"


def _with_plan(_: Sequence[phrases.FindingDict]) -> str:
    return "is over its limit with a KV-cache plan"


def _broken(found: Sequence[phrases.FindingDict]) -> str:
    broken = any(f["verdict"] == "fail" for f in found)
    return "is broken" if broken else "could not be measured"


def _open(found: Sequence[phrases.FindingDict]) -> str:
    return "is not documented" if any(map(phrases.undocumented, found)) else "is undecided"


def _by_rule(
    found: Sequence[phrases.FindingDict], said: Callable[[Sequence[phrases.FindingDict]], str]
) -> Iterator[str]:
    """Each rule that ``found`` belongs to, once, with what is said of its findings."""
    for name in dict.fromkeys(_rule(f) for f in found):
        yield f"{name} {said([f for f in found if _rule(f) == name])}"


def _rule(f: phrases.FindingDict) -> str:
    rule = next((r for r in wording.RULES if r.key == f["rule"]), None)
    if rule is None:
        return f"the limit on {shortened(f['rule'])}"
    return (
        f"rule {rule.number} ({rule.name})" if rule.number else f"the limit on {rule.name.lower()}"
    )


def rules(report: summary.ReportDict) -> list[tuple[str, side_by_side.Cell]]:
    """The three rules, and other limits that do not hold: the verdict, and what is not PASS."""
    out = []
    for rule in wording.RULES:
        found = [f for f in report["findings"] if f["rule"] == rule.key]
        cell = side_by_side.cell(report, (rule.key,))
        if rule.number or (found and cell.kind != "pass"):
            out.append((rule.title, side_by_side.Cell(cell.verdict, cell.kind, _lines(found))))
    return out


def _lines(found: Sequence[phrases.FindingDict]) -> tuple[str, ...]:
    if not found:
        return ("nothing was judged",)
    bad = [side_by_side.line(f) for f in found if f["verdict"] != "pass"]
    if not bad:
        return ("its limit holds" if len(found) == 1 else f"{len(found)} limits hold",)
    if len(bad) <= _MOST_LINES:
        return tuple(bad)
    return (*bad[:_MOST_LINES], f"… {len(bad)} in all")

"""report.md: the sign-off a release board reads before launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import numbers, phrases, summary
from .escape import markdown as md

_RULES = (
    ("ttft", "1", "Time to first token has a limit that names its prompt length."),
    ("itl", "2", "P50, P95 and P99 of inter-token latency are reported; P95 has a limit."),
    ("tgs", "3", "A TGS figure carries prompt lengths, sampling, concurrency and memory."),
    ("error", "", "Failed requests stay within their limit."),
    ("memory", "", "Memory stays within its named limit."),
)
_LONG = 4000
_MOST_ROWS = 100
"""Rows of an open-ended list; report.json has all of them."""


def render(
    report: summary.ReportDict,
    *,
    digests: Mapping[str, str] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The report as Markdown (GitHub flavour), ending in a line break; foreign text is inert.

    Args:
        report: the dict of report.json.
        digests: SHA-256 by file name, for the sign-off block.
        history: earlier runs of the folder: ``run``, ``verdict``, ``complete``, ``started``,
            ``policy_sha256``; oldest first.
    """
    sections = (
        _head(report),
        _rules(report),
        _outcome(report),
        _evidence(report),
        _tgs(report),
        _fact_section("Conditions", report.get("policy") or {}),
        _fact_section("Warm-up", report.get("warmup") or {}),
        _fact_section("Model and target", report.get("target") or {}),
        _fact_section("Environment", report.get("environment") or {}),
        _bullets("To be known", summary.warnings(report), "nothing more"),
        _not_measured(report),
        _errors(report),
        _how(report),
        _history(history),
        _signoff(report, digests or {}),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def _head(report: summary.ReportDict) -> list[str]:
    host = (report.get("environment") or {}).get("hostname")
    why = f" ({md(summary.why(report))})" if summary.why(report) else ""
    rows = [
        ("Verdict", f"**{md(summary.headline(report))}**{why}"),
        ("Service", md(report.get("service") or numbers.NOTHING)),
        ("Measured", f"{md(report.get('started'))} to {md(report.get('finished'))} (UTC)"),
        ("Host", md(host or numbers.NOTHING)),
        ("Policy", md((report.get("policy") or {}).get("path") or numbers.NOTHING)),
        ("Evidence", md(summary.evidence(report) or numbers.NOTHING)),
    ]
    title = f"# Pre-launch sign-off: {md(report.get('service') or 'service')}"
    return [title, "", *(f"- {name}: {value}" for name, value in rows), ""]


def _rules(report: summary.ReportDict) -> list[str]:
    """One table row a limit and no other table of limits in the file."""
    present = {f["rule"] for f in report["findings"]}
    lines = ["## Rules and limits", ""]
    for rule, number, text in _RULES:
        if rule in present:
            lines.append(f"- {f'Rule {number} ({rule})' if number else rule}: {text}")
    lines += [
        "",
        "| Limit | Bucket | Limit value | Observed | Bound | Requests | Verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*lines, *(_row(f) for f in report["findings"]), ""]


def _row(f: phrases.FindingDict) -> str:
    mark = f" ({md(phrases.observed_mark(f))})" if phrases.is_observed(f) else ""
    if phrases.is_conditional_pass(f):
        mark = " (by KV-cache plan)"
    cells = (
        md(f["id"]),
        md(f.get("bucket") or numbers.NOTHING),
        md(phrases.limit(f)),
        md(phrases.observed(f)),
        md(phrases.bound(f) or numbers.NOTHING),
        str(f["requests"]),
        f"{md(phrases.verdict(f))}{mark}",
    )
    return f"| {' | '.join(cells)} |"


def _outcome(report: summary.ReportDict) -> list[str]:
    found = summary.sort_findings(report)
    lines = ["## What follows", ""]
    if report["verdict"] == "pass":
        lines += ["Every limit of the policy was measured and holds.", ""]
    groups = (
        ("Stopped: a limit is broken or could not be measured", found.stopped),
        ("Sent back: undocumented or undecided, to be measured again", found.sent_back),
        ("On condition: over the limit with a KV-cache plan", found.conditional),
    )
    for title, findings in groups:
        if findings:
            lines += [f"### {title}", "", *(line for f in findings for line in _detail(f)), ""]
    if not report["complete"]:
        lines += ["The run is **incomplete**: see what was not measured below.", ""]
    return lines


def _detail(f: phrases.FindingDict) -> list[str]:
    lines = [f"- {md(summary.brief(f), _LONG)}"]
    lines += [f"  - likely: {md(text)}" for text in f.get("diagnosis") or ()]
    if phrases.attempts(f):
        lines.append(f"  - attempts pooled: {md(phrases.attempts(f), _LONG)}")
    if phrases.carries_characteristic(f):
        lines.append(f"  - power of the test: {md(phrases.OPERATING_CHARACTERISTIC)}")
    lines += [f"  - next: {md(step)}" for step in phrases.next_steps(f)]
    return lines


def _evidence(report: summary.ReportDict) -> list[str]:
    lines = ["## Evidence", ""]
    for bucket, findings in summary.buckets(report).items():
        scope = next((phrases.scope(f) for f in findings if phrases.scope(f)), "")
        lines += [f"### Bucket {md(bucket)}" + (f" ({md(scope)})" if scope else ""), ""]
        lines += [line for f in findings for line in _figures(f)]
        lines.append("")
    return lines


def _figures(f: phrases.FindingDict) -> list[str]:
    head = f"- **{md(phrases.name(f))}**: {md(phrases.verdict(f))} {md(phrases.decision(f))}"
    parts: list[tuple[str, Callable[[phrases.FindingDict], str]]] = [
        ("percentiles (nearest rank)", phrases.percentiles),
        ("bound", phrases.bound),
        ("why", phrases.reason),
        ("share of TTFT", phrases.stages),
        ("attempts pooled", phrases.attempts),
    ]
    lines = [head]
    lines += [f"  - {name}: {md(value(f), _LONG)}" for name, value in parts if value(f)]
    if f.get("start_point"):
        lines.append(f"  - clock starts: {md(f['start_point'])}")
    if f.get("source"):
        lines.append(f"  - written at: {md(f['source'])}")
    if f.get("evidence"):
        lines.append(f"  - test: {md(summary.text_of(f['evidence']))}")
    return lines + [f"  - note: {md(note)}" for note in f.get("notes") or ()]


def _tgs(report: summary.ReportDict) -> list[str]:
    entries = report.get("tgs") or ()
    if not entries:
        return []
    lines = ["## TGS with its four conditions", ""]
    for entry in entries:
        documented = "" if entry.get("documented") else " (**not documented**)"
        lines.append(f"- {md(summary.tgs_figure(entry))}{documented}")
        lines += [
            f"  - {md(name)}: {md(value, _LONG)}" for name, value in summary.tgs_conditions(entry)
        ]
        lines += [
            f"    - {md(name)}: {md(text, _LONG)}" for name, text in summary.tgs_remarks(entry)
        ]
    return [*lines, ""]


def _fact_section(title: str, value: Mapping[str, Any]) -> list[str]:
    lines = [f"- {md(name)}: {md(text, _LONG)}" for name, text in summary.facts(value)]
    return [f"## {title}", "", *(lines or ["- nothing on record"]), ""]


def _not_measured(report: summary.ReportDict) -> list[str]:
    return _bullets("What was not measured", summary.not_measured(report), "nothing is missing")


def _errors(report: summary.ReportDict) -> list[str]:
    return _bullets("Errors", summary.errors(report), "none")


def _bullets(title: str, rows: Iterable[str], empty: str) -> list[str]:
    kept = list(rows)
    lines = [f"- {md(row, _LONG)}" for row in kept[:_MOST_ROWS]] or [f"- {empty}"]
    if len(kept) > _MOST_ROWS:
        lines.append(f"- … {len(kept)} in all; report.json has the rest")
    return [f"## {title}", "", *lines, ""]


def _how(report: summary.ReportDict) -> list[str]:
    alphas = {
        (e["preset"], e["alpha_pass"], e["alpha_fail"])
        for f in report["findings"]
        if (e := f.get("evidence")) and e.get("alpha_pass") is not None
    }
    lines = [
        "## How the verdict was reached",
        "",
        "A limit such as P95 ≤ 50 ms is read as: at most 5 % of samples are over 50 ms. "
        "Requests are the independent units, not tokens. After every request a sequential test "
        "looks whether the evidence is enough to say PASS or FAIL; it stays valid however often "
        "it looks. When the budget is spent first, the limit is INCONCLUSIVE, which is not PASS.",
        "",
    ]
    lines += [
        f"- Preset {md(preset)}: a gate whose true percentile breaks its limit ends as PASS with "
        f"a probability of at most {numbers.percent(passing)}; one that keeps it ends as FAIL "
        f"with at most {numbers.percent(failing)} a limit."
        for preset, passing, failing in sorted(alphas, key=str)
    ]
    family = report.get("family_alpha_fail")
    if family is not None:
        lines.append(
            f"- Over all limits together, at most {numbers.percent(family)} of sound services get "
            "a FAIL."
        )
    return [
        *lines,
        "- The verdict of the run is the worst of its limits, and never PASS while a limit is "
        "missing.",
        "- It holds for this machine and this window of time only.",
        "",
    ]


def _history(history: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["## Earlier runs in this folder", ""]
    if not history:
        return [*lines, "- none: this is the first", ""]
    for run in history:
        state = phrases.verdict(run) + ("" if run.get("complete") else ", incomplete")
        sha = str(run.get("policy_sha256") or "")[:12]
        lines.append(f"- {md(run['run'])}: {md(state)}, policy {md(sha or numbers.NOTHING)}")
    return [*lines, ""]


def _signoff(report: summary.ReportDict, digests: Mapping[str, str]) -> list[str]:
    lines = ["## Sign-off", ""]
    for role in ("Service owner", "Release manager", "Reviewer"):
        lines.append(f"- {role}: ____________________  Date: ____________")
    lines += ["- Decision: [ ] release  [ ] release on condition  [ ] stop  [ ] measure again", ""]
    if report["verdict"] != "pass":
        lines += [f"The gate says {md(summary.headline(report))}; a release needs a reason:", ""]
        lines += ["- Reason: ____________________", ""]
    lines += [f"- SHA-256 of {md(name)}: `{value}`" for name, value in digests.items()]
    return lines

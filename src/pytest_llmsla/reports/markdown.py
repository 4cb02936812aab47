"""report.md: the sign-off a release board reads before launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import baseline, front, numbers, phrases, server, summary, wording
from .escape import markdown as md

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
        _baseline(report),
        _evidence(report),
        _tgs(report),
        _fact_section("Conditions", wording.policy(report)),
        _fact_section("Warm-up", report.get("warmup") or {}),
        _fact_section("Model and target", server.target(report)),
        _server(report),
        _fact_section("Environment", report.get("environment") or {}),
        _bullets(
            "To be known", [*summary.warnings(report), *server.warnings(report)], "nothing more"
        ),
        _not_measured(report),
        _errors(report),
        _how(report),
        _legend(),
        _history(history),
        _signoff(report, digests or {}),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def brief(report: summary.ReportDict) -> str:
    """Verdict, table of limits and what follows only: where there is room for little."""
    sections = (_head(report), _rules(report), _outcome(report), _baseline(report))
    return "\n".join(line for section in sections for line in section) + "\n"


def _head(report: summary.ReportDict) -> list[str]:
    host = (report.get("environment") or {}).get("hostname")
    why = f" ({md(summary.why(report))})" if summary.why(report) else ""
    rows = [
        ("Verdict", f"**{md(summary.headline(report))}**{why}"),
        ("Outcome", md(wording.outcome(report))),
        ("May it launch?", md(front.launch(report), _LONG)),
        *(
            (md(f"{title}, {cell.verdict}"), md("; ".join(cell.lines), _LONG))
            for title, cell in front.rules(report)
        ),
        ("Service", md(report.get("service") or numbers.NOTHING)),
        ("Measured", f"{md(report.get('started'))} to {md(report.get('finished'))} (UTC)"),
        ("Host", md(host or numbers.NOTHING)),
        ("Policy", md((report.get("policy") or {}).get("path") or numbers.NOTHING)),
        ("Evidence", md(summary.evidence(report) or numbers.NOTHING)),
    ]
    title = f"# Pre-launch sign-off: {md(report.get('service') or 'service')}"
    return [title, "", *(f"- {_named(name)} {value}" for name, value in rows), ""]


def _named(name: str) -> str:
    return name if name.endswith("?") else f"{name}:"


def _rules(report: summary.ReportDict) -> list[str]:
    """One table row a limit and no other table of limits in the file."""
    present = {f["rule"] for f in report["findings"]}
    lines = ["## Rules and limits", ""]
    for rule in wording.RULES:
        if rule.key in present:
            lines.append(f"- {md(rule.title)}. {md(rule.text)}")
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
        md(f["requests"]),
        f"{md(phrases.verdict(f))}{mark}",
    )
    return f"| {' | '.join(cells)} |"


def _outcome(report: summary.ReportDict) -> list[str]:
    found = summary.sort_findings(report)
    lines = ["## What follows", ""]
    if wording.all_hold(report):
        lines += [wording.all_hold(report), ""]
    groups = (
        (wording.STOPPED, found.stopped),
        (wording.SENT_BACK, found.sent_back),
        (wording.ON_CONDITION, found.conditional),
    )
    for title, findings in groups:
        if findings:
            said = zip(findings, summary.briefs(report, findings), strict=True)
            lines += [f"### {title}", "", *(x for f, words in said for x in _detail(f, words)), ""]
    beside = baseline.follows(report)
    if beside is not None:
        lines += [f"### {md(beside.title)}", ""]
        lines += [f"- {md(m.line, _LONG)}" for m in beside.metrics]
        lines += [f"- next: {md(beside.step, _LONG)}", ""]
    if not report["complete"]:
        lines += [wording.INCOMPLETE.replace("incomplete", "**incomplete**"), ""]
    return lines


def _baseline(report: summary.ReportDict) -> list[str]:
    lines = baseline.lines(report)
    return _bullets("Beside the baseline", lines, "") if lines else []


def _detail(f: phrases.FindingDict, words: str) -> list[str]:
    lines = [f"- {md(words, _LONG)}"]
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


def _server(report: summary.ReportDict) -> list[str]:
    rows = server.rows(report)
    return _bullets("The server: its words, its own times, the client", rows, "") if rows else []


def _not_measured(report: summary.ReportDict) -> list[str]:
    nothing = wording.nothing_missing(report)
    return _bullets("What was not measured", summary.missing(report), nothing)


def _errors(report: summary.ReportDict) -> list[str]:
    return _bullets("Errors", summary.errors(report), "none")


def _bullets(title: str, rows: Iterable[str], empty: str) -> list[str]:
    kept = list(rows)
    lines = [f"- {md(row, _LONG)}" for row in kept[:_MOST_ROWS]] or [f"- {empty}"]
    if len(kept) > _MOST_ROWS:
        lines.append(f"- … {len(kept)} in all; report.json has the rest")
    return [f"## {title}", "", *lines, ""]


def _how(report: summary.ReportDict) -> list[str]:
    intro, points = wording.how(report)
    lines = ["## How the verdict was reached", "", md(intro, _LONG), ""]
    return [*lines, *(f"- {md(point, _LONG)}" for point in points), ""]


def _legend() -> list[str]:
    return _bullets("Words", (f"{term}: {text}" for term, text in wording.LEGEND), "")


def _history(history: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["## Earlier runs in this folder", ""]
    if not history:
        return [*lines, "- none: this is the first", ""]
    lines += [f"- {md(wording.history_line(run))}" for run in history]
    return [*lines, ""]


def _signoff(report: summary.ReportDict, digests: Mapping[str, str]) -> list[str]:
    lines = ["## Sign-off", ""]
    for role in wording.ROLES:
        lines.append(f"- {role}: ____________________  Date: ____________")
    lines += [f"- Decision: {'  '.join(f'[ ] {each}' for each in wording.DECISIONS)}", ""]
    if report["verdict"] != "pass":
        lines += [f"The gate says {md(summary.headline(report))}; a release needs a reason:", ""]
        lines += ["- Reason: ____________________", ""]
    lines += [f"- SHA-256 of {md(name)}: `{value}`" for name, value in digests.items()]
    return lines

"""Several services side by side: one row a service, one column a rule.

Reads dicts of report.json. Returns text that is visible but not yet escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from ..finding import Verdict, worst
from . import baseline, numbers, phrases, summary, wording
from .escape import markdown as md
from .escape import shortened

COLUMNS = tuple(rule for rule in wording.RULES if rule.number)
_OTHERS = tuple(rule.key for rule in wording.RULES if not rule.number)
_MOST_LINES = 12


@dataclass(frozen=True)
class Cell:
    """One rule of one service."""

    verdict: str
    """``FAIL``, or ``–`` where nothing was judged under the rule."""
    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """One row."""

    name: str
    source: str
    verdict: str
    kind: str
    outcome: str
    rules: tuple[Cell, ...]
    others: Cell
    """Failures, goodput, memory."""
    baseline: Cell | None
    """The comparison with stored runs; None where the run has none."""
    missing: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]


def rows(reports: Sequence[tuple[str, summary.ReportDict]]) -> list[Service]:
    """A row for each (where it came from, report), in the order given."""
    return [_service(source, report) for source, report in reports]


def headline(services: Sequence[Service]) -> str:
    """``3 services: 1 stopped, 2 sent back``."""
    counts = Counter(s.outcome for s in services)
    order = ("stopped", "sent back", "on condition", "passed")
    parts = [f"{counts[name]} {name}" for name in order if counts[name]]
    return f"{numbers.counted(len(services), 'service')}: {', '.join(parts)}"


def differences(reports: Sequence[tuple[str, summary.ReportDict]]) -> list[str]:
    """What keeps the rows from being compared with one another: other hosts, policies, presets."""
    out = []
    for name, read in _COMPARED.items():
        seen = {read(report) for _, report in reports}
        if len(seen) > 1:
            shown = ", ".join(sorted(shortened(value, 60) for value in seen))
            out.append(f"not the same {name}: {shown}. Each verdict holds for its own")
    return out


def compared(services: Sequence[Service]) -> bool:
    """Whether any of them was compared with stored runs."""
    return any(s.baseline is not None for s in services)


def titles(services: Sequence[Service]) -> tuple[str, ...]:
    """Names of the columns that :func:`cells_of` fills."""
    beside = ("Baseline",) if compared(services) else ()
    return (*(rule.title for rule in COLUMNS), "Other limits", *beside)


def cells_of(service: Service, services: Sequence[Service]) -> tuple[Cell, ...]:
    """The service's cells between its outcome and what is missing, a baseline only if one has."""
    cells = (*service.rules, service.others)
    if not compared(services):
        return cells
    return (*cells, service.baseline or Cell(numbers.NOTHING, "none", ("not compared",)))


def markdown(reports: Sequence[tuple[str, summary.ReportDict]]) -> str:
    """The table as Markdown, ending in a line break; foreign text is inert."""
    services = rows(reports)
    columns = [
        "Service",
        "Outcome",
        *titles(services),
        "Missing",
    ]
    lines = [
        f"# {md(headline(services))}",
        "",
        f"| {' | '.join(md(t) for t in columns)} |",
        f"|{'---|' * len(columns)}",
    ]
    for s in services:
        cells = [md(s.name), f"**{md(s.outcome)}** ({md(s.verdict)})"]
        cells += [_md_cell(cell) for cell in cells_of(s, services)]
        cells.append("<br>".join(md(text) for text in s.missing) or numbers.NOTHING)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {md(text, 1000)}" for text in differences(reports))]
    return "\n".join(lines).rstrip() + "\n"


def _md_cell(cell: Cell) -> str:
    return "<br>".join([md(cell.verdict), *(md(line) for line in cell.lines)])


def _service(source: str, report: summary.ReportDict) -> Service:
    missing = summary.not_measured(report)
    outcome = wording.outcome(report)
    return Service(
        name=shortened(report.get("service") or "service"),
        source=shortened(source),
        verdict=summary.headline(report),
        kind=_LOOKS.get(outcome) or head_kind(report),
        outcome=outcome,
        rules=tuple(cell(report, (rule.key,)) for rule in COLUMNS),
        others=cell(report, _OTHERS),
        baseline=_beside(report),
        missing=_cut(missing),
        conditions=tuple((name, shortened(read(report), 60)) for name, read in _COMPARED.items()),
    )


def cell(report: summary.ReportDict, keys: tuple[str, ...]) -> Cell:
    """What was judged under some rules: the worst of it, and each limit in a line.

    A PASS that is no full one (a look, a plan) has its remark and the look of what it is.
    """
    found = [f for f in report["findings"] if f["rule"] in keys]
    if not found:
        return Cell(numbers.NOTHING, "none", ("nothing was judged",))
    verdict = worst(f["verdict"] for f in found)
    remark, look = "", kind(verdict)
    if verdict == "pass" and any(phrases.is_conditional_pass(f) for f in found):
        remark, look = " (by KV-cache plan)", "conditional"
    if verdict == "pass" and any(phrases.is_observed(f) for f in found):
        remark, look = " (observed)", "inconclusive"
    return Cell(f"{verdict.upper()}{remark}", look, _cut([line(f) for f in found]))


def _beside(report: summary.ReportDict) -> Cell | None:
    word, _, text = baseline.headline(report).partition(": ")
    found = baseline.follows(report)
    if found is None:
        return Cell(word, "pass", (text,)) if word else None
    lines = _cut(
        [text, *(m.line for m in found.metrics)] if text else [m.line for m in found.metrics]
    )
    verdict = baseline.verdict(report)
    return Cell(word or found.metrics[0].word, kind(verdict), (*lines, f"next: {found.step}"))


def line(f: phrases.FindingDict) -> str:
    """``short/itl_p95: 59.0 ms, limit 50 ms FAIL``."""
    mark = "" if f["verdict"] == "pass" else f" {phrases.verdict(f)}"
    limit = "" if f.get("limit") is None else f", limit {phrases.limit(f)}"
    lacking = ", ".join(phrases.undocumented(f))
    undocumented = f", not documented: {lacking}" if lacking else ""
    return f"{shortened(f['id'], 80)}: {phrases.observed(f)}{limit}{mark}{undocumented}"


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) <= _MOST_LINES:
        return tuple(lines)
    return (*lines[:_MOST_LINES], f"… {len(lines)} in all")


def kind(verdict: object) -> str:
    """The verdict as a class of a style sheet; anything unknown looks like an error."""
    return str(verdict) if verdict in get_args(Verdict) else "error"


_LOOKS = {"sent back": "inconclusive", "on condition": "conditional"}
"""Outcomes that look like a verdict of their own; ``stopped`` looks like its fail or error."""


def head_kind(report: summary.ReportDict) -> str:
    """The class of a page's head: never that of PASS over anything but a complete PASS."""
    whole = report["verdict"] != "pass" or wording.outcome(report) == "passed"
    return kind(report["verdict"]) if whole else "error"


def _host(report: summary.ReportDict) -> str:
    return str((report.get("environment") or {}).get("hostname") or numbers.NOTHING)


def _policy(report: summary.ReportDict) -> str:
    return str((report.get("policy") or {}).get("sha256") or numbers.NOTHING)[:12]


def _preset(report: summary.ReportDict) -> str:
    return str((report.get("policy") or {}).get("preset") or numbers.NOTHING)


_COMPARED: Mapping[str, Callable[[summary.ReportDict], str]] = {
    "host": _host,
    "policy": _policy,
    "preset": _preset,
}

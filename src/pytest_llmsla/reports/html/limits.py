"""Limits of a page in words: rows of the table, how each was judged, what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import baseline, numbers, phrases, summary, wording
from ..escape import shortened
from ..side_by_side import kind


@dataclass(frozen=True)
class Row:
    """One limit in the table of rules."""

    id: str
    requirement: str
    where: str
    scope: str
    limit: str
    observed: str
    percentiles: str
    bound: str
    requests: str
    verdict: str
    kind: str
    remark: str


@dataclass(frozen=True)
class Detail:
    """How one limit was judged."""

    row: Row
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def rules(report: summary.ReportDict) -> list[tuple[wording.RuleText, list[Row]]]:
    """The three rules, each with its limits or none, then what stands beside them."""
    out = []
    for rule in wording.RULES:
        rows = [row(f) for f in report["findings"] if f["rule"] == rule.key]
        if rows or rule.number:
            out.append((rule, rows))
    known = {rule.key for rule in wording.RULES}
    others = [row(f) for f in report["findings"] if f["rule"] not in known]
    return [*out, (wording.RuleText("", "", "Other limits", ""), others)] if others else out


def row(f: phrases.FindingDict) -> Row:
    """One finding as cells."""
    remark = "by KV-cache plan" if phrases.is_conditional_pass(f) else phrases.observed_mark(f)
    return Row(
        id=shortened(f["id"]),
        requirement=phrases.requirement(f),
        where=shortened(f["bucket"]) if f.get("bucket") else numbers.NOTHING,
        scope=phrases.scope(f) if f["rule"] == "ttft" else shortened(f.get("load") or ""),
        limit=phrases.limit(f),
        observed=phrases.observed(f),
        percentiles=phrases.percentiles(f) if f["rule"] == "itl" else "",
        bound=phrases.bound(f) or numbers.NOTHING,
        requests=str(f["requests"]),
        verdict=phrases.verdict(f),
        kind=kind(f["verdict"]),
        remark=remark,
    )


def detail(f: phrases.FindingDict) -> Detail:
    """One finding with everything it rests on."""
    given = (
        ("decided", phrases.decision(f)),
        ("percentiles (nearest rank)", phrases.percentiles(f)),
        ("bound", phrases.bound(f)),
        ("why", phrases.reason(f)),
        ("share of TTFT", phrases.stages(f)),
        ("attempts pooled", phrases.attempts(f)),
        ("clock starts", shortened(f.get("start_point") or "")),
        ("written at", shortened(f.get("source") or "")),
        ("test", summary.text_of(f["evidence"]) if f.get("evidence") else ""),
        (
            "power of the test",
            phrases.OPERATING_CHARACTERISTIC if phrases.carries_characteristic(f) else "",
        ),
    )
    return Detail(
        row=row(f),
        facts=tuple((name, text) for name, text in given if text),
        notes=tuple(shortened(note) for note in f.get("notes") or ()),
    )


@dataclass(frozen=True)
class Group:
    """Findings of one outcome: each in a line, and what to do about them."""

    title: str
    lines: tuple[tuple[str, str], ...]
    """Kind of verdict, words."""
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    """What to do, and for which limits."""


def group(report: summary.ReportDict, title: str, findings: Sequence[phrases.FindingDict]) -> Group:
    """The findings of one outcome under its title."""
    steps = ((step, shortened(f["id"])) for f in findings for step in phrases.next_steps(f))
    return Group(
        title=title,
        lines=tuple(
            (kind(f["verdict"]), words)
            for f, words in zip(findings, summary.briefs(report, findings), strict=True)
        ),
        steps=_gathered(steps),
    )


def beside_baseline(report: summary.ReportDict) -> list[Group]:
    """What follows from the comparison with stored runs; [] where it is OK or there is none."""
    found = baseline.follows(report)
    if found is None:
        return []
    lines = tuple((kind(m.verdict), m.line) for m in found.metrics)
    names = tuple(shortened(m.id) for m in found.metrics)
    return [Group(found.title, lines, ((found.step, names),))]


def diagnosis(report: summary.ReportDict) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Likely causes, each with the limits it was found for; none without ground."""
    return _gathered(
        (shortened(text).removeprefix("likely: "), shortened(f["id"]))
        for f in report["findings"]
        for text in f.get("diagnosis") or ()
    )


def _gathered(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Equal texts once, with everything they were said of."""
    out: dict[str, list[str]] = {}
    for text, name in pairs:
        out.setdefault(text, []).append(name)
    return tuple((text, tuple(names)) for text, names in out.items())

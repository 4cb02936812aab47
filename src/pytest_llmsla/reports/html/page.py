"""The sign-off page of one run: what stands in it, in words; the template only places them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...finding import CONDITIONS
from .. import baseline, front, numbers, phrases, server, summary, wording
from ..escape import shortened
from ..side_by_side import head_kind
from . import limits, template
from .pictures import run
from .pictures.canvas import Picture, drawing
from .sections import sections

_MOST_ROWS = 100
"""Rows of an open-ended list; report.json has all of them."""


def render(
    report: summary.ReportDict,
    digests: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
) -> str:
    """The page, ending in a line break."""
    with drawing():
        shown = sections(report)
        overview = run.staircase("stairs", [(s.group, s.findings) for s in shown if s.group])
        tgs = _tgs(report)
        machine = run.resources("machine", _series(report).get("resources"))
        decay = run.decay("decay", _series(report).get("decay"))
    found = summary.sort_findings(report)
    intro, points = wording.how(report)
    return template.page(
        "report.html.j2",
        title=f"{shortened(report.get('service') or 'service')}: {summary.headline(report)}",
        service=report.get("service") or "service",
        verdict=phrases.verdict(report),
        kind=head_kind(report),
        headline=summary.headline(report),
        outcome=wording.outcome(report),
        why=summary.why(report),
        launch=front.launch(report),
        front=front.rules(report),
        tally=_tally(report),
        facts=_head(report, digests),
        rules=limits.rules(report),
        groups=[
            limits.group(report, wording.STOPPED, found.stopped),
            limits.group(report, wording.SENT_BACK, found.sent_back),
            limits.group(report, wording.ON_CONDITION, found.conditional),
            *limits.beside_baseline(report),
        ],
        baseline=_cut(baseline.lines(report)),
        all_hold=wording.all_hold(report),
        complete=report["complete"],
        incomplete=wording.INCOMPLETE,
        overview=overview,
        sections=[(section, [limits.detail(f) for f in section.findings]) for section in shown],
        others=[limits.detail(f) for f in report["findings"] if not f.get("bucket")],
        tgs=tgs,
        conditions=CONDITIONS,
        undocumented=summary.UNDOCUMENTED,
        decay=decay,
        machine=machine,
        diagnosis=limits.diagnosis(report),
        warmup=_warmup(report),
        server=server.rows(report),
        policy=list(summary.facts(wording.policy(report))),
        target=list(summary.facts(server.target(report))),
        environment=list(summary.facts(report.get("environment") or {})),
        warnings=_cut([*summary.warnings(report), *server.warnings(report)]),
        not_measured=_cut(summary.missing(report)),
        nothing_missing=wording.nothing_missing(report),
        legend=wording.LEGEND,
        errors=_cut(summary.errors(report)),
        how=intro,
        points=points,
        history=[wording.history_line(run) for run in history],
        roles=wording.ROLES,
        decisions=wording.DECISIONS,
        digests=list(digests.items()),
        data=_data(report),
    )


_DATA = (
    "schema",
    "service",
    "verdict",
    "complete",
    "not_measured",
    "started",
    "finished",
    "policy",
)
_FIGURES = ("id", "verdict", "limit", "observed", "lower", "upper", "unit", "requests")


def _data(report: summary.ReportDict) -> dict[str, Any]:
    """What a program may read from the page: the verdict and every limit's figures."""
    return {
        **{key: report.get(key) for key in _DATA},
        "findings": [{key: f.get(key) for key in _FIGURES} for f in report["findings"]],
    }


def _series(report: summary.ReportDict) -> Mapping[str, Any]:
    given = report.get("series")
    return given if isinstance(given, Mapping) else {}


def _tally(report: summary.ReportDict) -> str:
    found = summary.sort_findings(report)
    parts = [
        (len(found.stopped), "broken or failed"),
        (len(found.sent_back), "to be measured again"),
        (len(found.conditional), "over with a plan"),
        (len(summary.missing(report)), "missing"),
    ]
    words = [f"{n} {name}" for n, name in parts if n]
    every = numbers.counted(len(report["findings"]), "limit")
    holds = ", all hold" if report["findings"] else ""
    tally = f"{every} judged" + (f": {', '.join(words)}" if words else holds)
    beside = baseline.headline(report)
    return f"{tally}. Baseline: {beside}" if beside else tally


def _head(report: summary.ReportDict, digests: Mapping[str, str]) -> list[tuple[str, str]]:
    policy = report.get("policy") or {}
    target = report.get("target") or {}
    sha = str(policy.get("sha256") or "")
    model = target.get("model") or target.get("kind")
    return [
        ("Measured", f"{shortened(report.get('started') or numbers.NOTHING)} to "
         f"{shortened(report.get('finished') or numbers.NOTHING)} (UTC)"),
        ("Model", shortened(model or numbers.NOTHING)),
        ("Host", shortened((report.get("environment") or {}).get("hostname") or numbers.NOTHING)),
        ("Policy", shortened(policy.get("path") or numbers.NOTHING)
         + (f" (SHA-256 {shortened(sha[:12])}…)" if sha else "")),
        ("Evidence", summary.evidence(report) or numbers.NOTHING),
        ("Requests", _asked(report)),
    ]  # fmt: skip


def _asked(report: summary.ReportDict) -> str:
    """``119 measured requests, those of the peak TGS among them``: why it is no sum of limits."""
    count = (report.get("requests") or {}).get("measured") or 0
    peak = any(entry["kind"] == "peak" for entry in report.get("tgs") or ())
    beside = ", those of the peak TGS among them" if peak else ""
    return f"{numbers.counted(count, 'measured request')}{beside}"


def _warmup(report: summary.ReportDict) -> list[tuple[str, str]]:
    """One line a bucket."""
    out = []
    for bucket, given in (report.get("warmup") or {}).items():
        note = given.get("note") if isinstance(given, Mapping) else None
        out.append((shortened(bucket), shortened(note) if note else summary.text_of(given)))
    return out


@dataclass(frozen=True)
class TgsEntry:
    """One TGS figure with its four conditions."""

    figure: str
    kind: str
    documented: bool
    conditions: tuple[tuple[str, str], ...]
    losses: tuple[tuple[str, str], ...]
    remarks: tuple[tuple[str, str], ...]
    picture: Picture | None


def _tgs(report: summary.ReportDict) -> list[TgsEntry]:
    by_id = {f["id"]: f for f in report["findings"]}
    out = []
    for number, entry in enumerate(report.get("tgs") or ()):
        remarks = tuple(summary.tgs_remarks(entry))
        lost = len(entry.get("losses") or ())  # they come first
        out.append(
            TgsEntry(
                figure=summary.tgs_figure(entry),
                kind=shortened(entry["kind"]),
                documented=bool(entry.get("documented")),
                conditions=tuple(summary.tgs_conditions(entry)),
                losses=remarks[:lost],
                remarks=remarks[lost:],
                picture=run.windows(f"tgs{number}", entry, by_id.get(entry.get("finding"))),
            )
        )
    return out


def _cut(rows: Iterable[str]) -> list[str]:
    kept = list(rows)
    if len(kept) <= _MOST_ROWS:
        return kept
    return [*kept[:_MOST_ROWS], f"… {len(kept)} in all; report.json has the rest"]

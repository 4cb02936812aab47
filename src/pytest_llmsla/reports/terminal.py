"""The result on a terminal: one row a limit, then what follows from it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import phrases, summary
from .escape import ascii_only, shortened

_STYLES: Mapping[str, str] = {
    "pass": "green",
    "fail": "bold red",
    "error": "bold red",
    "inconclusive": "yellow",
    "conditional": "yellow",
}
_NARROWEST = 60
_MOST_LINES = 20
"""Errors, stopped limits and the like are cut here; report.md has them all."""


def render(
    report: summary.ReportDict, *, width: int = 100, unicode: bool = True, color: bool = False
) -> str:
    """The report as lines for a terminal of ``width`` columns, ending in a line break.

    Args:
        report: the dict of report.json.
        width: columns; at least 60 are used.
        unicode: False writes ASCII only, for terminals that cannot show more.
        color: True adds ANSI colours of its own; those of foreign text stay inert.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width, _NARROWEST),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(Group(*_parts(report, unicode=unicode)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: summary.ReportDict, *, unicode: bool) -> Iterable[RenderableType]:
    line = _Line(unicode)
    service = shortened(report.get("service") or "service")
    why = f" ({summary.why(report)})" if summary.why(report) else ""
    yield line(f"{service}: {summary.headline(report)}{why}", _STYLES.get(report["verdict"], ""))
    if evidence := summary.evidence(report):
        yield line(evidence)
    if report["findings"]:
        yield _limits(report, line)
    for entry in report.get("tgs") or ():
        yield line(f"tgs {summary.tgs_figure(entry)}")
        for name, value in summary.tgs_conditions(entry):
            yield line(f"    {name}: {value}", "bold red" if value == summary.UNDOCUMENTED else "")
    found = summary.sort_findings(report)
    yield from _section(line, "Stopped", map(summary.brief, found.stopped))
    yield from _section(line, "Sent back", map(summary.brief, found.sent_back))
    yield from _section(line, "On condition", map(summary.brief, found.conditional))
    yield from _section(line, "Not measured", summary.not_measured(report))
    yield from _section(line, "Errors", summary.errors(report))
    yield from _section(line, "Note", summary.warnings(report))


class _Line:
    """Makes a Text, in ASCII where asked. Text, never str: no markup is read from it."""

    def __init__(self, unicode: bool) -> None:
        self.unicode = unicode

    def __call__(self, text: str, style: str = "") -> Text:
        return Text(text if self.unicode else ascii_only(text), style=style, overflow="fold")


def _limits(report: summary.ReportDict, line: _Line) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD if line.unicode else box.ASCII2,
        padding=(0, 1),
        pad_edge=False,
        header_style="bold",
    )
    for name in ("limit", "bucket", "observed", "bound", "requests", "verdict"):
        table.add_column(line(name), overflow="fold")
    for f in report["findings"]:
        style = _STYLES.get(f["verdict"], "")
        verdict = phrases.verdict(f) + _remark(f)
        table.add_row(
            line(phrases.requirement(f)),
            line(_where(f)),
            line(phrases.observed(f)),
            line(phrases.bound(f)),
            line(str(f["requests"])),
            line(verdict, style),
        )
    return table


def _remark(f: phrases.FindingDict) -> str:
    if phrases.is_conditional_pass(f):
        return " (by KV-cache plan)"
    return " (observed)" if phrases.is_observed(f) else ""


def _where(f: phrases.FindingDict) -> str:
    if not f.get("bucket"):
        return shortened(f["id"])
    if not f.get("bucket_range"):
        return shortened(f["bucket"])
    return f"{shortened(f['bucket'])}, {shortened(f['bucket_range']).replace(' tokens', '')}"


def _section(line: _Line, title: str, rows: Iterable[str]) -> Iterable[RenderableType]:
    kept = list(rows)
    if not kept:
        return
    yield line("")
    yield line(f"{title}:", "bold")
    for row in kept[:_MOST_LINES]:
        yield line(f"  {row}")
    if len(kept) > _MOST_LINES:
        yield line(f"  … {len(kept)} in all; the rest is in report.md")

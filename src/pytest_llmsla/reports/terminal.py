"""The result on a terminal: one row a limit, then what follows from it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.text import Text

from . import baseline, limit_table, server, summary
from .escape import ascii_only, shortened, visible

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
    console.print(Group(*_parts(report, unicode=unicode, width=console.width)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: summary.ReportDict, *, unicode: bool, width: int) -> Iterable[RenderableType]:
    line = _Line(unicode)
    service = shortened(report.get("service") or "service")
    why = f" ({summary.why(report)})" if summary.why(report) else ""
    yield line(f"{service}: {summary.headline(report)}{why}", _STYLES.get(report["verdict"], ""))
    if evidence := summary.evidence(report):
        yield line(evidence)
    if report["findings"]:
        yield from limit_table.tables(report["findings"], width, line, _STYLES)
    if report.get("tgs"):
        yield line("")
    for entry in report.get("tgs") or ():
        yield line(f"tgs {summary.tgs_figure(entry)}")
        for name, value in summary.tgs_conditions(entry):
            yield line(f"    {name}: {value}", "bold red" if value == summary.UNDOCUMENTED else "")
    found = summary.sort_findings(report)
    yield from _section(line, "Stopped", summary.briefs(report, found.stopped))
    yield from _section(line, "Sent back", summary.briefs(report, found.sent_back))
    yield from _section(line, "On condition", summary.briefs(report, found.conditional))
    yield from _section(line, "Not measured", summary.missing(report))
    yield from _section(line, "Errors", summary.errors(report))
    beside = baseline.follows(report)
    follows = [f"next: {beside.step}"] if beside else []
    yield from _section(line, "Baseline", [*baseline.lines(report), *follows])
    yield from _section(line, "Server", filter(None, _server(report)))
    yield from _section(line, "Note", [*summary.warnings(report), *server.warnings(report)])


def _server(report: summary.ReportDict) -> Iterable[str]:
    yield server.identity(report)
    yield from server.figures(report, brief=True)


class _Line:
    """Makes a Text, in ASCII where asked. Text, never str: no markup is read from it."""

    def __init__(self, unicode: bool) -> None:
        self.unicode = unicode

    def __call__(self, text: str, style: str = "") -> Text:
        # Once more for all of it: whatever a stored report holds, it moves no cursor.
        shown = visible(text, keep_newlines=True)
        return Text(shown if self.unicode else ascii_only(shown), style=style, overflow="fold")


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

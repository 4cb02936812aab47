"""The limits on a terminal: one row a limit, under its level of load, in the columns there are.

A verdict or an id is never broken where the terminal has room for it: other columns are shortened
first, then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from . import phrases
from .escape import shortened

_GAP = 2
"""Empty columns between two cells."""
_LEAST = 10
"""Columns that limit and figure keep where there is no room at all: then an id is folded."""
_Row = tuple[str, ...]


@dataclass(frozen=True)
class _Layout:
    """Which columns there are, and how much stands in them."""

    bound: str = "full"
    """``full``; ``short``: without its confidence, two bounds below each other; ``none``."""
    ranges: bool = True
    requests: bool = True
    split: bool = False
    """Metric and limit below each other, and so the verdict and its remark."""

    @property
    def columns(self) -> _Row:
        """Their names."""
        beside = (("bound", self.bound != "none"), ("requests", self.requests))
        kept = tuple(name for name, there in beside if there)
        return ("limit", "bucket", "observed", *kept, "verdict")

    def row(self, f: phrases.FindingDict) -> _Row:
        """A finding's cells."""
        between = "\n" if self.split else " "
        cells = {
            "limit": between.join(x for x in (phrases.name(f), phrases.asked(f)) if x),
            "bucket": _where(f, self.ranges),
            "observed": phrases.observed(f),
            "bound": phrases.bound(f)
            if self.bound == "full"
            else "\n".join(phrases.bound_in_short(f)),
            "requests": str(f["requests"]),
            "verdict": between.join(x for x in (phrases.verdict(f), _remark(f)) if x),
        }
        return tuple(cells[name] for name in self.columns)


_LAYOUTS = (
    _Layout(),
    _Layout(bound="short"),
    _Layout(bound="short", ranges=False),
    _Layout(bound="short", ranges=False, requests=False),
    _Layout(bound="short", ranges=False, requests=False, split=True),
    _Layout(bound="none", ranges=False),
    _Layout(bound="none", ranges=False, requests=False),
    _Layout(bound="none", ranges=False, split=True),
    _Layout(bound="none", ranges=False, requests=False, split=True),
)
"""From all there is to the least; the first that fits is used."""


def tables(
    findings: Sequence[phrases.FindingDict],
    width: int,
    line: Callable[[str, str], Text],
    styles: Mapping[str, str],
) -> Iterator[Table | Text]:
    """For each level of load a line that names it, and its limits; those without one come first.

    Args:
        findings: of report.json.
        width: columns of the terminal.
        line: makes a Text of text and style.
        styles: by verdict.
    """
    layout, rows = next(
        (found for found in (_rows(each, findings) for each in _LAYOUTS) if _wide(found) <= width),
        _rows(_LAYOUTS[-1], findings),
    )
    widths = _widths((layout.columns, *rows))
    if _wide((layout, rows)) > width:
        widths = _squeezed(widths, width)
    yield line("", "")
    loads = sorted(dict.fromkeys(_load(f) for f in findings), key=bool)
    for load in loads:
        if load:
            yield line(f"{shortened(load)}:", "bold")
        table = _empty(layout.columns, widths, line, head=load == loads[0])
        for f, row in zip(findings, rows, strict=True):
            if _load(f) == load:
                *cells, verdict = row
                style = styles.get(f["verdict"], "")
                table.add_row(*(line(cell, "") for cell in cells), line(verdict, style))
        yield table


def _rows(
    layout: _Layout, findings: Sequence[phrases.FindingDict]
) -> tuple[_Layout, tuple[_Row, ...]]:
    return layout, tuple(layout.row(f) for f in findings)


def _wide(found: tuple[_Layout, tuple[_Row, ...]]) -> int:
    layout, rows = found
    return sum(_widths((layout.columns, *rows))) + _GAP * (len(layout.columns) - 1)


def _widths(rows: Sequence[_Row]) -> tuple[int, ...]:
    return tuple(
        max(cell_len(part) for cell in column for part in cell.split("\n"))
        for column in zip(*rows, strict=True)
    )


def _squeezed(widths: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Widths that fit: the verdict whole, the id as far as it goes, limit and figure the rest."""
    limit, bucket, observed, verdict = widths
    room = width - 3 * _GAP - verdict
    bucket = min(bucket, room - 2 * _LEAST)
    observed = min(observed, room - bucket - _LEAST)
    return min(limit, room - bucket - observed), bucket, observed, verdict


def _empty(
    columns: _Row, widths: tuple[int, ...], line: Callable[[str, str], Text], *, head: bool
) -> Table:
    table = Table(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=head, header_style="bold"
    )
    for name, width in zip(columns, widths, strict=True):
        table.add_column(line(name, ""), width=width, overflow="fold")
    return table


def _load(f: phrases.FindingDict) -> str:
    return str(f.get("load") or "")


def _remark(f: phrases.FindingDict) -> str:
    if phrases.is_conditional_pass(f):
        return "(by KV-cache plan)"
    return "(observed)" if phrases.is_observed(f) else ""


def _where(f: phrases.FindingDict, ranges: bool) -> str:
    if not f.get("bucket"):
        return shortened(f["id"])
    within = str(f.get("bucket_range") or "").replace(" tokens", "") if ranges else ""
    return ", ".join(shortened(part) for part in (f["bucket"], within) if part)

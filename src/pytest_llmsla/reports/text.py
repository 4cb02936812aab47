"""The block a failing test shows: one finding, readable without the report."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from . import phrases
from .escape import ascii_only, shortened

if TYPE_CHECKING:
    from ..finding import Finding

WIDTH = 110


def failure_block(finding: Finding, *, unicode: bool = True) -> str:
    """One finding as a block of lines: what was judged, how, and what to do.

    Args:
        finding: any finding; the block is meant for those that are not PASS.
        unicode: False writes ASCII only.

    Returns:
        Lines joined by ``\\n``, no trailing line break; foreign text is inert.
    """
    text = "\n".join(block_lines(finding.to_json()))
    return text if unicode else ascii_only_lines(text)


def ascii_only_lines(text: str) -> str:
    """``text`` in ASCII, its line breaks kept."""
    return "\n".join(ascii_only(line) for line in text.split("\n"))


def block_lines(f: phrases.FindingDict) -> list[str]:
    """The lines of :func:`failure_block` for a finding in its JSON form."""
    lines: list[str] = [_headline(f), _figures(f), _origin(f)]
    if phrases.reason(f):
        lines += _paragraph("why", phrases.reason(f))
    if phrases.attempts(f):
        lines += _paragraph("attempts pooled", phrases.attempts(f))
    for diagnosis in f.get("diagnosis") or ():
        lines += _paragraph("likely", shortened(diagnosis).removeprefix("likely: "))
    for note in f.get("notes") or ():
        lines += _paragraph("note", shortened(note))
    if phrases.carries_characteristic(f):
        lines += _paragraph("power", phrases.OPERATING_CHARACTERISTIC)
    for step in phrases.next_steps(f):
        lines += _paragraph("next", step)
    return [line for line in lines if line]


def _headline(f: phrases.FindingDict) -> str:
    scope = f" ({phrases.scope(f)})" if phrases.scope(f) else ""
    head = f"{phrases.name(f)}, {phrases.subject(f)}{scope}: {phrases.verdict(f)}"
    mark = f" [{phrases.observed_mark(f)}]" if phrases.observed_mark(f) else ""
    return f"{head} {phrases.decision(f)}{mark}"


def _figures(f: phrases.FindingDict) -> str:
    seen = f"observed {phrases.observed(f)}"
    if phrases.stages(f):
        seen += f", {phrases.stages(f)}"
    judged = [phrases.bound(f)] if phrases.bound(f) else []
    if f.get("limit") is not None:
        judged.append(f"limit {phrases.limit(f)}")
    return "  " + "      ".join(x for x in (", ".join(judged), seen) if x)


def _origin(f: phrases.FindingDict) -> str:
    start = f"start: {shortened(f['start_point'])}" if f.get("start_point") else ""
    where = shortened(f["source"]) if f.get("source") else ""
    joined = "      ".join(x for x in (start, where) if x)
    return f"  {joined}" if joined else ""


def _paragraph(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        f"{label}: {text}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )

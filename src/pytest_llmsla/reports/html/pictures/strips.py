"""The slowest requests as strips: waiting, then tokens in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ... import numbers, phrases
from ...escape import shortened
from . import marks
from .canvas import BAND, DATA, GRID, LIMIT, MUTED, Canvas, Key, Picture, Table, plain_ticks

_WHY = {"ttft": "long TTFT", "gap": "long gap", "usual": "a usual one"}


def slowest(
    name: str, group: Mapping[str, Any], findings: Sequence[phrases.FindingDict]
) -> Picture | None:
    """Up to eight requests: those of the longest TTFT and gaps, and a usual one to compare."""
    given = group.get("slowest") or []
    if not given:
        return None
    canvas = Canvas(height=66 + 18 * len(given), left=30, top=4)
    itl = marks.finding(findings, "itl")
    limit = None if itl is None else marks.number(itl.get("limit"))
    for row, one in enumerate(given):
        canvas.ax.plot([0, one["ttft_ms"]], [row, row], color=BAND, linewidth=7,
                       solid_capstyle="butt")  # fmt: skip
        canvas.ax.text(-0.02, row, str(row + 1), va="center", ha="right", color=MUTED,
                       transform=canvas.ax.get_yaxis_transform())  # fmt: skip
    _patch(canvas, _ticks(given), DATA, 0.8)
    if limit is not None:
        _patch(canvas, _long(given, limit), LIMIT, 2.4)
    canvas.ax.set_xlim(0, max(one["total_ms"] for one in given) * 1.02 or 1)
    canvas.ax.set_ylim(len(given) - 0.4, -0.6)
    canvas.ax.set_yticks([])
    canvas.ax.spines["left"].set_color(GRID)
    plain_ticks(canvas.ax, "x")
    canvas.labels("time since the request, ms", "")
    rows = tuple(_row(number, one) for number, one in enumerate(given, 1))
    keys = [Key("band", "waiting for the first token"), Key("tick", "a token")]
    if itl is not None and limit is not None:
        keys.append(Key("limit", f"its longest gaps, those over {phrases.limit(itl)}"))
    return Picture(
        id=name,
        title="The slowest requests, token by token",
        description="Strips of time, one a request. Figures are in the table.",
        svg=canvas.svg(name),
        table=Table(
            ("strip", "why", "request", "prompt", "tokens", "TTFT", "longest gap", "in all"), rows
        ),
        keys=tuple(keys),
    )


def _row(number: int, one: Mapping[str, Any]) -> tuple[str, ...]:
    prompt = numbers.NOTHING if one["prompt_tokens"] is None else str(one["prompt_tokens"])
    return (
        str(number),
        _WHY.get(one["why"], shortened(one["why"])),
        shortened(one["id"]),
        prompt,
        str(one["tokens"]),
        numbers.measured(one["ttft_ms"], "ms"),
        numbers.measured(one["largest_gap_ms"], "ms"),
        numbers.measured(one["total_ms"], "ms"),
    )


_Line = tuple[tuple[float, float], tuple[float, float]]


def _ticks(given: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    for row, one in enumerate(given):
        yield from (((t, row - 0.3), (t, row + 0.3)) for t in one["ticks_ms"])


def _long(given: Sequence[Mapping[str, Any]], limit: float) -> Iterator[_Line]:
    for row, one in enumerate(given):
        yield from (((a, row), (b, row)) for a, b in one["gaps"] if b - a > limit)


def _patch(canvas: Canvas, lines: Iterator[_Line], color: str, width: float) -> None:
    """All lines as one path: a page with thousands of them stays small."""
    points = [p for line in lines for p in line]
    if points:
        codes = [Path.MOVETO, Path.LINETO] * (len(points) // 2)
        patch = PathPatch(Path(points, codes), facecolor="none", edgecolor=color, linewidth=width)
        canvas.ax.add_patch(patch)

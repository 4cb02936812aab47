"""Pictures of the whole run: all buckets by prompt length, TGS windows and decay, the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ... import numbers, phrases, summary
from ...escape import shortened
from . import marks
from .canvas import (
    BOUND,
    DATA,
    HEAT,
    INK,
    LIMIT,
    MUTED,
    Canvas,
    Key,
    Picture,
    Table,
    plain_ticks,
)
from .latency import level

_MOST_WINDOWS = 400


def windows(name: str, entry: Mapping[str, Any], f: phrases.FindingDict | None) -> Picture | None:
    """Rates of a TGS figure's windows, in order, with the figure and its limit."""
    rates = [float(r) for r in entry.get("windows") or ()][:_MOST_WINDOWS]
    if len(rates) < 2:
        return None
    canvas = Canvas(height=190)
    canvas.ax.plot(range(1, len(rates) + 1), rates, "o-", color=DATA, markersize=3.2, linewidth=0.9)
    canvas.ax.axhline(entry["tokens_per_s"], color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
    keys = [Key("observed", summary.tgs_figure(entry)), Key("point", "one window")]
    limit = None if f is None else marks.number(f.get("limit"))
    if f is not None and limit is not None:
        keys.append(Key("limit", f"at least {phrases.limit(f)}"))
        canvas.ax.axhline(limit, color=LIMIT, linewidth=2)
    canvas.ax.set_ylim(bottom=0)
    plain_ticks(canvas.ax, "x")
    plain_ticks(canvas.ax, "y", most=4)
    canvas.labels("window", "tokens/s")
    rows = tuple((str(n), numbers.measured(r, "tokens/s")) for n, r in enumerate(rates, 1))
    length = numbers.duration(entry.get("window_s"))
    return Picture(
        id=name,
        title=f"TGS over the run, windows of {length}",
        description=f"Line: the rate of each window. {summary.tgs_figure(entry)}.",
        svg=canvas.svg(name),
        table=Table(("window", "rate"), rows),
        keys=tuple(keys),
    )


def decay(name: str, given: Mapping[str, Any] | None) -> Picture | None:
    """TGS over concurrency: in all, a request, and what no loss would give."""
    if not given:
        return None
    canvas, x = Canvas(), given["concurrency"]
    canvas.ax.plot(x, given["without_loss"], color=MUTED, linewidth=1.1, linestyle=(0, (4, 2)))
    canvas.ax.plot(x, given["tokens_per_s"], "o-", color=DATA, markersize=4)
    canvas.ax.plot(x, given["per_request"], "s-", color=INK, markersize=3.6, linewidth=1.1)
    canvas.ax.set_ylim(bottom=0)
    canvas.ax.set_xticks(x)
    plain_ticks(canvas.ax, "y")
    canvas.labels("requests in flight", "tokens/s")
    rows = tuple(
        (str(n), *(numbers.measured(given[k][i], "tokens/s") for k in _DECAY))
        for i, n in enumerate(x)
    )
    return Picture(
        id=name,
        title="TGS over concurrency",
        description="Lines over the number of requests in flight: tokens per second of all "
        "requests together, of one request, and what no loss would give.",
        svg=canvas.svg(name),
        table=Table(("in flight", "all together", "a request", "without loss"), rows),
        keys=(
            Key("both", "all requests together"),
            Key("median", "one request"),
            Key("observed", "without loss: the smallest level times the number"),
        ),
    )


_DECAY = ("tokens_per_s", "per_request", "without_loss")


def resources(name: str, given: Mapping[str, Any] | None) -> Picture | None:
    """The machine over time: one row a reading, from its least value to its most."""
    columns = [] if not given else given["columns"]
    if not given or not columns:
        return None
    canvas = Canvas(height=50 + 18 * len(columns), left=146, right=18, top=4, bottom=40)
    starts = given["seconds"]
    width = starts[1] - starts[0] if len(starts) > 1 else 1.0
    shades: dict[int, list[tuple[float, float, float]]] = {}
    for row, column in enumerate(columns):
        canvas.ax.text(-0.02, row + 0.5, canvas.place(column["name"], 19), ha="right", va="center",
                       color=MUTED,
                       transform=canvas.ax.get_yaxis_transform())  # fmt: skip
        for begin, end, shade in _runs(column, starts, width):
            shades.setdefault(shade, []).append((begin, end, row))
    for shade, boxes in shades.items():
        points = [p for a, b, y in boxes for p in _box(a, b, y)]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
        canvas.ax.add_patch(PathPatch(Path(points, codes), facecolor=HEAT[shade], linewidth=0))
    canvas.ax.grid(visible=False)
    canvas.ax.set_xlim(0, starts[-1] + width)
    canvas.ax.set_ylim(len(columns), 0)
    canvas.ax.set_yticks([])
    plain_ticks(canvas.ax, "x")
    canvas.labels("time measured, s", "")
    rows = tuple(
        (
            shortened(f"{c['name']} ({c['about']})" if c.get("about") else c["name"]),
            summary.text_of(c["least"]),
            summary.text_of(c["most"]),
        )
        for c in columns
    )
    left = given["of"] - len(columns)
    return Picture(
        id=name,
        title="The machine over time",
        description=f"Heat map, {len(columns)} readings over time, each from its own least value "
        "(light) to its most (dark).",
        svg=canvas.svg(name),
        table=Table(
            ("reading", "least", "most"),
            rows,
            f"{numbers.counted(given['readings'], 'reading')} over time"
            + (f"; {left} more columns are not shown." if left else "."),
        ),
        keys=(Key("heat", "least to most of each row"),),
    )


def _runs(
    column: Mapping[str, Any], starts: Sequence[float], width: float
) -> list[tuple[float, float, int]]:
    """Stretches of one shade; readings that are missing leave a hole."""
    least, span = column["least"], column["most"] - column["least"]
    out: list[tuple[float, float, int]] = []
    for begin, value in zip(starts, column["values"], strict=True):
        if value is None:
            continue
        share = (value - least) / span if span > 0 else 0.0
        shade = min(max(int(share * len(HEAT)), 0), len(HEAT) - 1)
        if out and out[-1][2] == shade and abs(out[-1][1] - begin) < width / 2:
            out[-1] = (out[-1][0], begin + width, shade)
        else:
            out.append((begin, begin + width, shade))
    return out


def _box(a: float, b: float, y: float) -> list[tuple[float, float]]:
    return [(a, y + 0.08), (b, y + 0.08), (b, y + 0.92), (a, y + 0.92), (a, y + 0.08)]


def staircase(
    name: str, groups: Sequence[tuple[Mapping[str, Any], Sequence[phrases.FindingDict]]]
) -> Picture | None:
    """All buckets on one axis: TTFT against prompt length under the stairs of their limits."""
    drawn = [(g, marks.finding(found, "ttft")) for g, found in groups if g.get("lengths")]
    if len({g["bucket"] for g, _ in drawn}) < 2:
        return None
    canvas = Canvas()
    rows: list[tuple[str, ...]] = []
    # Runs without levels have one; a Python test's gate may have a level of its own.
    levels = list(dict.fromkeys(_level(group, f) for group, f in drawn))
    for group, f in drawn:
        x, y = group["lengths"]["prompt_tokens"], group["lengths"]["ttft_ms"]
        shape, color, _ = _LEVELS[min(levels.index(_level(group, f)), len(_LEVELS) - 1)]
        canvas.ax.plot(x, y, shape, markersize=2.8, color=color, alpha=0.6, markeredgewidth=0)
        limit = None if f is None else marks.number(f.get("limit"))
        if f is None or limit is None:
            continue
        canvas.ax.plot([min(x), max(x)], [limit, limit], color=LIMIT, linewidth=2)
        rows.append(
            (
                shortened(group["bucket"]),
                phrases.scope(f),
                phrases.limit(f),
                phrases.observed(f),
                phrases.verdict(f),
            )
        )
    canvas.ax.set_ylim(bottom=0)
    plain_ticks(canvas.ax, "x")
    plain_ticks(canvas.ax, "y")
    canvas.labels("prompt length, tokens", "TTFT, ms")
    return Picture(
        id=name,
        title="Rule 1: TTFT against prompt length, all buckets",
        description="Scatter plot of TTFT in ms over prompt length in tokens, with each bucket's "
        "limit as a step.",
        svg=canvas.svg(name),
        table=Table(("bucket", "lengths", "limit", "observed", "verdict"), tuple(rows)),
        keys=(*_keys(levels), Key("limit", "the limit of its bucket")),
    )


_LEVELS = (
    ("o", DATA, "point"),
    ("s", BOUND, "square"),
    ("^", INK, "triangle"),
    ("D", MUTED, "diamond"),
)
"""Shape and colour of a level's points, and the class of their mark; the last is all the rest."""


def _level(group: Mapping[str, Any], f: phrases.FindingDict | None) -> str:
    load = None if f is None else f.get("load")
    return shortened(load) if load else level(group)


def _keys(levels: Sequence[str]) -> list[Key]:
    if len(levels) == 1:
        return [Key("point", "one request")]
    last = len(_LEVELS) - 1
    keys = [
        Key(mark, f"one request, {words}")
        for (_, _, mark), words in zip(_LEVELS[:last], levels, strict=False)
    ]
    rest = levels[last:]
    return [*keys, Key(_LEVELS[last][2], f"one request, {', '.join(rest)}")] if rest else keys

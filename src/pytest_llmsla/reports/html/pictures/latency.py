"""Pictures of one bucket: TTFT, its growth with the prompt, its stages; ITL, and along the answer.

Each takes an entry of ``series.buckets`` and the bucket's findings, and gives None where there is
nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import numbers, phrases, summary
from ...escape import shortened
from . import marks
from .canvas import BAND, DATA, HEAT, INK, LIMIT, MUTED, Canvas, Key, Picture, Table, plain_ticks

Group = Mapping[str, Any]
Findings = Sequence[phrases.FindingDict]
_TALL = 30  # counts this many times the smallest hide it: the axis is logarithmic


def ttft(name: str, group: Group, findings: Findings) -> Picture | None:
    """How TTFT is distributed, with the limit and the bound."""
    return _distribution(name, group, findings, "ttft", "TTFT", "requests", ("p95",))


def itl(name: str, group: Group, findings: Findings) -> Picture | None:
    """How the times between tokens are distributed, pooled over all tokens."""
    return _distribution(name, group, findings, "itl", "ITL", "tokens", ("p50", "p95", "p99"))


def _distribution(
    name: str,
    group: Group,
    findings: Findings,
    metric: str,
    title: str,
    unit: str,
    shown: Sequence[str],
) -> Picture | None:
    shape = group.get(metric)
    if not shape:
        return None
    canvas, counts = Canvas(height=226 + 10 * len(shown), top=16 + 10 * len(shown)), shape["counts"]
    canvas.ax.stairs(counts, shape["edges"], fill=True, color=BAND, zorder=1)
    canvas.ax.stairs(counts, shape["edges"], color=DATA, linewidth=1)
    if shape["scale"] == "log":
        canvas.ax.set_xscale("log")
    tall = max(counts) > _TALL * min(n for n in counts if n)
    if tall:
        canvas.ax.set_yscale("log")
        canvas.ax.set_ylim(0.7, max(counts) * 1.5)
    f = marks.finding(findings, metric)
    keys = marks.vertical(canvas, f, shape, shown)
    plain_ticks(canvas.ax, "x", log=shape["scale"] == "log")
    plain_ticks(canvas.ax, "y", log=tall, most=4)
    canvas.labels(f"{title}, ms", unit + (" (log)" if tall else ""))
    words = f"{title} distribution"
    told = "; ".join(key.text for key in keys)
    return Picture(
        id=name,
        title=words,
        description=f"Histogram of {title} in ms over {sum(counts)} {unit}. {told}",
        svg=canvas.svg(name),
        table=marks.bins(shape, unit),
        keys=keys,
    )


def lengths(name: str, group: Group, findings: Findings) -> Picture | None:
    """TTFT against prompt length: one point a request."""
    points = group.get("lengths")
    if not points:
        return None
    canvas = Canvas(top=16)
    x, y = points["prompt_tokens"], points["ttft_ms"]
    canvas.ax.plot(x, y, "o", markersize=3.4, color=DATA, alpha=0.75, markeredgewidth=0)
    keys = [Key("point", f"one request ({_of(len(x), points['of'])})")]
    f = marks.finding(findings, "ttft")
    limit = None if f is None else marks.number(f.get("limit"))
    if f is not None and limit is not None:
        keys.append(Key("limit", f"limit {phrases.limit(f)}"))
        if limit <= 4 * max(y):
            canvas.ax.axhline(limit, color=LIMIT, linewidth=2)
        else:
            canvas.beyond = "limit ↑"
    canvas.ax.set_ylim(bottom=0)
    plain_ticks(canvas.ax, "x")
    plain_ticks(canvas.ax, "y")
    canvas.labels("prompt length, tokens", "TTFT, ms")
    rows = tuple((str(a), numbers.measured(b, "ms")) for a, b in sorted(zip(x, y, strict=True)))
    return Picture(
        id=name,
        title="TTFT against prompt length",
        description=f"Scatter plot, {_of(len(x), points['of'])}: prompt length in tokens, TTFT "
        "in ms.",
        svg=canvas.svg(name),
        table=Table(("prompt tokens", "TTFT"), rows),
        keys=tuple(keys),
    )


def _of(drawn: int, every: int) -> str:
    if drawn == every:
        return numbers.counted(every, "request")
    return f"{drawn} of {every} requests drawn, the slowest among them"


_PIPELINE = ("connect", "tokenise", "queue", "cache_init", "prefill", "first_sample", "sample")


def stages(name: str, group: Group, findings: Findings) -> Picture | None:
    """What TTFT is made of: the shares of the finding, medians beside them."""
    f = marks.finding(findings, "ttft")
    shares = {} if f is None else dict(f.get("stages") or {})
    if f is None or not shares:
        return None
    order = [s for s in _PIPELINE if s in shares] + [s for s in shares if s not in _PIPELINE]
    canvas = Canvas(height=44 + 22 * len(order), left=112, right=44, top=4, bottom=40)
    for row, stage in enumerate(order):
        canvas.ax.barh(row, shares[stage], height=0.62, color=HEAT[-3])
        canvas.ax.text(
            shares[stage] + 0.012, row, numbers.percent(shares[stage]), va="center", color=INK
        )
        canvas.ax.text(
            -0.02, row, canvas.place(stage, 14), va="center", ha="right", color=MUTED,
            transform=canvas.ax.get_yaxis_transform(),
        )  # fmt: skip
    canvas.ax.set_xlim(0, 1)
    canvas.ax.set_ylim(len(order) - 0.5, -0.5)
    canvas.ax.set_yticks([])
    canvas.ax.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    canvas.labels("share of TTFT", "")
    times = group.get("stages") or {}
    rows = tuple(
        (
            shortened(stage),
            numbers.percent(shares[stage]),
            numbers.measured((times.get(stage) or {}).get("median_ms"), "ms"),
            numbers.measured((times.get(stage) or {}).get("p95_ms"), "ms"),
        )
        for stage in order
    )
    return Picture(
        id=name,
        title="TTFT stages",
        description=f"Bars, the share of TTFT a stage takes: {phrases.stages(f)}.",
        svg=canvas.svg(name),
        table=Table(("stage", "share of TTFT", "median", "P95"), rows),
    )


def positions(name: str, group: Group, findings: Findings) -> Picture | None:
    """ITL along the answer: median and P95 by token position."""
    given = group.get("positions")
    if not given or len(given["from"]) < 2:
        return None
    canvas = Canvas()
    x = [a if a == b else (a + b) / 2 for a, b in zip(given["from"], given["to"], strict=True)]
    canvas.ax.fill_between(x, given["median"], given["p95"], color=BAND, linewidth=0)
    canvas.ax.plot(x, given["p95"], color=DATA, linewidth=0.9)
    canvas.ax.plot(x, given["median"], color=INK, linewidth=1.5)
    keys = [Key("median", "median"), Key("band", "up to P95 at that position")]
    f = marks.finding(findings, "itl")
    limit = None if f is None else marks.number(f.get("limit"))
    top = max(given["p95"])
    if f is not None and limit is not None:
        keys.append(Key("limit", f"limit {phrases.limit(f)} on the pooled P95"))
        if limit <= 4 * top:
            canvas.ax.axhline(limit, color=LIMIT, linewidth=2)
    tall = min(given["median"]) > 0 and top > _TALL / 4 * max(given["median"])
    if tall:
        canvas.ax.set_yscale("log")
    else:
        canvas.ax.set_ylim(bottom=0)
    plain_ticks(canvas.ax, "x")
    plain_ticks(canvas.ax, "y", log=tall)
    canvas.labels("token position in the answer", "ITL, ms" + (" (log)" if tall else ""))
    rows = tuple(
        (
            str(a) if a == b else f"{a}–{b}",
            str(n),
            numbers.measured(m, "ms"),
            numbers.measured(p, "ms"),
        )
        for a, b, n, m, p in zip(*(given[k] for k in _POSITION), strict=True)
    )
    return Picture(
        id=name,
        title="ITL by token position",
        description="Line and band: median and P95 of the time before each token of the answer. "
        f"From {rows[0][2]} (median) at position {rows[0][0]} to {rows[-1][2]} at {rows[-1][0]}.",
        svg=canvas.svg(name),
        table=Table(("position", "samples", "median", "P95"), rows, "Nearest rank."),
        keys=tuple(keys),
    )


_POSITION = ("from", "to", "n", "median", "p95")


def level(group: Group) -> str:
    """``4 in flight``, ``on a schedule``: the load under which a group was measured."""
    given = group.get("concurrency")
    if given is None:
        return "on a schedule"
    return f"{summary.text_of(given)} in flight"

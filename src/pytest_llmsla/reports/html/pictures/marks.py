"""Lines that a finding draws into a distribution: its limit, its percentiles, its bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ... import numbers, phrases
from .canvas import BOUND, INK, LIMIT, Canvas, Key, Table

_NEAR = {"linear": 4.0, "log": 30.0}
"""A limit that many times the largest value is told in words and not drawn: it would squeeze all
else to a line."""

_WIDE = 1.6
"""The same for a bound."""


def number(value: object) -> float | None:
    """A figure to draw; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def finding(findings: Iterable[phrases.FindingDict], metric: str) -> phrases.FindingDict | None:
    """The finding of ``metric`` to draw: that of P95 if there is one."""
    found = [f for f in findings if f["metric"] == metric]
    return next((f for f in found if f.get("percentile") == 95), found[0] if found else None)


def vertical(
    canvas: Canvas, f: phrases.FindingDict | None, shape: Mapping[str, Any], shown: Sequence[str]
) -> tuple[Key, ...]:
    """Draw limit, bound and the percentiles ``shown`` (``p95``) over a histogram; their legend."""
    low, high = shape["edges"][0], shape["edges"][-1]
    keys: list[Key] = []
    seen = [low, high]
    if f is None:
        _frame(canvas, shape, seen)
        return ()
    for name in shown:
        value = _placed((f.get("percentiles") or {}).get(name), shape)
        if value is not None:
            seen.append(value)
            canvas.ax.axvline(value, color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
            canvas.tags.append((value, name.upper(), INK))
    if f.get("percentiles"):
        keys.append(Key("observed", f"observed {phrases.percentiles(f)}"))
    for side in ("lower", "upper"):
        value = _placed(f.get(side), shape)
        if value is not None and _proves(f, side) and value <= _WIDE * high:
            seen.append(value)
            canvas.ax.axvline(value, color=BOUND, linewidth=1.4, linestyle=(0, (1, 1.5)))
    if phrases.bound(f):
        keys.append(Key("bound", phrases.bound(f)))
    limit = number(f.get("limit"))
    if limit is not None:
        keys.append(Key("limit", f"limit {phrases.limit(f)}"))
        if limit <= _NEAR[shape["scale"]] * high:
            seen.append(limit)
            canvas.ax.axvline(limit, color=LIMIT, linewidth=2)
            canvas.tags.append((limit, "limit", LIMIT))
        else:
            canvas.beyond = "limit →"
    _frame(canvas, shape, seen)
    return tuple(keys)


def _placed(value: object, shape: Mapping[str, Any]) -> float | None:
    """Where a figure stands on the axis; a logarithmic one begins at its first bin."""
    found = number(value)
    if found is None or shape["scale"] == "linear":
        return found
    return max(found, float(shape["edges"][0]))


def _proves(f: phrases.FindingDict, side: str) -> bool:
    """The bound that carries the verdict; either while none has fallen."""
    if f["verdict"] == "pass":
        return side == "upper"
    return side == "lower" if f["verdict"] == "fail" else True


def _frame(canvas: Canvas, shape: Mapping[str, Any], seen: Sequence[float]) -> None:
    low, high = min(seen), max(seen)
    if shape["scale"] == "log":
        canvas.ax.set_xlim(low * 0.93, high * 1.08)
    else:
        room = (high - low) * 0.03 or 1.0
        canvas.ax.set_xlim(max(low - room, 0) if low >= 0 else low - room, high + room)


def bins(shape: Mapping[str, Any], what: str) -> Table:
    """The table behind a histogram."""
    edges = shape["edges"]
    rows = tuple(
        (numbers.fact(a), numbers.fact(b), str(n))
        for a, b, n in zip(edges, edges[1:], shape["counts"], strict=False)
        if n
    )
    return Table(("from, ms", "to, ms", what), rows, "Empty bins are left out.")

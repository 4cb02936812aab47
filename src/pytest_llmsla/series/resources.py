"""Readings of the machine over time, whatever their columns are, in bins of equal length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..timeline import NS_PER_S

_BINS = 120
_MOST_COLUMNS = 24
_TIMES = ("t_ns", "segment", "type", "phase", "gate", "bucket", "purpose", "id")


def resources_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Every numeric column of the ``resources`` lines over time; None with fewer than two.

    Lines of phase ``sample`` if there are some, else all. Clocks that start anew (another
    segment) are put end to end.

    Returns:
        ``readings``, ``seconds`` (start of each bin), ``columns``: ``name``, ``least``, ``most``
        ``about`` (what the name leaves open) and ``values``, the mean of each bin or None.
    """
    samples = [row for line in lines if line.get("phase") == "sample" for row in _readings(line)]
    at = list(_times(samples or lines))
    if len(at) < 2 or at[-1][0] <= at[0][0]:
        return None
    begin, span = at[0][0], at[-1][0] - at[0][0]
    count = min(_BINS, len(at))
    about = {
        str(name): str(text) for line in lines for name, text in (line.get("about") or {}).items()
    }
    sums: dict[str, list[float]] = {}
    numbers: dict[str, list[int]] = {}
    edges: dict[str, tuple[float, float]] = {}
    for t, line in at:
        index = min(int((t - begin) * count // span), count - 1)
        for name, value in _numeric(line):
            if name not in sums:
                sums[name], numbers[name] = [0.0] * count, [0] * count
                edges[name] = (value, value)
            sums[name][index] += value
            numbers[name][index] += 1
            edges[name] = (min(edges[name][0], value), max(edges[name][1], value))
    columns = [
        {
            "name": name,
            "about": about.get(name, ""),
            "least": _short(edges[name][0]),
            "most": _short(edges[name][1]),
            "values": [
                _short(s / n) if n else None for s, n in zip(sums[name], numbers[name], strict=True)
            ],
        }
        for name in sums
    ]
    # Columns that never change say nothing over time; they come last and go first.
    columns.sort(key=lambda c: c["least"] == c["most"])
    return {
        "readings": len(at),
        "seconds": [round(span * i / count / NS_PER_S, 3) for i in range(count)],
        "columns": columns[:_MOST_COLUMNS],
        "of": len(columns),
    }


def _readings(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The readings of a ``sample`` line, one mapping each; a line without columns is one itself."""
    columns = line.get("columns")
    if not isinstance(columns, Mapping):
        yield line
        return
    names = list(columns)
    for values in zip(*columns.values(), strict=False):
        yield dict(zip(names, values, strict=True))


def _times(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    offset = last = 0
    before: int | None = None
    for line in lines:
        t = line.get("t_ns")
        if isinstance(t, bool) or not isinstance(t, int):
            continue
        if before is not None and t < before:
            offset = last - t
        before = t
        last = t + offset
        yield last, line


def _numeric(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, inner in value.items():
        if not prefix and key in _TIMES:
            continue
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            yield from _numeric(inner, f"{name}.")
        elif isinstance(inner, list):
            yield from _numeric({str(i): v for i, v in enumerate(inner)}, f"{name}.")
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
            try:
                number = float(inner)
            except OverflowError:
                continue
            if math.isfinite(number):
                yield name, number


def _short(value: float) -> float:
    return float(f"{value:.6g}")

"""Plain tables for standard output: columns as wide as they need to be."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``head`` and ``rows`` in aligned columns, two spaces apart."""
    every = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(_columns(row[i]) for row in every) for i in range(len(head))]
    lines = [
        "  ".join(cell + " " * (w - _columns(cell)) for cell, w in zip(row, widths, strict=True))
        for row in every
    ]
    return "\n".join(line.rstrip() for line in lines)


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(ch) in "WF" else 1 for ch in text)

"""Rows as CSV that a spreadsheet opens as data: text that would be a formula is text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .escape import visible

REQUESTS_CSV = "requests.csv"
ARRIVALS_CSV = "arrivals.csv"

# What spreadsheets take for the beginning of a formula or of a command; the wide forms too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")


def dumps(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """``rows`` as CSV (RFC 4180) under a line of ``columns``; what is None is empty.

    Text that a spreadsheet would read as a formula begins with an apostrophe, and so does what
    would be a cell of its own where columns are parted by semicolons; control characters are
    spelled out. Numbers are left alone.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return value
    return ";".join(_harmless(part) for part in str(value).split(";"))


def _harmless(text: str) -> str:
    return f"'{visible(text)}" if text.lstrip(' "').startswith(_FORMULA) else visible(text)

"""The figures in docs/verdicts.md are those of the code and of the committed benchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.stats import (
    clean_units_to_pass,
    least_over_to_fail,
    operating_characteristic,
)

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "docs/verdicts.md").read_text(encoding="utf-8").splitlines()
RESULT = json.loads((ROOT / "benchmarks/results/error_rates.json").read_text(encoding="utf-8"))


def cells(first: str) -> list[str]:
    """The cells after the first of the one table row that begins with ``first``."""
    rows = [r for r in (line.split("|")[1:-1] for line in LINES) if r and r[0].strip() == first]
    assert len(rows) == 1, f"{first}: {len(rows)} rows"
    return [c.strip() for c in rows[0][1:]]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@pytest.mark.parametrize("p", [50, 90, 95, 99])
def test_requests_needed(p: int) -> None:
    """The table of clean requests until PASS, and the default budget."""
    q = p / 100
    needed = [str(clean_units_to_pass(q, alpha)) for alpha in (0.20, 0.05, 0.01)]
    assert cells(f"P{p}") == [*needed, f"{math.ceil(round(15 / (1 - q), 6)):,}"]


def test_requests_over_until_fail() -> None:
    """The table of the least number over the limit."""
    counts = [int(n) for n in cells("after requests")]
    assert cells("requests over") == [str(least_over_to_fail(n, 0.95, 0.01)) for n in counts]


@pytest.mark.parametrize(
    "row",
    RESULT["detail"]["operating_characteristic"],
    ids=lambda r: f"{r['share']:.1%}",
)
def test_operating_characteristic(row: dict[str, Any]) -> None:
    """Exact figures from the code, simulated ones from the committed result."""
    point, gate = operating_characteristic(row["share"]), row["gate"]
    assert cells(f"{100 * row['share']:g} %") == [
        percent(point.passes),
        percent(gate["first_pass"]),
        percent(point.fails),
        percent(gate["first_fail"]),
        f"{point.mean_units:.0f}",
    ]


def test_known_limits() -> None:
    """The tables of false PASS and false FAIL hold the committed figures, in their order."""
    for kind, head, keys in (
        ("false PASS", "false PASS, first decision", ("first_pass", "final_pass")),
        ("false FAIL", "false FAIL", ("first_fail",)),
    ):
        start = next(i for i, line in enumerate(LINES) if line.startswith(f"| requests | {head} |"))
        cases = [r["gate"] for r in RESULT["detail"]["dependence"] if r["kind"] == kind]
        for line, gate in zip(LINES[start + 2 :], cases, strict=False):
            shown = [c.strip() for c in line.split("|")[2:-1]]
            assert shown == [percent(gate[k]) for k in keys]
        assert not LINES[start + 2 + len(cases)].startswith("|")

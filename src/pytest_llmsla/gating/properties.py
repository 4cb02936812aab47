"""Findings as JUnit properties: one per limit, safe in any XML."""

from __future__ import annotations

from collections.abc import Iterable

from ..finding import Finding
from ..reports.escape import visible

_FIGURES = ("observed", "limit", "lower", "upper", "requests", "exceeded")


_PREFIX = "sla "


def properties_of(findings: Iterable[Finding]) -> list[tuple[str, object]]:
    """``("sla short/ttft_p95", "verdict=fail observed=412.6 limit=300 …")`` per finding."""
    return [(f"{_PREFIX}{visible(f.id)}", visible(_words(f))) for f in findings]


def _words(finding: Finding) -> str:
    values = [(name, getattr(finding, name)) for name in _FIGURES]
    figures = "".join(f" {name}={value}" for name, value in values if value is not None)
    return f"verdict={finding.verdict}{figures} unit={finding.unit} reason={finding.reason}"


def is_inconclusive(properties: Iterable[tuple[str, object]]) -> bool:
    """True when a finding among a test's properties is undecided."""
    return any(
        name.startswith(_PREFIX) and str(value).startswith("verdict=inconclusive ")
        for name, value in properties
    )

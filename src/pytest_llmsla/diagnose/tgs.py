"""Why fewer tokens a second came out than promised."""

from __future__ import annotations

from collections.abc import Sequence

from ..finding import Finding
from ..timeline import NS_PER_MS, Timeline
from . import series

WAITING = 0.4
"""Share of request time before the first token from which waiting is worth a word."""
SHORT = 0.5
"""Answers of less than this share of what was asked for are called short."""


def explain(finding: Finding, timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Likely causes of a throughput below its floor; empty without a floor or a ground.

    Args:
        finding: a finding of rule ``tgs``.
        timelines: requests of the run; those of other gates are ignored.
    """
    if not series.explainable(finding) or finding.limit is None:
        return ()
    ok = [t for t in series.evidence_of(finding, timelines) if t.ok and t.arrivals]
    lines = [_waiting(ok), _short(ok), _padding(ok)]
    return tuple(line for line in lines if line)


def _waiting(ok: Sequence[Timeline]) -> str | None:
    busy = sum(t.end_ns - t.start_ns for t in ok)
    first = sum(t.arrivals[0][0] - t.start_ns for t in ok)
    if busy <= 0 or first < WAITING * busy:
        return None
    return (
        f"{first / busy:.0%} of request time passes before the first token "
        f"({first / len(ok) / NS_PER_MS:.1f} ms a request) → shorter prompts or longer answers "
        "raise tokens a second more than faster steps"
    )


def _short(ok: Sequence[Timeline]) -> str | None:
    asked = sum(t.max_new_tokens for t in ok)
    got = sum(t.tokens for t in ok)
    if asked <= 0 or got >= SHORT * asked:
        return None
    return f"answers stop early: {got} of {asked} tokens asked for → force the output length"


def _padding(ok: Sequence[Timeline]) -> str | None:
    fewer = [t for t in ok if t.output_tokens is not None and t.output_tokens < t.tokens]
    if not fewer:
        return None
    return (
        f"{len(fewer)} of {len(ok)} answers count fewer tokens than arrived → padding or special "
        "tokens arrive after the end"
    )

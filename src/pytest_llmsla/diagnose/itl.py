"""Why tokens came slowly: every step, later steps, single stalls, sampling, drift."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..finding import Finding
from ..timeline import Timeline
from . import series

RISING = 1.3
"""Median gap of late positions over early ones from which ITL is called rising."""
STALL = 4.0
"""A gap this many times the median is called a stall."""
RARE = 0.1
"""Stalls are single ones as long as no more than this share of gaps is one."""
SAMPLING = 0.25
"""Share of a step from which sampling is worth a word."""
_MIN_GAPS = 20


def explain(
    finding: Finding, timelines: Sequence[Timeline], *, ordered: bool = True
) -> tuple[str, ...]:
    """Likely causes of an ITL or stall finding, most telling first; empty when nothing shows.

    Args:
        finding: a finding of rule ``itl`` (metric ``itl`` or ``stall``).
        timelines: requests of the run; those of other buckets and gates are ignored.
        ordered: False where nobody knows when each was sent.
    """
    if not series.explainable(finding):
        return ()
    mine = series.evidence_of(finding, timelines)
    ok = [t for t in mine if t.ok and len(t.arrivals) > 1]
    gaps = [g for t in ok for g in t.itl_ms()]
    if len(gaps) < _MIN_GAPS:
        return ()
    lines = [_rising(ok), _stalls(gaps), _sampling(ok), _every_step(finding, gaps)]
    if ordered:
        lines.append(_drift(ok))
    return tuple(line for line in lines if line)


def _rising(ok: Sequence[Timeline]) -> str | None:
    """Compare positions, each by its median over requests, so that no request weighs more."""
    by_position: dict[int, list[float]] = {}
    for t in ok:
        for position, gap in enumerate(t.itl_ms(), start=2):
            by_position.setdefault(position, []).append(gap)
    step = series.thirds([(p, median(v)) for p, v in by_position.items()])
    if step is None or step.ratio < RISING:
        return None
    return (
        f"ITL rises with position, {step.low:.1f} ms near token {step.low_at:.0f} and "
        f"{step.high:.1f} ms near token {step.high_at:.0f} → KV-cache reads grow: shorter answers, "
        "a static or quantised cache, grouped key-value heads"
    )


def _stalls(gaps: Sequence[float]) -> str | None:
    usual = median(gaps)
    if usual <= 0:
        return None
    long = [g for g in gaps if g >= STALL * usual]
    if not long or len(long) > RARE * len(gaps):
        return None
    return (
        f"single stalls: {len(long)} of {len(gaps)} gaps are at least {STALL:.0f} times the median "
        f"({usual:.1f} ms), the longest {max(long):.1f} ms → garbage collection, another process, "
        "or other requests on the same device"
    )


def _sampling(ok: Sequence[Timeline]) -> str | None:
    sample = sum(t.stages.get("sample", 0) for t in ok)
    step = sample + sum(t.stages.get("decode", 0) for t in ok)
    if step <= 0 or sample < SAMPLING * step:
        return None
    used = {k for t in ok for k, v in t.sampling.items() if v not in (None, False)}
    named = [k for k in ("temperature", "top_p", "top_k", "min_p") if k in used]
    words = f" with {', '.join(named)}" if named else ""
    return (
        f"sampling takes {sample / step:.0%} of a step{words} → a smaller top_k before top_p, "
        "or greedy, sorts less of the vocabulary"
    )


def _every_step(finding: Finding, gaps: Sequence[float]) -> str | None:
    if finding.metric != "itl" or finding.limit is None or median(gaps) <= finding.limit:
        return None
    return (
        f"an ordinary step is over the limit (median {median(gaps):.1f} ms) → the model is too "
        "slow on this device: a smaller or quantised model, a compiled or fused step, faster memory"
    )


def _drift(ok: Sequence[Timeline]) -> str | None:
    return series.drift("median ITL of a request", [median(t.itl_ms()) for t in ok if t.itl_ms()])

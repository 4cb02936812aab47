"""Why another tool's figures break a limit: what they show, and that the rest is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import diagnose
from ..finding import Finding
from ..timeline import NS_PER_MS, Arrivals, Timeline
from .base import Run, Value

_RULES = ("ttft", "itl", "tgs")


def explained(f: Finding, run: Run) -> Finding:
    """``f``; where it breaks a limit, with its likely causes, and that others cannot be told."""
    if f.verdict != "fail" or f.rule not in _RULES or f.limit is None or f.observed is None:
        return f
    if f.rule == "tgs" and f.observed >= f.limit:
        return f  # fast enough; a condition of it is not on record
    said = f.diagnosis or _of_percentiles(f)
    return replace(
        f,
        diagnosis=said,
        notes=(
            *f.notes,
            f"not attributable{' beyond that' if said else ''}: {run.tool} keeps no stages of a "
            "request (queue, prefill, sampling) and nothing of the load of server and machine",
        ),
    )


def _of_percentiles(f: Finding) -> tuple[str, ...]:
    """Whether an ordinary request or step breaks the limit, or only slow ones do."""
    middle, what = f.percentiles.get("p50"), {"ttft": "request", "itl": "step"}.get(f.metric)
    if what is None or middle is None or f.limit is None or f.observed is None:
        return ()
    if middle > f.limit:
        return (
            f"an ordinary {what} is over the limit (median {middle:.1f} ms) → a cost of every "
            f"{what}, not of single slow ones",
        )
    return (
        f"an ordinary {what} keeps the limit (median {middle:.1f} ms) and P{f.percentile:g} "
        f"({f.observed:.1f} ms) does not → some are slow, not every one: waiting behind others, "
        "stalls, or longer prompts",
    )


def of_values(f: Finding, values: Sequence[Value]) -> tuple[str, ...]:
    """What requests without a place in time show; nothing that rests on their order."""
    made = [_timeline(n, v, f.bucket or "") for n, v in enumerate(values)]
    return diagnose.explain(f, made, ordered=False)


def _timeline(n: int, v: Value, bucket: str) -> Timeline:
    steps = [] if v.ttft_ms is None else [v.ttft_ms, *v.gaps_ms]
    at, arrivals = 0, []
    for step in steps:
        at += round(step * NS_PER_MS)
        arrivals.append((at, 1))
    return Timeline(
        id=f"{n}",
        bucket=bucket,
        start_ns=0,
        end_ns=at,
        arrivals=Arrivals(arrivals),
        prompt_tokens=v.prompt_tokens,
        output_tokens=v.output_tokens,
        status="ok" if v.error is None else "error",
        error=v.error,
    )

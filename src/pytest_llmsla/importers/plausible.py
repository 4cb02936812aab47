"""Is a run, as it was read, one that a service can have given at all?"""

from __future__ import annotations

from statistics import median

from ..errors import UsageError
from .base import Place, Run, Series

_LEAST_TTFT_MS = 0.5  # over a socket, with a prompt to read: anything below is another unit
_LEAST_ITL_MS = 0.05  # 20,000 tokens/s in one stream


def plausible(run: Run) -> Run:
    """``run``, or a usage error where it has no request, or its times are in another unit."""
    place, s = Place(run.path), run.summary
    if not (run.timelines or run.values) and (s is None or (s.completed == 0 and not s.failed)):
        raise UsageError(f"{run.path}: holds no request: nothing was measured")
    ttft = [ms for t in run.timelines if t.ok and (ms := t.ttft_ms) is not None]
    ttft += [v.ttft_ms for v in run.values if v.ttft_ms is not None]
    itl = [g for t in run.timelines[:200] if t.ok and not run.unplaced for g in t.itl_ms()]
    itl += [g for v in run.values[:200] for g in v.gaps_ms]
    for name, values, edge, summary in (
        ("TTFT", ttft, _LEAST_TTFT_MS, run.summary.ttft if run.summary else None),
        ("ITL", itl, _LEAST_ITL_MS, run.summary.itl if run.summary else None),
    ):
        typical = median(values) if values else _typical(summary)
        if typical is not None and typical < edge:
            place.refuse(
                f"has a median {name} of {typical:g} ms, which no service reaches: "
                "are these seconds, or was nothing measured?"
            )
    return run


def _typical(summary: Series | None) -> float | None:
    if summary is None:
        return None
    found = summary.percentiles.get(50.0, summary.mean)
    return max(summary.percentiles.values()) if found is None else found

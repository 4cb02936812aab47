"""What the report's pictures show, computed once from the timelines of a run: ``series``.

Everything here is bounded: histograms, quantiles by token position, thinned points, a few slow
requests. A run of 200 requests with 10,000 tokens each gives some ten kilobytes. Milliseconds,
rounded to microseconds; a verdict never rests on any of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..log import RunLog
from ..replay import JudgedGate
from .buckets import buckets_of
from .decay import decay_of
from .resources import resources_of
from .rows import ARRIVAL_COLUMNS, REQUEST_COLUMNS, arrival_rows, request_rows

__all__ = [
    "ARRIVAL_COLUMNS",
    "REQUEST_COLUMNS",
    "arrival_rows",
    "request_rows",
    "series_of",
]


def series_of(
    log: RunLog, gates: Sequence[JudgedGate], tgs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The ``series`` of report.json.

    Args:
        log: the run as read back.
        gates: its judged gates; a request that they found unusable is counted and not drawn.
        tgs: the report's TGS entries, for the curve over concurrency.

    Returns:
        ``buckets`` (one entry a gate, bucket and concurrency), ``decay`` (None with fewer than
        two levels), ``resources`` (None without readings over time). JSON-ready, finite.
    """
    return {
        "buckets": buckets_of(gates),
        "decay": decay_of(tgs),
        "resources": resources_of(log.resources),
    }

"""The server's own times beside ours, and how the client fared. Judges nothing.

The server begins its clock when it has the request and stops it before the network, so ours is
longer by what lies between; a difference is for people to read, no limit rests on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from ..stats import nearest_rank
from ..timeline import NS_PER_MS, Timeline

PERCENTILES = (50, 95, 99)
METRICS = ("ttft", "itl")

_MOST_REASONS = 5


def ours_ms(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Our TTFT and pooled ITL of answered requests: ``count``, ``mean_ms``, ``p50_ms`` …"""
    ok = [t for t in timelines if t.ok]
    first = [t.ttft_ms for t in ok if t.ttft_ms is not None]
    gaps = [gap for t in ok if t.estimated is None for gap in t.itl_ms()]
    return {"ttft": _summary(first), "itl": _summary(gaps)}


def _summary(given: list[float]) -> dict[str, Any]:
    values = [v for v in given if v >= 0]  # a clock that ran backwards fails its request elsewhere
    return {
        "count": len(values),
        "mean_ms": fmean(values) if values else None,
        **{f"p{p}_ms": nearest_rank(values, p / 100) for p in PERCENTILES},
    }


def beside(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, the server's and ours minus the server's, for ``ttft`` and ``itl``.

    Args:
        ours: :func:`ours_ms`.
        theirs: a ``server`` line: ``count``, ``mean_ms`` and ``percentiles`` (the edges of the
            bucket that holds each) for every metric it has.

    Returns:
        By metric: ``ours``, ``theirs``, ``difference`` with ``mean_ms`` and, for each percentile,
        ``[least, most]`` in ms (either None where the bucket is open), and ``reason`` (why there
        is no difference, else None). The server's percentile is known to its bucket only, so the
        difference is an interval.
    """
    return {name: _one(_mapping(ours.get(name)), _mapping(theirs.get(name))) for name in METRICS}


def _one(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    said = {k: theirs.get(k) for k in ("name", "what", "count", "mean_ms", "percentiles")}
    out: dict[str, Any] = {"ours": dict(ours), "theirs": said, "difference": {}}
    mean, own = _number(theirs.get("mean_ms")), _number(ours.get("mean_ms"))
    if mean is None or own is None:
        missing = "no answer of ours has it" if own is None else "the server does not tell it"
        return {**out, "reason": str(theirs.get("reason") or missing)}
    difference: dict[str, Any] = {"mean_ms": own - mean}
    for p in PERCENTILES:
        edges = _mapping(_mapping(theirs.get("percentiles")).get(f"p{p}"))
        mine = _number(ours.get(f"p{p}_ms"))
        if edges and mine is not None:
            low, high = _number(edges.get("over_ms")), _number(edges.get("to_ms"))
            least = None if high is None else mine - high
            most = None if low is None else mine - low
            difference[f"p{p}_ms"] = [least, most]
    return {**out, "difference": difference, "reason": None}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def for_target(lines: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]) -> dict[str, Any]:
    """What ``target`` of report.json gets: ``server_side`` and ``transport``, where there is any.

    ``server_side`` is the ``server`` object of one line of the log, with ``beside``: that of the
    sla.yaml's gate, else of the first, over the most requests. ``beside_note`` says where it does
    not hold the very requests that ours does.
    """
    out: dict[str, Any] = {}
    said = [line for line in lines if _mapping(line.get("server"))]
    if said:
        gate = next((None for line in said if line.get("gate") is None), said[0].get("gate"))
        own = [line["server"] for line in said if line.get("gate") == gate]
        theirs = max(own, key=_requests_of_ours)
        measured = [t for t in timelines if t.gate == gate and not t.warmup and t.purpose is None]
        out["server_side"] = {**theirs, "beside": beside(ours_ms(measured), theirs)}
        held = _requests_of_ours(theirs)
        if held != len(measured):
            out["server_side"]["beside_note"] = (
                f"the server's figures are of {held} requests of ours, ours of {len(measured)}"
            )
    fared = transport(timelines)
    if fared:
        out["transport"] = fared
    return out


def _requests_of_ours(server: Mapping[str, Any]) -> int:
    given = _mapping(server.get("requests")).get("ours")
    return given if isinstance(given, int) else 0


def transport(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """How the client fared with a server; empty when no request says anything of it.

    ``requests``, ``stamps`` (how many of each), ``retried`` requests and ``retries``, ``merged``
    arrivals (in one read with the one before) and ``merged_share``, ``estimated`` requests with
    ``estimated_reasons``, ``lag_p95_ms`` (largest of the requests' P95), ``prefill`` and
    ``after_prefill_ms`` (median of TTFT minus the server's own prefill of the same request).
    """
    if not any(t.lag_ns is not None or t.stamp != "host" for t in timelines):
        return {}
    arrivals = sum(len(t.arrivals) for t in timelines)
    merged = sum(t.merged for t in timelines)
    lags = [t.lag_ns / NS_PER_MS for t in timelines if t.lag_ns is not None]
    guessed = Counter(t.estimated for t in timelines if t.estimated is not None)
    told = [
        (t.ttft_ms, t.server_ms["prefill"])
        for t in timelines
        if t.ok and not t.warmup and t.purpose is None
        if t.ttft_ms is not None and "prefill" in t.server_ms
    ]
    return {
        "requests": len(timelines),
        "stamps": dict(Counter(t.stamp for t in timelines if t.ok)),
        "retried": sum(1 for t in timelines if t.retries),
        "retries": sum(t.retries for t in timelines),
        "arrivals": arrivals,
        "merged": merged,
        "merged_share": merged / arrivals if arrivals else None,
        "estimated": sum(guessed.values()),
        "estimated_reasons": [
            {"reason": why, "count": n} for why, n in guessed.most_common(_MOST_REASONS)
        ],
        "lag_p95_ms": max(lags) if lags else None,
        "prefill": None
        if not told
        else {
            "requests": len(told),
            "median_ms": median(theirs for _, theirs in told),
            "after_prefill_ms": median(ours - theirs for ours, theirs in told),
        },
    }

"""GuideLLM's metrics of a benchmark, for files that do not hold every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import base
from .base import Place, Series, Summary

_PERCENTILES = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50,
    "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9,
}  # fmt: skip


def summary(metrics: Mapping[str, Any], where: Place) -> Summary:
    """What the metrics of a benchmark say of it."""
    totals = base.mapping(metrics.get("request_totals"), where.at("request_totals"))
    lengths = _stats(metrics, "prompt_token_count", where)
    rate = _stats(metrics, "output_tokens_per_second", where)
    lost = sum(base.count(totals.get(n), where.at(n)) for n in ("errored", "incomplete"))
    return Summary(
        completed=base.count(totals.get("successful"), where.at("successful")),
        failed=lost,
        ttft=_series(metrics, "time_to_first_token_ms", where),
        itl=_series(metrics, "inter_token_latency_ms", where, mean=True),
        shortest=base.count_or_none(lengths.get("min"), where.at("prompt_token_count.min")),
        longest=base.count_or_none(lengths.get("max"), where.at("prompt_token_count.max")),
        tokens_per_s=base.number_or_none(rate.get("mean"), where.at("output_tokens_per_second")),
    )


def _stats(metrics: Mapping[str, Any], name: str, where: Place) -> Mapping[str, Any]:
    found = base.mapping(metrics.get(name) or {}, where.at(name))
    return base.mapping(found.get("successful") or {}, where.at(name))


def _series(
    metrics: Mapping[str, Any], name: str, where: Place, *, mean: bool = False
) -> Series | None:
    stats = _stats(metrics, name, where)
    place = where.at(f"{name}.successful")
    samples = base.count_or_none(stats.get("count"), place.at("count"))
    if not samples:
        return None
    given = base.mapping(stats.get("percentiles"), place.at("percentiles"))
    found = {
        float(q): base.number(given[key], place.at(key))
        for key, q in _PERCENTILES.items()
        if given.get(key) is not None
    }
    return base.series(
        found,
        place,
        samples=samples,
        mean=base.number_or_none(stats.get("mean"), place.at("mean")),
        least=base.number_or_none(stats.get("min"), place.at("min")),
        most=base.number_or_none(stats.get("max"), place.at("max")),
        per_request_mean=mean,
    )

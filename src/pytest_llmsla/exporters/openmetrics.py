"""OpenMetrics text: verdict, limits, observed figures and histograms, times in seconds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..reports.escape import visible
from .figures import MS_PER_S, TOKEN_BUCKETS, TTFT_BUCKETS, Series

_LIMIT_LABELS = ("limit", "metric", "bucket", "percentile", "concurrency")
_HISTOGRAMS = (
    ("llmsla_time_to_first_token_seconds", "To the first token.", "ttft_s", TTFT_BUCKETS),
    ("llmsla_inter_token_latency_seconds", "Between tokens, pooled.", "itl_s", TOKEN_BUCKETS),
    ("llmsla_time_per_output_token_seconds", "A request's mean.", "tpot_s", TOKEN_BUCKETS),
)
_FIGURES = {
    "limit": "What may not be exceeded (of rates: not fallen under)",
    "observed": "Observed percentile, nearest rank",
    "lower": "Lower bound of the percentile",
    "upper": "Upper bound of the percentile",
}
_UNITS = {
    "ms": ("seconds", 1 / MS_PER_S),
    "tokens/s": ("tokens_per_second", 1.0),
    "share": ("ratio", 1.0),
    "GiB": ("bytes", 2.0**30),
    "MiB": ("bytes", 2.0**20),
}


def render(report: Mapping[str, Any], series: Sequence[Series]) -> str:
    """The whole exposition, ending in ``# EOF``; any OpenMetrics reader takes it.

    Args:
        report: the dict of report.json.
        series: the samples of the same run.
    """
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    class Families:
        """The families of one run, as a registry asks for them."""

        def collect(self) -> Iterator[Any]:
            """Every family."""
            yield from _families(report, series)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    text: str = generate_latest(registry).decode("utf-8")  # type: ignore[no-untyped-call]
    return text


def _families(report: Mapping[str, Any], series: Sequence[Series]) -> Iterator[Any]:
    yield from _run(report)
    yield from _limits(report)
    yield from _rates(report)
    yield from _requests(series)
    for name, about, field, bounds in _HISTOGRAMS:
        yield _histogram(name, about, field, bounds, series)


def _run(report: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily

    target = report.get("target") or {}
    policy = report.get("policy") or {}
    info = {
        "service": report.get("service"),
        "verdict": report["verdict"],
        "target": target.get("kind"),
        "model": target.get("model"),
        "policy_sha256": policy.get("sha256"),
        "preset": policy.get("preset"),
    }
    told = InfoMetricFamily("llmsla_run", "The run that these figures are of.")
    told.add_metric([], {k: visible(str(v)) for k, v in info.items() if v is not None})
    yield told
    for name, about, value in (
        ("llmsla_run_passed", "1: every limit passed and nothing is missing.", _passed(report)),
        ("llmsla_run_complete", "1: every declared limit has a result.", report["complete"]),
    ):
        yield GaugeMetricFamily(name, about, value=float(bool(value)))
    for name, key in (("started", "started"), ("finished", "finished")):
        at = _seconds(report.get(key))
        if at is not None:
            yield GaugeMetricFamily(
                f"llmsla_run_{name}_timestamp_seconds", f"When the run {name}, Unix time.", value=at
            )


def _passed(report: Mapping[str, Any]) -> bool:
    return report["verdict"] == "pass" and report["complete"] is True


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _limits(report: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    passed = GaugeMetricFamily(
        "llmsla_limit_passed", "1: the limit passed.", labels=[*_LIMIT_LABELS, "verdict"]
    )
    families: dict[str, Any] = {}
    for f in report["findings"]:
        labels = _labels(f)
        passed.add_metric([*labels, f["verdict"]], float(f["verdict"] == "pass"))
        unit = _UNITS.get(f["unit"])
        for figure, about in _FIGURES.items() if unit else ():
            value = f.get(figure)
            if value is None or unit is None:
                continue
            name = f"llmsla_{figure}_{unit[0]}"
            family = families.get(name)
            if family is None:
                words = f"{about}, {unit[0].replace('_', ' ')}."
                family = families[name] = GaugeMetricFamily(name, words, labels=_LIMIT_LABELS)
            family.add_metric(labels, float(value) * unit[1])
    yield passed
    yield from families.values()


def _labels(f: Mapping[str, Any]) -> list[str]:
    percentile = f.get("percentile")
    level = f.get("concurrency", 1)
    return [
        visible(str(f["id"])),
        visible(str(f["metric"])),
        visible(str(f.get("bucket") or "")),
        "" if percentile is None else f"{percentile:g}",
        "open" if level is None else str(level),
    ]


def _rates(report: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    rates = GaugeMetricFamily(
        "llmsla_generated_tokens_per_second",
        "TGS; documented: its four conditions are on record.",
        labels=["kind", "concurrency", "documented", "limit"],
    )
    seen: set[tuple[str, ...]] = set()
    for entry in report.get("tgs") or ():
        labels = (
            visible(str(entry["kind"])),
            visible(str(entry.get("concurrency"))),
            "yes" if entry.get("documented") else "no",
            visible(str(entry.get("finding") or "")),
        )
        if entry.get("tokens_per_s") is not None and labels not in seen:
            seen.add(labels)
            rates.add_metric(labels, float(entry["tokens_per_s"]))
    if rates.samples:
        yield rates


def _requests(series: Sequence[Series]) -> Iterator[Any]:
    from prometheus_client.metrics_core import CounterMetricFamily

    names = _label_names(series)
    counted = CounterMetricFamily(
        "llmsla_requests", "Measured requests.", labels=[*names, "outcome"]
    )
    for s in series:
        labels = [visible(s.labels.get(n, "")) for n in names]
        counted.add_metric([*labels, "ok"], float(s.ok))
        counted.add_metric([*labels, "failed"], float(s.failed))
    if counted.samples:
        yield counted


def _label_names(series: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(n for s in series for n in s.labels))


def _histogram(
    name: str, about: str, field: str, bounds: Sequence[float], series: Sequence[Series]
) -> Any:
    from prometheus_client.metrics_core import HistogramMetricFamily

    names = _label_names(series)
    family = HistogramMetricFamily(name, about, labels=names)
    for s in series:
        values: tuple[float, ...] = getattr(s, field)
        if not values:
            continue
        counts = [0] * (len(bounds) + 1)
        for v in values:
            counts[bisect_left(bounds, v)] += 1  # a sample on a bound belongs below it
        total, buckets = 0, []
        for edge, n in zip([*bounds, math.inf], counts, strict=True):
            total += n
            buckets.append(("+Inf" if edge == math.inf else repr(edge), float(total)))
        labels = [visible(s.labels.get(n, "")) for n in names]
        family.add_metric(labels, buckets, sum(values))
    return family

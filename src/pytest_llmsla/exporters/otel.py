"""OpenTelemetry metrics of a run by the names of the GenAI conventions; needs the extra [otel].

``gen_ai.server.time_to_first_token`` and ``gen_ai.server.time_per_output_token``: histograms in
seconds, one sample a sound request, with the conventions' bucket bounds. Measured by this gate
from outside, so the network is in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import TargetError, UsageError
from ..reports.escape import visible
from ..version import __version__
from .figures import TOKEN_BUCKETS, TTFT_BUCKETS, Series

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

TTFT = "gen_ai.server.time_to_first_token"
TPOT = "gen_ai.server.time_per_output_token"
PASSED = "llmsla.run.passed"
_WITHOUT_CHAT = ("tgi", "llamacpp", "mii")
"""Kinds of target that are sent a text, whatever is in it."""
_INSTALL = "pip install 'pytest-llmsla[otel]'"


def metrics(report: Mapping[str, Any], series: Sequence[Series]) -> MetricsData:
    """The run's metrics, stamped with its start and end.

    Raises:
        UsageError: the extra is not installed.
    """
    try:
        from opentelemetry.sdk.metrics import Histogram, MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        raise UsageError(f"OpenTelemetry is not installed: {_INSTALL}") from None
    reader = InMemoryMetricReader()
    bounds = {TTFT: TTFT_BUCKETS, TPOT: TOKEN_BUCKETS}
    provider = MeterProvider(
        metric_readers=[reader],
        resource=Resource({"service.name": visible(str(report.get("service") or "unnamed"))}),
        views=[
            View(
                instrument_type=Histogram,
                instrument_name=name,
                aggregation=ExplicitBucketHistogramAggregation(edges),
            )
            for name, edges in bounds.items()
        ],
        shutdown_on_exit=False,
    )
    meter = provider.get_meter("pytest-llmsla", __version__)
    ttft = meter.create_histogram(TTFT, "s", "Time to generate the first token.")
    tpot = meter.create_histogram(TPOT, "s", "Time per output token after the first.")
    passed = meter.create_gauge(PASSED, "1", "1: every limit passed and nothing is missing.")
    common = _attributes(report)
    for s in series:
        attributes = {**common, **{f"llmsla.{k}": visible(v) for k, v in s.labels.items()}}
        for value in s.ttft_s:
            ttft.record(value, attributes)
        for value in s.tpot_s:
            tpot.record(value, attributes)
    ok = report["verdict"] == "pass" and report["complete"] is True
    passed.set(int(ok), {**common, "llmsla.verdict": str(report["verdict"])})
    data = reader.get_metrics_data()
    provider.shutdown()
    if data is None:
        raise TargetError("OpenTelemetry gave no metrics")
    return _stamped(data, _ns(report.get("started")), _ns(report.get("finished")))


def to_json(data: MetricsData) -> str:
    """``data`` as one OTLP JSON object, as a collector's file receiver reads it."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    message = MessageToDict(encode_metrics(data), use_integers_for_enums=True)
    return json.dumps(message, ensure_ascii=True) + "\n"


def send(data: MetricsData, url: str, timeout_s: float = 10.0) -> None:
    """Send ``data`` to an OTLP/HTTP endpoint; headers come from OTEL_EXPORTER_OTLP_HEADERS.

    Args:
        data: of :func:`metrics`.
        url: ``http://collector:4318`` or the whole path to ``/v1/metrics``.
        timeout_s: how long an attempt may take.

    Raises:
        UsageError: the URL is none.
        TargetError: the collector did not take them.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--otlp {url}: valid: http://host:4318 or https://host/v1/metrics")
    full = url if parts.path.rstrip("/") else f"{url.rstrip('/')}/v1/metrics"
    exporter = OTLPMetricExporter(endpoint=full, timeout=timeout_s)
    try:
        result = exporter.export(data, timeout_millis=timeout_s * 1000)
    except OSError as e:
        raise TargetError(f"{full}: the collector cannot be reached: {e}") from None
    finally:
        exporter.shutdown()
    if result is not MetricExportResult.SUCCESS:
        raise TargetError(f"{full}: the collector did not take the metrics")


def _attributes(report: Mapping[str, Any]) -> dict[str, str | int]:
    """What the conventions ask to know of every request; what is unknown is left out."""
    target: Mapping[str, Any] = report.get("target") or {}
    server = target.get("server") if isinstance(target.get("server"), Mapping) else {}
    plain = target.get("api") == "completions" or target.get("kind") in _WITHOUT_CHAT
    out: dict[str, str | int] = {
        "gen_ai.operation.name": "text_completion" if plain else "chat",
        "gen_ai.provider.name": visible(
            str((server or {}).get("software") or target.get("kind") or "unknown")
        ),
    }
    if target.get("model"):
        out["gen_ai.request.model"] = visible(str(target["model"]))
    if isinstance(url := target.get("url"), str):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return out
        if host:
            out["server.address"] = visible(host)
        if port:
            out["server.port"] = port
    return out


def _ns(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return round(at.timestamp() * 1e9)


def _stamped(data: MetricsData, start: int | None, end: int | None) -> MetricsData:
    """With the moments of the run instead of those of the export."""

    def point(p: Any) -> Any:
        new = p if end is None else replace(p, time_unix_nano=end)
        has_start = start is not None and p.start_time_unix_nano is not None
        return replace(new, start_time_unix_nano=start) if has_start else new

    def metric(m: Any) -> Any:
        points = [point(p) for p in m.data.data_points]
        return replace(m, data=replace(m.data, data_points=points))

    return replace(
        data,
        resource_metrics=[
            replace(
                r,
                scope_metrics=[
                    replace(s, metrics=[metric(m) for m in s.metrics]) for s in r.scope_metrics
                ],
            )
            for r in data.resource_metrics
        ],
    )

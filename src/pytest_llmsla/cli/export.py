"""``llmsla export``: a run's figures as OpenMetrics text or OpenTelemetry metrics."""

from __future__ import annotations

from pathlib import Path

from ..baselines import load
from ..errors import UsageError
from ..exporters import render, series_of
from ..judging import build_report
from ..reports.found import timelines_at
from ..reports.json_report import write_text

FORMATS = ("openmetrics", "otlp")


def export(path: Path, kind: str) -> str:
    """The text of the run at ``path`` in one of :data:`FORMATS`.

    Raises:
        UsageError: there is no run, or the format's extra is not installed.
    """
    if kind not in FORMATS:
        raise UsageError(f"--as {kind}: valid: {', '.join(FORMATS)}")
    run = load(timelines_at(path))
    report, series = build_report(run.log, list(run.gates)), series_of(run.gates)
    if kind == "openmetrics":
        return render(report, series)
    from ..exporters import otel

    return otel.to_json(otel.metrics(report, series))


def send(path: Path, url: str) -> None:
    """Send the run at ``path`` to an OTLP/HTTP collector.

    Raises:
        UsageError: there is no run, no such URL, or the extra is not installed.
        TargetError: the collector did not take it.
    """
    from ..exporters import otel

    run = load(timelines_at(path))
    report = build_report(run.log, list(run.gates))
    otel.send(otel.metrics(report, series_of(run.gates)), url)


def write(text: str, to: Path) -> Path:
    """Write ``text`` whole or not at all: a scraper never reads half a file."""
    write_text(to, text)
    return to

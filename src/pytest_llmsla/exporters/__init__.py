"""A run's figures for the dashboards that teams have: OpenMetrics text, OpenTelemetry metrics.

Both are made of the judged requests and of report.json; what was not measured is left out, it is
never 0. Nothing here judges.
"""

from __future__ import annotations

from .figures import Series, series_of
from .openmetrics import render

__all__ = ["Series", "render", "series_of"]

"""Several services on one page."""

from __future__ import annotations

from collections.abc import Sequence

from .. import side_by_side, summary
from . import template


def render(reports: Sequence[tuple[str, summary.ReportDict]]) -> str:
    """The page, ending in a line break."""
    services = side_by_side.rows(reports)
    return template.page(
        "services.html.j2",
        headline=side_by_side.headline(services),
        services=[(s, side_by_side.cells_of(s, services)) for s in services],
        titles=side_by_side.titles(services),
        columns=side_by_side.COLUMNS,
        differences=side_by_side.differences(reports),
        data={
            "services": [
                {"service": s.name, "outcome": s.outcome, "verdict": s.kind} for s in services
            ]
        },
    )

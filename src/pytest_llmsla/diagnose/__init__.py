"""From timelines to "likely: …" lines. Every line carries the figures it rests on.

Nothing here changes a verdict, and where there is no ground nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..finding import Finding
from ..timeline import Timeline
from . import errors, itl, tgs, ttft
from .levels import explain as of_levels

__all__ = ["explain", "of_levels"]

_BY_RULE = {
    "tgs": tgs.explain,
    "error": errors.explain,
}


def explain(
    finding: Finding, timelines: Sequence[Timeline], *, ordered: bool = True
) -> tuple[str, ...]:
    """Likely causes of ``finding``, most telling first.

    Args:
        finding: any finding; rules without a diagnosis of their own give none.
        timelines: requests of the run, in any order.
        ordered: False where nobody knows when each of them was sent: nothing is said of a first
            request, nor of change over the run.

    Returns:
        Sentences without the leading "likely:".
    """
    if finding.rule == "ttft":
        return ttft.explain(finding, timelines, ordered=ordered)
    if finding.rule == "itl":
        return itl.explain(finding, timelines, ordered=ordered)
    by_rule = _BY_RULE.get(finding.rule)
    return () if by_rule is None else by_rule(finding, timelines)

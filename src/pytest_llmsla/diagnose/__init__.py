"""From timelines to "likely: …" lines. Every line carries the figures it rests on.

Nothing here changes a verdict, and where there is no ground nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..finding import Finding
from ..timeline import Timeline
from . import errors, itl, tgs, ttft

__all__ = ["explain"]

_BY_RULE = {
    "ttft": ttft.explain,
    "itl": itl.explain,
    "tgs": tgs.explain,
    "error": errors.explain,
}


def explain(finding: Finding, timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Likely causes of ``finding``, most telling first.

    Args:
        finding: any finding; rules without a diagnosis of their own give none.
        timelines: requests of the run, in any order.

    Returns:
        Sentences without the leading "likely:".
    """
    by_rule = _BY_RULE.get(finding.rule)
    return () if by_rule is None else by_rule(finding, timelines)

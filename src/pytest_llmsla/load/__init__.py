"""Many requests at once: when they are due, how they are mixed, and the driver that sends them.

The single-request path does not come here (:mod:`pytest_llmsla.runner`). Judges nothing.
"""

from __future__ import annotations

from ..targets.base import Crew, Target, Timeouts
from .driver import Driver
from .plan import Due, LevelPlan
from .threads import ThreadCrew

__all__ = ["Driver", "Due", "LevelPlan", "ThreadCrew", "crew_of"]


def crew_of(target: Target, size: int, timeouts: Timeouts) -> Crew:
    """The target's own crew, threads where it has none.

    Raises:
        LlmslaError: the target cannot answer ``size`` requests at once.
    """
    own = getattr(target, "crew", None)
    if own is None:
        return ThreadCrew(target, size, timeouts)
    crew: Crew = own(size, timeouts)
    return crew

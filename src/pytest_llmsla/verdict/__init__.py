"""Policy and timelines in, findings out. Pure, and the same code live and in every replay."""

from __future__ import annotations

from ..rules.limits import limits_of
from .admission import ranges_of
from .findings import KvPlanState
from .gatekeeper import EVERY, FIRST, AllOrOne, Gatekeeper

__all__ = ["EVERY", "FIRST", "AllOrOne", "Gatekeeper", "KvPlanState", "limits_of", "ranges_of"]

"""report.json of a whole run, made of its judged gates.

The one way to a report: after a run, by a controller process, and in ``llmsla check``.
"""

from __future__ import annotations

from ..replay import JudgedGate, judge_log, kv_plan_state
from .outcomes import Outcome
from .report import build_report

__all__ = ["JudgedGate", "Outcome", "build_report", "judge_log", "kv_plan_state"]

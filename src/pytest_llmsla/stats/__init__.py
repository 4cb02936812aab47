"""Numbers only: the sequential gate, percentiles and intervals, warm-up, comparison of two runs."""

from __future__ import annotations

from .compare import Comparison, compare
from .gate import Decision, GateVerdict, Reading, SequentialGate
from .intervals import Interval, woodruff
from .planning import (
    OperatingPoint,
    clean_units_to_pass,
    least_over_to_fail,
    operating_characteristic,
)
from .runs import BaselineComparison, compare_with_runs
from .samples import nearest_rank
from .spec import GateSpec
from .warmup import WarmupMonitor

__all__ = [
    "BaselineComparison",
    "Comparison",
    "Decision",
    "GateSpec",
    "GateVerdict",
    "Interval",
    "OperatingPoint",
    "Reading",
    "SequentialGate",
    "WarmupMonitor",
    "clean_units_to_pass",
    "compare",
    "compare_with_runs",
    "least_over_to_fail",
    "nearest_rank",
    "operating_characteristic",
    "woodruff",
]

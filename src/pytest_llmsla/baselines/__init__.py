"""A run beside stored ones of the same service: is it slower, and may it be compared at all?

Reads timelines.jsonl of every run and judges them by the code that judges any run. Runs of
another machine, model or workload are refused, with what differs.
"""

from __future__ import annotations

from .against import Against, Row, against
from .apply import apply
from .store import StoredRun, load, stored

__all__ = ["Against", "Row", "StoredRun", "against", "apply", "load", "stored"]

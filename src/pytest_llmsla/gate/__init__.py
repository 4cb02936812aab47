"""One gate, a sla.yaml's or one test's own: asks through the runner, judges request by request."""

from __future__ import annotations

from .core import Gate
from .own_prompts import OwnPrompts
from .plans import PEAK_PROMPT_TOKENS, PEAK_REQUESTS, check_trace
from .protocols import Progress, Run

__all__ = [
    "PEAK_PROMPT_TOKENS",
    "PEAK_REQUESTS",
    "Gate",
    "OwnPrompts",
    "Progress",
    "Run",
    "check_trace",
]

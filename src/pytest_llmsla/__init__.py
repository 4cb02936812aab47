"""Hold a language model to its latency SLA inside pytest.

Importing this package loads pytest and nothing heavy: no torch, numpy, pydantic or yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .version import __version__

if TYPE_CHECKING:
    from .finding import Finding
    from .gating.fixtures import RecordTgs, SlaResult, SlaRun, TimedGenerate
    from .timeline import Timeline

__all__ = [
    "Finding",
    "RecordTgs",
    "SlaResult",
    "SlaRun",
    "TimedGenerate",
    "Timeline",
    "__version__",
    "sla",
]

sla = pytest.mark.sla
"""``@sla(prompt_max=128, ttft_ms=300)``: the same mark as ``pytest.mark.sla``."""


def __getattr__(name: str) -> object:
    """Load public types on first use, so that the plugin stays light."""
    if name == "Timeline":
        from .timeline import Timeline

        return Timeline
    if name == "Finding":
        from .finding import Finding

        return Finding
    if name in ("RecordTgs", "SlaResult", "SlaRun", "TimedGenerate"):
        from .gating import fixtures

        return getattr(fixtures, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Hold a language model to its latency SLA inside pytest.

Importing this package loads pytest and nothing heavy: no torch, numpy, pydantic or yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .finding import Finding
    from .timeline import Timeline

__all__ = ["Finding", "Timeline", "__version__", "sla"]

__version__ = "0.1.0"

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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""TGS over concurrency: what is served in all, a request, and what no loss would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = ("steady", "concurrent")


def decay_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """Columns over the measured levels of concurrency; None with fewer than two.

    Returns:
        ``concurrency``, ``tokens_per_s`` (all requests together), ``per_request`` and
        ``without_loss``: the smallest level's rate a request times the level. Of several gates
        the first to name a level is taken.
    """
    rates: dict[int, float] = {}
    for entry in entries:
        level, rate = entry.get("concurrency"), entry.get("tokens_per_s")
        if entry.get("kind") in _KINDS and isinstance(level, int) and rate is not None:
            rates.setdefault(level, float(rate))
    if len(rates) < 2:
        return None
    levels = sorted(rates)
    alone = rates[levels[0]] / levels[0]
    return {
        "concurrency": levels,
        "tokens_per_s": [round(rates[n], 3) for n in levels],
        "per_request": [round(rates[n] / n, 3) for n in levels],
        "without_loss": [round(alone * n, 3) for n in levels],
    }

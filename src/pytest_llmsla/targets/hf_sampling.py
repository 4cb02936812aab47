"""Sampling settings of sla.yaml as arguments of ``generate()``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .base import SAMPLING_KEYS

UNSUPPORTED = ("frequency_penalty", "presence_penalty")

SHARED_SEED = "sampling: requests in flight draw from one seeded sequence, so texts may differ"
"""Note of a sampled request that others ran beside."""


def sampling_arguments(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """``generate()`` arguments for ``workload.sampling``; a missing or null key means off.

    ``top_k`` off is sent as 0, because transformers' own default is 50.

    Raises:
        UsageError: an unknown key, or a penalty that ``generate()`` does not have.
    """
    for key, value in sampling.items():
        if key not in SAMPLING_KEYS:
            raise UsageError(
                f"workload.sampling.{key} is unknown. Valid: {', '.join(SAMPLING_KEYS)}."
            )
        if key in UNSUPPORTED and value:
            raise UsageError(
                f"workload.sampling.{key}: {value} is not supported by transformers targets: "
                "generate() has no such penalty. Use repetition_penalty, or remove it."
            )
    out: dict[str, Any] = {"do_sample": not sampling.get("greedy", False)}
    if sampling.get("repetition_penalty") is not None:
        out["repetition_penalty"] = float(sampling["repetition_penalty"])
    if not out["do_sample"]:
        return out
    out["top_k"] = int(sampling.get("top_k") or 0)
    for key in ("temperature", "top_p", "min_p"):
        if sampling.get(key) is not None:
            out[key] = float(sampling[key])
    if out.get("temperature") == 0:
        raise UsageError("workload.sampling.temperature: 0 is no temperature. Use greedy: true.")
    return out


class Seeds:
    """Seeds torch for every request: another seed each time, the same ones in every run.

    Torch has one generator a process, so requests that overlap draw from one sequence: their texts
    differ from run to run, and :meth:`end` says so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._running = 0

    def begin(self, seed: Any) -> tuple[int, bool]:
        """Seed a request that begins (not when ``seed`` is None); returns its ticket."""
        import torch

        with self._lock:
            if seed is not None:
                torch.manual_seed((int(seed) * 1_000_003 + self._begun) % 2**63)
            ticket = self._begun, self._running > 0
            self._begun += 1
            self._running += 1
        return ticket

    def end(self, ticket: tuple[int, bool]) -> bool:
        """Whether another request ran while the one of this ticket did."""
        number, overlapped = ticket
        with self._lock:
            self._running -= 1
            return overlapped or self._begun > number + 1

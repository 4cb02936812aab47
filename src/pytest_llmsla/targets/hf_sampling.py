"""Sampling settings of sla.yaml as arguments of ``generate()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

KNOWN = (
    "greedy",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
UNSUPPORTED = ("frequency_penalty", "presence_penalty")


def sampling_arguments(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """``generate()`` arguments for ``workload.sampling``; a missing or null key means off.

    ``top_k`` off is sent as 0, because transformers' own default is 50.

    Raises:
        UsageError: an unknown key, or a penalty that ``generate()`` does not have.
    """
    for key, value in sampling.items():
        if key not in KNOWN:
            raise UsageError(f"workload.sampling.{key} is unknown. Valid: {', '.join(KNOWN)}.")
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

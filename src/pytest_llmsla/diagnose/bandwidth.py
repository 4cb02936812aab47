"""Memory bandwidth of cards by their name, bytes per second, from their makers' data sheets."""

from __future__ import annotations

import re

_TB = 1e12
_BY_NAME = (
    ("B200", 8.0),
    ("H200", 4.8),
    ("H100 NVL", 3.9),
    ("H100 PCIe", 2.0),
    ("H100", 3.35),
    ("A100-SXM4-80GB", 2.039),
    ("A100 80GB PCIe", 1.935),
    ("A100", 1.555),
    ("L40S", 0.864),
    ("A10G", 0.6),
    ("A10", 0.6),
    ("L4", 0.3),
    ("T4", 0.32),
    ("V100", 0.9),
    ("RTX 4090", 1.008),
    ("RTX 3090", 0.936),
)
"""The more telling name first."""


def bandwidth_of(name: str) -> float | None:
    """Of a card, bytes per second; None for one that is not known here, and for a slice of one."""
    if "MIG-" in name:
        return None
    words = f" {' '.join(re.split(r'[^A-Za-z0-9]+', name))} "
    for known, tb in _BY_NAME:
        if f" {known.replace('-', ' ')} " in words:
            return tb * _TB
    return None

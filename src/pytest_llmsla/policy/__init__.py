"""sla.yaml → a frozen :class:`Policy`; every error names file, line and key path."""

from __future__ import annotations

from .loader import (
    PUBLISHED_RULES,
    LoadedPolicy,
    bucket_for,
    load_policy,
    policy_from_mapping,
)
from .models import (
    Bucket,
    Policy,
    PythonTarget,
    Sampling,
    ScriptedTarget,
    Target,
    TransformersTarget,
)

__all__ = [
    "PUBLISHED_RULES",
    "Bucket",
    "LoadedPolicy",
    "Policy",
    "PythonTarget",
    "Sampling",
    "ScriptedTarget",
    "Target",
    "TransformersTarget",
    "bucket_for",
    "load_policy",
    "policy_from_mapping",
]

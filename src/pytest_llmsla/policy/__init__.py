"""sla.yaml → a frozen :class:`Policy`; every error names file, line and key path."""

from __future__ import annotations

from .http_models import HttpTarget
from .limit_models import Bucket
from .loader import (
    PUBLISHED_RULES,
    LoadedPolicy,
    bucket_for,
    load_policy,
    policy_from_mapping,
)
from .models import Policy
from .target_models import PythonTarget, ScriptedTarget, Target, TransformersTarget
from .workload_models import Sampling

__all__ = [
    "PUBLISHED_RULES",
    "Bucket",
    "HttpTarget",
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

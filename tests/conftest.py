"""Fixtures shared by all tests; they live in gated.py, whose name no other folder uses."""

from __future__ import annotations

from gated import gated, heavy_imports, policy_text

__all__ = ["gated", "heavy_imports", "policy_text"]

pytest_plugins = ["pytester"]

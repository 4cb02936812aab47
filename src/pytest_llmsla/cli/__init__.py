"""The command ``llmsla``; one file a verb."""

from __future__ import annotations

from .app import main, run

__all__ = ["main", "run"]

"""The version, apart from the package's front door so that no room has to walk through it."""

from __future__ import annotations

__version__ = "0.1.0"

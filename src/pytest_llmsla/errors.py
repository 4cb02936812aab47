"""Errors that people see. Every message says what was given, what is valid and what to do."""

from __future__ import annotations


class LlmslaError(Exception):
    """Root of every error this package raises on purpose."""


class UsageError(LlmslaError):
    """The request itself is wrong (policy, marker, option). Ends as pytest exit 4, CLI exit 4."""


class TargetError(LlmslaError):
    """The thing under test cannot be loaded or run. Its limits become ``error`` findings."""


class GenerationAborted(LlmslaError):  # noqa: N818 - it ends a generation as asked; no fault
    """Raised inside a generation by the recorder when its deadline has passed."""


class InternalError(LlmslaError):
    """An invariant of the statistics is broken: the finding is ``error``, never PASS."""

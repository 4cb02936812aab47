"""Prompts: distinct ones, of exact length, from the project's own texts or a user's files."""

from __future__ import annotations

from .aim import top_quarter
from .factory import Prompt, PromptFactory, lengths
from .pool import Source

__all__ = ["Prompt", "PromptFactory", "Source", "lengths", "top_quarter"]

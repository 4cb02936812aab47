"""One run: its folder, its log, its loaded targets and its gates; and the reports made of it."""

from __future__ import annotations

from ..gate import Gate, Progress
from .finish import finish
from .prompts import prompts_for
from .run import Session, Silent
from .run_dir import new_run_dir

__all__ = ["Gate", "Progress", "Session", "Silent", "finish", "new_run_dir", "prompts_for"]

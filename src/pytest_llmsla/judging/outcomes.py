"""What a test runner said of each limit, live or on record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..log import RunLog


class Outcome(Protocol):
    """What a test runner said of one limit."""

    @property
    def status(self) -> str:
        """passed, failed, skipped, xfailed, deselected, not reached, no result received."""

    @property
    def reason(self) -> str:
        """Why, in the runner's words; may be empty."""

    @property
    def reruns(self) -> int:
        """How often a rerun plugin tried again."""


RAN = ("passed", "failed", "no result received")
"""Of a test that ran, whatever became of it."""
_WEIGHT = ("failed", "no result received", "passed")
"""Of several words on one limit the first of these stays."""


def in_words(outcome: Outcome) -> str:
    """``skipped: no GPU``; the status alone where nobody said why."""
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status


@dataclass(frozen=True)
class _Recorded:
    status: str
    reason: str
    reruns: int


def recorded(log: RunLog) -> tuple[dict[str, Outcome], list[tuple[str, str]], bool]:
    """What runs put on record of their tests: outcomes by limit, what was missing, any sign-off.

    Of several runs the weightiest word on a limit stays: a failure over a pass, either over a
    test that did not run.
    """
    out: dict[str, Outcome] = {}
    for line in log.outcomes:
        for name, each in line["outcomes"].items():
            new = _Recorded(each["status"], each.get("reason") or "", each.get("reruns", 0))
            if name not in out or _rank(new.status) < _rank(out[name].status):
                out[name] = new
    missing = [(what, why) for line in log.outcomes for what, why in line.get("missing") or ()]
    return out, missing, any(line.get("signoff") is True for line in log.outcomes)


def _rank(status: str) -> int:
    return _WEIGHT.index(status) if status in _WEIGHT else len(_WEIGHT)

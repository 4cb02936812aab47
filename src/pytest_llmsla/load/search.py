"""The highest level of load that passes: bisection over sequential verdicts, and how sure it is.

Pure: what a level comes to is asked of a callable. A level is a number of requests in flight or a
rate; whatever does not PASS is "not shown", whether it failed or could not be decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ..errors import UsageError
from ..finding import Verdict

_RATE_STEP = 1.1
"""Rates are told apart to a tenth."""


@dataclass(frozen=True)
class Tried:
    """One level and what it came to."""

    level: float
    verdict: Verdict
    reason: str = ""
    """Which limits did not pass, in words."""

    @property
    def passed(self) -> bool:
        """True for PASS and nothing else."""
        return self.verdict == "pass"


@dataclass(frozen=True)
class Capacity:
    """What a search came to. Levels are requests in flight, or requests/s."""

    highest: float | None
    """The highest level that passed, with every tried level below it; None: not even the lowest."""
    next_tried: float | None
    """The lowest tried level above it; None: the end of the range passed."""
    tried: tuple[Tried, ...]
    """In ascending order of their level."""
    monotone: bool
    """False where a level passed although a lower one did not."""

    @property
    def next_verdict(self) -> Verdict | None:
        """Verdict of ``next_tried``."""
        return next((t.verdict for t in self.tried if t.level == self.next_tried), None)


def search(
    attempt: Callable[[float], Tried], *, lowest: float, highest: float, whole: bool
) -> Capacity:
    """Find the highest level that passes.

    Levels are doubled from ``lowest`` until one does not pass or ``highest`` is reached, then the
    gap is halved down to 1 (``whole``) or to a tenth. Last, the middle of the widest untried gap
    below the result is tried: a service that fails there although it passes above has no capacity
    that one number tells.

    Raises:
        UsageError: a range that is none.
    """
    if not 0 < lowest <= highest:
        raise UsageError(f"levels from {lowest:g} to {highest:g}: valid is 0 < lowest <= highest")
    tried: dict[float, Tried] = {}

    def passes(level: float) -> bool:
        if level not in tried:
            tried[level] = attempt(level)
        return tried[level].passed

    good, bad = _double(passes, lowest, highest)
    while good is not None and bad is not None:
        middle = _between(good, bad, whole=whole)
        if middle is None:
            break
        if passes(middle):
            good = middle
        else:
            bad = middle
    if good is not None and (below := _widest_gap(sorted(tried), good, whole=whole)) is not None:
        passes(below)
    return summary(list(tried.values()))


def _double(
    passes: Callable[[float], bool], lowest: float, highest: float
) -> tuple[float | None, float | None]:
    """The last level that passed and the first that did not, while doubling."""
    good: float | None = None
    level = lowest
    while passes(level):
        good = level
        if level >= highest:
            return good, None
        level = min(2 * level, highest)
    return good, level


def _between(good: float, bad: float, *, whole: bool) -> float | None:
    """A level between two, None where they are as near as they are told apart."""
    if whole:
        return None if bad - good <= 1 else float(int(good + bad) // 2)
    if bad / good <= _RATE_STEP:
        return None
    middle = float(f"{(good * bad) ** 0.5:.3g}")  # a rate that can be written down
    return middle if good < middle < bad else None


def _widest_gap(levels: list[float], top: float, *, whole: bool) -> float | None:
    """The middle of the widest gap below ``top`` that nothing was tried in."""
    known = [x for x in levels if x <= top]
    gaps = [
        (b / a, middle)
        for a, b in pairwise(known)
        if (middle := _between(a, b, whole=whole)) is not None and middle not in levels
    ]
    return max(gaps)[1] if gaps else None


def summary(tried: list[Tried]) -> Capacity:
    """What tried levels come to: nothing above a level that did not pass counts."""
    ordered = tuple(sorted(tried, key=lambda t: t.level))
    highest: float | None = None
    following: float | None = None
    for t in ordered:
        if not t.passed:
            following = t.level
            break
        highest = t.level
    above = [t for t in ordered if following is not None and t.level > following]
    return Capacity(highest, following, ordered, monotone=not any(t.passed for t in above))

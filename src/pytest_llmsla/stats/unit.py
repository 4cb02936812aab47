"""One unit of evidence: a request, or a block of requests that were in flight together."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .guard import closeness


@dataclass(frozen=True, slots=True)
class Unit:
    """``answers``: sorted clean samples of each request that gives evidence; None: it failed.

    ``neutral`` counts requests of the block that say nothing either way (no sample, or the
    place of one that never started in an incomplete block): they pull the mean towards p0.
    """

    answers: tuple[tuple[float, ...] | None, ...]
    neutral: int
    max_samples: int

    def share_over(self, limit: float, p0: float) -> float:
        """Effective share x of samples > ``limit``, averaged over the block; in [0, 1]."""
        return self._mean(
            [
                1.0 if a is None else self._share(a, len(a) - bisect_right(a, limit), p0)
                for a in self.answers
            ],
            p0,
        )

    def share_from(self, limit: float, p0: float) -> float:
        """Effective share of samples ≥ ``limit``: what exceeds a limit just below it."""
        return self._mean(
            [
                1.0 if a is None else self._share(a, len(a) - bisect_left(a, limit), p0)
                for a in self.answers
            ],
            p0,
        )

    def closeness(self, limit: float) -> float:
        """Mean over the block of each request's closeness; a failed request counts as 0."""
        each = [0.0 if a is None else closeness(a, limit) for a in self.answers]
        return math.fsum(each) / len(each)

    def _share(self, answer: Sequence[float], over: int, p0: float) -> float:
        return p0 * (1 - len(answer) / self.max_samples) + over / self.max_samples

    def _mean(self, shares: list[float], p0: float) -> float:
        # fsum is exactly rounded, so the order inside a block cannot change a digit.
        return math.fsum([*shares, *[p0] * self.neutral]) / (len(shares) + self.neutral)

"""One unit of evidence: a request, or a block of requests that were in flight together."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .guard import closeness
from .samples import sorted_samples

Answer = Sequence[float]
"""Sorted clean samples of one request; in an array a sample takes eight bytes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that is sorted and clean already, and is to be held as it is."""

    answer: Answer


def answer_of(values: Iterable[float | None]) -> array[float]:
    """Values of one request as an :data:`Answer`."""
    return array("d", sorted_samples(values))


@dataclass(frozen=True, slots=True)
class Unit:
    """``answers``: sorted clean samples of each request that gives evidence; None: it failed.

    ``neutral`` counts requests of the block that say nothing either way (no sample, or the
    place of one that never started in an incomplete block): they pull the mean towards p0.
    """

    answers: tuple[Answer | None, ...]
    neutral: int
    max_samples: int

    def share_over(self, limit: float, p0: float) -> float:
        """Effective share x of samples > ``limit``, averaged over the block; in [0, 1]."""
        return self._mean_share(limit, p0, bisect_right)

    def share_from(self, limit: float, p0: float) -> float:
        """Effective share of samples ≥ ``limit``: what exceeds a limit just below it."""
        return self._mean_share(limit, p0, bisect_left)

    def closeness(self, limit: float) -> float:
        """Mean over the block of each request's closeness; a failed request counts as 0."""
        each = [0.0 if a is None else closeness(a, limit) for a in self.answers]
        return math.fsum(each) / len(each)

    def _mean_share(self, limit: float, p0: float, up_to: Callable[[Answer, float], int]) -> float:
        """``up_to`` counts the samples that keep the limit."""
        m = self.max_samples
        shares = [
            1.0 if a is None else p0 * (1 - len(a) / m) + (len(a) - up_to(a, limit)) / m
            for a in self.answers
        ]
        if len(shares) == 1 and not self.neutral:
            return shares[0]
        # fsum is exactly rounded, so the order inside a block cannot change a digit.
        return math.fsum([*shares, *[p0] * self.neutral]) / (len(shares) + self.neutral)

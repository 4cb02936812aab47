"""Samples in ascending order: cheap to add to and to look at, and bounded, at millions."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import overload

EXACT = 1 << 18
"""Samples up to which each is kept as it is."""
STEP = 1e-4
"""Share by which a sample may be rounded up where there are more."""
_BLOCK = 256
"""Samples of a block; one with twice as many is split."""
_MANY = 4096
"""Samples from which it is cheaper to put them in order first."""
_LOG_STEP = math.log1p(STEP)


def in_order(parts: Iterable[Sequence[float]]) -> array[float]:
    """Every sample of ``parts`` (arrays of doubles, or views of them), ascending."""
    given = list(parts)
    if sum(map(len, given)) <= EXACT:
        return array("d", sorted(chain.from_iterable(given)))
    import numpy as np  # at this size it takes a tenth of the time

    every = np.concatenate([np.asarray(part, dtype=np.float64) for part in given])
    every.sort()
    out = array("d")
    out.frombytes(every.data.cast("B"))
    return out


class SortedPool(Sequence[float]):
    """Like a sorted list of floats. NaN has no place in an order: clean samples first.

    With more than ``exact`` samples, each is rounded up by at most :data:`STEP` of itself, and
    equal ones are counted: memory stays bounded, and a percentile is never smaller than it was.
    No sample is rounded across ``edge``, the limit it is judged by.
    """

    __slots__ = ("_blocks", "_count", "_counts", "_edge", "_exact", "_least", "_weights")

    def __init__(
        self, values: Iterable[float] = (), *, edge: float | None = None, exact: int = EXACT
    ) -> None:
        self._blocks: list[array[float]] = []
        self._least: list[float] = []
        """The first sample of each block."""
        self._counts: dict[float, int] | None = None
        """How many of each; None while every sample is kept as it is."""
        self._weights: list[int] = []
        """Samples that each block stands for."""
        self._count = 0
        self._edge = edge
        self._exact = exact
        self.extend(values)

    @property
    def rounded(self) -> bool:
        """True when samples are no longer what they were."""
        return self._counts is not None

    def extend(self, values: Iterable[float]) -> None:
        """Put samples where they belong."""
        for value in values:
            self._add(value)

    def take(self, parts: Sequence[Sequence[float]]) -> None:
        """Put the samples of ascending ``parts`` where they belong; cheap when they are many."""
        if sum(map(len, parts)) < _MANY:
            for part in parts:
                self.extend(part)
            return
        fresh = in_order(parts)
        self._count += len(fresh)
        if self._counts is None and self._count > self._exact:
            self._round()
        if self._counts is None:
            self._rebuild(array("d", sorted(chain(self, fresh))))
            return
        at = 0
        while at < len(fresh):  # all that are rounded up to one number, at once
            value = self._up(fresh[at])
            end = max(bisect_right(fresh, value, at), at + 1)
            self._tally(self._counts, value, end - at)
            at = end

    def _rebuild(self, ordered: array[float]) -> None:
        self._blocks = [ordered[i : i + _BLOCK] for i in range(0, len(ordered), _BLOCK)]
        self._least = [block[0] for block in self._blocks]
        self._weights = [len(block) for block in self._blocks]

    def _add(self, value: float) -> None:
        self._count += 1
        if self._counts is None and self._count > self._exact:
            self._round()
        if self._counts is None:
            self._put(value)
        else:
            self._tally(self._counts, self._up(value))

    def _weigh(self, block: array[float]) -> int:
        counts = self._counts
        return len(block) if counts is None else sum(counts[value] for value in block)

    def _round(self) -> None:
        """From now on samples are counted; those there are become the first."""
        kept, counts = self._blocks, dict[float, int]()
        self._blocks, self._least, self._weights, self._counts = [], [], [], counts
        for value in chain.from_iterable(kept):
            self._tally(counts, self._up(value))

    def _tally(self, counts: dict[float, int], value: float, times: int = 1) -> None:
        """``times`` more of a value that is rounded up."""
        if value not in counts:
            counts[value] = 1
            self._put(value)
            times -= 1
        counts[value] += times
        self._weights[bisect_right(self._least, value) - 1] += times

    def _up(self, value: float) -> float:
        if not 0 < value < math.inf:
            return value
        above = max(value, math.exp(math.ceil(math.log(value) / _LOG_STEP) * _LOG_STEP))
        edge = self._edge
        return edge if edge is not None and value <= edge < above else above

    def _put(self, value: float) -> None:
        if not self._blocks:
            self._blocks.append(array("d", (value,)))
            self._least.append(value)
            self._weights.append(1)
            return
        at = max(bisect_right(self._least, value) - 1, 0)
        block = self._blocks[at]
        insort(block, value)
        self._least[at] = block[0]
        self._weights[at] += 1
        if len(block) >= 2 * _BLOCK:
            halves = [block[:_BLOCK], block[_BLOCK:]]
            self._blocks[at : at + 1] = halves
            self._weights[at : at + 1] = [self._weigh(half) for half in halves]
            self._least.insert(at + 1, block[_BLOCK])

    def copy(self) -> SortedPool:
        """The same samples, to be added to apart."""
        other = SortedPool(edge=self._edge, exact=self._exact)
        other._blocks = [block[:] for block in self._blocks]
        other._least, other._count = list(self._least), self._count
        other._weights = list(self._weights)
        other._counts = None if self._counts is None else dict(self._counts)
        return other

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[float]:
        kept = chain.from_iterable(self._blocks)
        if self._counts is None:
            return kept
        counts = self._counts
        return chain.from_iterable(repeat(value, counts[value]) for value in kept)

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> list[float]: ...

    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return list(self)[index]
        left = index if index >= 0 else index + self._count
        if not 0 <= left < self._count:
            raise IndexError(f"sample {index} of {self._count}")
        at = 0
        while left >= self._weights[at]:
            left -= self._weights[at]
            at += 1
        return self._in_block(self._blocks[at], left)

    def _in_block(self, block: array[float], left: int) -> float:
        if self._counts is None:
            return block[left]
        at = 0
        while left >= self._counts[block[at]]:
            left -= self._counts[block[at]]
            at += 1
        return block[at]

    def above(self, limit: float) -> int:
        """Samples over ``limit``; as rounded, where ``limit`` is not the edge."""
        if self._counts is not None:
            return sum(n for value, n in self._counts.items() if value > limit)
        return sum(
            len(block) - bisect_right(block, limit) for block in self._blocks if block[-1] > limit
        )

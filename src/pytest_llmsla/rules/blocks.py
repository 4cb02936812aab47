"""Statistical units under load: consecutive starts that were in flight together are one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from ..stats import SequentialGate
from ..stats.gate import Request
from ..timeline import Timeline

T = TypeVar("T")
Block = tuple[Sequence[T], int]
"""What a block's requests gave, and its full size; with fewer than that it is incomplete."""


class Blocks(Generic[T]):
    """Forms blocks of what each request gave, in start order.

    A block ends when it is full, or when a request of another unit (or attempt) follows.
    """

    def __init__(self) -> None:
        self._key: tuple[int, int, int] | None = None
        self._open: list[T] = []
        self.size = 1
        """Of the largest block so far, requests."""
        self.complete = 0
        """Full blocks so far."""

    def add(self, t: Timeline, given: T) -> list[Block[T]]:
        """One more request; the blocks that end with it or before it."""
        ended: list[Block[T]] = []
        key = (t.attempt, t.unit, t.block)
        if key != self._key:
            ended += self.rest()
            self._key, self._open = key, []
        self.size = max(self.size, t.block)
        self._open.append(given)
        if len(self._open) >= t.block:
            ended.append((self._open, t.block))
            self.complete += 1
            self._key, self._open = None, []
        return ended

    def rest(self) -> list[Block[T]]:
        """The block that is not full yet, if there is one."""
        return [(list(self._open), self._key[2])] if self._open and self._key else []


def at_the_end(
    gate: SequentialGate | None, rest: Sequence[Block[Request]]
) -> SequentialGate | None:
    """A test as it stands if nothing more comes: of a block that is not full, its failures.

    A copy, so that the block can still be filled.
    """
    if gate is None or not rest:
        return gate
    ended = gate.fork()
    for block, size in rest:
        ended.add_block(block, size)
    return ended


def units_text(count: int, block: int) -> str:
    """``69 requests``, ``69 blocks of 4 requests``."""
    return f"{count} requests" if block == 1 else f"{count} blocks of {block} requests"

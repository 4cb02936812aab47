"""The judges of one gate: of every attempt pooled, and of the attempt that is measuring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..timeline import Timeline
from ..verdict import Gatekeeper


class Attempts:
    """Attempts of rerun plugins; what an earlier run measured is an attempt of its own."""

    def __init__(self, new: Callable[[], Gatekeeper]) -> None:
        self._new = new
        self.pooled = new()
        self.current = self.pooled
        self.number = 1
        self.before: tuple[Timeline, ...] = ()
        """What an earlier run measured, once it has been judged here."""
        self._facts: Mapping[str, Any] | None = None

    def begin(self) -> None:
        """Another attempt: it measures anew."""
        self.number += 1
        self.current = self._new()
        if self._facts is not None:
            self.current.facts(self._facts)

    def learn(self, facts: Mapping[str, Any]) -> None:
        """What is known of the loaded target, for judges of now and later."""
        self._facts = facts
        for keeper in self.each():
            keeper.facts(facts)

    def continue_from(self, before: Sequence[Timeline]) -> None:
        """Go on after ``before``, requests of an earlier run that :attr:`pooled` has judged."""
        self.before = tuple(before)
        self.number += max((t.attempt for t in before), default=0)

    def each(self) -> Collection[Gatekeeper]:
        """That of all attempts and that of this one, each once."""
        return {id(k): k for k in (self.pooled, self.current)}.values()

    def add(self, t: Timeline) -> Timeline:
        """The next request in start order, as judged over all attempts."""
        judged = self.pooled.add(t)
        if self.current is not self.pooled:
            self.current.add(t)
        return judged

    def already(self, bucket: str, level: int | None) -> int:
        """Measured requests of this attempt; those of an earlier run are another one."""
        count = self.current.count(bucket, level)
        if self.current is not self.pooled:
            return count
        same = (t for t in self.before if t.bucket == bucket and t.level == level)
        return count - sum(not t.warmup and t.purpose is None for t in same)

"""Another machine's monotonic clock on ours: the offset, and how wrong it can be.

Cristian's algorithm: a clock that was read between our t0 and t1 showed a time that lies between
them, so its offset is known within half the round trip; the shortest round trip of several is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 5e-5
"""How much faster or slower another machine's clock may run, as a share: 50 µs a second."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The other clock as read once."""

    before_ns: int
    """Ours, before it was asked."""
    there_ns: int
    after_ns: int
    """Ours, when the answer was here."""

    @property
    def offset_ns(self) -> int:
        """Theirs minus ours, at best guess."""
        return self.there_ns - (self.before_ns + self.after_ns) // 2

    @property
    def half_trip_ns(self) -> int:
        """How far ``offset_ns`` can be from the truth."""
        return (self.after_ns - self.before_ns + 1) // 2


class Alignment:
    """What is known of one other clock. ``same``: it is ours, so there is nothing to align."""

    def __init__(self, *, same: bool = False) -> None:
        self.same = same
        self._best: Reading | None = None
        self.worst_bound_ns = 0
        """The largest bound that was used."""

    def add(self, reading: Reading) -> None:
        """Keep a reading if it knows more, at its own moment, than the one that is kept."""
        best = self._best
        if best is None or reading.half_trip_ns <= self._bound(best, reading.after_ns):
            self._best = reading

    def shift_ns(self, now_ns: int) -> int:
        """What to add to their times to have ours; later by the bound, so that no time from a
        due moment is too short."""
        if self.same:
            return 0
        bound = self.bound_ns(now_ns)
        self.worst_bound_ns = max(self.worst_bound_ns, bound)
        return -self._known().offset_ns + bound

    def theirs(self, ours_ns: int) -> int:
        """Our moment on their clock, at best guess."""
        return ours_ns if self.same else ours_ns + self._known().offset_ns

    def bound_ns(self, now_ns: int) -> int:
        """How far the offset can be from the truth now: half a round trip, and drift since."""
        return 0 if self.same else self._bound(self._known(), now_ns)

    def _known(self) -> Reading:
        if self._best is None:
            raise ValueError("the clock was never read")
        return self._best

    @staticmethod
    def _bound(reading: Reading, now_ns: int) -> int:
        age = max(0, now_ns - reading.after_ns)
        return reading.half_trip_ns + round(age * DRIFT)

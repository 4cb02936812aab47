"""When is a model warm? When two neighbouring blocks of requests take the same time."""

from __future__ import annotations

import math
import statistics

from ..errors import InternalError, UsageError

_BLOCK = 5
_STEADY = math.log(1.15)
_ROUNDING = 1e-12


class WarmupMonitor:
    """Watches the warm-up of one bucket shape: the first is dropped, then blocks of five.

    ``dropped``: how many are dropped; under load a first wave finds everything cold.

    Steady once the medians of two neighbouring blocks lie within a factor of 1.15, so after 11
    requests at the earliest. It takes times only; what to do about a failed warm-up request is
    the runner's to say.
    """

    def __init__(self, max_requests: int = 31, dropped: int = 1) -> None:
        if isinstance(max_requests, bool) or not isinstance(max_requests, int) or max_requests < 0:
            raise UsageError(
                f"warmup.max_requests: got {max_requests!r}; valid is a whole number from 0; "
                "steadiness needs 11, 31 is the default"
            )
        self.max_requests = max_requests
        self.dropped = dropped
        self._values: list[float] = []
        self._steady = False

    def add(self, ms: float) -> None:
        """One warm-up request's time, ms. Raises :class:`InternalError` unless finite and ≥ 0."""
        if not (math.isfinite(ms) and ms >= 0):
            raise InternalError(
                f"warm-up time: got {ms!r}; valid is a finite number from 0; "
                "leave failed warm-up requests out"
            )
        self._values.append(float(ms))
        if self._at_block_end():
            last = statistics.median(self._values[-_BLOCK:])
            before = statistics.median(self._values[-2 * _BLOCK : -_BLOCK])
            self._steady = self._steady or _alike(before, last)

    def _at_block_end(self) -> bool:
        in_blocks = self.count - self.dropped
        return in_blocks >= 2 * _BLOCK and in_blocks % _BLOCK == 0

    @property
    def count(self) -> int:
        """Requests seen."""
        return len(self._values)

    @property
    def values(self) -> tuple[float, ...]:
        """Times seen, ms, in order; the first one included."""
        return tuple(self._values)

    @property
    def steady(self) -> bool:
        """Whether two neighbouring blocks agreed."""
        return self._steady

    @property
    def done(self) -> bool:
        """Whether measuring may start: steady, or the most requests allowed have been spent."""
        return self._steady or self.count >= self.max_requests


def _alike(before: float, last: float) -> bool:
    if before == last:
        return True
    if before == 0 or last == 0:
        return False
    return abs(math.log(last / before)) <= _STEADY + _ROUNDING

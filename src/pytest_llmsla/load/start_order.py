"""Requests end in any order and are judged in the one they were started in, as a replay does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..timeline import Timeline


class StartOrder:
    """Holds back what ended before an earlier request did."""

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        """Ids of started requests that were not given out yet."""
        self._ended: dict[str, Timeline] = {}

    def started(self, name: str) -> None:
        """A request is being sent."""
        self._order.append(name)

    def ended(self, t: Timeline) -> None:
        """It ended."""
        self._ended[t.id] = t

    def ready(self) -> Iterator[Timeline]:
        """Those that no earlier request is missing before."""
        while self._order and self._order[0] in self._ended:
            yield self._ended.pop(self._order.popleft())

    def rest(self) -> Iterator[Timeline]:
        """All that ended, whatever was lost before it."""
        while self._order:
            name = self._order.popleft()
            if name in self._ended:
                yield self._ended.pop(name)

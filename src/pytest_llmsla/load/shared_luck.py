"""How many requests of an open loop share their luck: read off its warm-up, they make a block."""

from __future__ import annotations

import math

from ..stats.flights import others_met

ROOM = 1.25  # a block holds a quarter more than were in flight on average while warming up
_FEWEST = 11  # requests that have to end before it is read
_ROOM_FOR_BURSTS = 2.0  # what a request meets varies more than what is in flight on average
_FEWEST_IN_BURSTS = 31  # a few bursts have to be seen before one can be told


class SharedLuck:
    """When requests were due (or started) and ended, until :meth:`settle`.

    ``bursty``: they come in bursts, and then what counts is how many others one meets.
    """

    def __init__(self, *, bursty: bool) -> None:
        self._bursty = bursty
        self._flying: dict[str, int] = {}
        """Id → when it was due or started."""
        self._spans: list[tuple[int, int]] = []
        self._settled = False

    def began(self, name: str, since_ns: int) -> None:
        """A request was due, or started where nothing was due."""
        self._flying[name] = since_ns

    def ended(self, name: str, end_ns: int) -> None:
        """It is over."""
        since = self._flying.pop(name)
        if not self._settled:
            self._spans.append((since, end_ns))

    def seen(self, most: int) -> bool:
        """Whether enough have ended to tell; ``most``: as many as may be waited for."""
        return len(self._spans) >= min(_FEWEST_IN_BURSTS if self._bursty else _FEWEST, most)

    def block(self, t0_ns: int, now_ns: int) -> int:
        """So many share theirs: by what was in flight, from due to ended, in the latter half of
        the time since ``t0_ns``, with room for more; in bursts by the others that a request met.
        """
        begin = t0_ns + (now_ns - t0_ns) // 2
        spans = [*self._spans, *((since, now_ns) for since in self._flying.values())]
        covered = sum(
            max(0, min(end or now_ns, now_ns) - max(since, begin)) for since, end in spans
        )
        together = ROOM * (covered / max(1, now_ns - begin))
        if self._bursty:
            together = max(together, _ROOM_FOR_BURSTS * others_met(spans, begin, now_ns))
        return max(1, math.ceil(together))

    def settle(self) -> None:
        """Nothing is kept from now on."""
        self._settled = True
        self._spans.clear()

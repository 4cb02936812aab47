"""Open connections for many requests at once: kept after an answer, or opened ahead of need."""

from __future__ import annotations

from collections import deque

from .client import Client, let_go
from .connection import Connection
from .exchange import Exchange
from .opener import Opened, Opener

KEEP_NS = 100_000_000
"""How often the pool looks at what it holds."""
_MOST_AHEAD = 64
"""Opened before the first request at most."""
_SPARE = 2
"""Servers with a thread for each connection have few more than they serve at once."""
_AGING_NS = 600_000_000
"""Idle for so long, a connection is replaced, before it is too old to be used again."""
_OLD_NS = 900_000_000
_SETTLE_NS = 200_000
"""How often to look for the end of an answer whose connection is wanted."""
_ENOUGH = 2
"""So many ended connections in a row are a server's habit."""
_SLOTS = 20
"""Demand is the most that were taken in one slot of ``KEEP_NS`` of the last so many."""


class Pool:
    """Connections of one server. For one thread.

    Servers may have a thread for each connection, so idle ones are few: as many as were taken at
    once lately and one more, but with those in use hardly more than ``size`` where the server
    keeps connections.

    Args:
        client: of the server.
        opener: opens connections aside.
        size: requests in flight at most.
        kept: False: every request has a connection of its own, opened when it is asked for.
    """

    def __init__(self, client: Client, opener: Opener, size: int, *, kept: bool = True) -> None:
        self._client = client
        self._opener = opener
        self._size = size
        self._kept = kept
        self._idle: deque[Exchange | Connection] = deque()
        self._busy = 0
        self._waiting = 0
        self._slot_ends_ns = 0
        self._taken: deque[int] = deque([min(size, _MOST_AHEAD)], maxlen=_SLOTS)
        self._used = False
        self._ended = 0
        """Connections in a row that the server ended with their answer."""
        self._keep_at_ns = client.clock()

    @property
    def idle(self) -> int:
        """Connections that are open and carry nothing."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """One that can be used now; None where there is none: :meth:`want` one then.

        The one that was idle longest comes first: the end of the last answer may still be on its
        way on the others.
        """
        unsure: list[Exchange | Connection] = []
        found = None
        while self._idle and found is None:
            kept = self._idle.popleft()
            ready = self._ready(kept)
            if ready is None:
                unsure.append(kept)
            elif ready:
                found = let_go(kept)
            else:
                let_go(kept).close()
        self._idle.extendleft(reversed(unsure))
        return None if found is None else self.use(found)

    def _ready(self, kept: Exchange | Connection) -> bool | None:
        """None: the end of its last answer has not come yet."""
        if isinstance(kept, Exchange):
            settled = kept.settle()
            if settled is None:
                return None if self._client.clock() - kept.outcome.end_ns < _OLD_NS else False
            self._ended = 0 if settled else self._ended + 1
        return self._client.usable(kept)

    @property
    def _reuses(self) -> bool:
        return self._client.reuses and self._ended < _ENOUGH

    @property
    def next_ns(self) -> int:
        """When to look at the pool again."""
        if self._waiting and self._idle:
            return self._client.clock() + _SETTLE_NS
        return self._keep_at_ns

    @property
    def pending(self) -> int:
        """Connections that are being opened."""
        return self._opener.pending

    def want(self) -> None:
        """A request waits for a connection: have one opened for it, whatever else is coming."""
        self._waiting += 1
        self._opener.ask()

    def served(self) -> None:
        """One that waited has a connection, or waits no more."""
        self._waiting -= 1

    def arrived(self) -> list[Opened]:
        """What was opened, each to be used at once or given to :meth:`add`; and failures."""
        opened = self._opener.take()
        self._client.connections += sum(isinstance(one, Connection) for one in opened)
        return opened

    def use(self, connection: Connection) -> Connection:
        """One that arrived is used at once."""
        self._busy += 1
        self._taken[-1] += 1
        self._used = True
        if not self._reuses:
            self._keep_at_ns = 0  # another one may be needed as soon
        return connection

    def add(self, connection: Connection) -> None:
        """One that arrived is not needed yet."""
        if self._kept:
            self._idle.append(connection)
        else:
            connection.close()

    def give_back(self, exchange: Exchange) -> None:
        """The connection of an exchange that ended."""
        self._busy -= 1
        if self._kept and exchange.outcome.error is None:
            self._idle.append(exchange)
        else:
            let_go(exchange).close()

    def put_back(self, connection: Connection) -> None:
        """A connection that was taken and not used."""
        self._busy -= 1
        self.add(connection)

    def keep(self) -> None:
        """Let go of what is too old, and have as many opened as may soon be needed."""
        now = self._client.clock()
        if now < self._keep_at_ns:
            return
        self._keep_at_ns = now + KEEP_NS
        good = 0
        for _ in range(len(self._idle)):
            kept = self._idle.popleft()
            ready = self._ready(kept)
            connection = kept.connection if isinstance(kept, Exchange) else kept
            age = now - connection.last_ns
            if ready is False or age > _OLD_NS:
                let_go(kept).close()
                continue
            self._idle.append(kept if ready is None else let_go(kept))
            good += bool(ready) and age <= _AGING_NS
        if now >= self._slot_ends_ns and self._used:
            self._slot_ends_ns = self._keep_at_ns
            self._taken.append(0)
        coming = self._opener.pending - self._waiting
        missing = self._spares() - good - coming
        if self._kept and missing > 0:
            self._opener.ask(missing)

    def _spares(self) -> int:
        demand = max(self._taken) + 1
        if not self._reuses:
            return demand
        return min(demand, max(_SPARE, self._size - self._busy))

    def close(self) -> None:
        """Close what is idle. Idempotent."""
        for kept in self._idle:
            let_go(kept).close()
        self._idle.clear()
        self._opener.close()

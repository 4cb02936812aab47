"""Many exchanges in one thread: reading comes first, parsing when nothing waits to be read."""

from __future__ import annotations

import gc
import select
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from .exchange import NS, READ_COST, Exchange
from .stamps import Clock, Turn, Wall

TICK_NS = 10_000_000
"""How often the loop looks whether it is late, and at deadlines."""
_PARSE_NS = 50_000  # parse for so long, then look at the sockets again
_FEW, _SHARE, _ROUNDS = 8, 4, 8
"""More sockets than a few, and than a quarter of all, ready at one look: reading falls behind, and
parsing is left out, for so many rounds at most."""
_MOST_WAITING = 256 * 1024 * 1024
"""Bytes read and not parsed; beyond, parsing comes first, so that a flood fills no memory."""
_PATIENCE_NS = NS
_CHECKED = 32
"""So many deadlines are looked at in one tick, at about 2 µs each."""
_VIRTUAL_WAIT_S = 0.0005
_MS = 1_000_000
_SPIN_NS = 120_000
"""A sleep may last so much too long (the kernel's timer slack, waking): before a moment that must
not be missed, the loop looks without sleeping."""
_MOST_SELECT = 1024  # descriptors that select can take


class Loop:
    """Runs exchanges to their end.

    Args:
        clock: monotonic nanoseconds. With another clock than the machine's own, the loop polls
            in short real steps and looks at that clock: exact times for tests.
        timed: False for exchanges that nobody times: garbage collection is then left alone, so
            that the end of one does not begin it again under another loop's streams.

    Attributes:
        polls: how often the sockets were looked at.
        bytes_read: by every exchange so far.
        waiting: bytes of memory that hold what was read and is not parsed.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns, *, timed: bool = True) -> None:
        self._clock = clock
        self._timed = timed
        self._real = clock is time.perf_counter_ns
        self._live: dict[int, Exchange] = {}
        self._backlog: deque[Exchange] = deque()
        self._selector = _Poller()
        self._wall = Wall(clock)
        self._sending: list[Exchange] = []
        self._kept: list[Exchange] = []
        self._next_tick = 0
        self._share = 0
        self._collects = False
        self.waiting = 0
        self._rounds = 0
        self.polls = 0
        self.bytes_read = 0

    def run(self, exchanges: Sequence[Exchange]) -> None:
        """Start all and return when all are done; outcomes are theirs.

        Others that run go on meanwhile; those that end are given by the next :meth:`step`.
        """
        others: list[Exchange] = []
        try:
            for exchange in exchanges:
                self.add(exchange)
            while not all(exchange.done for exchange in exchanges):
                others += (e for e in self.step() if e not in exchanges)
        finally:
            self._kept += others
            if not self._live:
                self._collect_again()

    def watch(self, fd: int) -> None:
        """End a step when ``fd`` can be read, until :meth:`ignore`. Whoever watches reads it."""
        self._selector.add(fd)

    def ignore(self, fd: int) -> None:
        """No more of :meth:`watch`."""
        self._selector.remove(fd)

    def forget(self, exchanges: Iterable[Exchange]) -> None:
        """Let go of exchanges that nobody waits for any more."""
        self._drop(exchanges)

    def add(self, exchange: Exchange) -> None:
        """Send a request and watch its connection."""
        if not self._live:
            self._next_tick = self._clock() + TICK_NS
            self._wall.look()
            self._hold_collection()
        exchange.start()
        if exchange.done:
            if not self._live:
                self._collect_again()
            return
        self._live[exchange.fd] = exchange
        unsent = exchange.connection.unsent
        self._selector.add(exchange.fd, writes=unsent)
        exchange.watched = True
        if unsent:
            self._sending.append(exchange)

    @property
    def live(self) -> int:
        """Exchanges that are not done."""
        return len(self._live)

    def deadline_ns(self) -> int | None:
        """The earliest deadline of what is running, on the loop's clock; None without one."""
        found = [at for e in self._live.values() if (at := e.deadline_ns()) is not None]
        return min(found) if found else None

    def step(self, until_ns: int | None = None) -> list[Exchange]:
        """Wait for the next thing to happen; the exchanges that ended by it, in their order.

        Args:
            until_ns: on the loop's clock; return then at the latest, to some 10 µs, unless
                what was read takes longer to parse. Without a running exchange it is waited for.
        """
        kept, self._kept = self._kept, []
        ready = self._wait(self._clock() if kept else until_ns)
        self.polls += 1
        if self._sending:
            self._send()
        if ready:
            self._read(ready)
        ended = kept if self._pressed(len(ready)) else kept + self._parse(until_ns)
        now = self._clock()
        if self._live and (now >= self._next_tick or not self._real):
            ended += self._tick(now)
        return ended

    def _send(self) -> None:
        """Long requests go on as the other side takes them: no other stream waits for that."""
        still = []
        for exchange in self._sending:
            if exchange.done or not exchange.watched:
                continue
            broken = exchange.send_rest()
            if broken:
                self._backlog.append(exchange)
            if broken or not exchange.connection.unsent:
                self._selector.sent(exchange.fd)
            else:
                still.append(exchange)
        self._sending = still

    def _read(self, ready: Sequence[tuple[int, int]]) -> None:
        """Empty the sockets, and nothing else that can wait."""
        turn, live, backlog, total, reads = Turn(), self._live, self._backlog, 0, 0
        for fd, _ in ready:
            exchange = live.get(fd)
            if exchange is None:
                continue  # watched
            got = exchange.receive(turn)
            if got < 0:
                continue
            backlog.append(exchange)
            reads += 1
            total += got
            if not got:
                self._selector.remove(fd)  # it would be ready for ever
                exchange.watched = False
        turn.ahead_ns = self._wall.look()
        self.bytes_read += total
        self.waiting += total + READ_COST * reads

    def _pressed(self, ready: int) -> bool:
        """True when the sockets should be looked at again before anything is parsed."""
        if ready <= _FEW or ready * _SHARE <= len(self._live) or not self._real:
            self._rounds = 0
            return False
        self._rounds += 1
        return self._rounds % _ROUNDS != 0 and self.waiting <= _MOST_WAITING

    def _parse(self, until_ns: int | None) -> list[Exchange]:
        """Parse a while. What is left waits: a socket that is not read loses stamps."""
        backlog, clock = self._backlog, self._clock
        now = clock()
        until = now + _PARSE_NS
        if until_ns is not None and until_ns > now:
            until = min(until, until_ns)
        ended: list[Exchange] = []
        while backlog:
            exchange = backlog.popleft()
            self.waiting -= exchange.parse_next()
            if exchange.done:
                ended.append(exchange)
            if self.waiting <= _MOST_WAITING and self._real and clock() >= until:
                break
        if not backlog:
            self.waiting = 0  # what ended may have been read to its end elsewhere
        return self._drop(ended) if ended else ended

    def _drop(self, ended: Iterable[Exchange]) -> list[Exchange]:
        """Take out what has ended; those that were not out yet, in the order given."""
        out = []
        for exchange in ended:
            if self._live.get(exchange.fd) is exchange:
                if exchange.watched:
                    self._selector.remove(exchange.fd)
                    exchange.watched = False
                out.append(self._live.pop(exchange.fd))
        if out and not self._live:
            self._collect_again()
        return out

    def _hold_collection(self) -> None:
        """No garbage collection in mid-stream: it would hold up reading, for milliseconds where a
        long run has made many objects. Nothing here makes cycles that would have to be found."""
        if self._timed:
            self._collects = gc.isenabled()
            gc.disable()

    def _collect_again(self) -> None:
        if self._collects:
            self._collects = False
            gc.enable()

    def _wait(self, until_ns: int | None) -> Sequence[tuple[int, int]]:
        """Descriptors that can be read; empty at the next tick, or at ``until_ns``."""
        if self._backlog:
            return self._selector.poll(0)
        if not self._real:
            return self._selector.poll(round(_VIRTUAL_WAIT_S * NS))
        at, spare = self._next_tick, 0
        if until_ns is not None and (not self._live or until_ns <= at):
            at, spare = until_ns, _SPIN_NS
        while True:
            left = at - self._clock()
            ready = self._selector.poll(left - spare)
            if ready or left <= 0:
                return ready

    def _tick(self, now: int) -> list[Exchange]:
        if self._real:
            while self._next_tick <= now:
                late = now - self._next_tick
                for exchange in self._live.values():
                    exchange.outcome.lag_ns.append(late)
                self._next_tick += TICK_NS
        # Of many, each tick looks at some.
        shares = 1 + len(self._live) // _CHECKED if self._real else 1
        self._share += 1
        share = self._share % shares
        checked = [e for e in self._live.values() if e.fd % shares == share]
        for exchange in checked:
            # Bytes that arrived before a deadline and were not parsed yet may have met it.
            exchange.check(now - _PATIENCE_NS if exchange.waits else now)
        return self._drop([e for e in checked if e.done])

    def pause(self, until_ns: int, cancelled: Callable[[], bool]) -> None:
        """Wait until ``until_ns``, or until cancelled."""
        while self._clock() < until_ns and not cancelled():
            time.sleep(_VIRTUAL_WAIT_S if not self._real else TICK_NS / NS)
            self.polls += 1

    def close(self) -> None:
        """Release the poller. Idempotent."""
        self._collect_again()
        self._selector.close()


class _Poller:
    """epoll where there is one, with the precision it has; else what the platform offers."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._other = None if self._epoll is not None else selectors.DefaultSelector()

    def add(self, fd: int, *, writes: bool = False) -> None:
        """Look for what can be read, and for room to write until :meth:`sent`."""
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN | (select.EPOLLOUT if writes else 0))
        elif self._other is not None:
            self._other.register(
                fd, selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
            )

    def sent(self, fd: int) -> None:
        """Look for what can be read alone."""
        if self._epoll is not None:
            self._epoll.modify(fd, select.EPOLLIN)
        elif self._other is not None:
            self._other.modify(fd, selectors.EVENT_READ)

    def remove(self, fd: int) -> None:
        if self._epoll is not None:
            self._epoll.unregister(fd)
        elif self._other is not None:
            self._other.unregister(fd)

    def poll(self, wait_ns: int) -> Sequence[tuple[int, int]]:
        """Ready descriptors and why; may come back a little early, never late by rounding."""
        if self._epoll is not None:
            if wait_ns <= 0:
                return self._epoll.poll(0)
            if wait_ns >= _MS:
                return self._epoll.poll(wait_ns // _MS / 1000)  # it knows ms only, and rounds up
            own = self._epoll.fileno()
            if own < _MOST_SELECT:
                select.select((own,), (), (), wait_ns / NS)
            return self._epoll.poll(0)
        assert self._other is not None
        return [(int(key.fd), how) for key, how in self._other.select(max(0, wait_ns) / NS)]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        elif self._other is not None:
            self._other.close()

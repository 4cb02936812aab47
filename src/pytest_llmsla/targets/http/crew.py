"""Many requests at once on one server: one thread, one loop, connections opened aside."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InternalError
from ...timeline import NS_PER_S, Timeline
from ...wire.connection import Connection
from ...wire.errors import WireError
from ...wire.exchange import Deadlines, Exchange
from ...wire.opener import AtOnce, Opener, Threads
from ...wire.pool import Pool
from ..base import Ask, Job, Recorder, Timeouts
from ..recording import answered, failed, say
from .calling import Call, scrubbed

if TYPE_CHECKING:
    from .target import HttpTarget

CANCELLED = "the run was ended while it was in flight"
_MOST_OPENING = 64
"""Connections that are opened at the same time."""


@dataclass(eq=False)
class _Flight:
    """One request between start and end."""

    blank: Timeline
    call: Call
    began_ns: int
    waits: bool = False
    """For a connection."""
    cancelled: bool = False


class HttpCrew:
    """Keeps up to ``size`` requests on their way to one server.

    While it is used, plain requests of the same target run in its loop: streams are read meanwhile.

    Args:
        target: asked by nobody else meanwhile.
        size: requests in flight at most. So many connections are opened ahead (64 at most), and
            others when one is missed.
        timeouts: of each request.
        opener: opens connections; None: threads.
    """

    mode = "http"
    hung: str | None = None
    """Never: every request ends at its deadlines."""

    def __init__(
        self, target: HttpTarget, size: int, timeouts: Timeouts, opener: Opener | None = None
    ) -> None:
        self.size = size
        self._target = target
        self._clock = target.clock
        self._loop = target.client.loop
        self._deadlines = Deadlines(timeouts.first_token_s, timeouts.idle_s, timeouts.total_s)
        self._fresh = target.spec.connect_in_ttft
        self._opener = opener or _opener(target.client.open, self._clock, size)
        self._pool = Pool(target.client, self._opener, size, kept=not self._fresh)
        if self._opener.fileno() >= 0:
            self._loop.watch(self._opener.fileno())
        self._running: dict[Exchange, _Flight] = {}
        self._waiting: deque[_Flight] = deque()
        self._later: list[tuple[int, int, _Flight]] = []
        """Those to be sent again: when, and the order of that."""
        self._ended: deque[Exchange] = deque()
        self._out: deque[Timeline] = deque()
        self._flying = 0
        self._count = 0
        self._closed = False
        self._pool.keep()

    @property
    def in_flight(self) -> int:
        """Requests started and not yet returned by :meth:`wait`."""
        return self._flying

    def prepare(self, ask: Ask) -> Ask:
        """The chat as the server's route takes it, where it has to be rendered first.

        Raises:
            WireError: the server does not render it.
        """
        self._serve()
        try:
            return self._target.rendered(ask)
        except WireError as e:
            raise scrubbed(e, self._target.spec.scrubber.scrub) from None

    def start(self, job: Job) -> None:
        """Send it now, or as soon as a connection is open; returns at once.

        Raises:
            InternalError: ``size`` requests are in flight already.
        """
        if self._flying >= self.size:
            raise InternalError(f"{self.size} requests are in flight already")
        self._flying += 1
        blank, record = job.blank, Recorder(self._clock)
        call = Call(self._target, job.ask, record, self._deadlines, lambda: blank.prompt_tokens)
        flight = _Flight(blank, call, self._clock())
        if self._fresh:
            call.since_ns = flight.began_ns
        self._send(flight)

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Those that ended; see :class:`~pytest_llmsla.targets.base.Crew`.

        One at a time, so that the next request need not wait for others' answers to be read.
        """
        while True:
            self._serve()
            if not (self._out or self._flying) and until_ns is None:
                return []
            # Sockets are read before anything else is done, however many answers wait.
            at_once = self._out or self._ended
            until = self._clock() if at_once else self._next_ns(until_ns)
            self._ended += (e for e in self._loop.step(until) if e in self._running)
            if self._ended and not self._out:
                self._end(self._ended.popleft())
            if self._out:
                self._flying -= 1
                return [self._out.popleft()]
            if until_ns is not None and self._clock() >= until_ns:
                return []

    def _next_ns(self, until_ns: int | None) -> int:
        """When there is something to do, whatever arrives."""
        found = [self._pool.next_ns]
        if until_ns is not None:
            found.append(until_ns)
        if self._later:
            found.append(self._later[0][0])
        found += (self._late_ns(f) for f in self._waiting)
        return min(found)

    # -- one request

    def _send(self, flight: _Flight) -> None:
        connection = None if self._fresh or self._waiting else self._pool.take()
        if connection is not None:
            self._begin(flight, connection)
            return
        flight.waits = True
        call = flight.call
        if call.since_ns is None:
            call.since_ns = flight.began_ns
        self._waiting.append(flight)
        self._pool.want()

    def _begin(self, flight: _Flight, connection: Connection) -> None:
        call = flight.call
        if flight.waits:
            flight.waits = False
            self._pool.served()
            if not self._fresh:
                call.waited_ns = (call.waited_ns or 0) + self._clock() - flight.began_ns
        try:
            exchange = call.attempt(connection)
        except Exception as e:  # what cannot be said in this dialect is a failed request
            self._pool.put_back(connection)
            self._fail(flight, e)
            return
        self._running[exchange] = flight
        self._loop.add(exchange)
        if exchange.done:
            self._ended.append(exchange)

    def _end(self, exchange: Exchange) -> None:
        """An attempt has ended: an answer, a failure, or another attempt."""
        flight = self._running.pop(exchange)
        call = flight.call
        try:
            again = call.ended(exchange)
            if again is None:
                self._out.append(answered(flight.blank, call.record, call.answer()))
        except Exception as e:  # whatever a server says, the next request is sent
            again = None
            self._fail(flight, e)
            e.__traceback__ = e.__context__ = None  # it holds frames that hold what holds it
        self._pool.give_back(exchange)
        if again is None:
            return
        flight.began_ns = max(again, self._clock())
        if flight.cancelled:
            self._fail(flight, WireError(CANCELLED))
        elif again <= self._clock():
            self._send(flight)
        else:
            self._count += 1
            heapq.heappush(self._later, (again, self._count, flight))

    def _fail(self, flight: _Flight, e: Exception) -> None:
        record = flight.call.record
        if record.start_ns is None:
            record.start_ns = (
                flight.began_ns if flight.call.since_ns is None else (flight.call.since_ns)
            )
            record.end_ns = self._clock()
        if isinstance(e, WireError):
            e = (
                WireError(CANCELLED)
                if flight.cancelled
                else scrubbed(e, self._target.spec.scrubber.scrub)
            )
        self._out.append(failed(flight.blank, record, say(e)))

    # -- what is due besides

    def _serve(self) -> None:
        """Connections for those that wait, attempts that are due, deadlines."""
        for one in self._pool.arrived():
            if isinstance(one, WireError):
                # Others on their way are for those that wait; this one's failure is the rest's.
                if self._pool.pending < len(self._waiting):
                    self._give_up(self._waiting.popleft(), one)
            elif self._waiting:
                self._begin(self._waiting.popleft(), self._pool.use(one))
            else:
                self._pool.add(one)
        while self._waiting and (connection := self._pool.take()) is not None:
            self._begin(self._waiting.popleft(), connection)
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            self._send(heapq.heappop(self._later)[2])
        for flight in [f for f in self._waiting if self._late_ns(f) <= now]:
            self._waiting.remove(flight)
            self._give_up(flight, WireError("timed out: no connection was open in time"))
        self._pool.keep()

    def _late_ns(self, flight: _Flight) -> int:
        """When one that waits for a connection has waited too long, by its own deadlines."""
        seconds = [s for s in (self._deadlines.first_token_s, self._deadlines.total_s) if s]
        return (flight.call.since_ns or flight.began_ns) + round(min(seconds) * NS_PER_S)

    def _give_up(self, flight: _Flight, error: WireError) -> None:
        flight.waits = False
        self._pool.served()
        self._fail(flight, error)

    def cancel(self) -> None:
        """End what is in flight as errors; :meth:`wait` returns them."""
        for flight in self._all():
            flight.cancelled = True
            flight.call.record.cancel()
        while self._waiting:
            self._give_up(self._waiting.popleft(), WireError(CANCELLED))
        for _, _, flight in self._later:
            self._fail(flight, WireError(CANCELLED))
        self._later.clear()

    def _all(self) -> Iterator[_Flight]:
        yield from self._running.values()
        yield from self._waiting
        yield from (flight for _, _, flight in self._later)

    def close(self) -> None:
        """Close every connection of the crew. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._opener.fileno() >= 0:
            self._loop.ignore(self._opener.fileno())
        self._loop.forget(list(self._running))
        for exchange in self._running:
            self._pool.give_back(exchange)
        self._running.clear()
        self._pool.close()


def _opener(open_one: Callable[[], Connection], clock: Callable[[], int], size: int) -> Opener:
    if clock is time.perf_counter_ns:
        return Threads(open_one, min(size, _MOST_OPENING))
    return AtOnce(open_one)

"""The loop gives back what it takes, whatever happens to its exchanges."""

from __future__ import annotations

import contextlib
import gc
import socket
import time

import pytest

from pytest_llmsla.wire import loop as loop_module
from pytest_llmsla.wire.connection import READ_BYTES, Connection
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.exchange import READ_COST, Deadlines, Exchange, Reader
from pytest_llmsla.wire.loop import TICK_NS, Loop
from pytest_llmsla.wire.payload import Payload
from pytest_llmsla.wire.sse import Event

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def exchange_with(
    answer: bytes | None,
    request: bytes = b"GET / HTTP/1.1\r\n\r\n",
    reader: Reader | None = None,
    total_s: float = 30,
) -> tuple[Exchange, socket.socket]:
    """A plain request on loopback, answered already; None: its connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    connection = Connection(ours, time.perf_counter_ns, kernel=True)
    if answer is None:
        connection.close()
    exchange = Exchange(connection, Payload(request), Deadlines(total_s=total_s), reader=reader)
    return exchange, theirs


def answered(loop: Loop, answer: bytes | None) -> Exchange:
    """Run one exchange that the other side answers once it was sent."""
    exchange, theirs = exchange_with(answer)
    loop.add(exchange)
    if answer is not None:
        assert not gc.isenabled()
        theirs.sendall(answer)
    while loop.live:
        loop.step()
    exchange.connection.close()
    theirs.close()
    return exchange


@pytest.mark.parametrize("answer", [ANSWER, b"nonsense\r\n\r\n", None])
def test_garbage_is_collected_again_after_the_last_exchange(answer: bytes | None) -> None:
    """Collection waits while something streams, and only then: after success and failure."""
    assert gc.isenabled()
    loop = Loop()
    exchange = answered(loop, answer)
    assert exchange.done
    assert (exchange.outcome.error is None) is (answer is ANSWER)
    assert gc.isenabled()
    loop.close()


def test_a_collector_that_was_off_stays_off() -> None:
    """Whoever switched it off has a reason."""
    gc.disable()
    try:
        loop = Loop()
        answered(loop, ANSWER)
        loop.close()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_answer_is_whole_only_at_its_end() -> None:
    """A reset in mid-body is an error, and ends the exchange."""
    exchange, theirs = exchange_with(b"")
    loop = Loop()
    loop.add(exchange)
    theirs.sendall(ANSWER[:-1])
    theirs.close()
    while loop.live:
        loop.step()
    assert isinstance(exchange.outcome.error, WireError)
    exchange.connection.close()
    loop.close()


@pytest.mark.parametrize("ahead_ns", [-1_000_000, 0, 300_000, 1_700_000, 12_300_000])
@pytest.mark.parametrize("busy", [False, True])
def test_a_step_with_a_limit_is_not_back_before_it(ahead_ns: int, busy: bool) -> None:
    """Nothing happens: one step lasts until the limit, or to the loop's own next look at deadlines
    where something runs."""
    loop = Loop()
    exchange, theirs = exchange_with(b"")
    if busy:
        loop.add(exchange)
    until = time.perf_counter_ns() + ahead_ns
    steps = 0
    while True:
        assert loop.step(until) == []
        steps += 1
        if time.perf_counter_ns() >= until:
            break
    assert steps <= 1 + busy * (1 + ahead_ns // TICK_NS)
    exchange.connection.close()
    theirs.close()
    loop.close()


def test_what_arrives_ends_a_step_with_a_limit() -> None:
    """The limit is the latest moment, not the moment."""
    loop = Loop()
    exchange, theirs = exchange_with(b"")
    loop.add(exchange)
    theirs.sendall(ANSWER)
    until = time.perf_counter_ns() + 60 * 1_000_000_000
    ended: list[Exchange] = []
    while not ended:
        ended = loop.step(until)
    assert ended == [exchange]
    assert time.perf_counter_ns() < until
    exchange.connection.close()
    theirs.close()
    loop.close()


def test_exchanges_come_back_in_the_order_in_which_they_ended() -> None:
    """And each of them once, however many reads its answer took."""
    loop = Loop()
    pairs = [exchange_with(b"") for _ in range(5)]
    for exchange, _ in pairs:
        loop.add(exchange)
    order = [3, 0, 4, 1, 2]
    ended: list[Exchange] = []
    for i in order:
        pairs[i][1].sendall(ANSWER[:-1])
    for i in order:
        pairs[i][1].sendall(ANSWER[-1:])
        while len(ended) <= order.index(i):
            ended += loop.step()
    assert ended == [pairs[i][0] for i in order]
    for exchange, theirs in pairs:
        exchange.connection.close()
        theirs.close()
    loop.close()


LONG = b"POST / HTTP/1.1\r\n\r\n" + b"x" * 24_000_000  # more than any buffer takes


def test_a_request_that_is_not_taken_keeps_no_other_waiting() -> None:
    """It goes on as the server takes it, and is whole at last."""
    loop = Loop()
    slow, taker = exchange_with(b"", LONG)
    loop.add(slow)
    assert slow.connection.unsent
    quick, answerer = exchange_with(b"")
    loop.add(quick)
    answerer.sendall(ANSWER)
    ended: list[Exchange] = []
    while not ended:
        ended = loop.step()
    assert ended == [quick]
    assert slow.connection.unsent
    taker.setblocking(False)
    taken = bytearray()
    while len(taken) < len(LONG):
        with contextlib.suppress(BlockingIOError):
            taken += taker.recv(1 << 20)
        loop.step(0)
    assert taken == LONG
    taker.sendall(ANSWER)
    while loop.live:
        loop.step()
    assert slow.outcome.error is None
    assert slow.settle()
    for end in (slow.connection, quick.connection, taker, answerer, loop):
        end.close()


def test_an_answer_before_the_whole_request_ends_it_and_the_connection() -> None:
    """Such as a refusal of its length: the rest of it would be taken for another request."""
    loop = Loop()
    exchange, theirs = exchange_with(b"", LONG)
    loop.add(exchange)
    theirs.sendall(ANSWER)
    while loop.live:
        loop.step()
    assert exchange.outcome.error is None
    assert not exchange.settle()
    for end in (exchange.connection, theirs, loop):
        end.close()


def test_a_connection_that_breaks_while_sending_is_an_error() -> None:
    """And nothing waits for the rest."""
    loop = Loop()
    exchange, theirs = exchange_with(b"", LONG)
    loop.add(exchange)
    theirs.close()
    while loop.live:
        loop.step()
    assert isinstance(exchange.outcome.error, WireError)
    exchange.connection.close()
    loop.close()


def test_what_is_forgotten_while_it_is_sent_is_let_alone() -> None:
    """Its connection may be closed by then."""
    loop = Loop()
    exchange, theirs = exchange_with(b"", LONG)
    loop.add(exchange)
    loop.forget([exchange])
    exchange.connection.close()
    assert loop.step(0) == []
    assert not loop.live
    theirs.close()
    loop.close()


class _Comments:
    """A reader that gets no events."""

    begun = complete = False

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        return False

    def event(self, event: Event) -> bool:
        raise AssertionError("a comment is no event")

    def ended(self, left_over: bytes) -> None: ...


def test_a_flood_on_many_streams_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where parsing falls behind, reading waits for it; all is parsed at last."""
    most = 300_000
    monkeypatch.setattr(loop_module, "_MOST_WAITING", most)
    loop = Loop()
    pairs = [exchange_with(b"", reader=_Comments()) for _ in range(10)]
    for exchange, theirs in pairs:
        loop.add(exchange)
        assert theirs.recv(1000)
        theirs.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        theirs.setblocking(False)
    highest = 0
    for _ in range(20):
        for _, theirs in pairs:
            with contextlib.suppress(BlockingIOError):
                theirs.send(b":\n\n" * 20_000)
        loop.step(0)
        highest = max(highest, loop.waiting)
    assert loop.bytes_read > 4 * most
    assert highest <= most + 10 * (READ_BYTES + READ_COST)
    for _, theirs in pairs:
        theirs.close()
    while loop.live:
        loop.step()
    assert {str(exchange.outcome.error) for exchange, _ in pairs} == {"None"}
    assert loop.waiting == 0
    for exchange, _ in pairs:
        exchange.connection.close()
    loop.close()


def test_deadlines_of_many_are_kept() -> None:
    """A hundred that are never answered: each ends by its deadline, and not before it."""
    loop = Loop()
    pairs = []
    for _ in range(100):
        exchange, theirs = exchange_with(b"", total_s=0.05)
        loop.add(exchange)
        pairs.append((exchange, theirs))
    ended: list[Exchange] = []
    while loop.live:
        ended += loop.step()
    assert set(ended) == {exchange for exchange, _ in pairs}
    for exchange, theirs in pairs:
        outcome = exchange.outcome
        assert "timed out" in str(outcome.error)
        assert outcome.end_ns - outcome.start_ns >= 50_000_000
        exchange.connection.close()
        theirs.close()
    loop.close()

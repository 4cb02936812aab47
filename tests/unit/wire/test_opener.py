"""Connections opened aside are handed over, whatever became of them."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.wire.connection import Connection
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.exchange import Deadlines, Exchange
from pytest_llmsla.wire.opener import AtOnce, Opened, Opener, Threads
from pytest_llmsla.wire.pool import Pool

GUARD_S = 20.0
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


@pytest.fixture
def client(listening: socket.socket) -> Iterator[Client]:
    made = Client(Address.parse(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    yield made
    made.close()


def taken(opener: Opener, count: int) -> list[Opened]:
    """So many, waited for on the opener's descriptor."""
    out: list[Opened] = []
    while len(out) < count:
        ready, _, _ = select.select([opener.fileno()], [], [], GUARD_S)
        assert ready, "nothing was opened"
        out += opener.take()
    return out


def test_threads_open_what_is_asked_for(client: Client) -> None:
    """More than it has threads: all come, the descriptor tells, and is quiet then."""
    opener = Threads(client.open, most=3)
    opener.ask(5)
    opener.ask()
    assert opener.pending == 6
    opened = taken(opener, 6)
    assert all(isinstance(one, Connection) for one in opened)
    assert opener.pending == 0
    assert opener.take() == []
    assert select.select([opener.fileno()], [], [], 0)[0] == []
    for one in opened:
        assert isinstance(one, Connection)
        assert one.alive()
        one.close()
    opener.close()
    opener.close()


@pytest.mark.parametrize("fault", [WireError("no"), OSError("too many"), ValueError("odd")])
def test_a_failure_is_handed_over_like_a_connection(fault: Exception) -> None:
    """Whatever opening raises, whoever waits hears of it."""

    def broken() -> Connection:
        raise fault

    opener = Threads(broken, most=2)
    opener.ask(2)
    for one in taken(opener, 2):
        assert isinstance(one, WireError)
        assert str(fault) in str(one)
    opener.close()


def test_what_is_open_and_was_not_taken_is_closed(client: Client, listening: socket.socket) -> None:
    """Also one that is opened only after the end: the server sees every connection end."""
    opener = Threads(client.open, most=2)
    opener.ask(2)
    accepted = [listening.accept()[0] for _ in range(2)]
    opener.close()
    for theirs in accepted:
        theirs.settimeout(GUARD_S)
        assert theirs.recv(1) == b""
        theirs.close()


def ended(
    client: Client, listening: socket.socket, connection: Connection, last: bytes
) -> Exchange:
    """An answer on ``connection``, of which ``last`` is the end."""
    payload = client.payload("GET", "x")
    exchange = Exchange(connection, payload, Deadlines(total_s=GUARD_S))
    theirs, _ = listening.accept()
    client.loop.add(exchange)
    theirs.sendall(last)
    while not exchange.done:
        client.loop.step()
    accepted.append(theirs)
    return exchange


accepted: list[socket.socket] = []


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while accepted:
        accepted.pop().close()


def first_of(pool: Pool) -> Connection:
    """One that was opened."""
    found = pool.take()
    assert found is not None
    return found


def filled(client: Client, size: int) -> Pool:
    """A pool with its first connections."""
    pool = Pool(client, AtOnce(client.open), size)
    pool.keep()
    for one in pool.arrived():
        assert isinstance(one, Connection)
        pool.add(one)
    return pool


@pytest.mark.parametrize(("size", "first"), [(1, 2), (4, 4), (40, 40)])
def test_a_pool_begins_with_as_many_as_may_be_in_flight(
    size: int, first: int, client: Client
) -> None:
    """And with one to spare where that is one."""
    pool = filled(client, size)
    assert pool.idle == first
    assert client.connections == first
    pool.close()
    assert pool.idle == 0


def test_a_connection_that_carried_an_answer_is_used_again(
    client: Client, listening: socket.socket
) -> None:
    """Oldest first: those opened ahead, then the one that came back."""
    pool = filled(client, 2)
    one, other = first_of(pool), first_of(pool)
    assert pool.take() is None
    exchange = ended(client, listening, one, ANSWER)
    pool.give_back(exchange)
    assert pool.take() is one
    one.close()
    other.close()
    pool.close()


def test_a_connection_that_the_server_is_about_to_close_is_not(
    client: Client, listening: socket.socket
) -> None:
    """The answer said so."""
    pool = filled(client, 2)
    one, other = first_of(pool), first_of(pool)
    closing = ANSWER.replace(b"content", b"connection: close\r\ncontent")
    pool.give_back(ended(client, listening, one, closing))
    assert pool.take() is None
    assert one.fileno() == -1
    other.close()
    pool.close()


def test_a_step_ends_when_something_was_opened(client: Client) -> None:
    """The loop that waits for nothing else is woken."""
    opener = Threads(client.open, most=1)
    client.loop.watch(opener.fileno())
    until = time.perf_counter_ns() + 60_000_000_000
    opener.ask()
    client.loop.step(until)
    assert time.perf_counter_ns() < until
    for one in taken(opener, 1):
        assert isinstance(one, Connection)
        one.close()
    client.loop.ignore(opener.fileno())
    opener.close()


def test_a_plain_request_runs_beside_others(client: Client, listening: socket.socket) -> None:
    """Those that end meanwhile are given by the next step, once; those that do not go on."""
    exchanges, theirs = [], []
    for _ in range(3):
        payload = client.payload("GET", "x")
        exchanges.append(Exchange(client.open(), payload, Deadlines(total_s=GUARD_S)))
        theirs.append(listening.accept()[0])
        client.loop.add(exchanges[-1])
    theirs[0].sendall(ANSWER)

    class AnsweredAtOnce(Exchange):
        def start(self) -> None:
            super().start()
            theirs[3].sendall(ANSWER)

    asked = AnsweredAtOnce(client.open(), client.payload("GET", "y"), Deadlines(total_s=GUARD_S))
    theirs.append(listening.accept()[0])
    client.loop.run([asked])
    assert asked.outcome.body == b"ok"
    found: list[Exchange] = []
    while not found:
        found += client.loop.step()
    assert found == exchanges[:1]
    theirs[2].sendall(ANSWER)
    while len(found) < 2:
        found += client.loop.step()
    assert found == [exchanges[0], exchanges[2]]
    assert client.loop.live == 1
    client.loop.forget(exchanges)
    assert client.loop.live == 0
    assert client.loop.step(time.perf_counter_ns()) == []
    for exchange in [*exchanges, asked]:
        exchange.connection.close()
    accepted.extend(theirs)

"""Bytes that a server sends before it is asked are never taken for an answer."""

from __future__ import annotations

import select
import socket
import time

import pytest

from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.wire.connection import Connection
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.payload import Payload

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def opened(address: Address) -> Connection:
    return Connection.open(address, clock=time.perf_counter_ns, timeout_s=10)


def test_what_came_before_the_request_is_no_answer_to_it() -> None:
    """On a connection that was just opened: an answer that is there already has no TTFT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = opened(Address("http", *server.getsockname()))
        there, _ = server.accept()
        with there:
            there.sendall(ANSWER)
            assert select.select([connection], [], [], 10)[0]
            with pytest.raises(WireError, match="before it was asked"):
                connection.send(Payload(b"GET / HTTP/1.1\r\n\r\n"))
            connection.close()


def test_a_kept_connection_on_which_something_came_is_not_taken() -> None:
    """Between two requests: the next one opens a connection of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client(Address("http", *server.getsockname()))
        kept = client.take()
        there, _ = server.accept()
        with there:
            client.warm(kept)
            there.sendall(ANSWER)
            assert select.select([kept], [], [], 10)[0]
            taken = client.take()
            assert taken is not kept
            taken.close()
        client.close()

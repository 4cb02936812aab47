"""When bytes arrived: kernel stamps turned into monotonic times, or not believed."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from pytest_llmsla.wire import stamps
from pytest_llmsla.wire.connection import Connection
from pytest_llmsla.wire.dial import Proxy, tls_context
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.payload import Payload
from pytest_llmsla.wire.secret import Scrubber, Secret

NS = 1_000_000_000


def ancillary(at_ns: int) -> list[tuple[int, int, bytes]]:
    """What the kernel adds to a read, for a stamp of CLOCK_REALTIME."""
    data = struct.pack("@qq", at_ns // NS, at_ns % NS)
    return [(socket.SOL_SOCKET, stamps._SO_TIMESTAMPNS, data)]


def test_a_kernel_stamp_is_as_long_ago_on_either_clock() -> None:
    """Data that came 3 ms ago by the wall clock came 3 ms ago."""
    stamper, wall = stamps.Stamper(), stamps.Wall()
    before, kernel = time.perf_counter_ns(), time.time_ns() - 3_000_000
    at = time.perf_counter_ns()
    stamp = stamps.realtime_ns(ancillary(kernel))
    t_ns, said = stamper.stamp(stamp, at, 0, stamps.Turn(wall.look()))
    assert said == "kernel"
    assert before - 3_020_000 <= t_ns <= at - 2_980_000


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_stamp_that_cannot_be_is_not_believed(hours: int) -> None:
    """Before the data can have come, or in the future: our own reading stands."""
    stamper, turn = stamps.Stamper(), stamps.Turn(stamps.Wall().look())
    not_before = time.perf_counter_ns()
    at = not_before + 10
    kernel = time.time_ns() + hours * 3600 * NS
    assert stamper.stamp(kernel, at, not_before, turn) == (at, "user")
    assert stamper.disbelieved == 1


@pytest.mark.parametrize("moved_ns", [-20_000_000, 20_000_000])
def test_a_wall_clock_that_was_set_is_seen_by_the_next_look(
    moved_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by less than the silence before the data, where no bound would show it."""
    wall = stamps.Wall()
    real = time.time_ns
    first = wall.look()
    assert first is not None
    monkeypatch.setattr(time, "time_ns", lambda: real() + moved_ns)
    assert wall.look() is None
    stamper = stamps.Stamper()
    at = time.perf_counter_ns()
    assert stamper.stamp(real(), at, 0, stamps.Turn(None)) == (at, "user")
    again = wall.look()
    assert again is not None
    assert abs(again - first - moved_ns) < 50_000


def test_without_a_stamp_the_read_itself_is_the_time() -> None:
    """Other platforms and Unix sockets."""
    assert stamps.Stamper().stamp(stamps.realtime_ns([]), 42, 0, stamps.Turn()) == (42, "user")


def test_a_stamp_never_runs_back() -> None:
    """Within the slack of the two clocks, not before what was seen before."""
    at = NS + 9
    assert stamps.Stamper().stamp(NS - 20_000, at, NS, stamps.Turn(0)) == (NS, "kernel")
    assert stamps.Stamper().stamp(NS - 60_000, at, NS, stamps.Turn(0)) == (at, "user")


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection of ours and the other end, on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        connection = Connection(ours, time.perf_counter_ns, kernel=True)
        ours.setblocking(False)
        yield connection, theirs
        connection.close()
        theirs.close()


@pytest.mark.skipif(sys.platform != "linux", reason="kernel stamps are Linux's")
def test_linux_stamps_what_tcp_receives(pair: tuple[Connection, socket.socket]) -> None:
    """However late it is read: the stamp lies between sending and reading."""
    connection, theirs = pair
    # The first socket that wants stamps has them a little later: the kernel turns them on aside.
    for _ in range(50_000):
        before = time.perf_counter_ns()
        theirs.sendall(b"data")
        got = None
        while got is None:
            got = connection.read()
        assert got.data == b"data"
        if got.stamp == "kernel":
            break
    assert got.stamp == "kernel"
    assert before - 50_000 <= got.t_ns <= time.perf_counter_ns()


def test_nothing_there_is_none_and_the_end_is_empty(
    pair: tuple[Connection, socket.socket],
) -> None:
    """And an idle connection is alive until the other side closes it."""
    connection, theirs = pair
    assert connection.read() is None
    assert connection.alive()
    theirs.close()
    got = None
    while got is None:
        got = connection.read()
    assert got.data == b""
    assert not connection.alive()


def test_data_on_an_idle_connection_makes_it_unusable(
    pair: tuple[Connection, socket.socket],
) -> None:
    """It would be taken for the next answer."""
    connection, theirs = pair
    theirs.sendall(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    while connection.alive():
        pass
    assert connection.bytes_read == 32


def test_what_is_sent_and_who_sends_it_is_not_shown() -> None:
    """A traceback shows the variables of every frame."""
    secret = Secret("sk-hidden-value")
    assert "hidden" not in f"{secret!r} {secret} {[secret]}"
    assert "hidden" not in repr(Payload(b"Authorization: Bearer sk-hidden-value"))
    assert "hidden" not in repr(Proxy.parse("http://me:sk-hidden-value@proxy:3128"))
    assert secret == Secret("sk-hidden-value")
    with pytest.raises(TypeError, match="not written"):
        secret.__reduce__()


def test_a_secret_is_known_again_in_any_case() -> None:
    """Servers echo what they got, some in lower case."""
    scrub = Scrubber([Secret("sk-Hidden(1)"), Secret("abc")]).scrub
    assert scrub("bad key SK-HIDDEN(1), abc") == "bad key ***, abc"


def test_a_ca_file_that_is_none_is_refused() -> None:
    """Before anything is asked."""
    from pytest_llmsla.errors import UsageError

    with pytest.raises(UsageError, match="CA file"):
        tls_context("/no/such/file.pem")


def test_sending_on_a_closed_connection_says_so(pair: tuple[Connection, socket.socket]) -> None:
    """As a failed request."""
    connection, _ = pair
    connection.close()
    with pytest.raises(WireError, match="broke while sending"):
        connection.send(Payload(b"x"))

"""Many requests at once on one server: every stamp exact, every failure its own request's."""

from __future__ import annotations

import gc
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from pytest_llmsla.errors import InternalError
from pytest_llmsla.targets.base import Ask, Job, Timeouts
from pytest_llmsla.targets.http.calling import WAITED
from pytest_llmsla.targets.http.crew import CANCELLED
from pytest_llmsla.timeline import NS_PER_MS, Timeline
from pytest_llmsla.wire.errors import WireError
from streams.crews import CASE, Crewed, blank, crewed, name_of, streamed
from streams.heard import Request, document
from streams.proxy import Proxy
from streams.samples import KEY, refusal
from streams.script import Answer, Wire, answer
from streams.server import Clock, Server

EIGHT = {f"r{n}": streamed(100 + 7 * n, *[10 + n] * 5) for n in range(8)}


def assert_exact(t: Timeline, n: int) -> None:
    """The times of the script of ``EIGHT``."""
    assert (t.status, t.error) == ("ok", None)
    assert t.ttft_ms == 100 + 7 * n
    assert t.itl_ms() == [10 + n] * 5


def started_ms(c: Crewed, t: Timeline) -> float:
    return (t.start_ns - c.began) / NS_PER_MS


# -- many at once


def test_eight_streams_at_once_are_stamped_exactly() -> None:
    """Interleaved tokens of eight streams: each keeps its own times, and they come in the order
    in which they ended."""
    with crewed(EIGHT, 8) as c:
        for name in EIGHT:
            c.start(name)
        assert c.crew.in_flight == 8
        found = c.rest()
    for n in range(8):
        assert_exact(found[f"r{n}"], n)
        assert found[f"r{n}"].notes == ()
        assert found[f"r{n}"].token_source == "usage_final"
    ends = [t.end_ns for t in c.ended]
    assert ends == sorted(ends)
    assert [t.id for t in c.ended] == list(EIGHT)


def test_starts_while_others_stream_are_exact() -> None:
    """A request that is started in mid-stream of others begins then, and disturbs none."""
    with crewed(EIGHT, 8) as c:
        for n in range(8):
            c.at_ms(13 * n)
            c.start(f"r{n}", concurrency=4, block=4, unit=2, scheduled_ns=c.began)
        found = c.rest()
        for n in range(8):
            t = found[f"r{n}"]
            assert started_ms(c, t) == 13 * n
            assert t.itl_ms() == [10 + n] * 5
            assert t.arrivals[0][0] - t.start_ns == (100 + 7 * n) * NS_PER_MS
            assert t.ttft_ms == 100 + 20 * n  # from the scheduled time
            assert (t.concurrency, t.block, t.unit, t.bucket) == (4, 4, 2, "all")


def test_a_closed_loop_keeps_its_connections() -> None:
    """Four in flight, twelve requests: no more connections than are in flight and two to spare."""
    with crewed(lambda _: streamed(100, 20), 4) as c:
        for n in range(12):
            while c.crew.in_flight == 4:
                c.ended += c.crew.wait()
            c.start(f"r{n}")
        found = c.rest()
        assert [t.ttft_ms for t in found.values()] == [100] * 12
        assert [t.notes for t in found.values()] == [()] * 12
        assert c.target.client.connections <= 6


def test_waiting_ends_at_its_moment() -> None:
    """With something in flight and without: the clock shows the moment, and nothing is lost."""
    with crewed(EIGHT, 8) as c:
        assert c.crew.wait(c.began + 5 * NS_PER_MS) == []
        assert c.clock.now == c.began + 5 * NS_PER_MS
        c.start("r0")
        assert c.crew.wait(c.began + 50 * NS_PER_MS) == []
        assert c.clock.now == c.began + 50 * NS_PER_MS
        assert c.crew.wait(0) == []
        assert_exact(c.rest()["r0"], 0)


def test_no_more_than_its_size() -> None:
    """One too many is a fault of the caller, and sends nothing."""
    with crewed(EIGHT, 2) as c:
        c.start("r0")
        c.start("r1")
        with pytest.raises(InternalError, match="2 requests"):
            c.start("r2")
        c.rest()
        assert len(c.server.posts) == 2


# -- connections


@pytest.mark.parametrize(("included", "ttft"), [(True, 250), (False, 100)])
def test_connecting_is_in_ttft_or_not_as_said(included: bool, ttft: float) -> None:
    """150 ms to open a connection, 100 to the first token, four at once: connections are opened
    side by side, and one that is not to be timed is opened before."""
    with crewed(lambda _: streamed(100, 20), 4, connect_ms=150, connect_in_ttft=included) as c:
        c.at_ms(200)
        for n in range(10):
            while c.crew.in_flight == 4:
                c.ended += c.crew.wait()
            c.start(f"r{n}")
        found = list(c.rest().values())
    assert [t.ttft_ms for t in found] == [ttft] * 10
    assert [t.notes for t in found] == [()] * 10
    connect = [t.stages.get("connect") for t in found]
    assert connect.count(150 * NS_PER_MS) >= (10 if included else 4)
    assert set(connect) <= {150 * NS_PER_MS, None}


def test_waiting_for_a_connection_is_in_ttft_and_said() -> None:
    """None is open yet: the clock runs from when it should have been sent, the note says why."""
    with crewed(lambda _: streamed(100, 20), 4, connect_ms=150) as c:
        c.at_ms(30)  # they will be there at 150
        for n in range(4):
            c.start(f"r{n}")
        found = c.rest()
    for t in found.values():
        assert (started_ms(c, t), t.ttft_ms) == (30, 220)
        assert t.stages["connect"] == 150 * NS_PER_MS
        assert t.notes == (f"{WAITED} for 120.0 ms, which is in TTFT",)


@pytest.mark.parametrize(
    "wire",
    [Wire("close"), Wire("chunked", extra_headers={"connection": "close"})],
    ids=["until close", "connection: close"],
)
def test_a_server_that_closes_after_every_answer(wire: Wire) -> None:
    """Connections are opened ahead of need: no request waits, none fails, none is sent twice."""
    with crewed(lambda _: streamed(100, 20, wire=wire), 4) as c:
        c.target.client.reuses = False  # as learnt when it was loaded
        for n in range(16):
            while c.crew.in_flight == 4:
                c.ended += c.crew.wait()
            c.start(f"r{n}")
        found = c.rest()
        assert [(t.status, t.ttft_ms) for t in found.values()] == [("ok", 100)] * 16
        assert [t.notes for t in found.values()] == [()] * 16
        assert len(c.server.posts) == 16


def test_a_connection_closed_while_idle_is_not_used() -> None:
    """The server closes its connections between two waves: never an error, and not in TTFT."""
    wire = Wire("chunked")
    shut = answer(
        {
            "status": 200,
            "events": [
                [100, {"delta": {"content": "a"}, "finish": "stop"}],
                [100, {"json": {"choices": [], "usage": {"completion_tokens": 1}}}],
                [100, {"done": True}],
                [101, {"close": "reset"}],
            ],
        },
        wire,
    )
    with crewed(lambda _: shut, 4) as c:
        for wave in range(3):
            for n in range(4):
                c.start(f"w{wave}r{n}")
            c.rest()
            c.at_ms(200 * (wave + 1))
        found = c.rest()
    assert [(t.status, t.ttft_ms) for t in found.values()] == [("ok", 100)] * 12


def test_an_idle_connection_is_replaced_before_it_is_old() -> None:
    """Whenever a request comes after a pause, it finds a connection that is fresh: a new one is
    there before an old one is given up."""
    with crewed(lambda _: streamed(10, 5), 4, connect_ms=50) as c:
        at = 60.0
        for n in range(40):
            at += 800 + 7 * n
            c.at_ms(at)
            c.start(f"r{n}")
        found = c.rest()
    assert {(t.status, t.ttft_ms, t.notes) for t in found.values()} == {("ok", 10, ())}


@pytest.mark.parametrize("included", [True, False])
def test_nobody_listens(included: bool) -> None:
    """Connection refused is the result of each request, with the address in it."""
    with Server(Clock()) as gone:
        url = f"http://127.0.0.1:{gone.port}/v1"
    with crewed(EIGHT, 4, url=url, connect_in_ttft=included) as c:
        for n in range(4):
            c.start(f"r{n}")
        found = c.rest()
    assert len(found) == 4
    for t in found.values():
        assert t.status == "error"
        assert "cannot connect" in str(t.error)
        assert url.removesuffix("/v1") in str(t.error)


def test_a_connection_that_never_opens_ends_at_the_deadline() -> None:
    """It waits for a connection as long as for a first token, and no longer."""
    with crewed(EIGHT, 2, connect_ms=1e7, timeouts=Timeouts(3, 3, 9)) as c:
        c.start("r0")
        t = c.rest()["r0"]
    assert (t.status, t.end_ns - t.start_ns) == ("error", 3_000 * NS_PER_MS)
    assert "timed out: no connection" in str(t.error)


# -- failures are each request's own


@pytest.mark.parametrize("end", ["reset", "eof", "cut"])
def test_one_of_eight_breaks_off(end: str) -> None:
    """A connection reset or closed in mid-answer: that request fails, the others are exact."""
    broken = streamed(100, 10, 10, end=end)
    with crewed({**EIGHT, "r3": broken}, 8) as c:
        for name in EIGHT:
            c.start(name)
        found = c.rest()
    for n in range(8):
        if n != 3:
            assert_exact(found[f"r{n}"], n)
    t = found["r3"]
    assert t.status == "error"
    assert len(t.arrivals) == 3
    assert (t.start_ns, t.end_ns) == (c.began, c.began + 120 * NS_PER_MS)


def test_a_silent_one_ends_at_its_deadline_and_the_others_go_on() -> None:
    """No first token within 2 s: an error at that very moment, on a connection of its own."""
    slow = streamed(10_000)
    with crewed({**EIGHT, "r3": slow}, 8, timeouts=Timeouts(2, 2, 60)) as c:
        for name in EIGHT:
            c.start(name)
        found = c.rest()
    t = found.pop("r3")
    assert t.status == "error"
    assert "no first token after 2 s" in str(t.error)
    assert (t.end_ns - t.start_ns) / NS_PER_MS == 2000
    assert all(t.ok for t in found.values())


def test_what_cannot_be_asked_is_a_failed_request() -> None:
    """A sampling key that the dialect does not know: nothing is sent, nothing is raised."""
    with crewed(EIGHT, 8) as c:
        c.start("r0")
        c.start("r1", sampling={"no_such_key": 1})
        found = c.rest()
        assert_exact(found["r0"], 0)
        assert found["r1"].status == "error"
        assert "no_such_key" in str(found["r1"].error)
        assert len(c.server.posts) == 1


def test_a_key_that_the_server_echoes_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent, and occurs in no part of any record."""
    monkeypatch.setenv("STREAMS_KEY", KEY)
    no = answer(refusal(401, {"error": {"message": f"Incorrect API key: {KEY}"}}), Wire())
    with crewed(lambda _: no, 4, api_key_env="STREAMS_KEY") as c:
        for n in range(4):
            c.start(f"r{n}")
        found = c.rest()
        assert c.server.posts[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(found)
    assert all("***" in str(t.error) for t in found.values())


def test_a_key_echoed_while_a_chat_is_rendered_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request cannot be made; why, is told without the key."""
    monkeypatch.setenv("STREAMS_KEY", KEY)
    case = {**CASE, "api": "llamacpp"}
    echo = document({"error": {"message": f"no template for {KEY}"}}, 500)
    with (
        Server(Clock(), other=lambda _: echo) as server,
        crewed({}, 4, case=case, server=server, api_key_env="STREAMS_KEY") as c,
    ):
        c.target.renders = True
        with pytest.raises(WireError, match="no template for") as raised:
            c.crew.prepare(Ask("r0", 64))
    assert KEY not in str(raised.value)


# -- retries


class Busy:
    """Of twenty, ten are refused at first, and five of them on their retry as well."""

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    def __call__(self, request: Request) -> Answer:
        name = name_of(request)
        n = int(name[1:])
        self.tries[name] = tries = self.tries.get(name, 0) + 1
        if n % 4 == 0 or (n % 4 == 2 and tries == 1):
            status = 503 if n % 8 < 4 else 429
            return answer(refusal(status, {"error": "busy"}, **{"retry-after": "1"}), Wire())
        return streamed(200, 20)


@pytest.mark.parametrize(("retries", "posts", "retried"), [(0, 20, 0), (1, 30, 5), (2, 35, 5)])
def test_a_retry_is_part_of_the_latency(retries: int, posts: int, retried: int) -> None:
    """No hidden POST; a retry waits as long as it is told, with its clock running and without
    holding up others: those are exact."""
    with crewed(Busy(), 4, retries=retries) as c:
        for n in range(20):
            while c.crew.in_flight == 4:
                c.ended += c.crew.wait()
            c.start(f"r{n}")
        found = c.rest().values()
        assert len(c.server.posts) == posts
    ok = [t for t in found if t.ok]
    assert [t.ttft_ms for t in ok if not t.retries] == [200] * 10
    assert [(t.ttft_ms, t.retries) for t in ok if t.retries] == [(1220, 1)] * retried
    assert len(found) - len(ok) == 10 - retried


def test_a_refused_option_is_left_out_by_all_that_follow() -> None:
    """Whoever hears of it first is asked again, and so is everybody already on the way."""
    detail = [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted"}]
    no = answer(refusal(422, {"detail": detail}), Wire())

    def choose(request: Request) -> Answer:
        return no if b"ignore_eos" in request.body else streamed(100, 20)

    with crewed(choose, 4) as c:
        for n in range(2):
            c.crew.start(Job(Ask(f"r{n}", 64, {}, force_length=True), blank(f"r{n}")))
        first = c.rest()
        c.crew.start(Job(Ask("r2", 64, {}, force_length=True), blank("r2")))
        later = c.rest()["r2"]
        assert len(c.server.posts) == 5
    assert all("ignore_eos" in " ".join(t.notes) for t in first.values())
    assert (later.ok, later.ttft_ms) == (True, 100)


# -- the end


def test_cancelling_ends_everything_in_flight() -> None:
    """Streaming, waiting for a connection, waiting to be asked again: all are errors that say so,
    with what arrived before."""
    no = answer(refusal(503, {"error": "busy"}, **{"retry-after": "30"}), Wire())
    answers = {"streams": streamed(100, *[10] * 500), "again": no, "waits": no}
    with crewed(answers, 3, connect_ms=50, retries=1) as c:
        c.at_ms(60)
        c.start("streams")
        c.start("again")
        assert c.opener is not None
        c.opener.ms = 1e6
        c.at_ms(2000)  # by now those that were open are too old
        c.start("waits")
        c.crew.cancel()
        found = c.rest()
    assert {t.error for t in found.values()} == {f"WireError: {CANCELLED}"}
    assert {t.status for t in found.values()} == {"error"}
    assert len(found["streams"].arrivals) == 185  # 160 ms and every 10 ms to 2 s


def test_closing_lets_go_of_everything() -> None:
    """In mid-stream: connections are closed, the loop has nothing left, garbage is collected."""
    assert gc.isenabled()
    with crewed(EIGHT, 8) as c:
        for name in EIGHT:
            c.start(name)
        c.at_ms(120)
        c.crew.close()
        assert c.target.client.loop.live == 0
        c.crew.close()
        assert gc.isenabled()


def test_nothing_is_left_for_the_garbage_collector() -> None:
    """Collection is off while anything streams, for an hour maybe: answers, refusals and broken
    connections leave nothing behind that only it could find."""
    no = answer(refusal(503, {"error": "busy"}), Wire())
    answers = {"r0": streamed(10, 5), "r1": no, "r2": streamed(10, 5, end="reset")}
    answers["r3"] = streamed(10, 5, wire=Wire("close"))
    with crewed(answers, 4) as c:
        for turn in range(3):
            if turn == 1:  # caches are filled
                gc.collect()
                gc.disable()
            for name in answers:
                c.start(name)
            c.rest()
            c.ended.clear()
        try:
            before = len(c.server.posts)
            assert before == 12
            assert gc.collect() <= 20  # of two turns, eight requests: fewer than three for each
        finally:
            gc.enable()


# -- other things to do meanwhile


def test_plain_requests_run_while_others_stream() -> None:
    """A chat that the server renders first: neither that nor counting moves anybody's stamps."""

    def choose(request: Request) -> Answer:
        return llamacpp(100, *[20] * 5)

    case = {**CASE, "api": "llamacpp"}
    with crewed(choose, 4, case=case) as c:
        c.target.learn_rendering()
        assert c.target.renders
        for n in range(4):
            c.start(f"r{n}")
            for _ in range(3):
                assert c.target.client.fetch("GET", "no-such-route").status == 404
        found = c.rest()
    for t in found.values():
        assert (t.status, t.ttft_ms, t.itl_ms()) == ("ok", 100, [20] * 5)


def llamacpp(ttft_ms: float, *gaps_ms: float) -> Answer:
    """Like ``streamed``, of the route /completion."""
    events, at = [], ttft_ms
    for n, gap in enumerate([*gaps_ms, 0]):
        told = {"content": "a", "tokens_predicted": n + 1, "tokens_evaluated": 100}
        if n == len(gaps_ms):
            told |= {"stop": True, "stop_type": "limit"}
        events.append([at, {"json": told}])
        at += gap
    return answer({"status": 200, "events": events}, Wire("chunked"))


# -- every way to a server


def test_a_unix_socket(tmp_path: Path) -> None:
    """Eight streams through a socket file."""
    path = tmp_path / "s.sock"
    with Server(Clock(), family=socket.AF_UNIX, path=path) as server:
        url = "http+unix://" + str(path).replace("/", "%2F") + "/v1"
        with crewed(EIGHT, 8, server=server, url=url) as c:
            for name in EIGHT:
                c.start(name)
            found = c.rest()
    for n in range(8):
        assert_exact(found[f"r{n}"], n)


def test_tls_and_a_proxy() -> None:
    """Eight connections with TLS through a proxy's tunnels."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with Server(Clock(), tls=context) as server, Proxy() as proxy:
        url = f"https://127.0.0.1:{server.port}/v1"
        through = f"http://127.0.0.1:{proxy.port}"
        with crewed(EIGHT, 8, server=server, url=url, verify_tls=False, proxy=through) as c:
            for name in EIGHT:
                c.start(name)
            found = c.rest()
    assert [t.status for t in found.values()] == ["ok"] * 8

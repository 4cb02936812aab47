"""The truth server sends what its plan says, and says when; its schedules are plain arithmetic."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
SHORT = {"tokens": 3, "ttft_ms": 5, "spread_ms": 0, "gap_ms": 1}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other by name, from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> Any:
    return importlib.import_module(name)


def plan(**given: Any) -> Any:
    return module("truth.schedule").Plan.of(given)


def test_tokens_fall_at_even_gaps_after_the_first() -> None:
    """The first is due ttft_ms after the arrival, the others gap_ms apart, without drift."""
    p = plan(tokens=1001, ttft_ms=100, spread_ms=0, gap_ms=0.1)
    due = p.moments(5, 7_000)
    assert due[0] == 7_000 + 100_000_000
    assert due[-1] - due[0] == 1000 * 100_000
    assert {b - a for a, b in pairwise(due)} == {100_000}


def test_requests_are_spread_by_number_alone() -> None:
    """The n-th request has the same schedule in every run, other than the next one's."""
    p = plan(tokens=2, ttft_ms=100, spread_ms=20)
    firsts = [p.moments(n, 0)[0] for n in range(200)]
    assert firsts == [p.moments(n, 0)[0] for n in range(200)]
    assert len(set(firsts)) == 200
    assert all(100e6 <= f <= 120e6 for f in firsts)
    assert min(firsts) < 103e6
    assert max(firsts) > 117e6


def test_jitter_stays_within_its_bounds() -> None:
    """Each gap is gap_ms ± jitter_ms, drawn anew."""
    due = plan(tokens=500, gap_ms=20, jitter_ms=5).moments(1, 0)
    gaps = [b - a for a, b in pairwise(due)]
    assert all(15e6 - 1 <= g <= 25e6 + 1 for g in gaps)
    assert len(set(gaps)) > 400


def test_steps_put_all_streams_on_one_grid() -> None:
    """With step, tokens of requests that came at any time fall on multiples of gap_ms."""
    p = plan(tokens=3, ttft_ms=100, gap_ms=20, step=True)
    for arrived in (0, 1, 19_999_999, 123_456_789):
        due = p.moments(arrived % 7, arrived)
        assert all(d % 20_000_000 == 0 for d in due)
        assert 0 <= due[0] - (arrived + 100_000_000) < 20_000_000
        assert due[2] - due[0] == 40_000_000


def test_only_warm_ups_are_cut_short() -> None:
    """warm_tokens is the length of answers whose key is no judged one."""
    p = plan(tokens=32, warm_tokens=8)
    assert [p.length(k) for k in ("m1", "w1", "")] == [32, 8, 8]
    assert plan(tokens=32).length("w1") == 32
    assert len(p.moments(1, 0, 8)) == 8


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tokens": 0}, "tokens"),
        ({"warm_tokens": 0}, "warm_tokens"),
        ({"jitter_ms": 21.0}, "jitter_ms"),
        ({"role_lead_ms": 101.0}, "role_lead_ms"),
        ({"spread_ms": -1.0}, "spread_ms"),
        ({"speed": 2}, "speed"),
    ],
)
def test_an_impossible_plan_is_refused(given: dict[str, Any], named: str) -> None:
    """What is wrong is named."""
    with pytest.raises(ValueError, match=named):
        plan(**given)


@pytest.fixture(params=["in C", "in Python"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A truth server in a thread of this process, with either loop."""
    room = module("truth.server")
    if request.param == "in Python":
        monkeypatch.setattr(room, "library", lambda: None)
    elif room.library() is None:
        pytest.skip("no C compiler")
    made = room.Server(0)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    ask(made, "POST", "/truth/quit")
    thread.join(10)
    assert not thread.is_alive()


def exchange(sock: socket.socket, method: str, path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nX-Request-ID: r7\r\n"
    sock.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    got = b""
    while came := sock.recv(1 << 16):
        got += came
        head_bytes, _, rest = got.partition(b"\r\n\r\n")
        if b"content-length: " in head_bytes:
            length = int(head_bytes.split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(rest) >= length:
                return got
        elif got.endswith(b"0\r\n\r\n"):
            return got
    raise AssertionError(f"the server closed the connection after {got!r:.200}")


def seen(made: Any, what: Callable[[Any], bool]) -> Any:
    """The records, as soon as they are as asked; a failure shows them after a minute."""
    until = time.monotonic() + 60
    while not what(records := ask(made, "GET", "/truth/records")["requests"]):
        assert time.monotonic() < until, [(r["key"], r["closed"], r["stalls"]) for r in records]
    return records


def ask(made: Any, method: str, path: str, body: Any = None) -> Any:
    with socket.create_connection(("127.0.0.1", made.port)) as sock:
        return json.loads(exchange(sock, method, path, body).partition(b"\r\n\r\n")[2])


def events(reply: bytes) -> list[str]:
    """The data of the events of a chunked stream."""
    rest, body = reply.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    return [e.removeprefix("data: ") for e in body.decode().split("\n\n") if e]


def chat(key: str, **options: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"key={key} one two three"}
    return {"stream": True, "messages": [message], "stream_options": options}


def test_an_answer_is_role_then_tokens_then_usage_then_the_end(server: Any) -> None:
    """One token an event, the finish reason on the last, counts that fit, one connection."""
    ask(server, "POST", "/truth/plan", SHORT)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        for n in range(2):
            reply = exchange(
                sock, "POST", "/v1/chat/completions", chat(f"m{n}", include_usage=True)
            )
            *chunks, end = events(reply)
            assert end == "[DONE]"
            role, *tokens, usage = (json.loads(c) for c in chunks)
            assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            texts = [t["choices"][0]["delta"]["content"] for t in tokens]
            assert texts == [f"key=m{n}", " on", " on"]
            assert [t["choices"][0]["finish_reason"] for t in tokens] == [None, None, "length"]
            assert usage["choices"] == []
            assert usage["usage"] == {
                "prompt_tokens": 4,
                "completion_tokens": 3,
                "total_tokens": 7,
            }
    records = ask(server, "GET", "/truth/records")["requests"]
    assert [r["reused"] for r in records] == [True, True]
    assert {c["id"] for c in (role, *tokens, usage)} == {records[1]["id"]}


def test_running_counts_are_sent_when_asked_for(server: Any) -> None:
    """continuous_usage_stats: each chunk has the tokens so far."""
    ask(server, "POST", "/truth/plan", SHORT)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        options = {"include_usage": True, "continuous_usage_stats": True}
        reply = exchange(sock, "POST", "/v1/chat/completions", chat("m0", **options))
    totals = [json.loads(e)["usage"]["completion_tokens"] for e in events(reply)[:-1]]
    assert totals == [0, 1, 2, 3, 3]


def test_records_say_when_each_token_was_sent(server: Any) -> None:
    """Never before it was due, in order, each stamp pair around its send; by key and request id."""
    ask(server, "POST", "/truth/plan", {"tokens": 4, "ttft_ms": 5, "spread_ms": 0, "gap_ms": 2})
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        exchange(sock, "POST", "/v1/chat/completions", chat("m3"))
    (record,) = ask(server, "GET", "/truth/records")["requests"]
    assert (record["key"], record["x_request_id"]) == ("m3", "r7")
    due, before, after = record["due_ns"], record["before_ns"], record["after_ns"]
    assert len(due) == len(before) == len(after) == 4
    assert due[0] - record["arrived_ns"] == 5_000_000
    assert all(b >= d for b, d in zip(before, due, strict=True))
    moments = [t for pair in zip(before, after, strict=True) for t in pair]
    assert moments == sorted(moments)
    assert (record["stalls"], record["closed"]) == (0, False)


def test_a_new_plan_forgets_the_records(server: Any) -> None:
    """Records are those of the current plan; a plan that is none changes nothing."""
    ask(server, "POST", "/truth/plan", {"tokens": 1, "ttft_ms": 1, "spread_ms": 0})
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        exchange(sock, "POST", "/v1/chat/completions", chat("m0"))
    assert "known are" in ask(server, "POST", "/truth/plan", {"x": 1})["error"]["message"]
    found = ask(server, "GET", "/truth/records")
    assert (found["plan"]["tokens"], len(found["requests"])) == (1, 1)
    ask(server, "POST", "/truth/plan", {"tokens": 2})
    assert ask(server, "GET", "/truth/records")["requests"] == []


def test_a_client_that_leaves_is_in_the_record(server: Any) -> None:
    """Its stream ends, and the server serves on."""
    ask(server, "POST", "/truth/plan", SHORT | {"tokens": 5000, "warm_tokens": 1})
    data = json.dumps(chat("m0")).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        sock.recv(100)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        exchange(sock, "POST", "/v1/chat/completions", chat("w1"))
    records = seen(server, lambda r: r[0]["closed"] or len(r[0]["before_ns"]) == 5000)
    assert [(r["key"], r["closed"]) for r in records] == [("m0", True), ("w1", False)]
    assert len(records[0]["before_ns"]) < 5000


def test_a_client_whose_end_is_seen_before_its_next_token_is_in_the_record(server: Any) -> None:
    """A stream that waits a minute for its next token: only the socket tells that it is over."""
    plan = {"tokens": 4, "ttft_ms": 1, "spread_ms": 0, "gap_ms": 60_000}
    ask(server, "POST", "/truth/plan", plan)
    data = json.dumps(chat("m0")).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        got = b""
        while b"key=m0" not in got:
            got += sock.recv(1 << 16)
    (record,) = seen(server, lambda r: bool(r and r[0]["closed"]))
    assert len(record["before_ns"]) == len(record["after_ns"]) == 1


def test_a_slow_reader_is_counted_and_its_tokens_are_late(server: Any) -> None:
    """A full buffer stalls a stream; each token's moment is then when its last byte was taken."""
    count = 40_000
    ask(server, "POST", "/truth/plan", SHORT | {"tokens": count, "gap_ms": 0})
    data = json.dumps(chat("m0")).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        found = seen(server, lambda r: bool(r and r[0]["stalls"]))
        got = bytearray()
        while not got.endswith(b"0\r\n\r\n"):
            came = sock.recv(1 << 20)
            assert came
            got += came
    assert got.count(b"delta") == count + 1
    (record,) = ask(server, "GET", "/truth/records")["requests"]
    assert len(record["after_ns"]) == count
    assert record["after_ns"] == sorted(record["after_ns"])
    stalled_at = len(found[0]["after_ns"]) - 1
    assert record["after_ns"][stalled_at] > found[0]["after_ns"][stalled_at]


def test_models_health_and_plain_answers(server: Any) -> None:
    """What tools ask before they begin; a request without a stream; an unknown route."""
    assert ask(server, "GET", "/v1/models")["data"][0]["id"] == "truth"
    assert ask(server, "GET", "/health") == {}
    whole = ask(server, "POST", "/v1/chat/completions", chat("m1") | {"stream": False})
    assert whole["choices"][0]["message"]["content"].startswith("key=m1 on")
    assert ask(server, "GET", "/none")["error"]["code"] == 404

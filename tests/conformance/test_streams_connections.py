"""Connections kept, closed and lost between requests."""

from __future__ import annotations

import pytest

from streams.runner import Ran, ask_for, target_of, url_of
from streams.samples import (
    BODY,
    CASE,
    CHUNKED,
    END,
    EVENTS,
    REQUEST,
    SOUND,
    assert_failed,
    assert_timed,
    at_once,
    chunked,
    framed,
    refusal,
    sound,
)
from streams.script import Answer, Step, Wire, answer
from streams.server import Clock, Server


def several(n: int, *given: Answer, apart: bool = False) -> tuple[list[Ran], int]:
    """``n`` requests on one target; how many connections they took."""
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        out = []
        for i in range(n):
            out.append(ask_for(target, REQUEST, server, given, name=f"r{i}"))
            if apart:
                server.wait_until_closed()
        return out, server.connections


def test_a_connection_is_kept_over_requests() -> None:
    """Five requests, one connection, the same times: nothing of one leaks into the next."""
    every, connections = several(5, sound("chunked"))
    for ran in every:
        assert_timed(ran)
    assert connections == 1
    assert ["connect" in ran.t.stages for ran in every] == [True, False, False, False, False]


CLOSED = {**SOUND, "events": [*SOUND["events"], [175, {"close": "eof"}]]}


@pytest.mark.parametrize(
    "given",
    [
        sound("close"),
        answer(CLOSED, Wire("chunked", extra_headers={"connection": "close"})),
        answer(CLOSED, Wire("chunked")),
        answer({**SOUND, "events": [*SOUND["events"], [175, {"close": "reset"}]]}, Wire("chunked")),
    ],
    ids=["until close", "connection: close", "closed while idle", "reset while idle"],
)
def test_a_connection_that_the_server_closed_is_opened_again(given: Answer) -> None:
    """Between two requests a server may close: never an error, and not part of TTFT."""
    every, connections = several(3, given, apart=True)
    for ran in every:
        assert_timed(ran)
        assert ran.posts == 1
    assert connections == 3


def test_a_failed_request_leaves_nothing_for_the_next() -> None:
    """After a cut, a malformed event or a refusal the next answer is read from its beginning."""
    broken = [
        at_once(framed(CHUNKED, body=chunked(BODY)[:150])),
        at_once(framed(CHUNKED, body=chunked(EVENTS[1], b"data: {no\n\n", *EVENTS[2:]) + END)),
        answer(refusal(503, {"error": "busy"}), Wire()),
    ]
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        for given in broken:
            assert ask_for(target, REQUEST, server, [given]).t.status == "error"
            assert_timed(ask_for(target, REQUEST, server, [sound()]))


def test_bytes_after_an_answer_never_become_part_of_the_next() -> None:
    """A second answer that nobody asked for, on a kept connection."""
    extra = framed(CHUNKED, body=chunked(BODY) + END)
    events = [*SOUND["events"], [175, {"raw": ""}]]
    first = answer({**SOUND, "events": events}, Wire("chunked"))
    sneaky = Answer((*first.steps, Step(175, extra)))
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        ask_for(target, REQUEST, server, [sneaky])
        ran = ask_for(target, REQUEST, server, [sound()])
    assert_timed(ran)


def test_nobody_listens() -> None:
    """Connection refused is the result of a request, with the address in it."""
    with Server(Clock()) as server:
        url = url_of(CASE, server)
    with Server(Clock()) as other, target_of(CASE, other, url) as target:
        other.clock = None  # nothing moves a clock when nobody is there
        ran = ask_for(target, REQUEST, other, [])
    assert_failed(ran, "connect", "refused", url.removesuffix("/v1"))

"""Refusals, retries, options that a server does not take, and keys that it echoes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest

from streams.runner import ask_for, judge, target_of, url_of
from streams.samples import CASE, KEY, REQUEST, asked, assert_sound, assert_timed, refusal, sound
from streams.script import Wire, answer
from streams.server import Clock, Server


@pytest.mark.parametrize(
    ("said", "after_ms"),
    [("0", (120, 122)), ("2", (2120, 2122)), ("soon", (1120, 1122)), ("-5", (1120, 1122)),
     ("1e9", (1120, 1122)), ("Thu, 01 Jan 1970 00:00:00 GMT", (120, 122))],
)  # fmt: skip
def test_retry_after_is_waited_for_on_the_clock_of_the_first_attempt(
    said: str, after_ms: tuple[float, float]
) -> None:
    """Seconds, or a date that has passed; anything else is a second."""
    no = answer(refusal(429, {"error": "slow down"}, **{"retry-after": said}) | _first(), Wire())
    ran = asked(no, sound(), retries=1)
    assert_sound(ran)
    assert (ran.posts, ran.t.retries) == (2, 1)
    assert after_ms[0] <= (ran.t.ttft_ms or 0) <= after_ms[1]
    assert ran.t.itl_ms() == [30, 30]


def _first() -> dict[str, Any]:
    return {"when": {"post": 1}}


def test_retry_after_may_be_a_date() -> None:
    """An HTTP date 40 s from now is waited for; the wall clock tells how long that is."""
    then = datetime.now(timezone.utc) + timedelta(seconds=40)
    when = format_datetime(then, usegmt=True)
    no = answer(refusal(503, {"error": "busy"}, **{"retry-after": when}) | _first(), Wire())
    ran = asked(no, sound(), retries=1)
    assert_sound(ran)
    assert ran.posts == 2
    assert 120 < (ran.t.ttft_ms or 0) < 40_200


def test_a_refused_option_is_left_out_and_named() -> None:
    """Asked again without it, once; what it would have told is then not known."""
    detail = [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted"}]
    no = refusal(422, {"detail": detail}) | {"when": {"body_has": "ignore_eos"}}
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        given = [answer(no, Wire()), sound()]
        ran = ask_for(target, REQUEST, server, given, force_length=True)
        again = ask_for(target, REQUEST, server, given, force_length=True)
    assert_sound(ran)
    assert ran.posts == 2
    assert any("ignore_eos" in note for note in ran.t.notes)
    assert_timed(again)
    assert again.posts == 1


def test_a_server_that_ignores_ignore_eos_gives_no_itl() -> None:
    """Asked for 64 tokens exactly and stopped at 3: TTFT is one, ITL is an error that says so."""
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        ran = ask_for(target, REQUEST, server, [sound()], force_length=True)
    found = judge(CASE, [ran.t], force_length=True)
    assert (found["ttft_ms"].verdict, found["itl_p95_ms"].verdict) == ("pass", "error")
    assert "not honoured" in found["itl_p95_ms"].reason


ECHOES = {
    "a refusal": refusal(401, {"error": {"message": f"Incorrect API key: {KEY}"}}),
    "a refusal as text": refusal(403, f"no access with Bearer {KEY}"),
    "a redirect": refusal(302, {}, location=f"http://127.0.0.1:1/login?key={KEY}"),
    "a wrong kind": {"status": 200, "headers": {"content-type": f"text/html; {KEY}"},
                     "events": [[20, {"raw": f"<p>{KEY}</p>"}]]},
    "an error in the stream": {"status": 200, "events": [
        [20, {"json": {"error": {"message": f"upstream refused {KEY}"}}}]]},
    "a malformed event": {"status": 200, "events": [[20, {"raw": f"data: {KEY}\n\n"}]]},
    "the text": {"status": 200, "events": [
        [100, {"delta": {"content": KEY}}], [120, {"delta": {"content": "x"}}],
        [130, {"delta": {}, "finish": KEY}], [140, {"done": True}]]},
    "a compression": {"status": 200, "headers": {"content-encoding": KEY}, "events": []},
}  # fmt: skip


@pytest.mark.parametrize("where", ECHOES)
def test_a_key_that_the_server_echoes_is_not_shown(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent, and occurs in no part of the record, nor of the target."""
    monkeypatch.setenv("STREAMS_KEY", KEY)
    more = {"api_key_env": "STREAMS_KEY"}
    with Server(Clock()) as server:
        with target_of(CASE, server, url_of(CASE, server), **more) as target:
            ran = ask_for(target, REQUEST, server, [answer(ECHOES[where], Wire())])
            assert KEY not in repr(vars(target)) + json.dumps(target.describe())
        assert server.posts[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(ran.t)
    assert "***" in repr(ran.t)

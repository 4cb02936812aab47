"""A sound answer of three tokens, ways to send it, and what must come of it."""

from __future__ import annotations

import json
from typing import Any

from .runner import Ran, ask_for, target_of, url_of
from .script import Answer, Step, Wire, answer, payload
from .server import Clock, Server

CHUNKED = "transfer-encoding: chunked"
END = b"0\r\n\r\n"
CUT = "truncated|ended|incomplete|closed|finish"
REQUEST = {"prompt_tokens": 100, "max_tokens": 64}
CASE: dict[str, Any] = {"id": "wire", "api": "chat", "request": REQUEST}
KEY = "sk-VerySecret0123456789"

EVENTS = [
    payload({"delta": {"role": "assistant", "content": ""}}),
    payload({"delta": {"content": "a"}}),
    payload({"delta": {"content": "b"}}),
    payload({"delta": {"content": "c"}}),
    payload({"delta": {}, "finish": "stop"}),
    payload({"json": {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 3}}}),
    payload({"done": True}),
]
BODY = b"".join(EVENTS)
_AT_MS = [5, 100, 130, 160, 165, 170, 175]
SOUND: dict[str, Any] = {
    "status": 200,
    "events": [[at, {"raw": e.decode("latin-1")}] for at, e in zip(_AT_MS, EVENTS, strict=True)],
}


def sound(framing: str = "chunked", **headers: str) -> Answer:
    """Three tokens at 100, 130 and 160 ms; "close" ends the connection."""
    return answer(SOUND, Wire("close" if framing == "close" else "chunked", extra_headers=headers))


def refusal(status: int, body: object, **headers: str) -> dict[str, Any]:
    return {
        "status": status,
        "headers": {"content-type": "application/json", **headers},
        "events": [[20, {"raw": json.dumps(body)}], [20, {"close": "eof"}]],
    }


def at_once(raw: bytes, end: str = "eof") -> Answer:
    """These bytes 100 ms after the request, then the end of the connection."""
    return Answer((Step(100, raw), Step(110, b"", end)))  # type: ignore[arg-type]


def framed(*headers: str, body: bytes = BODY, status: str = "HTTP/1.1 200 OK") -> bytes:
    """An answer with exactly these header lines besides the content type."""
    lines = [status, "content-type: text/event-stream", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks if c)


def asked(*given: Answer, **client: Any) -> Ran:
    """One request to a server that answers so."""
    case = {**CASE, "client": client}
    with Server(Clock()) as server, target_of(case, server, url_of(case, server)) as target:
        return ask_for(target, REQUEST, server, given)


def assert_sound(ran: Ran) -> None:
    """All three tokens, counted by the server."""
    t = ran.t
    assert (t.status, t.error) == ("ok", None)
    assert (t.text, t.output_tokens, t.token_source) == ("abc", 3, "usage_final")
    assert (t.estimated, t.finish_reason, t.prompt_tokens) == (None, "stop", 100)


def assert_timed(ran: Ran) -> None:
    """As :func:`assert_sound`, with the times of the script."""
    assert_sound(ran)
    assert (ran.t.ttft_ms, ran.t.itl_ms()) == (100, [30, 30])


def assert_failed(ran: Ran, *words: str) -> None:
    """An error that holds all of ``words``; ``a|b`` means either."""
    assert ran.t.status == "error"
    message = str(ran.t.error).lower()
    for every in words:
        assert any(w in message for w in every.lower().split("|")), message

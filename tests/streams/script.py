"""Scripted answers: the notation of streams.yaml turned into bytes and moments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

Close = Literal["eof", "reset", "cut"]


@dataclass(frozen=True)
class Step:
    """Bytes to send at a moment, ms after the request was heard; ``close`` ends the connection."""

    at_ms: float
    data: bytes = b""
    close: Close | None = None


@dataclass(frozen=True)
class Answer:
    """One scripted answer and, with it, when it is given."""

    steps: tuple[Step, ...]
    body_has: str | None = None
    post: int | None = None

    def fits(self, body: bytes, post: int) -> bool:
        """True for the ``post``-th POST of a request (from 1) with ``body``."""
        if self.body_has is not None and self.body_has.encode() not in body:
            return False
        return self.post in (None, post)


@dataclass(frozen=True)
class Wire:
    """How a server puts an answer on the wire, where the case leaves it open."""

    framing: Literal["close", "chunked"] = "close"
    early_headers: bool = True
    """Headers go out when the request was heard; else together with the first event."""
    version: str = "HTTP/1.1"
    extra_headers: Mapping[str, str] = field(default_factory=dict)


def payload(event: Mapping[str, Any]) -> bytes:
    """Bytes of one event."""
    if "raw" in event:
        text: str = event["raw"]
        if fill := event.get("fill"):
            text = text.replace(fill["mark"], fill["char"] * fill["n"])
        return text.encode("latin-1")
    if event.get("done"):
        return b"data: [DONE]\n\n"
    if "json" in event:
        return data(event["json"])
    choice = {"index": 0, "delta": event.get("delta", {}), "finish_reason": event.get("finish")}
    chunk: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
    if "usage" in event:
        chunk["usage"] = event["usage"]
    return data(chunk)


def data(value: object) -> bytes:
    """A ``data`` line of JSON and its blank line."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def answer(response: Mapping[str, Any], wire: Wire) -> Answer:
    """The answer that a ``response`` (or an entry of ``responses``) describes."""
    status, events = response.get("status"), list(response["events"])
    headers = {"content-type": "text/event-stream", **(response.get("headers") or {})}
    headers.update(wire.extra_headers)
    chunked = headers.get("transfer-encoding") == "chunked" or wire.framing == "chunked"
    framed = chunked or "content-length" in headers
    if chunked and "content-length" not in headers:
        headers["transfer-encoding"] = "chunked"
    elif not framed:
        headers["connection"] = "close"
    head = b"" if status is None else header_block(int(status), headers, wire.version)
    steps: list[Step] = []
    if wire.early_headers or not events:
        steps.append(Step(0, head))
        head = b""
    closed = False
    for at, event in events:
        if "close" in event:
            kind = event["close"]
            last = b"0\r\n\r\n" if chunked and kind == "eof" and status is not None else b""
            steps.append(Step(at, head + last, kind))
            closed = True
            break
        body = payload(event)
        if chunked and status is not None:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        steps.append(Step(at, head + body))
        head = b""
    if not closed:
        at = events[-1][0] if events else 0
        last = b"0\r\n\r\n" if chunked and status is not None else b""
        steps.append(Step(at, last, None if framed else "eof"))
    when = response.get("when") or {}
    return Answer(tuple(steps), when.get("body_has"), when.get("post"))


def header_block(status: int, headers: Mapping[str, str], version: str = "HTTP/1.1") -> bytes:
    """Status line and headers, with the blank line."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Odd"
    lines = [f"{version} {status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def plain(raw: bytes, at_ms: float = 0, close: Close | None = "eof") -> Answer:
    """An answer given as the bytes of the connection, headers included, all at once."""
    return Answer((Step(at_ms, raw), Step(at_ms, b"", close)))


def answers(case: Mapping[str, Any], wire: Wire) -> list[Answer]:
    """Every answer of a case, in the order in which they are tried."""
    several: Sequence[Mapping[str, Any]] = case.get("responses") or [case["response"]]
    return [answer(r, wire) for r in several]

"""An answer's bytes read slowly, with all of them in hand: is it whole, and what does it say?

Independent of the product: HTTP by h11, event streams by tests/streams/reference.py, JSON by the
documented shapes of each dialect. It is as lenient as the standards allow: what it calls broken may
not be called an answer by anyone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import h11

from streams import reference

_WHITE = b" \t\r\n\x0b\x0c"
# What stands behind a status code means nothing (RFC 9110, 15.1); h11 is strict about it.
_REASON = re.compile(rb"^(HTTP/1\.[01] \d{3} )[^\r\n]*")


@dataclass
class Reading:
    """What the bytes of a connection are."""

    broken: str | None = None
    """Why they are no whole answer; None when they are."""
    text: str = ""
    """Visible text."""
    carriers: int = 0
    """Events that bring tokens: with text, or (after the first text) counted tokens without any."""
    total: int | None = None
    """Output tokens by the server's last word."""


@dataclass
class _Http:
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    damage: str | None = None

    def values(self, name: bytes) -> list[bytes]:
        """Every value of a header, in lower case."""
        return [v.strip(_WHITE).lower() for k, v in self.headers if k == name]


def read(dialect: str, raw: bytes) -> Reading:
    """The slow reading of everything a server sent before it closed the connection."""
    http = _http(raw)
    if http.status != 200:
        return Reading(http.damage or f"status {http.status}")
    if dialect == "mii rest":
        return _document_alone(http)
    kinds = [
        v.partition(b";")[0].strip(_WHITE).lower() for k, v in http.headers if k == b"content-type"
    ]
    if not kinds or any(kind.strip(_WHITE) != b"text/event-stream" for kind in kinds):
        return Reading(f"content type {kinds}")
    codings = http.values(b"content-encoding")
    if any(coding != b"identity" for coding in codings):
        return Reading(f"content encoding {codings}")
    reading = _events(dialect, http.body, ended=http.ended)
    if reading.broken is not None and http.damage is not None:
        reading.broken = f"{http.damage}; {reading.broken}"
    return reading


def _http(raw: bytes) -> _Http:
    out = _Http()
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "h")]))
    connection.send(h11.EndOfMessage())
    if raw.strip(b"\r\n"):
        # Blank lines before an answer are what robust readers skip (RFC 9112, 2.2).
        connection.receive_data(_REASON.sub(rb"\1", raw.lstrip(b"\r\n")))
    told = False
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as e:
            out.damage = str(e)
            return out
        if event is h11.NEED_DATA:
            if told:
                return out
            connection.receive_data(b"")
            told = True
        elif isinstance(event, h11.Response):
            out.status, out.headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            out.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            out.ended = True
            return out
        elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return out


def _events(dialect: str, body: bytes, *, ended: bool) -> Reading:
    out, finished = Reading(), False
    for name, data in reference.events(body):
        data = data.strip(_WHITE)
        if data == b"[DONE]":
            return _counted(out)
        if name == "ping" or (not data and name != "error"):
            continue
        document = _document(name, data)
        if document is None:
            out.broken = f"event {name} {data[:60]!r}"
            return out
        try:
            said = _SAID[dialect](document)
            said.visible = _writable(said.visible)
        except (AttributeError, TypeError):
            said = _Said(broken=f"event of another shape: {data[:60]!r}")
        if said.broken:
            out.broken = said.broken
            return out
        out.text += said.visible
        if type(said.total) is not int:
            said.total = None
        grown = said.total is not None and said.total > (out.total or 0)
        out.carriers += bool(said.text) or bool(out.carriers and (said.token or grown))
        if said.total is not None:
            out.total = said.total
        finished = finished or said.finish
        if said.done:
            return _counted(out)
    if finished or (ended and _ends_with_marker(body)):
        return _counted(out)
    out.broken = "neither finish reason nor end marker"
    return out


def _document_alone(http: _Http) -> Reading:
    """MII's gateway: a list of one answer, whole when HTTP says so."""
    if not http.ended:
        return Reading(http.damage or "the body did not end")
    if any(coding != b"identity" for coding in http.values(b"content-encoding")):
        return Reading("compressed")
    try:
        [answer] = json.loads(http.body.decode("utf-8"))
        text = _writable(answer["generated_text"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return Reading(f"no document: {e}")
    n = answer.get("generated_length")
    return _counted(Reading(None, text, bool(text), n if type(n) is int else None))


def _writable(text: str) -> str:
    """Halves of surrogate pairs replaced: no file and no terminal takes them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _counted(out: Reading) -> Reading:
    if not out.carriers:
        out.broken = "no generated text"
    return out


def _ends_with_marker(body: bytes) -> bool:
    """The end marker is whole but its blank line is missing: nothing of the answer is."""
    for more in (b"\n", b"\n\n"):
        found = reference.events(body + more)
        if (
            found[:-1] == reference.events(body)
            and found
            and found[-1][1].strip(_WHITE) == b"[DONE]"
        ):
            return True
    return False


def _document(name: str, data: bytes) -> dict[str, Any] | None:
    if name == "error":
        return None
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(value, dict)
        or value.get("error") not in (None, False, "")
        or value.get("errors")
    ):
        return None
    return value


@dataclass
class _Said:
    text: str = ""
    visible: str = ""
    total: int | None = None
    finish: bool = False
    done: bool = False
    token: bool = False
    """A token is here, with text or without."""
    broken: str | None = None


def _openai(d: dict[str, Any]) -> _Said:
    out = _Said()
    for choice in d.get("choices") or []:
        if choice.get("index") not in (0, None):
            out.broken = "a second choice"
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message") or {}
        for place, key in ((delta, "content"), (delta, "text"), (choice, "text")):
            out.visible += place.get(key) or ""
        out.text += out.visible
        for key in ("reasoning", "reasoning_content", "refusal"):
            out.text += delta.get(key) or ""
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            out.text += (function.get("name") or "") + (function.get("arguments") or "")
        out.token = out.token or bool(choice.get("token_ids"))
        out.finish = out.finish or bool(choice.get("finish_reason"))
    out.total = (d.get("usage") or {}).get("completion_tokens")
    if out.total is None:  # llama.cpp's OpenAI routes
        out.total = (d.get("timings") or {}).get("predicted_n")
    return out


def _tgi(d: dict[str, Any]) -> _Said:
    token, details = d.get("token") or {}, d.get("details") or {}
    text = "" if token.get("special") is True else token.get("text") or ""
    finish = bool(details.get("finish_reason"))
    done = not finish and d.get("generated_text") is not None
    return _Said(text, text, details.get("generated_tokens"), finish, done, token=bool(token))


def _llamacpp(d: dict[str, Any]) -> _Said:
    text = d.get("content") or ""
    return _Said(text, text, d.get("tokens_predicted"), d.get("stop") is True)


_SAID = {
    "chat": _openai,
    "completions": _openai,
    "tgi": _tgi,
    "llamacpp": _llamacpp,
    "mii": _openai,
}

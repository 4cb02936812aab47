"""Sound answers of every dialect, as the bytes of a connection, from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

Document = dict[str, Any]
DIALECTS = ("chat", "completions", "tgi", "llamacpp", "mii", "mii rest")
_WORDS = ("a", " the", "\n", "你", "😀", " x\u2028y", '"', "\\", "{", "data:", " 7", "é", "\u0301")


@dataclass(frozen=True)
class Sound:
    """An answer: its head, its events as bytes, and the body's framing."""

    dialect: str
    head: bytes
    events: tuple[bytes, ...]
    framing: str
    """``chunked``, ``length`` or ``close``."""

    def raw(self, sizes: Random | None = None) -> bytes:
        """The bytes of the connection; ``sizes``: chunks that do not end with events."""
        body = b"".join(self.events)
        if self.framing != "chunked":
            return self.head + body
        pieces = list(self.events)
        if sizes is not None:
            cuts = sorted({0, len(body), *(sizes.randrange(len(body) + 1) for _ in range(6))})
            pieces = [body[a:b] for a, b in pairwise(cuts)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces if p)
        return self.head + chunks + b"0\r\n\r\n"


def sound(rng: Random, dialect: str | None = None) -> Sound:
    """One answer."""
    dialect = dialect or rng.choice(DIALECTS)
    words = [rng.choice(_WORDS) for _ in range(rng.randint(1, 7))]
    if dialect == "mii rest":
        return _document(rng, words)
    documents = _BY_DIALECT[dialect](rng, words)
    events = [_event(rng, d) for d in documents]
    if dialect in ("chat", "completions", "mii") and (rng.random() < 0.9 or dialect == "mii"):
        events.append(b"data: [DONE]\n\n")
    if rng.random() < 0.2:
        events.insert(rng.randint(0, len(events)), rng.choice([b": ping\n\n", b":\n", b"\n\n"]))
    nl = rng.choice([b"\n", b"\n", b"\n", b"\r\n", b"\r"])
    events = [e.replace(b"\n", nl) for e in events]
    if rng.random() < 0.05:
        events[0] = b"\xef\xbb\xbf" + events[0]
    return _framed(rng, dialect, b"text/event-stream; charset=utf-8", events)


def _framed(rng: Random, dialect: str, kind: bytes, events: list[bytes]) -> Sound:
    framing = rng.choice(["chunked", "chunked", "length", "close"])
    headers = [b"HTTP/1.1 200 OK", b"content-type: " + kind]
    if framing == "chunked":
        headers.append(b"transfer-encoding: chunked")
    elif framing == "length":
        headers.append(b"content-length: %d" % sum(map(len, events)))
    else:
        headers.append(b"connection: close")
    if rng.random() < 0.5:
        headers.insert(rng.randint(1, len(headers)), b"x-request-id: 4f1e")
    return Sound(dialect, b"\r\n".join([*headers, b"", b""]), tuple(events), framing)


def _event(rng: Random, document: Document) -> bytes:
    ascii_only = rng.random() < 0.5
    text = json.dumps(document, ensure_ascii=ascii_only)
    space = b" " if rng.random() < 0.9 else b""
    return b"data:" + space + text.encode() + b"\n\n"


def _document(rng: Random, words: list[str]) -> Sound:
    """MII's gateway does not stream: one JSON document."""
    n = len(words)
    answer = {"generated_text": "".join(words), "prompt_length": 9, "generated_length": n}
    text = json.dumps([{**answer, "finish_reason": "length"}])
    return _framed(rng, "mii rest", b"application/json", [text.encode()])


def _usage(n: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n}


def _chat(rng: Random, words: list[str]) -> list[Document]:
    def said(text: str) -> Document:
        channel = rng.choice(("content",) * 4 + ("reasoning", "reasoning_content", "tool"))
        if channel != "tool":
            return {"delta": {channel: text}}
        return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}

    first = {"delta": {"role": "assistant", "content": ""}}
    return _openai(rng, words, said, first, {"delta": {}})


def _completions(rng: Random, words: list[str]) -> list[Document]:
    return _openai(rng, words, lambda text: {"text": text}, {"text": ""}, {"text": ""})


def _openai(
    rng: Random, words: list[str], said: Callable[[str], Document], first: Document, last: Document
) -> list[Document]:
    counts = rng.choice(["running", "final", "final", "none", "ids"])
    out = [_chunk(first)] if rng.random() < 0.7 else []
    n = 0
    for word in words:
        k = rng.choice([1, 1, 2, 3]) if counts in ("running", "ids") else 1
        n += k
        out.append(_chunk(said(word * k)))
        if counts == "running":
            out[-1]["usage"] = _usage(n)
        elif counts == "ids":
            out[-1]["choices"][0]["token_ids"] = list(range(k))
    if rng.random() < 0.5:
        out[-1]["choices"][0]["finish_reason"] = "stop"
    else:
        out.append(_chunk(last, rng.choice(["stop", "length"])))
    if counts != "none" and (counts != "ids" or rng.random() < 0.5):
        out.append({"choices": [], "usage": _usage(n)})
    return out


def _chunk(said: Document, finish: str | None = None) -> Document:
    return {"choices": [{"index": 0, **said, "finish_reason": finish}]}


def _tgi(rng: Random, words: list[str]) -> list[Document]:
    out: list[Document] = []
    for i, word in enumerate(words, 1):
        token = {"id": i, "text": word, "logprob": -0.1, "special": False}
        out.append({"index": i, "token": token, "generated_text": None, "details": None})
    n = len(words)
    out[-1]["generated_text"] = "".join(words)
    out[-1]["details"] = {"finish_reason": "length", "generated_tokens": n, "input_length": 9}
    return out


def _llamacpp(rng: Random, words: list[str]) -> list[Document]:
    out: list[Document] = []
    n = 0
    for word in words:
        n += rng.choice([1, 1, 2])
        out.append({"index": 0, "content": word, "tokens": [], "stop": False, **_counts(n)})
    timings = {"prompt_n": 9, "prompt_ms": 3.5, "predicted_n": n, "predicted_ms": 4.5}
    end = {"index": 0, "content": "", "stop": True, "stop_type": "limit", **_counts(n)}
    return [*out, {**end, "timings": timings}]


def _counts(n: int) -> Document:
    return {"tokens_predicted": n, "tokens_evaluated": 9}


def _mii(rng: Random, words: list[str]) -> list[Document]:
    """As OpenAI's, but nothing is counted."""
    texts = [_chunk({"delta": {"content": word}}) for word in words]
    return [*texts, _chunk({"delta": {}}, "length")]


_BY_DIALECT = {
    "chat": _chat,
    "completions": _completions,
    "tgi": _tgi,
    "llamacpp": _llamacpp,
    "mii": _mii,
}

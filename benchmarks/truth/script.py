"""The bytes of an answer: chat completion chunks in chunked transfer coding, made beforehand."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

MODEL = "truth"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ID = "truth-00000000"

Halves = tuple[bytes, bytes]


def answer_id(number: int) -> bytes:
    """The id of the ``number``-th answer; always of the same length."""
    return f"truth-{number:08d}".encode()


def _usage(prompt: int, total: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total}


def _halves(choices: list[dict[str, Any]], usage: dict[str, int] | None) -> Halves:
    """One framed event, split where the id goes."""
    chunk: dict[str, Any] = {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": choices,
    }
    if usage is not None:
        chunk["usage"] = usage
    data = f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
    before, after = f"{len(data):x}\r\n{data}\r\n".split(_ID)
    return before.encode(), after.encode()


def _choice(delta: dict[str, str], finish: str | None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


@lru_cache(maxsize=64)
def role(prompt: int, running: bool) -> Halves:
    """The chunk that carries the role and no token."""
    return _halves(
        _choice({"role": "assistant", "content": ""}, None), _usage(prompt, 0) if running else None
    )


@lru_cache(maxsize=64)
def tokens(count: int, prompt: int, running: bool) -> tuple[Halves, ...]:
    """One event a token; the last has the finish reason. The first is :func:`first`'s."""
    if not running:
        middle = _halves(_choice({"content": " on"}, None), None)
        last = _halves(_choice({"content": " on"}, "length"), None)
        return (*(middle for _ in range(count - 1)), last)
    return tuple(
        _halves(_choice({"content": " on"}, "length" if k == count else None), _usage(prompt, k))
        for k in range(1, count + 1)
    )


@lru_cache(maxsize=4096)
def first(key: str, count: int, prompt: int, running: bool) -> Halves:
    """The first token's event: its text names the request, for clients that keep only texts."""
    finish = "length" if count == 1 else None
    return _halves(
        _choice({"content": f"key={key}"}, finish), _usage(prompt, 1) if running else None
    )


@lru_cache(maxsize=64)
def usage(count: int, prompt: int) -> Halves:
    """The chunk with the counts, which has no choices."""
    return _halves([], _usage(prompt, count))


def whole(key: str, number: int, count: int, prompt: int) -> dict[str, Any]:
    """The answer of a request that asked for no stream."""
    message = {"role": "assistant", "content": f"key={key}" + " on" * (count - 1)}
    return {
        "id": answer_id(number).decode(),
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": _usage(prompt, count),
    }

"""Damage: what networks, proxies and broken servers do to an answer's bytes, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from valid import Sound, sound

_TOKENS = (
    b"\n", b"\r", b"\n\n", b"\r\n", b"data:", b"data: [DONE]\n\n", b"data: {}\n\n",
    b"event: error\n", b"event: ping\n", b": x\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"{", b"}",
    b"[", b"]", b'"', b"\\", b",", b"0\r\n\r\n", b"1\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"null", b"true", b"-1", b"1e9", b"99999999999999999999",
    b'"error": {"message": "e"}', b'"usage": null,', b'"index": 1', b"[DONE]", b"NaN",
    b"\xe2\x80\xa8", b"content-encoding: gzip\r\n", b"transfer-encoding: chunked\r\n",
    b"content-length: 5\r\n", b";ext=1", b"\x00\x01\x02\x03",
)  # fmt: skip
_SWAPS = (
    (b"stop", b"error"), (b"null", b"0"), (b"null", b'""'), (b"0", b"1"), (b"1", b"2"),
    (b"\n\n", b"\n"), (b"\n", b"\r"), (b"\n", b"\r\n"), (b"\r\n", b"\n"),
    (b'"content"', b'"thoughts"'), (b"false", b"true"), (b"true", b"false"),
    (b"data: ", b"data:  "), (b"data:", b"Data:"), (b"choices", b"choice"), (b"usage", b"error"),
    (b"[DONE]", b"[done]"), (b"[DONE]", b"DONE"), (b"200", b"206"), (b"200", b"500"),
    (b"text/event-stream", b"application/json"), (b"HTTP/1.1", b"HTTP/1.0"),
    (b"chunked", b"gzip, chunked"), (b"finish_reason", b"finish_reasom"),
    (b"completion_tokens", b"completion_token"), (b'"', b"'"), (b"stop_type", b"stop"),
    (b"tokens_predicted", b"tokens_evaluated"), (b"details", b"detail"),
)  # fmt: skip

Mutation = Callable[[Random, bytes], bytes]


def _at(rng: Random, raw: bytes) -> int:
    return rng.randrange(len(raw) + 1)


def flip(rng: Random, raw: bytes) -> bytes:
    """One bit, or one byte."""
    if not raw:
        return raw
    i = rng.randrange(len(raw))
    value = raw[i] ^ (1 << rng.randrange(8)) if rng.random() < 0.7 else rng.randrange(256)
    return raw[:i] + bytes([value]) + raw[i + 1 :]


def drop(rng: Random, raw: bytes) -> bytes:
    """Some bytes are lost."""
    a = _at(rng, raw)
    return raw[:a] + raw[a + rng.choice([1, 1, 2, 8, 40, 200]) :]


def drop_line(rng: Random, raw: bytes) -> bytes:
    """A line, or an event, is lost."""
    lines = raw.split(b"\n")
    i = rng.randrange(len(lines))
    del lines[i : i + rng.choice([1, 1, 2])]
    return b"\n".join(lines)


def double(rng: Random, raw: bytes) -> bytes:
    """Some bytes come twice."""
    a = _at(rng, raw)
    b = a + rng.choice([1, 2, 8, 40, 200])
    return raw[:b] + raw[a:b] + raw[b:]


def cut(rng: Random, raw: bytes) -> bytes:
    """The connection ends early."""
    return raw[: _at(rng, raw)]


def splice(rng: Random, raw: bytes) -> bytes:
    """Another answer goes on in the middle of this one."""
    other = sound(rng).raw()
    return raw[: _at(rng, raw)] + other[_at(rng, other) :]


def insert(rng: Random, raw: bytes) -> bytes:
    """Something stands where it should not."""
    a = _at(rng, raw)
    return raw[:a] + rng.choice(_TOKENS) + raw[a:]


def swap(rng: Random, raw: bytes) -> bytes:
    """A word is another one, once or everywhere."""
    old, new = rng.choice(_SWAPS)
    if rng.random() < 0.3:
        return raw.replace(old, new)
    at = [i for i in range(len(raw)) if raw.startswith(old, i)]
    if not at:
        return flip(rng, raw)
    i = rng.choice(at)
    return raw[:i] + new + raw[i + len(old) :]


def move(rng: Random, raw: bytes) -> bytes:
    """Two stretches change places."""
    a, b, c = sorted(_at(rng, raw) for _ in range(3))
    return raw[:a] + raw[b:c] + raw[a:b] + raw[c:]


def noise(rng: Random, raw: bytes) -> bytes:
    """Bytes from anywhere."""
    a = _at(rng, raw)
    return raw[:a] + rng.randbytes(rng.choice([1, 4, 30])) + raw[a:]


MUTATIONS: tuple[Mutation, ...] = (
    flip, flip, flip, drop, drop_line, drop_line, double, cut, cut, splice, insert, insert, swap,
    swap, move, noise,
)  # fmt: skip


def events_damaged(rng: Random, answer: Sound) -> Sound:
    """Whole events lost, doubled, in another order, or changed inside; the framing stays sound."""
    events = list(answer.events)
    for _ in range(rng.choice([0, 1, 1, 2])):
        i = rng.randrange(len(events))
        what = rng.randrange(5)
        if what == 0 and len(events) > 1:
            del events[i]
        elif what == 1:
            events.insert(i, rng.choice(events))
        elif what == 2:
            j = rng.randrange(len(events))
            events[i], events[j] = events[j], events[i]
        else:
            events[i] = rng.choice(MUTATIONS)(rng, events[i])
    head = answer.head
    if answer.framing == "length":
        length = b"content-length: %d" % sum(map(len, answer.events))
        head = head.replace(length, b"content-length: %d" % sum(map(len, events)))
    return Sound(answer.dialect, head, tuple(events), answer.framing)


def mutated(rng: Random) -> tuple[str, bytes]:
    """(dialect, bytes of the connection) of one damaged answer; one in forty is left sound."""
    answer = sound(rng)
    if rng.random() < 0.025:
        return answer.dialect, answer.raw(rng)
    inside = rng.random() < 0.5
    if inside:
        answer = events_damaged(rng, answer)
    raw = answer.raw(rng if rng.random() < 0.5 else None)
    if not inside or rng.random() < 0.1:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            raw = rng.choice(MUTATIONS)(rng, raw)
    return answer.dialect, raw


def reads(rng: Random, raw: bytes) -> list[bytes]:
    """The same bytes, cut into reads anywhere."""
    n = rng.choice([0, 1, 3, 10, 40])
    cuts = sorted({0, len(raw), *(_at(rng, raw) for _ in range(n))})
    return [raw[a:b] for a, b in pairwise(cuts)]

"""Damaged answers of every dialect: never a crash, never a hang, never a PASS from a broken one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import repeat
from random import Random

import ours
import pytest
import whole
from check import Fuzz
from hypothesis import given, settings
from hypothesis import strategies as st
from mutate import MUTATIONS, reads
from valid import DIALECTS, sound

from pytest_llmsla.targets.http.reader import StreamReader
from pytest_llmsla.wire.response import Response
from pytest_llmsla.wire.sse import SseDecoder
from streams.script import header_block

STREAM = header_block(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
UNTIL_CLOSE = header_block(200, {"content-type": "text/event-stream", "connection": "close"})


@pytest.fixture(scope="module")
def fuzz() -> Fuzz:
    return Fuzz()


@pytest.mark.parametrize("block", range(10))
def test_a_damaged_answer_is_an_error_or_what_the_standards_say(fuzz: Fuzz, block: int) -> None:
    """5,000 of them: a result every time, however the bytes are read; sound only if whole, with
    the text and the tokens of an independent reading."""
    seeds = range(block * 500, block * 500 + 500)
    assert [(seed, found) for seed in seeds if (found := fuzz.run(seed))] == []


def test_the_damage_is_neither_too_much_nor_too_little() -> None:
    """A fifth to a half are still sound, some of them with an estimated count."""
    fuzz = Fuzz()
    assert [seed for seed in range(500) if fuzz.run(seed)] == []
    assert 100 < fuzz.outcomes["sound"] < 250
    assert fuzz.outcomes["estimated"] > 20
    assert fuzz.outcomes["sound"] + fuzz.outcomes["errors"] == 500


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_sound_answer_is_never_refused(dialect: str) -> None:
    """Whatever its line ends, framing and reads: nobody may be strict by calling all an error."""
    target = ours.targets()[dialect]
    for seed in range(100):
        rng = Random(seed)
        raw = sound(rng, dialect).raw(rng)
        result, reading = ours.read(target, reads(rng, raw)), whole.read(dialect, raw)
        assert (result.error, reading.broken) == (None, None)
        assert result.text == reading.text
        assert reading.total in (None, result.output_tokens)


FRAGMENTS = st.sampled_from(
    [b"data:", b"data: ", b"\n", b"\n\n", b"\r\n", b"\r", b"[DONE]", b"event: error", b": ping",
     b'{"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}',
     b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}',
     b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}',
     b'{"choices": [{"index": 1, "delta": {"content": "b"}}]}', b'{"error": {"message": "e"}}',
     b"\xef\xbb\xbf", b"\0", b"\xff", b"id: 1", b"{}", b"null", b"[]"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(body=st.lists(FRAGMENTS, max_size=30).map(b"".join), seed=st.integers(0, 10**6))
def test_any_body_is_an_error_or_what_the_standards_say(fuzz: Fuzz, body: bytes, seed: int) -> None:
    """Streams put together of anything, which shrink to the smallest that fails."""
    assert fuzz.check("chat", UNTIL_CLOSE + body, Random(seed), bytewise=True) is None


@settings(max_examples=300, deadline=None)
@given(
    dialect=st.sampled_from(DIALECTS),
    seed=st.integers(0, 10**6),
    damage=st.lists(
        st.tuples(st.sampled_from(sorted(set(MUTATIONS), key=lambda m: m.__name__)), st.integers()),
        max_size=4,
    ),
)
def test_any_damage_is_an_error_or_what_the_standards_say(
    fuzz: Fuzz, dialect: str, seed: int, damage: list[tuple[Callable[..., bytes], int]]
) -> None:
    """Chains of damage, which shrink to the shortest that fails."""
    raw = sound(Random(seed), dialect).raw()
    for mutation, how in damage:
        raw = mutation(Random(how), raw)
    assert fuzz.check(dialect, raw, Random(seed), bytewise=True) is None


# -- the fuzzer itself

FAULTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "a stream that just ends is complete": (StreamReader, "ended", lambda self, left: None),
    "a cut body is complete": (
        Response, "end_of_stream", lambda self: setattr(self, "done", True),
    ),
    "an unended event counts": (
        SseDecoder, "left_over", lambda self: b"data: [DONE]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds_a_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that is laxer than the standards does not get through 2,000 answers."""
    where, name, instead = FAULTS[fault]
    monkeypatch.setattr(where, name, instead)
    fuzz = Fuzz()
    assert any("taken for sound" in (fuzz.run(seed) or "") for seed in range(2000))


# -- memory

ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    "a header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 4096),
    "a status line": (b"HTTP/1.1 200 ", b"y" * 4096),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 30),
    "a chunk size": (STREAM, b"0" * 4096),
    "a chunk extension": (STREAM + b"5", b";x=" + b"y" * 4096),
    "trailers": (STREAM + b"0\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    "a line": (UNTIL_CLOSE, b"y" * 4096),
    "lines of data": (UNTIL_CLOSE, b"data: y\n" * 512),
    "fields of nobody": (UNTIL_CLOSE, b"yyyyy: y\n" * 512),
    "comments": (UNTIL_CLOSE, (b": " + b"p" * 200 + b"\n\n") * 20),
    "blank lines": (UNTIL_CLOSE, b"\n" * 100),
    "empty events": (UNTIL_CLOSE, b'data: {"x": "' + b"y" * 1000 + b'"}\n\n'),
    "tokens": (
        UNTIL_CLOSE,
        b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n' * 64,
    ),
    "usage": (
        UNTIL_CLOSE,
        b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}\n\n' * 64,
    ),
    "a refusal": (header_block(500, {"content-type": "text/plain"}), b"y" * 4096),
    "an answer of another kind": (header_block(200, {"content-type": "text/html"}), b"y" * 4096),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_given_up_in_bounded_memory(what: str) -> None:
    """6 MiB of it: an error, and never more than 3 MiB held."""
    first, more = ENDLESS[what]
    target = ours.targets()["chat"]
    sent = [first, *repeat(more, min(20_000, 6 * 2**20 // len(more)))]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = ours.read(target, sent)
        held = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert result.error is not None
    assert held < 3 * 2**20

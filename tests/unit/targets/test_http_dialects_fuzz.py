"""No JSON and no bytes break a reader: it gives a sane piece or a WireError, nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.targets.http.dialect import Dialect
from pytest_llmsla.targets.http.llamacpp import LlamaCpp
from pytest_llmsla.targets.http.mii import MiiOpenAI, MiiRest
from pytest_llmsla.targets.http.openai import OpenAIChat, OpenAICompletions
from pytest_llmsla.targets.http.tgi import Tgi
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event

DIALECTS: tuple[Dialect, ...] = (
    OpenAIChat("m"),
    OpenAICompletions("m"),
    Tgi(),
    LlamaCpp(),
    MiiOpenAI("m"),
    MiiRest("d"),
)
WORDS = (
    *("choices", "delta", "message", "index", "finish_reason", "error", "errors", "detail"),
    *("content", "text", "reasoning", "reasoning_content", "refusal", "audio", "transcript"),
    *("tool_calls", "function", "function_call", "name", "arguments", "object", "code"),
    *("usage", "completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens"),
    *("token_ids", "logprobs", "token", "special", "details", "generated_text", "x_groq"),
    *("generated_tokens", "input_length", "tokens_predicted", "tokens_evaluated", "stop"),
    *("stop_type", "timings", "cache_n", "prompt_n", "prompt_ms", "predicted_n"),
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["stop", "error", "a\ud800", "[DONE]"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=25,
)


@given(st.sampled_from(DIALECTS), JSON, st.sampled_from(["message", "error", "ping", "x"]))
def test_no_json_breaks_a_reader(dialect: Dialect, payload: Any, name: str) -> None:
    """A piece whose counts are sane and whose texts can be written, or a WireError that can be."""
    _sane(dialect, Event(0, name, json.dumps(payload).encode()))


@given(st.sampled_from(DIALECTS), st.binary(max_size=200))
def test_no_bytes_break_a_reader(dialect: Dialect, data: bytes) -> None:
    """Whatever arrives."""
    _sane(dialect, Event(0, "message", data))


@given(st.sampled_from(DIALECTS), st.integers(0, 400), st.integers(0, 255))
def test_no_changed_byte_breaks_a_reader(dialect: Dialect, at: int, byte: int) -> None:
    """A valid event with one byte changed."""
    chunk = {
        "choices": [{"index": 0, "delta": {"content": "x", "tool_calls": []}, "logprobs": None}],
        "usage": {"completion_tokens": 1, "prompt_tokens": 5},
        "token": {"id": 1, "text": "a", "special": False},
        "details": {"finish_reason": "length", "generated_tokens": 4, "input_length": 100},
        "content": "a",
        "tokens_predicted": 1,
        "timings": {"cache_n": 20, "prompt_n": 80, "prompt_ms": 105.0},
    }
    data = bytearray(json.dumps(chunk).encode())
    data[at % len(data)] = byte
    _sane(dialect, Event(0, "message", bytes(data)))


def _sane(dialect: Dialect, event: Event) -> None:
    try:
        got = dialect.read(event)
    except WireError as e:
        str(e).encode()
        return
    for text in (got.text, got.visible, got.finish or "", got.error or ""):
        text.encode()
    assert len(got.visible) <= len(got.text)
    for count in (got.tokens, got.total, got.prompt_tokens, got.cached_tokens):
        assert count is None or (type(count) is int and 0 <= count <= 10**8)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"error":' * 100_000, b'{"token":' * 5000])
def test_deep_nesting_is_a_wire_error(dialect: Dialect, data: bytes) -> None:
    """No recursion error gets out."""
    with pytest.raises(WireError):
        dialect.read(Event(0, "message", data))


@pytest.mark.parametrize("depth", [200, 500, 900, 950, 990, 3000, 9000])
def test_nesting_that_json_still_takes_is_read_or_refused(depth: int) -> None:
    """Between what the parser takes and what a message can hold."""
    for head in ('{"error":', '{"detail":', '{"choices":', '{"usage":', '{"token":'):
        data = (head * depth + "1" + "}" * depth).encode()
        for dialect in DIALECTS:
            _sane(dialect, Event(0, "message", data))
            _sane(dialect, Event(0, "error", data))

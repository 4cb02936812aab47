"""What the events of TGI, llama.cpp and DeepSpeed-MII say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmsla.targets.http.dialect import Dialect, Piece
from pytest_llmsla.targets.http.llamacpp import LlamaCpp
from pytest_llmsla.targets.http.mii import MiiOpenAI, MiiRest
from pytest_llmsla.targets.http.tgi import Tgi
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event

TGI, LLAMA, REST = Tgi(), LlamaCpp(), MiiRest("d")


def read(dialect: Dialect, payload: Any) -> Piece:
    """One event of JSON."""
    return dialect.read(Event(0, "message", json.dumps(payload).encode()))


def token(text: str, special: bool = False, **more: Any) -> dict[str, Any]:
    """An event of TGI."""
    inner = {"id": 11, "text": text, "logprob": -0.1, "special": special}
    return {"index": 1, "token": inner, "generated_text": None, "details": None, **more}


def details(reason: str, **more: Any) -> dict[str, Any]:
    """The last event's details."""
    return {
        "finish_reason": reason,
        "generated_tokens": 4,
        "input_length": 100,
        "seed": None,
        **more,
    }


def test_tgi_sends_one_token_an_event() -> None:
    """Its index is no total: the server's count is in the details."""
    assert read(TGI, token("a")) == Piece(text="a", visible="a", tokens=1)
    assert read(TGI, token("")) == Piece(tokens=1)


def test_tgi_s_last_event_has_text_count_and_finish() -> None:
    """The whole text in it is no further token."""
    got = read(TGI, token("d", generated_text="abcd", details=details("length")))
    assert got == Piece(
        text="d", visible="d", tokens=1, total=4, prompt_tokens=100, finish="length"
    )


def test_tgi_s_end_token_is_counted_and_has_no_text() -> None:
    """It begins no answer and is no text to a user, but the server counts it."""
    got = read(TGI, token("</s>", True, generated_text="abc", details=details("eos_token")))
    assert (got.text, got.tokens, got.total, got.finish) == ("", 1, 4, "stop")
    assert read(TGI, token("x", details=details("stop_sequence"))).finish == "stop_sequence"


def test_tgi_without_details_is_complete_by_its_text() -> None:
    """Proxies may take the details out; the whole text still tells the end."""
    assert read(TGI, token("d", generated_text="abcd")).done


def test_tgi_errors_inside_a_stream() -> None:
    """An object instead of a token."""
    got = read(TGI, {"error": "Request failed during generation", "error_type": "generation"})
    assert got.error == "Request failed during generation (generation)"


@pytest.mark.parametrize(
    "payload",
    [
        {"token": "a"},
        {"token": {"text": 5}},
        token("a", details=[]),
        token("a", details=details("length", generated_tokens=-1)),
        token("a", details=details("length", generated_tokens=True)),
        token("a", details=details("length", input_length=2**70)),
        [token("a")],
    ],
)
def test_tgi_events_that_cannot_be_read(payload: Any) -> None:
    """A field of odd type, an absurd count, a list."""
    with pytest.raises(WireError):
        read(TGI, payload)


def part(content: str, predicted: int, **more: Any) -> dict[str, Any]:
    """An event of llama.cpp."""
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": predicted,
        "tokens_evaluated": 100,
        **more,
    }


TIMINGS = {"cache_n": 20, "prompt_n": 80, "prompt_ms": 105.0, "predicted_ms": 160.0}


def test_llamacpp_counts_along() -> None:
    """tokens_predicted is the running total; an event may bring two tokens, or none."""
    assert read(LLAMA, part("cd", 4)) == Piece(text="cd", visible="cd", total=4, prompt_tokens=100)
    assert read(LLAMA, part("", 5)) == Piece(total=5, prompt_tokens=100)
    assert read(LLAMA, part("a", 1, tokens=[7])).tokens == 1


def test_llamacpp_s_last_event_has_timings() -> None:
    """Its own times beside the end; cache_n is the cache hit."""
    got = read(LLAMA, part("", 5, stop=True, stop_type="limit", timings=TIMINGS))
    assert got.finish == "length"
    assert got.cached_tokens == 20
    assert got.server_ms == {"prefill": 105.0, "decode": 160.0}


def test_llamacpp_s_tokens_cached_is_no_cache_hit() -> None:
    """It is all that the slot holds, prompt and answer; without cache_n the hit is what of the
    prompt was not processed."""
    timings = {"prompt_n": 97, "prompt_ms": 1.0}
    got = read(LLAMA, part("", 5, stop=True, tokens_cached=104, timings=timings))
    assert got.cached_tokens == 3
    assert read(LLAMA, part("", 5, stop=True, tokens_cached=104)).cached_tokens is None


@pytest.mark.parametrize(
    ("more", "finish"),
    [
        ({"stop_type": "eos"}, "stop"),
        ({"stop_type": "limit"}, "length"),
        ({"stop_type": "word"}, "word"),
        ({"stopped_eos": True, "stopped_limit": False}, "stop"),
        ({"stopped_eos": False, "stopped_limit": True}, "length"),
        ({}, "stop"),
    ],
)
def test_llamacpp_s_reasons_to_stop(more: dict[str, Any], finish: str) -> None:
    """By name, or by the flags of older servers."""
    assert read(LLAMA, part("", 5, stop=True, **more)).finish == finish
    assert read(LLAMA, part("x", 5, **more)).finish is None


@pytest.mark.parametrize(
    "payload",
    [
        part("x", -1),
        part("x", 2**70),
        part("x", 1, index=1),
        part("x", 1, tokens_evaluated=1.5),
        part("x", 1, timings=[]),
        part("x", 1, timings={"cache_n": -1}),
        {"content": 5},
    ],
)
def test_llamacpp_events_that_cannot_be_read(payload: Any) -> None:
    """A second answer, an absurd count, a field of odd type."""
    with pytest.raises(WireError):
        read(LLAMA, payload)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, "5", True, None, 10**400])
def test_absurd_times_of_a_server_are_left_out(bad: Any) -> None:
    """They are shown, never judged: no reason to lose the answer."""
    got = read(LLAMA, part("", 5, stop=True, timings={**TIMINGS, "prompt_ms": bad}))
    assert got.server_ms == {"decode": 160.0}


def test_mii_answers_in_one_document() -> None:
    """One event with everything in it."""
    answer = {
        "generated_text": "all of it",
        "prompt_length": 100,
        "generated_length": 9,
        "finish_reason": "length",
    }
    assert read(REST, [answer]) == Piece(
        text="all of it", visible="all of it", total=9, prompt_tokens=100, finish="length"
    )


@pytest.mark.parametrize(
    "payload", [[], {}, [1], [{}, {}], "x", [{"generated_length": -1}], [{"generated_text": 5}]]
)
def test_mii_documents_that_cannot_be_read(payload: Any) -> None:
    """Not exactly one answer, or a field of odd type."""
    with pytest.raises(WireError):
        read(REST, payload)


def test_mii_refuses_in_its_own_words() -> None:
    """An error object where the list should be, or in a stream of its OpenAI server."""
    assert read(REST, {"message": "Internal Server Error", "status": 500}).error is not None
    refusal = {"object": "error", "message": "Prompt is required.", "code": 40303}
    assert read(MiiOpenAI("m"), refusal).error == "Prompt is required. (40303)"

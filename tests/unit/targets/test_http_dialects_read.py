"""What the events of OpenAI-like servers say: channels, usage, errors, the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmsla.targets.base import Recorder
from pytest_llmsla.targets.http.dialect import Piece
from pytest_llmsla.targets.http.openai import OpenAIChat, OpenAICompletions
from pytest_llmsla.targets.http.reader import StreamReader
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event


def read(data: bytes | str | dict[str, Any], name: str = "message") -> Piece:
    """One event as the chat dialect reads it."""
    if isinstance(data, dict):
        data = json.dumps(data)
    raw = data.encode() if isinstance(data, str) else data
    return OpenAIChat("m").read(Event(0, name, raw))


def delta(value: Any, finish: Any = None, **more: Any) -> Piece:
    """A chunk with one choice."""
    choice = {"index": 0, "delta": value, "finish_reason": finish}
    return read({"object": "chat.completion.chunk", "choices": [choice], **more})


@pytest.mark.parametrize(
    "value",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {},
        None,
        {"thoughts": "x"},
        {"content": []},
        {"tool_calls": []},
        {"tool_calls": None, "function_call": None, "refusal": None, "audio": None},
        {"reasoning": None, "reasoning_content": None, "text": None},
        {"tool_calls": [{"index": 0, "function": None}]},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "", "arguments": ""}}]},
        {"audio": {"id": "a", "data": "UklGRg=="}},
    ],
)
def test_a_delta_without_generated_text_says_nothing(value: Any) -> None:
    """Role chunks, empty and null channels, and channels that nobody knows are no tokens."""
    assert delta(value) == Piece()


@pytest.mark.parametrize(
    ("value", "text", "visible"),
    [
        ({"content": "a"}, "a", "a"),
        ({"text": "a"}, "a", "a"),
        ({"content": [{"type": "text", "text": "a"}, "b"]}, "ab", "ab"),
        ({"content": [{"type": "text", "text": {"value": "a"}}]}, "a", "a"),
        ({"content": [{"type": "thinking", "thinking": [{"text": "t"}]}]}, "t", ""),
        ({"content": [{"type": "reasoning", "text": "t"}, {"text": "a"}]}, "ta", "a"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, "", ""),
        ({"reasoning": "r"}, "r", ""),
        ({"reasoning_content": "r"}, "r", ""),
        ({"reasoning": "r", "reasoning_content": "r"}, "r", ""),
        ({"reasoning": "r", "reasoning_content": "s", "content": "a"}, "rsa", "a"),
        ({"reasoning": {"content": "r"}}, "r", ""),
        ({"refusal": "no"}, "no", ""),
        ({"audio": {"transcript": "hi"}}, "hi", ""),
        ({"function_call": {"name": "f", "arguments": ""}}, "f", ""),
        ({"function_call": {"arguments": "{"}}, "{", ""),
        ({"tool_calls": [{"function": {"name": "add", "arguments": ""}}]}, "add", ""),
        ({"tool_calls": [{"function": {"arguments": '{"a":'}}]}, '{"a":', ""),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, 'f{"a": 1}', ""),
        ({"tool_calls": [{"custom": {"name": "g", "input": "x"}}]}, "gx", ""),
    ],
)
def test_every_generated_channel_is_text(value: Any, text: str, visible: str) -> None:
    """Content and text are visible; thoughts, calls, refusals and transcripts are generated too."""
    assert delta(value) == Piece(text=text, visible=visible)


def test_completions_have_their_text_in_the_choice() -> None:
    """The same reader serves both APIs."""
    chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    event = Event(0, "message", json.dumps(chunk).encode())
    assert OpenAICompletions("m").read(event) == Piece(text="a", visible="a")


def test_a_whole_message_in_one_event_is_read() -> None:
    """Servers that cannot stream send one."""
    got = read({"choices": [{"message": {"content": "all"}, "finish_reason": "stop"}]})
    assert got == Piece(text="all", visible="all", whole=True, finish="stop")


@pytest.mark.parametrize(("last", "tokens"), [("xx", [1, 1]), ("other", [1, 1, 2])])
def test_a_message_that_repeats_the_stream_brings_no_tokens(last: str, tokens: list[int]) -> None:
    """Its logprobs were counted as they came: twice as many tokens would halve every time."""
    reader = StreamReader(OpenAIChat("m"), Recorder(), 64)

    def take(at: int, content: str, key: str, finish: str | None) -> None:
        entries = [{"token": "x", "logprob": -0.1}] * (2 if finish else 1)
        choice = {key: {"content": content}, "logprobs": {"content": entries}}
        chunk = {"choices": [{"index": 0, **choice, "finish_reason": finish}]}
        reader.event(Event(at, "message", json.dumps(chunk).encode()))

    take(1, "x", "delta", None)
    take(2, "x", "delta", None)
    take(3, last, "message", "stop")
    assert [event.tokens for event in reader.said.events] == tokens
    assert reader.complete


def test_finish_and_text_may_share_an_event() -> None:
    """Dropping that text would lose the last gap."""
    assert delta({"content": "x"}, "stop") == Piece(text="x", visible="x", finish="stop")
    assert delta({}, "").finish is None


USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [], "usage": USAGE},
        {"usage": USAGE},
        {"choices": None, "usage": USAGE},
        {"choices": [{"index": 0, "delta": {}, "usage": USAGE}]},
        {"choices": [{"index": 0, "delta": {}, "usage": USAGE}], "usage": None},
        {"choices": [], "x_groq": {"id": "r", "usage": USAGE}},
    ],
)
def test_usage_is_read_wherever_it_stands(chunk: dict[str, Any]) -> None:
    """In an event of its own, beside a choice, inside one, or in a vendor's block."""
    assert read(chunk) == Piece(total=3, prompt_tokens=100)


@pytest.mark.parametrize(
    ("more", "cached"),
    [
        ({}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 92}}, 92),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64),
        ({"cached_tokens": 5}, 5),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "cached_tokens": 64}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 64}, "cached_tokens": 0}, 64),
    ],
)
def test_a_prefix_cache_hit_is_read_in_each_spelling(
    more: dict[str, Any], cached: int | None
) -> None:
    """0 is a statement, null is none."""
    assert read({"choices": [], "usage": {**USAGE, **more}}).cached_tokens == cached


def test_null_usage_says_nothing() -> None:
    """Servers send it on every chunk but the last."""
    assert read({"choices": [], "usage": None}) == Piece()
    assert read({"choices": [], "usage": {"completion_tokens": None}}) == Piece()


def test_reasoning_tokens_are_part_of_the_total() -> None:
    """They are not added to it."""
    usage = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 2}}
    assert read({"choices": [], "usage": usage}).total == 3


@pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("value", [-1, True, 3.0, 1e99, "3", [3], {}, 2**70, float("nan")])
def test_absurd_counts_are_refused(key: str, value: Any) -> None:
    """A count is a whole number in the bounds of what a model can do; each one becomes a sample."""
    with pytest.raises(WireError, match="absurd"):
        read({"choices": [], "usage": {**USAGE, key: value}})


def test_absurd_cache_hits_are_refused() -> None:
    """In any spelling, even behind one that is sound."""
    for details in ({"prompt_tokens_details": {"cached_tokens": -5}}, {"cached_tokens": 0.5}):
        with pytest.raises(WireError, match="absurd"):
            read({"choices": [], "usage": {**USAGE, **details}})


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"token_ids": [5, 6, 7]}, 3),
        ({"token_ids": []}, 0),
        ({"token_ids": None}, None),
        ({"logprobs": {"content": [{"token": "a"}, {"token": "b"}]}}, 2),
        ({"logprobs": {"content": []}}, None),
        ({"logprobs": {"content": None, "refusal": None}}, None),
        ({"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -2]}}, 2),
        ({"logprobs": None}, None),
        ({"logprobs": {"pad": "ppp"}}, None),
        ({"token_ids": [1], "logprobs": {"content": [1, 2]}}, 1),
    ],
)
def test_tokens_of_an_event_by_ids_or_logprobs(choice: dict[str, Any], tokens: int | None) -> None:
    """Ids before logprobs; nothing where there is none."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, **choice}]}
    assert read(chunk).tokens == tokens


def test_timings_of_llamacpp_are_read_on_its_openai_route_too() -> None:
    """A running count with timings_per_token, a cache hit, and the server's own times."""
    timings = {"cache_n": 12, "predicted_n": 4, "prompt_ms": 105.5, "predicted_ms": 160}
    got = delta({"content": "x"}, timings=timings)
    assert (got.total, got.cached_tokens) == (4, 12)
    assert got.server_ms == {"prefill": 105.5, "decode": 160.0}
    both = read({"choices": [], "usage": USAGE, "timings": timings})
    assert both.total == 3


@pytest.mark.parametrize("data", ["[DONE]", " [DONE] ", "\t[DONE]\r"])
def test_the_end_marker(data: str) -> None:
    """With whatever spaces are around it."""
    assert read(data) == Piece(done=True)


@pytest.mark.parametrize(("data", "name"), [("", "message"), ("  ", "message"), ("hi", "ping")])
def test_pings_say_nothing(data: str, name: str) -> None:
    """Empty data, or an event named so."""
    assert read(data, name) == Piece()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"error": {"message": "upstream timed out", "type": "timeout", "code": 504}}, "504"),
        ({"error": {"message": "engine failed", "code": 500}}, "engine failed (500)"),
        ({"error": "no memory"}, "no memory"),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, "overloaded"),
        ({"object": "error", "message": "bad", "type": "BadRequest", "code": 400}, "bad (400)"),
        ({"object": "error", "message": "bad", "choices": []}, "bad"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"detail": {"error": {"message": "who are you"}}}, "who are you"),
        ({"message": "worker lost", "code": 500}, "worker lost (500)"),
        ({"error": {"message": "x", "code": None}, "choices": []}, "x"),
        ({"errors": ["out of luck"]}, "out of luck"),
        ({"error": {}}, "error"),
        ({"error": True}, "error"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"message": "late"}}]}, "late"),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}, "error"),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}, "abort"),
        ({"choices": [{"index": 0, "delta": {"content": "", "error": "lost"}}]}, "lost"),
        ({"choices": [{"delta": {}}], "x_groq": {"id": "r", "error": "over capacity"}}, "over cap"),
        ({"message": "Endpoint request timed out"}, "timed out"),
        ({"msg": "engine failed", "code": 500}, "engine failed"),
        ({"choices": [], "usage": None, "msg": "worker lost"}, "worker lost"),
        ({"errCode": 3, "errorMessage": "out of memory"}, "out of memory"),
        ({"status": "FAILED"}, "FAILED"),
        ({"type": "response.failed", "id": "r"}, "response.failed"),
        ({"statusCode": 503}, "503"),
        ({"code": "429"}, "429"),
        ({"err": ["x"]}, "x"),
        ({"traceback": "File x"}, "File x"),
        ({"success": False}, "success"),
        ({"choices": [{"delta": {"content": "a"}}], "code": 500, "message": "lost"}, "lost (500)"),
        ({"choices": [{"delta": {}}], "base_resp": {"status_code": 1002}}, "1002"),
    ],
)
def test_errors_in_every_shape_seen(payload: dict[str, Any], words: str) -> None:
    """The message with its code or type is kept; none of them is taken for an empty event."""
    error = read(payload).error
    assert error is not None
    assert words in error


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"message":"worker lost","code":500}', "worker lost (500)"),
        ('{"choices": []}', "choices"),
        ("out of memory", "out of memory"),
        ("", "without words"),
        ("\xff\xfe", "\xff"),
    ],
)
def test_an_event_named_error_is_one_whatever_it_holds(data: str, words: str) -> None:
    """Its payload need not have an error key, or be JSON at all."""
    error = read(data, "error").error
    assert error is not None
    assert words in error


@pytest.mark.parametrize("name", ["error", "Error", "stream.error", "response.failed", "aborted"])
def test_an_event_named_after_a_failure_is_one(name: str) -> None:
    """Even where its data would end an answer."""
    assert read("[DONE]", name).error == "[DONE]"


@pytest.mark.parametrize(
    "payload",
    [
        {"error": None, "choices": []},
        {"error": False},
        {"x": 1},
        {"code": 0, "msg": "success"},
        {"code": 200, "status": "ok", "errors": [], "error_code": 0, "message": ""},
        {"default": True, "object": "ping", "type": "heartbeat"},
        {"choices": [{"delta": {"content": "x"}}], "message": "hi", "status": "failed"},
        {"choices": [{"delta": {"content": "x"}}], "base_resp": {"status_code": 0}, "code": 200},
    ],
)
def test_no_error_is_no_error(payload: dict[str, Any]) -> None:
    """Servers that fill in every field send error: null."""
    assert read(payload).error is None


def test_a_second_answer_is_refused() -> None:
    """Two answers share the time of one: nothing could be said of either."""
    with pytest.raises(WireError, match="choice 1"):
        read({"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "b"}}]})
    with pytest.raises(WireError, match="2 choices"):
        read({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]})
    assert read({"choices": [{"delta": {"content": "a"}}]}).text == "a"


@pytest.mark.parametrize(
    "data",
    [
        b"{not json}",
        b'{"choices": [',
        b"[]",
        b"null",
        b"17",
        b'"text"',
        b'{"choices": {}}',
        b'{"choices": [5]}',
        b'{"choices": [{"delta": "x"}]}',
        b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"choices": [{"delta": {"tool_calls": {}}}]}',
        b'{"choices": [{"delta": {"content": [{"thinking": 5}]}}]}',
        b'{"choices": [{"index": "0"}]}',
        b'{"choices": [{"finish_reason": 5}]}',
        b'{"usage": []}',
        b"\xff\xfe",
        b'{"choices": [{"delta": {"content": "\xe4\xbd"}}]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"usage": {"completion_tokens": ' + b"9" * 5000 + b"}}",
    ],
)
def test_what_cannot_be_read_is_a_wire_error(data: bytes) -> None:
    """Never skipped, never another exception; the message shows the start, safe to print."""
    with pytest.raises(WireError, match=r"malformed|absurd") as caught:
        read(data)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_half_a_surrogate_pair_is_replaced() -> None:
    """It could be neither stored nor tokenized; a whole pair is the character that it means."""
    assert delta({"content": "\ud83d\ude00"}).text == "😀"
    assert delta({"content": "\ud83d"}).text == "\ufffd"
    error = read('{"error": "\\ud83d"}').error
    assert error is not None
    error.encode()


def test_a_300_kb_event_is_read_like_any_other() -> None:
    """Its size says nothing about its text."""
    assert delta({"content": "y", "pad": "p" * 300_000}).text == "y"

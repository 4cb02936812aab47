"""An event that is known by its bytes says what a full reading of it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmsla.targets.base import Recorder
from pytest_llmsla.targets.http.alike import Alike, learn
from pytest_llmsla.targets.http.dialect import Dialect, Piece
from pytest_llmsla.targets.http.llamacpp import LlamaCpp
from pytest_llmsla.targets.http.openai import OpenAIChat, OpenAICompletions
from pytest_llmsla.targets.http.reader import StreamReader
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event

Chunk = Callable[[str, int], dict[str, Any]]


def usage(n: int) -> dict[str, Any]:
    return {"prompt_tokens": 12, "total_tokens": 12 + n, "completion_tokens": n}


def vllm(text: str, n: int) -> dict[str, Any]:
    """vLLM with running counts."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 17, "model": "m"}
    return {**head, "choices": [choice], "usage": usage(n)}


def reasoning(text: str, n: int) -> dict[str, Any]:
    """Thought, and no counts."""
    choice = {"index": 0, "delta": {"reasoning_content": text, "content": None}}
    return {"id": "chatcmpl-1", "choices": [choice]}


def llama_chat(text: str, n: int) -> dict[str, Any]:
    """llama.cpp's chat: the id stands behind the text, and seconds pass."""
    choice = {"finish_reason": None, "index": 0, "delta": {"content": text}}
    return {"choices": [choice], "created": 1_700_000_000 + n // 50, "id": "chatcmpl-1"}


def completion(text: str, n: int) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": None}]}


def native(text: str, n: int) -> dict[str, Any]:
    """llama.cpp's own route."""
    return {"index": 0, "content": text, "tokens": [], "stop": False, "tokens_predicted": n}


STREAMS: dict[str, tuple[Dialect, Chunk]] = {
    "vllm": (OpenAIChat("m"), vllm),
    "reasoning": (OpenAIChat("m"), reasoning),
    "llama chat": (OpenAIChat("m"), llama_chat),
    "completions": (OpenAICompletions("m"), completion),
    "llama native": (LlamaCpp(), native),
}
NAMES = st.sampled_from(sorted(STREAMS))
TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from([" on", "\n", '"', "\\", "é中", "\ud83d", "\x7f", "</s>"])
)


def encoded(chunk: dict[str, Any], escaped: bool) -> bytes:
    """As servers write it: with every character escaped that is not ASCII, or none."""
    told = json.dumps(chunk, ensure_ascii=escaped)
    return told.encode("utf-8", "replace")


def learnt(name: str) -> tuple[Dialect, Chunk, Alike]:
    dialect, chunk = STREAMS[name]
    first, second = (encoded(chunk(t, n), False) for t, n in ((" a", 1), (" b", 2)))
    alike = learn(first, second, dialect.read(Event(0, "message", second)), dialect.read)
    assert alike is not None
    return dialect, chunk, alike


def said_by(alike: Alike, data: bytes) -> Piece | None:
    found = alike.read(b"data: " + data + b"\n\n", 6, 6 + len(data))
    if found is None:
        return None
    text, total = found
    visible = text if alike.visible else ""
    return replace(alike.piece, text=text, visible=visible, total=total)


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_two_events_teach_what_the_others_say(name: str) -> None:
    """With other texts and counts, raw and escaped."""
    dialect, chunk, alike = learnt(name)
    for n, text in enumerate((" on", "", "\n", '"q"', "é中", "a/b", "0", "{}"), 3):
        for escaped in (False, True):
            data = encoded(chunk(text, n), escaped)
            found = said_by(alike, data)
            assert found == dialect.read(Event(0, "message", data))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES, TEXTS, st.integers(0, 2_000_000), st.data())
def test_whatever_is_known_says_what_a_full_reading_says(
    name: str, text: str, n: int, data: st.DataObject
) -> None:
    """Also with bytes changed, put in or taken out anywhere: else it is not known."""
    dialect, chunk, alike = learnt(name)
    raw = bytearray(encoded(chunk(text, n), data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(raw) - 1))
        gone = data.draw(st.integers(0, 3))
        raw[at : at + gone] = data.draw(
            st.one_of(st.binary(max_size=2), st.sampled_from([b"0", b'"', b"\\", b"\n", b"1e9"]))
        )
    found = said_by(alike, bytes(raw))
    if found is not None:
        assert found == dialect.read(Event(0, "message", bytes(raw)))
        assert b"\n" not in raw
        assert b"\r" not in raw


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c["choices"][0].update(finish_reason="stop"), "it finishes"),
        (lambda c: c["usage"].update(prompt_tokens=13), "another prompt"),
        (lambda c: c.update(id="chatcmpl-2"), "another answer"),
        (lambda c: c["choices"][0].update(index=1), "another choice"),
        (lambda c: c["usage"].update(completion_tokens=1_000_001), "an absurd count"),
        (lambda c: c["usage"].update(completion_tokens=-1), "a count below 0"),
        (lambda c: c["usage"].update(completion_tokens=1.5), "no whole number"),
        (lambda c: c["choices"][0]["delta"].update(role="assistant"), "another key"),
        (lambda c: c.update(error="boom"), "an error"),
    ],
)
def test_what_differs_otherwise_is_read_in_full(
    change: Callable[[dict[str, Any]], None], why: str
) -> None:
    """Whatever may mean something else is not known."""
    _, chunk, alike = learnt("vllm")
    changed = chunk(" on", 3)
    assert said_by(alike, encoded(changed, False)) is not None
    change(changed)
    assert said_by(alike, encoded(changed, False)) is None, why


class _InFull(StreamReader):
    """Knows nothing by its bytes."""

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        return False


class _Counting(StreamReader):
    """Counts what it knew."""

    knew = 0

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        found = super().known(data, start, end, t_ns)
        self.knew += found
        return found


def _told(reader: StreamReader, record: Recorder, events: Sequence[Event]) -> tuple[Any, ...]:
    error = None
    try:
        for event in events:
            data = b"data: " + event.data + b"\n\n"
            if not reader.known(data, 6, len(data) - 2, event.t_ns):
                reader.event(event)
    except WireError as e:
        error = str(e)
    return reader.said, record.arrivals, record.merged, error


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES, st.lists(st.tuples(TEXTS, st.integers(0, 2)), max_size=30), st.booleans())
def test_a_stream_reads_alike_either_way(
    name: str, told: list[tuple[str, int]], escaped: bool
) -> None:
    """Events, totals, texts, stamps, merges and failures: nothing tells the two apart."""
    dialect, chunk = STREAMS[name]
    events, t_ns = [], 0
    for n, (text, later) in enumerate(told, 1):
        t_ns += later
        events.append(Event(t_ns, "message", encoded(chunk(text, n), escaped)))
    both = []
    for kind in (StreamReader, _InFull):
        record = Recorder()
        both.append(_told(kind(dialect, record, 4), record, events))
    assert both[0] == both[1]


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_nearly_every_event_of_a_plain_stream_is_known(name: str) -> None:
    """All but those that teach; also where several come in one read."""
    dialect, chunk = STREAMS[name]
    record = Recorder()
    reader = _Counting(dialect, record, 100)
    events = [Event(n, "message", encoded(chunk(f" w{n}", n), False)) for n in range(1, 101)]
    _told(reader, record, events)
    assert reader.knew >= 97
    assert len(reader.said.events) == len(record.arrivals) == 100


def test_nothing_is_learnt_from_what_never_repeats() -> None:
    """Such as a chunk with a filling of another length each time."""
    dialect = OpenAIChat("m")
    events = [
        Event(n, "message", json.dumps({**vllm(" on", n), "obfuscation": "x" * (n % 7)}).encode())
        for n in range(1, 60)
    ]
    record = Recorder()
    reader = _Counting(dialect, record, 100)
    _told(reader, record, events)
    assert len(reader.said.events) == 59
    assert [k for _, k in reader.said.totals] == list(range(1, 60))

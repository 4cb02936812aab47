"""One line of a log: a timeline survives it unchanged, and what cannot be understood is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_samples import timeline
from pytest_llmsla.log.other_lines import check_other
from pytest_llmsla.log.request_lines import from_line, to_line
from pytest_llmsla.log.strict_json import parse, plain
from pytest_llmsla.timeline import PEAK, Stamp, Timeline, TokenSource

WHOLE = st.integers(-(2**53), 2**53)
COUNT = st.integers(0, 2**31)
TEXT = st.text(max_size=8)
NAME = st.text(min_size=1, max_size=8)

TIMELINES = st.builds(
    Timeline,
    id=NAME,
    bucket=TEXT,
    start_ns=WHOLE,
    end_ns=WHOLE,
    arrivals=st.lists(st.tuples(WHOLE, COUNT), max_size=4).map(tuple),
    prompt_tokens=st.none() | COUNT,
    output_tokens=st.none() | COUNT,
    max_new_tokens=COUNT,
    token_source=st.sampled_from([None, *get_args(TokenSource)]),
    finish_reason=st.none() | TEXT,
    scheduled_ns=st.none() | WHOLE,
    warmup=st.booleans(),
    unit=COUNT,
    concurrency=st.integers(1, 64),
    attempt=st.integers(1, 9),
    segment=st.integers(0, 9),
    stages=st.dictionaries(NAME.filter(lambda s: not s.endswith("_ns")), WHOLE, max_size=3),
    sampling=st.dictionaries(NAME, st.none() | st.booleans() | st.floats(0, 2), max_size=3),
    cached_tokens=st.none() | COUNT,
    stamp=st.sampled_from(get_args(Stamp)),
    gate=st.none() | NAME,
    purpose=st.sampled_from([None, PEAK]),
    notes=st.lists(TEXT, max_size=2).map(tuple),
    text=st.none() | TEXT,
    prompt=st.none() | TEXT,
)


def through_json(line: dict[str, Any]) -> Any:
    return parse(json.dumps(plain(line), allow_nan=False).encode())


@given(TIMELINES, WHOLE)
def test_a_timeline_survives_its_line(t: Timeline, origin: int) -> None:
    """Written and read back it is the same, only that its times count from the origin."""
    back = from_line(through_json(to_line(t, keep_text=True, origin_ns=origin)))
    moved = dataclasses.replace(
        t,
        start_ns=t.start_ns - origin,
        end_ns=t.end_ns - origin,
        scheduled_ns=None if t.scheduled_ns is None else t.scheduled_ns - origin,
        arrivals=tuple((at - origin, k) for at, k in t.arrivals),
    )
    assert back == moved


def test_texts_are_left_out_unless_kept() -> None:
    """Prompt and answer are on record only where that was asked for."""
    t = dataclasses.replace(timeline(), text="an answer", prompt="a question")
    assert not {"text", "prompt"} & set(to_line(t))
    assert to_line(t, keep_text=True)["prompt"] == "a question"


WRONG: dict[str, tuple[str, Any]] = {
    "status that is none": ("status", "fine"),
    "status true": ("status", True),
    "error beside ok": ("error", "RuntimeError: boom"),
    "error of another type": ("error", 7),
    "id empty": ("id", ""),
    "id a number": ("id", 7),
    "bucket a list": ("bucket", ["short"]),
    "start a float": ("start_ns", 1.0),
    "start true": ("start_ns", True),
    "start text": ("start_ns", "1"),
    "start null": ("start_ns", None),
    "start over 64 bits": ("start_ns", 2**63),
    "end huge": ("end_ns", 10**400),
    "end infinite": ("end_ns", math.inf),
    "due time a float": ("scheduled_ns", 0.5),
    "arrivals null": ("arrivals", None),
    "arrivals an object": ("arrivals", {"ab": 1}),
    "arrivals flat": ("arrivals", [1, 2]),
    "arrivals of one": ("arrivals", [[1]]),
    "arrivals of three": ("arrivals", [[1, 1, 1]]),
    "arrivals text": ("arrivals", ["ab"]),
    "arrival at a float": ("arrivals", [[0.5, 1]]),
    "arrival of true": ("arrivals", [[5, True]]),
    "arrival of fewer than none": ("arrivals", [[5, -1]]),
    "prompt length text": ("prompt_tokens", "120"),
    "prompt length true": ("prompt_tokens", True),
    "prompt length below 0": ("prompt_tokens", -1),
    "output a float": ("output_tokens", 8.0),
    "max_new_tokens null": ("max_new_tokens", None),
    "source unknown": ("token_source", "guessed"),
    "source a list": ("token_source", ["model"]),
    "finish reason a number": ("finish_reason", 1),
    "warm-up text": ("warmup", "false"),
    "warm-up 1": ("warmup", 1),
    "unit below 0": ("unit", -1),
    "unit text": ("unit", "0"),
    "concurrency 0": ("concurrency", 0),
    "attempt 0": ("attempt", 0),
    "segment below 0": ("segment", -1),
    "stages a list": ("stages", [1]),
    "stage a float": ("stages", {"prefill_ns": 0.5}),
    "sampling text": ("sampling", "greedy"),
    "cached below 0": ("cached_tokens", -5),
    "stamp unknown": ("stamp", "guess"),
    "gate a list": ("gate", []),
    "purpose unknown": ("purpose", "practice"),
    "notes text": ("notes", "abc"),
    "note a number": ("notes", [1]),
    "text a number": ("text", 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_that_cannot_be_is_refused(name: str) -> None:
    """Another type, another range, or at odds with the rest: never taken for evidence."""
    key, value = WRONG[name]
    line = {**to_line(timeline()), key: value}
    with pytest.raises((TypeError, ValueError)):
        from_line(line)


@pytest.mark.parametrize(
    "key", ["id", "bucket", "start_ns", "end_ns", "arrivals", "max_new_tokens", "status"]
)
def test_a_field_that_every_request_has_may_not_be_missing(key: str) -> None:
    """No default stands in for what makes a request."""
    line = to_line(timeline())
    del line[key]
    with pytest.raises(KeyError, match=key):
        from_line(line)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("gate", {"gate": None, "policy": {}}),
        ("gate", {"gate": "", "policy": {}}),
        ("gate", {"policy": {}}),
        ("gate", {"gate": "t.py::t", "sources": "none"}),
        ("target", {"template_tokens": "24"}),
        ("target", {"template_tokens": -1}),
        ("target", {"gate": 3}),
        ("resources", {"memory": [1.5]}),
        ("resources", {"gate": {}}),
        ("resources", {"purpose": "other"}),
        ("tgs", {"id": "t/tgs", "value": "fast"}),
        ("tgs", {"id": "t/tgs", "value": True}),
        ("tgs", {"id": "t/tgs", "value": 0}),
        ("tgs", {"id": "t/tgs", "value": -1}),
        ("tgs", {"id": "t/tgs", "value": math.inf}),
        ("tgs", {"value": 12.0}),
        ("problem", {"bucket": "short"}),
        ("problem", {"reason": "r", "bucket": 1}),
        ("segment", {"segment": -1}),
        ("segment", {"segment": "0"}),
        ("end", {}),
        ("end", {"reason": None}),
        ("end", {"reason": "ended", "measuring": {"gate": "seconds"}}),
        ("end", {"reason": "ended", "measuring": ["seconds"]}),
        ("end", {"reason": "ended", "measuring": [{"gate": 1, "reason": "seconds"}]}),
    ],
)
def test_other_lines_are_held_to_their_types_too(kind: str, line: dict[str, Any]) -> None:
    """A gate without a name, a rate that is none, a problem without a reason: refused."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        check_other(kind, line)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"status":"error","status":"ok"}',
        b'{"a":{"b":1,"b":1}}',
        b"\xff{}",
        b"[" * 100_000,
        b'{"a":1}{"b":2}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":9223372036854775808}',
        b'{"a":-99223372036854775808}',
        b'{"a":1e999}',
    ],
)
def test_only_strict_json_is_read(text: bytes) -> None:
    """No NaN, no key twice, no second object, no endless nesting or number."""
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_what_json_cannot_hold_becomes_its_text() -> None:
    """An engine may describe itself with anything; the log stays readable and strict."""

    class Odd:
        def __str__(self) -> str:
            return "odd"

    line = {"a": math.nan, "b": [math.inf, Odd(), 2**80], 3: {"c": (1, None, True)}, "d": 1.5}
    assert plain(line) == {
        "a": "nan",
        "b": ["inf", "odd", str(2**80)],
        "3": {"c": [1, None, True]},
        "d": 1.5,
    }

"""What every kind of target promises, whoever wrote it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.asker import Asker, Timeouts
from pytest_llmsla.errors import GenerationAborted
from pytest_llmsla.log.request_lines import from_line, to_line
from pytest_llmsla.log.strict_json import plain
from pytest_llmsla.rules.checks import defect, miscounted
from pytest_llmsla.rules.memory import FIGURES
from pytest_llmsla.targets import Ask, Recorder, Target
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.targets.scripted import ScriptedTarget, from_mapping
from pytest_llmsla.timeline import Timeline

KINDS = ("scripted", "python", "python-async", "transformers")


class Words:
    """A small engine: a token a word, as long as asked."""

    def generate(self, prompt: str, *, max_new_tokens: int, sampling: Any, **more: Any) -> Any:
        return iter(range(max_new_tokens))

    def count(self, prompt: str, system: str | None) -> int:
        return len(f"{system or ''} {prompt}".split())


class AsyncWords(Words):
    def generate(self, prompt: str, *, max_new_tokens: int, sampling: Any, **more: Any) -> Any:
        async def stream() -> Any:
            for n in range(max_new_tokens):
                yield n

        return stream()


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Target]:
    """Each kind once; ``transformers`` is a two-layer model with random weights."""
    if request.param == "scripted":
        made: Target = ScriptedTarget(from_mapping({"ttft_ms": 100, "itl_ms": 20}))
    elif request.param == "python":
        made = PythonTarget(Words())
    elif request.param == "python-async":
        made = PythonTarget(AsyncWords())
    else:
        sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "targets"))
        import hf_tiny

        made = hf_tiny.load(hf_tiny.save(tmp_path_factory.mktemp("tiny")))
    yield made
    made.close()
    made.close()


def asked(target: Target, **fields: Any) -> Timeline:
    ask = Ask(**{"prompt": "What is a token?", "max_new_tokens": 6, "force_length": True, **fields})
    blank = Timeline("r1", "short", 0, 0, max_new_tokens=ask.max_new_tokens)
    with Asker(target, Timeouts()) as asker:
        return asker.ask(ask, blank)


def test_it_is_a_target_that_says_what_it_is(target: Target) -> None:
    """It keeps the protocol, has a kind, and says where TTFT's clock starts."""
    assert isinstance(target, Target)
    assert target.kind
    assert len(target.start_point.split()) > 2


def test_its_clock_gives_whole_nanoseconds_that_never_go_back(target: Target) -> None:
    """A thousand readings, in order, and an answer takes time on it."""
    readings = [target.clock() for _ in range(1000)]
    assert readings == sorted(readings)
    assert {type(at) for at in readings} == {int}
    t = asked(target)
    assert readings[-1] <= t.start_ns < t.end_ns <= target.clock()


def test_an_answer_is_sound(target: Target) -> None:
    """As many tokens as forced, one stamp each, after the start, counted alike on both sides."""
    t = asked(target)
    assert (t.status, t.error, defect(t, None), miscounted(t)) == ("ok", None, None, None)
    assert (t.tokens, t.output_tokens, len(t.arrivals)) == (6, 6, 6)
    assert t.finish_reason == "length"
    assert t.prompt_tokens == target.count("What is a token?")


def test_an_answer_survives_the_log(target: Target) -> None:
    """Every field that it fills can be written and is read back the same."""
    t = asked(target)
    line = json.loads(json.dumps(plain(to_line(t, keep_text=True)), allow_nan=False))
    assert from_line(line) == t


def test_stages_fit_into_the_request(target: Target) -> None:
    """No stage is negative; those before the first token do not exceed TTFT."""
    t = asked(target)
    assert all(ns >= 0 for ns in t.stages.values())
    before = ("tokenise", "queue", "cache_init", "prefill", "first_sample")
    assert sum(t.stages.get(name, 0) for name in before) <= (t.ttft_ns or 0)


def test_lengths_are_whole_repeatable_and_grow(target: Target) -> None:
    """A longer prompt is never shorter; a system prompt adds to it."""
    words = ["one", "one two", "one two three four five six", "one " * 60]
    lengths = [target.count(text) for text in words]
    assert lengths == [target.count(text) for text in words] == sorted(lengths)
    assert {type(n) for n in lengths} == {int}
    assert target.count("one", "Be kind and brief.") > target.count("one")


def test_ids_are_whole_and_repeatable_or_unknown(target: Target) -> None:
    """encode() gives ids of bare text, the same every time, or None."""
    ids = target.encode("one two three")
    assert ids == target.encode("one two three")
    if ids is not None:
        assert ids
        assert {type(n) for n in ids} == {int}
    context = target.max_context()
    assert context is None or context > 0


def test_facts_are_ready_for_the_log(target: Target) -> None:
    """JSON without a change, with a model and warnings that have code and message."""
    facts = dict(target.describe())
    assert json.loads(json.dumps(facts, allow_nan=False)) == plain(facts) == facts
    assert facts["kind"] == target.kind
    assert facts["model"] is not None
    for warning in facts["warnings"]:
        assert set(warning) >= {"code", "message"}


def test_memory_is_a_figure_or_a_reason(target: Target) -> None:
    """Never 0, never negative, never missing in silence."""
    target.reset_peaks()
    asked(target)
    memory = target.memory()
    assert memory["rss_peak"] > 0
    for name in FIGURES:
        value = memory.get(name)
        if value is None:
            assert memory[f"{name}_reason"]
        else:
            assert 0 < value < 2**40


def test_told_to_stop_it_stops_at_the_next_token_and_works_on(target: Target) -> None:
    """A deadline ends a generation; the next request is answered whole."""
    record = Recorder(target.clock)
    record.start()
    record.cancel()
    with pytest.raises(GenerationAborted):
        target.generate(Ask("What is a token?", 6, force_length=True), record)
    assert len(record.arrivals) == 1
    assert asked(target).tokens == 6


def test_one_token_and_many_are_given_as_asked(target: Target) -> None:
    """max_new_tokens is the length, where length is forced."""
    for n in (1, 2, 17):
        t = asked(target, max_new_tokens=n)
        assert (t.tokens, t.error) == (n, None)


def test_a_system_prompt_and_sampling_are_taken(target: Target) -> None:
    """Greedy and sampled, with and without a system prompt."""
    for sampling in ({"greedy": True}, {"greedy": False, "temperature": 0.8, "top_p": 0.9}):
        t = asked(target, system="Be brief.", sampling=sampling)
        assert (t.status, t.prompt_tokens) == (
            "ok",
            target.count("What is a token?", "Be brief."),
        )

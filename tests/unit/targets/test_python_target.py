"""Any engine: what counts as a token, what it may return, and that nothing of it lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pytest_llmsla.errors import GenerationAborted, TargetError, UsageError
from pytest_llmsla.targets.base import Answer, Ask, Recorder
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.timeline import NOT_FORCED

ASK = Ask("five words are in here", 6, {"greedy": True}, force_length=True)


class Engine:
    """``body`` as generate; counts words; remembers how it was asked."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def generate(self, prompt: str, **kwargs: Any) -> Any:
        self.asked.append((prompt, kwargs))
        return self._body()

    def count(self, prompt: str, system: str | None) -> int:
        return len(f"{system or ''} {prompt}".split())


def asked(body: Callable[[], Any], ask: Ask = ASK) -> tuple[Answer, list[int]]:
    """The answer and how many tokens each arrival had."""
    record = Recorder()
    record.start()
    target = PythonTarget(Engine(body))
    try:
        answer = target.generate(ask, record)
    finally:
        target.close()
    return answer, [k for _, k in record.arrivals]


async def stream(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


async def later(*items: Any) -> AsyncIterator[Any]:
    return stream(*items)


# -- ways to give tokens


@pytest.mark.parametrize(
    "body",
    [
        lambda: iter([1, 2, 3, 4, 5, 6]),
        lambda: (n for n in range(6)),
        lambda: map(int, "123456"),
        lambda: stream(1, 2, 3, 4, 5, 6),
        lambda: later(1, 2, 3, 4, 5, 6),
    ],
)
def test_iterators_of_every_kind_give_one_arrival_a_token(body: Callable[[], Any]) -> None:
    """Plain, generator, async, awaitable of async: the same six arrivals."""
    answer, arrivals = asked(body)
    assert arrivals == [1] * 6
    assert (answer.output_tokens, answer.finish_reason) == (6, "length")
    assert (answer.token_source, answer.prompt_tokens, answer.notes) == ("model", 5, ())


def test_ids_that_arrive_together_are_one_arrival() -> None:
    """A list is what reached the host at once: k tokens, one moment."""
    assert asked(lambda: iter([[1], (2, 3), [[4], 5], 6]))[1] == [1, 2, 2, 1]


def test_tensors_and_arrays_are_ids() -> None:
    """Whatever can list its integers."""
    import numpy

    items = [numpy.int64(1), numpy.array([2, 3]), numpy.array(4)]
    assert asked(lambda: iter(items))[1] == [1, 2, 1]


@pytest.mark.parametrize("item", ["text", b"x", 1.5, None, True, [], [1, "a"], {"id": 1}, object()])
@pytest.mark.parametrize("kind", [iter, lambda items: stream(*items)])
def test_what_is_no_id_is_refused(item: Any, kind: Callable[[list[Any]], Any]) -> None:
    """A text piece is not a token; ITL could not be measured from it."""
    with pytest.raises(TargetError, match=r"generate\(\) yielded"):
        asked(lambda: kind([1, item]))


@pytest.mark.parametrize("made", [[1, 2, 3], "text", None, 7, {"ids": [1]}, range(6)])
def test_an_answer_that_is_not_streamed_is_refused(made: Any) -> None:
    """A whole list has no first token: no TTFT, no ITL, and so no number."""
    with pytest.raises(TargetError, match="not streamed"):
        asked(lambda: made)


def test_an_awaited_list_is_refused_too() -> None:
    """Async engines that answer at once are not streamed either."""

    async def whole() -> list[int]:
        return [1, 2, 3]

    with pytest.raises(TargetError, match="when awaited"):
        asked(whole)


@pytest.mark.parametrize("body", [lambda: iter([]), lambda: stream()])
def test_no_token_is_no_arrival(body: Callable[[], Any]) -> None:
    """An end at once is left to the rules."""
    answer, arrivals = asked(body)
    assert (arrivals, answer.output_tokens, answer.finish_reason) == ([], 0, "stop")


# -- length


def test_an_early_end_is_noted_where_length_was_to_be_forced() -> None:
    """A python engine decides its own length, and the record says so."""
    answer, _ = asked(lambda: iter([1, 2]))
    assert answer.finish_reason == "stop"
    assert [note.startswith(NOT_FORCED) for note in answer.notes] == [True]
    assert asked(lambda: iter([1, 2]), Ask("p", 6))[0].notes == ()


@pytest.mark.parametrize("endless", [False, True])
def test_more_than_asked_for_is_left_after_one(endless: bool) -> None:
    """An engine that does not stop costs one token too many, not the deadline."""

    def drip() -> Iterator[int]:
        while True:
            yield 1

    async def adrip() -> AsyncIterator[int]:
        while True:
            yield 1

    assert asked(adrip if endless else drip)[1] == [1] * (ASK.max_new_tokens + 1)


# -- clean-up


@pytest.mark.parametrize("error", [None, GenerationAborted("late")])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_engines_own_clean_up_runs_before_the_next_request(
    error: Exception | None, asynchronous: bool
) -> None:
    """Its finally block runs when a request is stopped, not whenever memory is collected."""
    done: list[str] = []

    def plain() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            done.append("clean")

    async def unplain() -> AsyncIterator[int]:
        try:
            for n in range(100):
                yield n
        finally:
            await asyncio.sleep(0)
            done.append("clean")

    target = PythonTarget(Engine(unplain if asynchronous else plain))
    record = Recorder()
    record.start()
    if error is not None:
        record.cancel()
        with pytest.raises(GenerationAborted):
            target.generate(ASK, record)
    else:
        target.generate(ASK, record)
    assert done == ["clean"]
    target.close()


def test_the_callers_event_loop_is_left_alone() -> None:
    """An async engine runs on a loop of its own; the caller's goes on working."""

    async def caller() -> int:
        target = PythonTarget(Engine(lambda: stream(1, 2)))
        record = Recorder()
        record.start()
        await asyncio.to_thread(target.generate, ASK, record)
        target.close()
        await asyncio.sleep(0)
        return len(record.arrivals)

    assert asyncio.run(caller()) == 2


def test_closing_twice_is_fine() -> None:
    """And closes the engine where it can be."""
    closed: list[int] = []

    class Closing(Engine):
        def close(self) -> None:
            closed.append(1)

    target = PythonTarget(Closing(lambda: stream(1)))
    target.generate(ASK, Recorder())
    target.close()
    target.close()
    assert closed


# -- how it is asked, and what it may tell


def test_an_engine_is_asked_as_written() -> None:
    """prompt, max_new_tokens, sampling; a system prompt only where there is one."""
    engine = Engine(lambda: iter([1]))
    target = PythonTarget(engine)
    target.generate(ASK, Recorder())
    target.generate(Ask("p", 6, system="be kind"), Recorder())
    assert engine.asked == [
        (ASK.prompt, {"max_new_tokens": 6, "sampling": {"greedy": True}}),
        ("p", {"max_new_tokens": 6, "sampling": {}, "system": "be kind"}),
    ]


def test_a_plain_function_is_an_engine() -> None:
    """With a tokenizer given for its lengths."""

    class Words:
        def encode(self, text: str) -> list[int]:
            return [len(word) for word in text.split()]

        def decode(self, ids: list[int]) -> str:
            return " ".join(map(str, ids))

    def generate(prompt: str, *, max_new_tokens: int, sampling: Any) -> Iterator[int]:
        yield from range(max_new_tokens)

    target = PythonTarget(generate, tokenizer=Words())
    answer = target.generate(ASK, Recorder())
    assert (answer.prompt_tokens, answer.text) == (5, "0 1 2 3 4 5")
    assert target.count("a b", "be kind") == 4


def test_without_lengths_rule_one_cannot_be_held() -> None:
    """Neither count() nor tokenizer: refused, and how to give one."""
    target = PythonTarget(lambda prompt, **_: iter([1]))
    assert target.encode("text") is None
    with pytest.raises(UsageError, match="rule 1 needs prompt lengths"):
        target.count("text")


@pytest.mark.parametrize("tokens", [12.0, "12", None, True])
def test_a_length_that_is_no_whole_number_is_refused(tokens: Any) -> None:
    """12.7 is not 12, and True is not 1."""

    class Odd(Engine):
        def count(self, prompt: str, system: str | None) -> Any:
            return tokens

    with pytest.raises(TargetError, match=r"count\(\) gave"):
        PythonTarget(Odd(lambda: iter([1]))).count("text")


def test_what_cannot_generate_is_refused() -> None:
    """Before a request is sent."""
    with pytest.raises(UsageError, match="the factory returned int"):
        PythonTarget(7, entry="m:made")


def test_an_engine_describes_itself_and_stays_a_python_target() -> None:
    """Its own facts are added; its kind is not its to say."""

    class Known(Engine):
        def describe(self) -> dict[str, Any]:
            return {"model": "ours", "kind": "transformers", "quantization": "nf4"}

    facts = PythonTarget(Known(lambda: iter([1])), entry="m:made").describe()
    assert (facts["model"], facts["kind"], facts["quantization"]) == ("ours", "python", "nf4")
    assert PythonTarget(Engine(lambda: iter([1])), entry="m:made").describe()["model"] == "m:made"


def test_memory_is_the_engines_own_or_the_process() -> None:
    """What the engine reports is taken as it is; else resident memory, measured."""

    class Remote(Engine):
        def memory(self) -> dict[str, Any]:
            return {"allocated_peak": 7.0}

    assert PythonTarget(Remote(lambda: iter([1]))).memory() == {"allocated_peak": 7.0}
    local = PythonTarget(Engine(lambda: iter([1])))
    local.reset_peaks()
    assert local.memory()["rss_now"] > 0


def test_a_clock_of_its_own_is_named_clock_ns() -> None:
    """An attribute that happens to be called clock is not taken for it."""

    class Timed(Engine):
        def clock_ns(self) -> int:
            return 42

        def clock(self) -> float:
            return 0.5

    assert PythonTarget(Timed(lambda: iter([1]))).clock() == 42


def test_a_context_that_is_declared_is_known() -> None:
    """Else nobody knows how long a prompt may be."""
    assert PythonTarget(Engine(lambda: iter([1])), max_context=2048).max_context() == 2048
    assert PythonTarget(Engine(lambda: iter([1]))).max_context() is None


@pytest.mark.parametrize("item", [-1, [3, -1], (-100,)])
def test_a_negative_id_is_no_token(item: object) -> None:
    """-1 is what engines put where there is no token; it is refused, alone and among others."""

    class Engine:
        def count(self, prompt: str, system: str | None = None) -> int:
            return 1

        def generate(self, prompt: str, **_: object) -> object:
            yield 7
            yield item

    record = Recorder()
    record.start()
    with pytest.raises(TargetError, match="whole number from 0"):
        PythonTarget(Engine()).generate(Ask("hello", 8), record)

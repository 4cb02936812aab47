"""Static batches of a small real model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import hf_crews
import hf_tiny
import pytest
import torch
from hf_crews import answers, ask, job, on_logits, texts_alone

from pytest_llmsla.errors import UsageError
from pytest_llmsla.load import crew_of
from pytest_llmsla.targets.base import Timeouts
from pytest_llmsla.targets.hf_crew_batch import BatchCrew
from pytest_llmsla.targets.transformers import TransformersTarget


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TransformersTarget:
    """Two end tokens: the tokenizer's own, and one that the generation config adds."""
    made = hf_tiny.model()
    made.generation_config.eos_token_id = [hf_tiny.EOS, hf_tiny.OTHER_EOS]
    folder = hf_tiny.save(tmp_path_factory.mktemp("model"), made)
    return hf_tiny.load(folder, batching="batch")


@pytest.fixture
def crew(target: TransformersTarget) -> Iterator[BatchCrew]:
    made = make(target, 2)
    yield made
    made.close()
    assert made.hung is None
    assert "forward" not in vars(target.model)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Batches wait for all their rows, however slow this machine is; undo it for fewer."""
    monkeypatch.setattr("pytest_llmsla.targets.hf_crew_batch.GATHER_S", 30.0)
    return monkeypatch


def make(target: TransformersTarget, size: int, **limits: float) -> BatchCrew:
    made = crew_of(target, size, Timeouts(**limits))
    assert isinstance(made, BatchCrew)
    return made


@pytest.mark.usefixtures("filled")
def test_each_row_has_its_own_answer_and_times(target: TransformersTarget, crew: BatchCrew) -> None:
    """Prompts of two lengths in one batch say what each says alone, stamped step by step."""
    asks = [ask("hello", 5), ask("hello, longer", 8)]
    found = answers(crew, asks)
    assert [t.error for t in found] == [None] * 2
    assert [t.text for t in found] == texts_alone(target, asks)
    short, long = (t.arrivals for t in found)
    assert long[:5] == short
    for t, asked in zip(found, asks, strict=True):
        assert t.tokens == t.output_tokens == asked.max_new_tokens
        assert t.stages["decode"] + t.stages["sample"] == t.arrivals[-1][0] - t.arrivals[0][0]


@pytest.mark.usefixtures("filled")
def test_padding_is_not_generated(target: TransformersTarget, crew: BatchCrew) -> None:
    """Two rows, 100 steps, two end tokens in use: 10 and 100 tokens, not 200."""

    def end(step: int, logits: Any) -> None:
        logits[..., [hf_tiny.EOS, hf_tiny.OTHER_EOS]] = -1e4
        if step == 9:
            logits[0, :, hf_tiny.OTHER_EOS] = 1e4
        if step == 99:
            logits[1, :, hf_tiny.EOS] = 1e4

    with on_logits(target, end):
        found = answers(crew, [ask("one", 120, force=False), ask("two", 120, force=False)])
    assert [(t.tokens, t.output_tokens, t.finish_reason) for t in found] == [
        (10, 10, "stop"),
        (100, 100, "stop"),
    ]


def test_a_row_is_returned_when_it_ends_and_its_successor_waits_for_the_batch(
    crew: BatchCrew, filled: pytest.MonkeyPatch
) -> None:
    """What a static batch costs is on record: the successor's clock runs while the batch does."""
    long, short = ask("long", 60), ask("short", 2)
    crew.start(job(long, "long"))
    crew.start(job(short, "first"))
    (first,) = crew.wait()
    assert (first.id, crew.in_flight) == ("first", 1)
    filled.undo()
    crew.start(job(short, "second"))
    by_id = {t.id: t for t in hf_crews.drain(crew)}
    last_of_batch = by_id["long"].arrivals[-1][0]
    assert by_id["second"].start_ns < last_of_batch < by_id["second"].arrivals[0][0]
    waited = last_of_batch - by_id["second"].start_ns
    assert by_id["second"].stages["queue"] + by_id["second"].stages["tokenise"] > waited


def test_rows_of_a_batch_have_one_sampling(crew: BatchCrew) -> None:
    """Requests that differ in it are answered one after the other, each with its own."""
    sampled = ask("hello", 5, sampling={"temperature": 0.9, "seed": 1})
    found = answers(crew, [ask("hello", 5), sampled])
    assert [t.error for t in found] == [None] * 2
    first, second = sorted(found, key=lambda t: t.end_ns)
    assert first.end_ns < second.arrivals[0][0]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (KeyError("layer 7"), "failed after 3 tokens in a batch of 2 (KeyError: 'layer 7')"),
        (torch.OutOfMemoryError("no more"), "out of memory after 3 tokens in a batch of 2"),
    ],
)
def test_an_error_fails_the_batch_and_the_model_answers_again(
    target: TransformersTarget, crew: BatchCrew, fault: Exception, words: str
) -> None:
    """Each row names the cause and keeps what it had."""

    def fail(step: int, _logits: Any) -> None:
        if step == 3:
            raise fault

    asks = [ask("one", 9), ask("two", 9)]
    with on_logits(target, fail):
        found = answers(crew, asks)
    assert [(t.status, t.tokens) for t in found] == [("error", 3)] * 2
    assert all(words in str(t.error) for t in found)
    assert [t.error for t in answers(crew, asks)] == [None] * 2


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("sampling", [{"greedy": True}, {"temperature": 1.0}])
def test_logits_that_are_no_numbers_fail_the_batch(
    target: TransformersTarget, crew: BatchCrew, sampling: dict[str, Any]
) -> None:
    """Also for a row that ended before the others."""

    def spoil(step: int, logits: Any) -> None:
        if step == 1:
            logits[1, 0, 40] = float("nan")

    asks = [ask("one", 4, sampling=sampling), ask("two", 9, sampling=sampling)]
    with on_logits(target, spoil):
        found = answers(crew, asks)
    assert all("not finite at output token 2" in str(t.error) for t in found)
    assert [t.error for t in answers(crew, asks)] == [None] * 2


def test_a_row_that_is_late_leaves_and_the_rest_goes_on(
    target: TransformersTarget, filled: pytest.MonkeyPatch
) -> None:
    """Its deadline is its own; the batch is not ended for it."""
    crew = make(target, 2, total_s=3.0)
    gate = threading.Event()
    asks = [ask("one", 3), ask("two", 200)]

    def hold(step: int, _logits: Any) -> None:
        if step == 20:
            gate.wait(3.5)

    with on_logits(target, hold):
        found = answers(crew, asks)
    filled.undo()
    assert found[0].ok
    assert found[1].error == "timed out: not complete after 3 s (timeouts.total_s)"
    assert found[1].tokens < 200
    assert crew.hung is None
    assert answers(crew, asks[:1])[0].ok
    crew.close()


@pytest.mark.usefixtures("filled")
def test_a_forward_that_never_returns_is_a_hang(target: TransformersTarget) -> None:
    """All in flight say so within their deadlines, and closing returns."""
    crew = make(target, 2, first_token_s=0.2, grace_s=0.2)
    gate = threading.Event()

    def hold(_step: int, _logits: Any) -> None:
        gate.wait(20)

    try:
        with on_logits(target, hold):
            found = answers(crew, [ask("one", 4), ask("two", 4)])
            assert all("no first token after 0.2 s" in str(t.error) for t in found)
            assert "cannot be used any more" in str(crew.hung)
            (later,) = answers(crew, [ask("three", 4)])
            assert later.error == f"TargetError: {crew.hung}"
            crew.close()
    finally:
        gate.set()
        crew._thread.join(20)


def test_a_cancelled_crew_returns_everything(crew: BatchCrew) -> None:
    """Those in the batch and those that wait for the next."""
    crew.start(job(ask("hello", 200), "running"))
    crew.start(job(ask("hello", 200, sampling={"temperature": 1.0}), "waiting"))
    crew.cancel()
    found = hf_crews.drain(crew)
    assert {t.id for t in found} == {"running", "waiting"}
    assert {t.error for t in found} == {"the run was ended while it was in flight"}


def test_a_prompt_that_cannot_be_asked_is_its_own_error(crew: BatchCrew) -> None:
    """It never reaches the batch that others are in."""
    crew.start(job(ask("x" * 400, 4), "long"))
    crew.start(job(ask("hello", 4), "fine"))
    by_id = {t.id: t for t in hf_crews.drain(crew)}
    assert "the model has 256 positions" in str(by_id["long"].error)
    assert by_id["fine"].ok
    with pytest.raises(UsageError, match="frequency_penalty"):
        crew.prepare(ask("hello", 4, sampling={"frequency_penalty": 1.0}))

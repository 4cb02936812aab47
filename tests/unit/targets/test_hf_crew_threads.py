"""Several threads in one small real model, each with its own tokens, stages and marks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hf_tiny
import pytest
from hf_crews import answers, ask, on_logits, texts_alone

from pytest_llmsla.errors import UsageError
from pytest_llmsla.load import ThreadCrew, crew_of
from pytest_llmsla.targets.base import Recorder, Timeouts
from pytest_llmsla.targets.hf_sampling import Seeds
from pytest_llmsla.targets.hf_stream import StageMarks
from pytest_llmsla.targets.transformers import TransformersTarget


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TransformersTarget:
    return hf_tiny.load(hf_tiny.save(tmp_path_factory.mktemp("model")), batching="threads")


def together(threads: int) -> Any:
    """A change that lets no forward pass before all threads are in one, once."""
    barrier = threading.Barrier(threads, timeout=20)
    met: set[int] = set()

    def meet(_step: int, _logits: Any) -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait()

    return meet


def test_threads_keep_apart_what_they_count(target: TransformersTarget) -> None:
    """All in a forward at once: tokens, texts and stages are each request's own."""
    asks = [ask("hello" + "x" * n, 6 + n) for n in range(3)]
    crew = crew_of(target, 3, Timeouts())
    assert isinstance(crew, ThreadCrew)
    with on_logits(target, together(3)):
        found = answers(crew, asks)
    crew.close()
    assert [t.error for t in found] == [None] * 3
    assert [t.text for t in found] == texts_alone(target, asks)
    for t, asked in zip(found, asks, strict=True):
        assert t.tokens == asked.max_new_tokens
        assert t.stages["decode"] + t.stages["sample"] == t.arrivals[-1][0] - t.arrivals[0][0]
    assert "forward" not in vars(target.model)


def test_a_fault_in_one_thread_is_that_requests_alone(target: TransformersTarget) -> None:
    """The others' answers are sound, and the model's forward is its own again."""
    spoiled: list[int] = []

    def fail(step: int, _logits: Any) -> None:
        if step == 4:
            spoiled.append(threading.get_ident())
            raise KeyError("layer 7")

    crew = crew_of(target, 3, Timeouts())
    with on_logits(target, fail):
        found = answers(crew, [ask("hello" + "x" * n, 8) for n in range(3)])
    crew.close()
    errors = [t.error for t in found if t.error is not None]
    assert len(errors) == len(spoiled) == 1
    assert "KeyError: 'layer 7'" in errors[0]
    assert "forward" not in vars(target.model)


def test_sampled_requests_say_that_they_share_a_seed(target: TransformersTarget) -> None:
    """One alone is repeatable and says nothing; two at once are not, and do."""
    sampled = ask("hello", 6, sampling={"temperature": 1.0, "seed": 7})
    note = "sampling: requests in flight draw from one seeded sequence, so texts may differ"
    record = Recorder()
    record.start()
    assert note not in target.generate(sampled, record).notes
    crew = crew_of(target, 2, Timeouts())
    with on_logits(target, together(2)):
        found = answers(crew, [sampled, sampled])
    crew.close()
    assert [t.notes.count(note) for t in found] == [1, 1]


def test_overlap_is_told_whoever_ends_first() -> None:
    """Every request that ran beside another is told so, and one that ran alone is not."""
    seeds = Seeds()
    assert not seeds.end(seeds.begin(None))
    first = seeds.begin(None)
    second = seeds.begin(None)
    assert seeds.end(first)
    assert seeds.end(second)
    assert not seeds.end(seeds.begin(None))


def test_marks_see_their_own_threads_forwards_only() -> None:
    """Marks of two threads on one model, entered and left in any order."""

    class Model:
        def forward(self, value: int) -> int:
            return value

    model, clock = Model(), iter(range(1000)).__next__
    outer = StageMarks(model, clock)
    with outer:
        with ThreadPoolExecutor(1) as pool:
            inner = StageMarks(model, clock)
            pool.submit(inner.__enter__).result()
            assert [pool.submit(model.forward, n).result() for n in range(3)] == [0, 1, 2]
            assert model.forward(9) == 9
            pool.submit(inner.__exit__).result()
        model.forward(8)
    assert (len(inner.begins), len(outer.begins)) == (3, 2)
    assert "forward" not in vars(model)


@pytest.mark.parametrize("option", [{"cache": "static"}, {"compile": "max-autotune"}])
def test_what_threads_would_share_is_refused(option: dict[str, Any]) -> None:
    """A static cache lives on the model; a compiled forward replays one thread's graphs."""
    with pytest.raises(UsageError, match=r"threads with .* is refused.*batching: batch"):
        TransformersTarget.load({"model": "m", "batching": "threads", **option})

"""Many requests at once on a CUDA device: device times, the sampler's guard, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmsla.load import crew_of
from pytest_llmsla.targets.base import Ask, Job, Recorder, Timeouts
from pytest_llmsla.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.gpu

GREEDY: Mapping[str, Any] = {"greedy": True}


def load(checkpoint: Path, mode: str, **options: Any) -> Any:
    from pytest_llmsla.targets.transformers import TransformersTarget

    spec = {"model": str(checkpoint), "dtype": "bfloat16", "device": "cuda:0", "batching": mode}
    return TransformersTarget.load({**spec, **options})


def ask(n: int, sampling: Mapping[str, Any] = GREEDY) -> Ask:
    return Ask(f"How does queue {n} keep its order?", 8 + n, sampling, force_length=True)


def answers(target: Any, asks: Sequence[Ask]) -> list[Timeline]:
    crew = crew_of(target, len(asks), Timeouts())
    for one in asks:
        crew.prepare(one)
    for n, one in enumerate(asks):
        blank = Timeline(str(n), "b", 0, 0, max_new_tokens=one.max_new_tokens)
        crew.start(Job(one, blank))
    out: list[Timeline] = []
    while crew.in_flight:
        out += crew.wait()
    crew.close()
    assert crew.hung is None
    return sorted(out, key=lambda t: t.id)


@pytest.mark.parametrize("mode", ["continuous", "threads", "batch"])
def test_requests_have_their_own_tokens_and_device_times(checkpoint: Path, mode: str) -> None:
    """Each has every token, and device times that are no longer than the time there was."""
    target = load(checkpoint, mode)
    found = answers(target, [ask(n) for n in range(3)])
    assert [t.error for t in found] == [None] * 3
    for n, t in enumerate(found):
        assert t.tokens == t.output_tokens == 8 + n
        assert t.stages["decode"] + t.stages["sample"] == t.arrivals[-1][0] - t.arrivals[0][0]
    with_device = [t for t in found if "decode_device" in t.stages]
    # A static batch reads them for the rows that end with it.
    assert len(with_device) == (1 if mode == "batch" else 3)
    for t in with_device:
        assert 0 < t.stages["decode_device"] <= t.end_ns - t.start_ns
    target.close()


@pytest.mark.parametrize("mode", ["continuous", "batch"])
def test_a_nan_never_reaches_the_sampler(checkpoint: Path, mode: str) -> None:
    """It would end the CUDA context; instead the requests fail and the next are answered."""
    target = load(checkpoint, mode)
    sampling = {"temperature": 1.0, "seed": 1}
    steps = iter(range(10**6))

    def spoil(_module: Any, _args: Any, logits: Any) -> None:
        if next(steps) == 3:
            logits[..., 40] = float("nan")

    handle = target.model.lm_head.register_forward_hook(spoil)
    found = answers(target, [ask(n, sampling) for n in range(2)])
    handle.remove()
    assert all("not finite" in str(t.error) for t in found)
    assert [t.error for t in answers(target, [ask(n, sampling) for n in range(2)])] == [None] * 2
    record = Recorder(target.clock)
    record.start()
    assert target.generate(ask(1), record).output_tokens == 9
    target.close()


def test_the_pool_is_given_back(checkpoint: Path) -> None:
    """What continuous batching takes for its cache is free after the crew is closed."""
    import torch

    target = load(checkpoint, "continuous")
    before = torch.cuda.memory_allocated()
    answers(target, [ask(n) for n in range(2)])
    assert torch.cuda.memory_allocated() - before < 64 * 2**20
    target.close()


def test_memory_that_is_not_there_fails_all_in_flight(checkpoint: Path) -> None:
    """A real CUDA out-of-memory in a shared step: named in each, and the next ones are answered."""
    import torch

    target = load(checkpoint, "continuous")
    steps = iter(range(10**6))

    def grab(_module: Any, _args: Any, _logits: Any) -> None:
        if next(steps) == 3:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    handle = target.model.lm_head.register_forward_hook(grab)
    found = answers(target, [ask(n) for n in range(2)])
    handle.remove()
    assert all("out of memory" in str(t.error) for t in found)
    assert [t.error for t in answers(target, [ask(n) for n in range(2)])] == [None] * 2
    target.close()

"""Counting and stamping tokens as generate() hands them over."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.errors import GenerationAborted, TargetError
from pytest_llmsla.targets.base import Recorder
from pytest_llmsla.targets.hf_logits import DeviceWatch, HostWatch, LogitWatch
from pytest_llmsla.targets.hf_stream import StageMarks, TokenStreamer, stages


def recorder(*times: int) -> Recorder:
    """A recorder whose clock gives ``times`` one after the other."""
    return Recorder(iter(times).__next__)


@pytest.mark.parametrize("shape", [(1, 5), (5,), (1, 0), (1, 1), (1,), (3, 2)])
def test_the_first_put_is_the_prompt_whatever_its_shape(shape: tuple[int, ...]) -> None:
    """Exactly the first put is dropped, and it takes no clock reading."""
    record = recorder(10)
    streamer = TokenStreamer(record)
    streamer.put(torch.zeros(shape, dtype=torch.long))
    streamer.put(torch.tensor([7]))
    streamer.end()
    assert record.arrivals == [(10, 1)]
    assert streamer.token_ids() == [7]


@pytest.mark.parametrize("value", [torch.tensor([9]), torch.tensor([[9]])])
def test_one_id_is_one_token(value: torch.Tensor) -> None:
    """(1,) and (1, 1) are one token each, so five puts give five arrivals and four gaps."""
    record = recorder(0, 3, 6, 9, 12)
    streamer = TokenStreamer(record)
    streamer.put(torch.zeros((1, 4), dtype=torch.long))
    for _ in range(5):
        streamer.put(value)
    assert record.arrivals == [(0, 1), (3, 1), (6, 1), (9, 1), (12, 1)]


def test_several_ids_of_one_row_are_several_tokens_at_once() -> None:
    """(1, k) is one arrival of k tokens."""
    record = recorder(5)
    streamer = TokenStreamer(record)
    streamer.put(torch.zeros((1, 4), dtype=torch.long))
    streamer.put(torch.tensor([[4, 5, 6]]))
    assert record.arrivals == [(5, 3)]
    assert streamer.token_ids() == [4, 5, 6]


@pytest.mark.parametrize("value", [torch.tensor([1, 2]), torch.tensor([[1], [2]])])
def test_rows_are_refused(value: torch.Tensor) -> None:
    """Two rows cannot be told apart here, so they are never counted as two tokens of one row."""
    record = recorder()
    streamer = TokenStreamer(record)
    streamer.put(torch.zeros((2, 4), dtype=torch.long))
    with pytest.raises(TargetError, match="one row is supported"):
        streamer.put(value)
    assert record.arrivals == []


def test_a_cancelled_recorder_ends_the_generation_at_the_next_token() -> None:
    """The recorder's exception leaves put() unchanged, the token that came is kept."""
    record = recorder(1, 2)
    streamer = TokenStreamer(record)
    streamer.put(torch.zeros((1, 4), dtype=torch.long))
    streamer.put(torch.tensor([7]))
    record.cancel()
    with pytest.raises(GenerationAborted):
        streamer.put(torch.tensor([8]))
    assert record.arrivals == [(1, 1), (2, 1)]


@given(st.lists(st.integers(0, 10**9), min_size=4, max_size=40))
def test_stages_add_up_to_the_times_they_explain(steps: list[int]) -> None:
    """Up to the first token and between the tokens, stages sum to the times, to the nanosecond."""
    ready, now = 100, 100
    begins: list[int] = []
    ends: list[int] = []
    arrivals: list[tuple[int, int]] = []
    for i in range(0, len(steps) - 2, 3):
        begins.append(now + steps[i])
        ends.append(begins[-1] + steps[i + 1])
        now = ends[-1] + steps[i + 2]
        arrivals.append((now, 1))
    got = stages(begins, ends, arrivals, ready)
    first, last = arrivals[0][0], arrivals[-1][0]
    assert got["cache_init"] + got["prefill"] + got["first_sample"] == first - ready
    assert got["decode"] + got["sample"] == last - first
    assert all(ns >= 0 for ns in got.values())


def test_stages_of_a_broken_run_hold_only_what_was_marked() -> None:
    """Nothing marked gives nothing; a forward without token gives no sampling time."""
    assert stages([], [], [], 0) == {}
    assert stages([5], [], [], 0) == {}
    assert stages([5], [9], [], 2) == {"cache_init": 3, "prefill": 4}


def test_a_forward_after_the_last_token_is_no_decode_time() -> None:
    """The extra step of a deferred stop check does not make sampling time negative."""
    got = stages([1, 10, 20], [5, 15, 30], [(6, 1), (16, 1)], 0)
    assert got["decode"] == 5
    assert got["sample"] == 5


def test_tokens_handed_over_a_step_late_leave_no_negative_stage() -> None:
    """The second forward ends before the first arrival: it is part of the wait for it."""
    got = stages([1, 10, 20], [5, 15, 30], [(17, 1), (32, 1)], 0)
    assert got == {"cache_init": 1, "prefill": 4, "first_sample": 12, "decode": 10, "sample": 5}


class Logits(torch.nn.Module):
    """A module that returns the logits it was given, as a model does."""

    def forward(self, logits: torch.Tensor) -> Logits:
        self.logits = logits
        return self


WATCHES = {"host": HostWatch, "device": lambda: DeviceWatch(sampling=False)}


def watched(watch: LogitWatch, *steps: torch.Tensor) -> int | None:
    """Run a module over ``steps`` of logits and choose greedily, as generate() does."""
    module = Logits()
    record = Recorder()
    streamer = TokenStreamer(record, watch)
    streamer.put(torch.zeros((1, 4), dtype=torch.long))
    with StageMarks(module, record.clock, watch=watch):
        for logits in steps:
            module(logits)
            streamer.put(logits[:, -1].argmax(-1))
    return watch.first_bad_step()


@pytest.mark.parametrize("kind", WATCHES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_logit_is_found_at_its_step(kind: str, bad: float) -> None:
    """A single NaN or infinity among all logits of a step is found, and no step before it."""
    clean = torch.zeros((1, 3, 50))
    dirty = clean.clone()
    dirty[0, -1, 17] = bad
    assert watched(WATCHES[kind](), clean, dirty, clean) == 1
    assert watched(WATCHES[kind](), clean, clean) is None


@pytest.mark.parametrize("kind", WATCHES)
def test_minus_infinity_is_bad_only_where_nothing_else_is_left(kind: str) -> None:
    """Masked logits are normal; a step whose logits are all masked is not."""
    masked = torch.full((1, 1, 50), -math.inf)
    some = masked.clone()
    some[0, 0, 3] = 1.0
    assert watched(WATCHES[kind](), some, masked) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_before_a_device_samples_bad_logits_are_made_finite(dtype: torch.dtype) -> None:
    """A NaN is still reported, the sampler gets a distribution, and good steps stay the same."""
    watch = DeviceWatch(sampling=True)
    good = torch.tensor([[[0.5, -math.inf, 2.0]]], dtype=dtype)
    bad = torch.tensor([[[0.5, math.nan, math.inf]]], dtype=dtype)
    masked = torch.full((1, 1, 3), -math.inf, dtype=dtype)
    before = good[0, -1].float().softmax(-1)
    for logits in (good, bad, masked):
        watch.step(logits)
        assert logits[0, -1].float().softmax(-1).isfinite().all()
    assert torch.equal(good[0, -1].float().softmax(-1), before)
    assert watch.first_bad_step() == 1


def test_without_a_step_there_is_no_bad_one() -> None:
    """A run that failed before its first forward has no logits to judge."""
    assert [make().first_bad_step() for make in WATCHES.values()] == [None, None]


def test_marks_are_taken_before_and_after_every_forward() -> None:
    """One reading each, in order."""
    module = Logits()
    with StageMarks(module, recorder(*range(6)).clock) as marks:
        for _ in range(3):
            module(torch.zeros((1, 1, 5)))
    assert (marks.begins, marks.ends) == ([0, 2, 4], [1, 3, 5])


def test_marks_leave_no_hook_behind_when_the_run_fails() -> None:
    """After an exception the model is as it was, so the next request is marked once."""
    module = Logits()
    with pytest.raises(ZeroDivisionError), StageMarks(module, recorder(0, 1).clock):
        raise ZeroDivisionError
    assert not module._forward_hooks
    assert not module._forward_pre_hooks

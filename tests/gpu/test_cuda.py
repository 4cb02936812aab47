"""What only a CUDA device can show: device times, memory figures, real 4-bit layers."""

from __future__ import annotations

import gc
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmsla.errors import TargetError
from pytest_llmsla.probes.cuda import StepEvents
from pytest_llmsla.probes.memory import GIB, MemoryProbe
from pytest_llmsla.targets.base import Ask, Recorder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

TOKENS = 12


@pytest.fixture(scope="module")
def target(checkpoint: Path) -> Any:
    """The two-layer model on the card, in bf16."""
    from pytest_llmsla.targets.transformers import TransformersTarget

    spec = {"kind": "transformers", "model": str(checkpoint), "dtype": "bfloat16"}
    loaded = TransformersTarget.load({**spec, "device": "cuda:0"})
    yield loaded
    loaded.close()


def ask(tokens: int = TOKENS, prompt: str = "How does a queue keep its order?") -> Ask:
    return Ask(prompt=prompt, max_new_tokens=tokens, sampling={"greedy": True}, force_length=True)


def answer(target: Any, request: Ask) -> Recorder:
    record = Recorder(target.clock)
    record.start()
    target.generate(request, record)
    record.end_ns = target.clock()
    return record


def busy(torch: Any, n: int = 8) -> None:
    """Work that takes the device much longer than it takes the host to ask for it."""
    a = torch.randn(6144, 6144, device="cuda", dtype=torch.bfloat16)
    for _ in range(n):
        a = a @ a
        a = a / a.abs().max().clamp(min=1)


def test_step_events_do_not_wait_and_then_agree_with_the_clock(cuda: Any) -> None:
    """The loop with events returns before the device is done; the times read later add up."""
    busy(cuda, 2)
    cuda.cuda.synchronize()
    events = StepEvents(reserve=4)
    began = time.perf_counter()
    for _ in range(3):
        events.before()
        busy(cuda)
        events.after()
    asked = time.perf_counter() - began
    steps = events.read()
    done = time.perf_counter() - began
    assert len(steps) == 3
    assert all(ms > 0 for ms in steps)
    total = sum(steps) / 1e3
    assert asked < done
    assert total <= done
    assert total >= 0.5 * (done - asked)


def test_peaks_are_those_of_the_window(cuda: Any) -> None:
    """A gibibyte taken and returned inside the window is in the peak; one before it is not."""
    probe = MemoryProbe("cuda:0")
    before = cuda.empty(3 << 30, dtype=cuda.uint8, device="cuda")
    del before
    gc.collect()
    keep = cuda.empty(1 << 20, dtype=cuda.uint8, device="cuda")
    probe.reset()
    start = cuda.cuda.memory_allocated() / GIB
    block = cuda.empty(1 << 30, dtype=cuda.uint8, device="cuda")
    del block
    out = probe.read()
    assert out["allocated_peak"] == pytest.approx(start + 1.0, abs=0.01)
    assert out["reserved_peak"] >= out["allocated_peak"]
    assert keep.numel() == 1 << 20


def test_card_is_found_by_uuid_and_holds_at_least_what_is_reserved(cuda: Any) -> None:
    """NVML's figure is read from torch's own card, and is no smaller than torch's reserve."""
    keep = cuda.empty(1 << 30, dtype=cuda.uint8, device="cuda")
    probe = MemoryProbe("cuda:0")
    probe.reset()
    out = probe.read()
    card = out["cards"][0]
    assert card["uuid"], out.get("device_used_peak_reason")
    assert str(cuda.cuda.get_device_properties(0).uuid) in card["uuid"]
    assert out["device_used_peak"] >= out["reserved_peak"] >= 1.0
    if out["device_used_own"] is None:
        assert out["device_used_own_reason"]
    else:
        assert 1.0 <= out["device_used_own"] <= out["device_used_peak"]
    assert keep.is_cuda


def test_every_token_is_stamped_and_device_time_fits_inside(target: Any) -> None:
    """Stamps rise, and the device's forwards take no longer than the request they are part of."""
    answer(target, ask())
    record = answer(target, ask())
    times = [at for at, _ in record.arrivals]
    assert len(times) == TOKENS
    assert times == sorted(times)
    assert record.start_ns is not None
    device = record.stages["prefill_device"] + record.stages["decode_device"]
    assert 0 < device <= times[-1] - record.start_ns


def test_no_synchronise_is_added_to_a_token(cuda: Any, target: Any) -> None:
    """A further token waits for the device as often with our timing as in plain generate()."""

    class Sink:
        def put(self, value: Any) -> None:
            value.cpu()

        def end(self) -> None:
            """Nothing to flush."""

    def plain(tokens: int) -> None:
        ids = cuda.full((1, 20), 300, device="cuda")
        target.model.generate(
            input_ids=ids,
            attention_mask=cuda.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=2,
            disable_compile=True,
            streamer=Sink(),
        )

    def waits(call: Any) -> int:
        cuda.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                cuda.cuda.set_sync_debug_mode("warn")  # warns itself, of being a prototype
                call()
            finally:
                cuda.cuda.set_sync_debug_mode("default")
        return sum("called a synchronizing" in str(w.message) for w in caught)

    plain(2)
    answer(target, ask(2))
    ours = waits(lambda: answer(target, ask(24))) - waits(lambda: answer(target, ask(8)))
    theirs = waits(lambda: plain(24)) - waits(lambda: plain(8))
    assert theirs > 0
    assert ours <= theirs


def test_memory_of_the_target_is_named(target: Any) -> None:
    """The target's figures come from the card that its weights are on."""
    target.reset_peaks()
    answer(target, ask())
    out = target.memory()
    weights = target.describe()["weight_bytes"] / GIB
    assert out["device"] == "cuda:0"
    assert out["allocated_peak"] > weights
    assert out["device_used_peak"] >= out["reserved_peak"]


def test_out_of_memory_is_an_error_and_the_next_request_answers(cuda: Any, target: Any) -> None:
    """A layer that asks for more than the card has: an error that says so, and nothing is lost."""
    more = 2 * cuda.cuda.get_device_properties(0).total_memory

    def greedy_layer(*_: Any) -> None:
        cuda.empty(more, dtype=cuda.uint8, device="cuda")

    handle = target.model.model.layers[1].register_forward_pre_hook(greedy_layer)
    try:
        with pytest.raises(TargetError, match="out of memory"):
            answer(target, ask())
    finally:
        handle.remove()
    assert len(answer(target, ask()).arrivals) == TOKENS


def test_not_finite_logits_are_an_error(cuda: Any, checkpoint: Path) -> None:
    """Weights that are NaN end in an error, not in tokens, and not in a lost CUDA context."""
    from pytest_llmsla.targets.transformers import TransformersTarget

    spec = {"kind": "transformers", "model": str(checkpoint), "device": "cuda:0"}
    broken = TransformersTarget.load(spec)
    with cuda.no_grad():
        broken.model.lm_head.weight.fill_(float("nan"))
    for sampling in ({"greedy": True}, {"temperature": 0.8, "top_p": 0.9, "seed": 1}):
        request = Ask(prompt="a", max_new_tokens=4, sampling=sampling, force_length=True)
        with pytest.raises(TargetError):
            answer(broken, request)
    assert float(cuda.ones(3, device="cuda").sum()) == 3.0


def test_nf4_runs_in_four_bits(checkpoint: Path) -> None:
    """The quantised label is what runs: 4-bit layers hold a quarter of the bytes of bf16."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from pytest_llmsla.targets.transformers import TransformersTarget

    spec = {"kind": "transformers", "model": str(checkpoint), "device": "cuda:0"}
    four = TransformersTarget.load(
        {**spec, "quantization": "nf4", "compute_dtype": "bfloat16", "dtype": "bfloat16"}
    )
    facts = four.describe()
    assert facts["quantised_layers"] == {"Linear4bit": 2 * 7}
    layer = four.model.model.layers[0].mlp.up_proj
    assert type(layer).__name__ == "Linear4bit"
    assert layer.weight.numel() * layer.weight.element_size() == 64 * 128 // 2
    assert len(answer(four, ask()).arrivals) == TOKENS


def test_host_minus_device_is_explained(target: Any) -> None:
    """On both clocks the same steps take the same time, up to 5 % or 2 ms a step."""
    import torch

    from cuda_explain import steps_of, summary

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    steps_of(target, "warm up the queue", 16, event)
    rows = steps_of(target, "How does a queue keep its order?", 16, event)
    assert len(rows) == 16
    assert summary(rows[1:])["explained"]

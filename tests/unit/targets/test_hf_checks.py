"""What a label says and what runs, found at load."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_tiny import EOS, OTHER_EOS, ask, config, load, model, save, tokenizer, write_gguf

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.targets.hf_checks import end_tokens
from pytest_llmsla.targets.hf_files import WeightFile, combined_sha256
from pytest_llmsla.targets.hf_load import load_error
from pytest_llmsla.targets.hf_resolve import Source
from pytest_llmsla.targets.hf_spec import HfSpec
from pytest_llmsla.targets.hf_weights import weigh


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))


def codes(facts: Mapping[str, Any]) -> list[str]:
    """The codes of all warnings, in order."""
    return [w["code"] for w in facts["warnings"]]


def test_a_sound_model_has_no_warning_and_plain_facts(tmp_path: Path) -> None:
    """float32 safetensors on the CPU: everything agrees, and the facts are JSON."""
    target = load(save(tmp_path / "m"))
    facts = target.describe()
    assert facts["warnings"] == []
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    weights = tmp_path / "m" / "model.safetensors"
    assert facts["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert facts["bytes_by_dtype"] == {"float32": facts["weight_bytes"]}
    assert facts["context_length"] == 256 == target.max_context()
    assert (facts["format"], facts["attn"], facts["devices"]) == ("safetensors", "sdpa", ["cpu"])
    # The distribution's version may leave the build ("+cu124") out.
    assert facts["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_kv_bytes_use_key_value_heads(tmp_path: Path) -> None:
    """2 · 2 layers · 1 key/value head · 32 · 4 bytes: not the two attention heads."""
    assert load(save(tmp_path / "m")).describe()["kv_bytes_per_token"] == 2 * 2 * 1 * 32 * 4


def test_an_end_token_that_only_the_tokenizer_knows_ends_an_answer_too(tmp_path: Path) -> None:
    """The published trap: config says 2, tokenizer another id. All are used, and it is told."""
    facts = load(save(tmp_path / "m", tokens=tokenizer(eos_token="<end>"))).describe()
    assert facts["eos_token_ids"] == [EOS, OTHER_EOS]
    assert codes(facts) == ["eos_disagree"]
    assert "tokenizer [3], config [2]" in facts["warnings"][0]["message"]


def test_more_end_tokens_in_the_generation_config_are_no_disagreement(tmp_path: Path) -> None:
    """A list that holds the tokenizer's own is how chat models are published."""
    made = model()
    made.generation_config.eos_token_id = [EOS, OTHER_EOS]
    facts = load(save(tmp_path / "m", made)).describe()
    assert facts["eos_token_ids"] == [EOS, OTHER_EOS]
    assert facts["warnings"] == []


def test_a_missing_pad_token_is_replaced_and_told(tmp_path: Path) -> None:
    """The end token stands in, as one row needs no padding."""
    made = model(pad_token_id=None)
    facts = load(save(tmp_path / "m", made, tokenizer(pad_token=None))).describe()
    assert facts["pad_token_id"] == EOS
    assert codes(facts) == ["pad_missing"]


def test_pad_tokens_that_differ_are_told(tmp_path: Path) -> None:
    """Tokenizer and config name different ids."""
    facts = load(save(tmp_path / "m", tokens=tokenizer(pad_token="<unk>"))).describe()
    assert codes(facts) == ["pad_disagree"]


def test_a_model_without_end_token_is_told() -> None:
    """Then every answer runs to its full length."""
    ends, warns = end_tokens(model(eos_token_id=None), tokenizer(eos_token=None))
    assert ends.eos == ()
    assert "no_eos" in [w.code for w in warns]


def test_a_tokenizer_larger_than_the_model_is_told_and_its_ids_refused(tmp_path: Path) -> None:
    """An id beyond the embeddings is an error of its request, before the model sees it."""
    made = model(vocab_size=100)
    target = load(save(tmp_path / "m", made))
    assert "vocabulary" in codes(target.describe())
    with pytest.raises(TargetError, match="the model has 100 embeddings"):
        ask(target, "é")


def test_length_settings_that_a_server_would_apply_are_told(tmp_path: Path) -> None:
    """A tokenizer's or generation config's own length limit below the model's."""
    made = model()
    made.generation_config.max_length = 99
    facts = load(save(tmp_path / "m", made, tokenizer(model_max_length=64))).describe()
    assert codes(facts) == ["tokenizer_max_length", "generation_max_length"]


def test_sampling_defaults_of_a_checkpoint_do_not_leak_into_requests(tmp_path: Path) -> None:
    """They are listed as ignored, and greedy answers are those of a checkpoint without them."""
    made = model()
    plain, _ = ask(load(save(tmp_path / "plain", made)))
    made.generation_config.repetition_penalty = 5.0
    made.generation_config.do_sample = True
    target = load(save(tmp_path / "spiced", made))
    assert target.describe()["ignored_generation_config"] == {
        "do_sample": True,
        "repetition_penalty": 5.0,
    }
    assert ask(target)[0] == plain


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_layers_are_real_and_their_compute_dtype_is_told(
    tmp_path: Path, kind: str
) -> None:
    """14 Linear4bit layers hold half a byte a weight; without compute dtype they run in float32."""
    pytest.importorskip("bitsandbytes")
    save(tmp_path / "m")
    whole = load(tmp_path / "m").describe()
    try:
        facts = load(tmp_path / "m", quantization=kind).describe()
    except TargetError as e:
        if "must be nf4 on CPU" not in str(e):
            raise
        pytest.skip("this bitsandbytes has no fp4 on a CPU")
    assert facts["quantised_layers"] == {"Linear4bit": 14}
    assert facts["compute_dtypes"] == ["float32"]
    assert codes(facts) == ["compute_dtype_float32"]
    packed = whole["bytes_by_dtype"]["float32"] - facts["bytes_by_dtype"]["float32"]
    assert facts["bytes_by_dtype"][kind] == packed / 8
    assert facts["parameters"] == whole["parameters"]
    assert facts["quantisation_scale_bytes"] > 0


def test_a_named_compute_dtype_is_used_and_needs_no_warning(tmp_path: Path) -> None:
    """compute_dtype and double_quant reach the layers; double quantisation saves scale bytes."""
    pytest.importorskip("bitsandbytes")
    save(tmp_path / "m")
    options = {"quantization": "nf4", "compute_dtype": "bfloat16", "dtype": "float32"}
    single = load(tmp_path / "m", **options).describe()
    double = load(tmp_path / "m", **options, double_quant=True).describe()
    assert single["compute_dtypes"] == double["compute_dtypes"] == ["bfloat16"]
    assert single["warnings"] == double["warnings"] == []
    assert double["quantisation_scale_bytes"] != single["quantisation_scale_bytes"]
    assert (single["double_quant"], double["double_quant"]) == (False, True)


def test_int8_layers_are_real_and_their_casts_are_told(tmp_path: Path) -> None:
    """14 Linear8bitLt layers hold one byte a weight and answer."""
    pytest.importorskip("bitsandbytes")
    target = load(save(tmp_path / "m"), quantization="int8")
    facts = target.describe()
    assert facts["quantised_layers"] == {"Linear8bitLt": 14}
    assert facts["bytes_by_dtype"]["int8"] > 0
    assert codes(facts) == ["int8_casts"]
    assert ask(target)[0].output_tokens == 8


def test_a_gguf_file_runs_expanded_and_says_so(tmp_path: Path) -> None:
    """Q8_0 on disk, float32 in memory: bytes are those in memory, and it answers."""
    pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "tiny.gguf")
    target = load(path)
    facts = target.describe()
    assert facts["format"] == "gguf"
    assert "gguf_expanded" in codes(facts)
    assert facts["weight_bytes"] > 3 * path.stat().st_size
    assert facts["weights_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert ask(target)[0].output_tokens == 8


def test_quantisation_of_a_gguf_file_is_refused(tmp_path: Path) -> None:
    """It has its own."""
    pytest.importorskip("gguf")
    pytest.importorskip("bitsandbytes")
    with pytest.raises(UsageError, match="does not apply to a GGUF file"):
        load(write_gguf(tmp_path / "tiny.gguf"), quantization="nf4")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_on_a_cpu_is_told(tmp_path: Path, dtype: str) -> None:
    """It runs, and nobody takes it for a GPU's figure."""
    facts = load(save(tmp_path / "m"), dtype=dtype).describe()
    assert facts["dtype"] == dtype
    assert codes(facts) == ["half_on_cpu"]


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """Random numbers in place of weights are no model."""
    shallow = model(num_hidden_layers=1)
    save(tmp_path / "m", shallow)
    config(num_hidden_layers=2, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "m")
    with pytest.raises(TargetError, match=r"lacks 9 weights \(model\.layers\.1\."):
        load(tmp_path / "m")


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    """An architecture of its own is refused, and its file is not imported."""
    folder = save(tmp_path / "m")
    (folder / "own.py").write_text("raise SystemExit('ran')")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {
        "model_type": "own_kind",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(TargetError, match="never run here"):
        load(folder)


def test_a_weight_without_memory_is_refused() -> None:
    """A model on the meta device would answer nothing."""
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 2)
    with pytest.raises(TargetError, match="on no device"):
        weigh(empty, expanded=False)


def test_tied_weights_count_once() -> None:
    """One object under two names, or two parameters over one memory."""
    shared = torch.nn.Linear(8, 8, bias=False)
    both = torch.nn.ModuleList([shared, torch.nn.Linear(8, 8, bias=False)])
    both[1].weight = torch.nn.Parameter(shared.weight.data)
    weights = weigh(both, expanded=False)
    assert weights.parameters == 64
    assert weights.total_bytes == 256


def test_an_uninstalled_attention_kernel_names_its_package(tmp_path: Path) -> None:
    """The refusal comes before the model is looked for."""
    with pytest.raises(UsageError, match=r"needs the package flash_attn.*attn: sdpa"):
        load(tmp_path / "none", attn="flash_attention_2")


def test_a_cuda_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """How many there are is part of the message."""
    with pytest.raises(UsageError, match=r"cuda:97.*sees \d+ CUDA"):
        load(tmp_path / "none", device="cuda:97")


def test_compile_of_a_quantised_checkpoint_is_refused_before_loading(tmp_path: Path) -> None:
    """quantization: none does not hide that the checkpoint itself is quantised."""
    folder = save(tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=r"is quantised \(gptq\)"):
        load(folder, compile="reduce-overhead")


def test_several_files_have_one_hash_that_depends_on_each() -> None:
    """One file: its own hash; several: a hash over names and hashes; none: none."""
    a, b, c = (WeightFile(n, 1, n * 64) for n in "abc")
    assert combined_sha256([]) is None
    assert combined_sha256([a]) == "a" * 64
    assert combined_sha256([a, b]) not in (combined_sha256([a, c]), combined_sha256([b]))


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    """The memory of hashes goes by size and time, and a broken memory is ignored."""
    folder = save(tmp_path / "m")
    first = load(folder).describe()["weights_sha256"]
    assert load(folder).describe()["weights_sha256"] == first
    torch.manual_seed(1)
    save(folder, model(num_hidden_layers=1))
    second = load(folder).describe()["weights_sha256"]
    assert second != first
    (tmp_path / "cache" / "hashes.json").write_text("{broken")
    assert load(folder).describe()["weights_sha256"] == second


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("`.to` is not supported for `4-bit`"), r"cannot be moved .* target\.device"),
        (MemoryError("5 GiB"), "out of memory while loading"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory while loading"),
        (ImportError("needs sentencepiece"), "Install the package it names"),
        (KeyError("strange"), r"KeyError: 'strange'"),
    ],
)
def test_a_failed_load_names_model_cause_and_remedy(error: Exception, message: str) -> None:
    """No traceback to read: one message for each kind of failure."""
    made = load_error(HfSpec("a/b"), Source("hub", Path("/somewhere")), error)
    assert isinstance(made, TargetError | UsageError)
    assert str(made).startswith("a/b cannot be loaded from ")
    assert re.search(message, str(made))

"""A two-layer random LLaMA and a byte tokenizer, saved to a folder or a GGUF file in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pytest_llmsla.targets.base import Answer, Ask, Recorder
from pytest_llmsla.targets.transformers import TransformersTarget

SPECIALS = ["<unk>", "<s>", "</s>", "<end>"]
EOS = 2
OTHER_EOS = 3

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""Begins with <s>; three roles."""


def byte_tokens() -> list[str]:
    """The 256 symbols of a byte-level tokenizer between special tokens and the merges."""
    return [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]


def tokenizer(template: str | None = TEMPLATE, **options: Any) -> Any:
    """One token a byte, save for the two merges that a GGUF file needs.

    ``template`` is the chat template, or None.
    """
    vocabulary = {t: i for i, t in enumerate(byte_tokens())}
    raw = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("c", "d")], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
    given = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", **options}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, clean_up_tokenization_spaces=False, **given
    )
    if template is not None:
        made.chat_template = template
    return made


def config(**options: Any) -> Any:
    """Two layers, hidden 64, one key/value head for two attention heads."""
    given: dict[str, Any] = {
        "vocab_size": len(byte_tokens()),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "tie_word_embeddings": True,
    }
    return transformers.LlamaConfig(**(given | options))


def model(**options: Any) -> Any:
    """Random weights, the same in every run."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config(**options)).eval()


def save(folder: Path, made: Any | None = None, tokens: Any | None = None) -> Path:
    """Save a model and its tokenizer; returns ``folder``."""
    (model() if made is None else made).save_pretrained(folder)
    (tokenizer() if tokens is None else tokens).save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> TransformersTarget:
    """The target over a saved folder, on the CPU."""
    return TransformersTarget.load({"model": str(folder), "device": "cpu", **options})


def ask(
    target: TransformersTarget, prompt: str = "hello", **options: Any
) -> tuple[Answer, Recorder]:
    """One request, greedy unless told otherwise, at full length unless told otherwise."""
    given = {"max_new_tokens": 8, "sampling": {"greedy": True}, "force_length": True, **options}
    record = Recorder()
    record.start()
    return target.generate(Ask(prompt, **given), record), record


def write_gguf(path: Path) -> Path:
    """A GGUF file of a two-layer LLaMA with Q8_0 matrices and the byte tokenizer."""
    import gguf
    import numpy as np

    cfg = config()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_block_count(cfg.num_hidden_layers)
    writer.add_feed_forward_length(cfg.intermediate_size)
    writer.add_head_count(cfg.num_attention_heads)
    writer.add_head_count_kv(cfg.num_key_value_heads)
    writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(cfg.hidden_size // cfg.num_attention_heads)
    writer.add_vocab_size(cfg.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(byte_tokens())
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * 258)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(EOS)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    kv = cfg.hidden_size // cfg.num_attention_heads * cfg.num_key_value_heads
    shapes = {
        "attn_q": (cfg.hidden_size, cfg.hidden_size),
        "attn_k": (kv, cfg.hidden_size),
        "attn_v": (kv, cfg.hidden_size),
        "attn_output": (cfg.hidden_size, cfg.hidden_size),
        "ffn_gate": (cfg.intermediate_size, cfg.hidden_size),
        "ffn_up": (cfg.intermediate_size, cfg.hidden_size),
        "ffn_down": (cfg.hidden_size, cfg.intermediate_size),
    }

    def matrix(name: str, shape: tuple[int, int]) -> None:
        values = rng.normal(0, 0.05, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd.weight", (cfg.vocab_size, cfg.hidden_size))
    writer.add_tensor("output_norm.weight", np.ones(cfg.hidden_size, np.float32))
    for layer in range(cfg.num_hidden_layers):
        for name, shape in shapes.items():
            matrix(f"blk.{layer}.{name}.weight", shape)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(cfg.hidden_size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

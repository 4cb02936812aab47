"""The facts of a loaded model that a report prints."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .hf_checks import EndTokens, Warn, context_length, end_tokens, labels, lengths, vocabulary_rows
from .hf_files import combined_sha256, weight_files
from .hf_load import Loaded
from .hf_prompt import PromptRenderer
from .hf_spec import HfSpec
from .hf_weights import Weights, weigh

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "bitsandbytes", "gguf")

COMPILE_DYNAMIC = Warn(
    "compile_dynamic_cache",
    "compile with cache: dynamic sees a new shape each step and may compile again inside a "
    "measured request. Use cache: static.",
)
COMPILE_STATIC = Warn(
    "compile_static_cache",
    "the static cache grows with the longest request so far, and each growth compiles again: warm "
    "up with the longest prompt, or see it in a measured request.",
)

NOT_SAMPLING = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "max_length", "use_cache"),
        *("output_attentions", "output_hidden_states"),
        *("transformers_version", "_from_model_config"),
    }
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts for the report, and the two that ``generate`` needs."""

    facts: dict[str, Any]
    ends: EndTokens
    context: int | None


def inspect(spec: HfSpec, loaded: Loaded, renderer: PromptRenderer) -> Inspection:
    """Check a loaded model and collect its facts, JSON-ready. Changes nothing.

    Raises:
        TargetError: it cannot run as asked.
    """
    model, tokenizer, source = loaded.model, loaded.tokenizer, loaded.source
    weights = weigh(model, expanded=source.gguf_file is not None)
    files = weight_files(source)
    ends, warns = end_tokens(model, tokenizer)
    warns += lengths(model, tokenizer)
    warns += labels(spec, source, model, weights, files)
    warns += _device_warnings(spec, loaded, weights)
    warns += [Warn("library_warning", text) for text in loaded.library_warnings]
    if renderer.chat and not renderer.system_role:
        warns.append(
            Warn(
                "no_system_role",
                "the chat template has no system role: a system prompt is put "
                "before the user's text.",
            )
        )
    overhead = renderer.overhead()
    facts = {
        "kind": "transformers",
        "model": spec.model,
        "source": source.kind,
        "resolved": str(source.folder / (source.gguf_file or "")),
        "revision": source.revision,
        "format": "gguf" if source.gguf_file is not None else "safetensors",
        "made_from": None if source.made_from is None else source.made_from.name,
        "made_from_sha256": source.made_from_sha256,
        "weights_sha256": combined_sha256(files),
        "weight_files": [asdict(f) for f in files],
        "architecture": type(model).__name__,
        "parameters": weights.parameters,
        **_running(spec, loaded, weights),
        "context_length": context_length(model),
        "vocabulary_rows": vocabulary_rows(model),
        "eos_token_ids": list(ends.eos),
        "pad_token_id": ends.pad,
        "chat_template_sha256": _template_sha(tokenizer),
        "template_prefix_tokens": None if overhead is None else overhead[0],
        "template_overhead_tokens": None if overhead is None else sum(overhead),
        "system_role": renderer.system_role,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "ignored_generation_config": _ignored_defaults(model),
        "versions": _versions(),
        "warnings": [asdict(w) for w in warns],
    }
    return Inspection(facts, ends, facts["context_length"])


def kv_bytes_per_token(model: Any) -> int | None:
    """2 · layers · kv_heads · head_dim · bytes per element, in the model's compute dtype.

    Source: docs/metrics.md (key/value heads, not attention heads). None when the config does not
    state its layers and heads.
    """
    from ..probes.kv_cache import geometry_of

    geometry = geometry_of(model.config.get_text_config())
    return None if geometry is None else int(geometry.bytes_per_token(model.dtype.itemsize))


def _running(spec: HfSpec, loaded: Loaded, weights: Weights) -> dict[str, Any]:
    """How it runs: dtypes, bytes, devices, attention, cache, compilation."""
    model = loaded.model
    placed = getattr(model, "hf_device_map", None)
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "dtype_asked": spec.dtype,
        "quantization": spec.quantization,
        "double_quant": spec.double_quant if spec.quantization in ("nf4", "fp4") else None,
        "compute_dtypes": list(weights.compute_dtypes),
        "quantised_layers": weights.quantised_layers,
        "bytes_by_dtype": weights.bytes_by_dtype,
        "quantisation_scale_bytes": weights.scale_bytes,
        "weight_bytes": weights.total_bytes,
        "devices": list(weights.devices),
        "device_map": {k or "(all)": str(v) for k, v in placed.items()} if placed else None,
        "cpu_threads": torch.get_num_threads(),
        "attn": getattr(model.config, "_attn_implementation", None),
        "batching": spec.batching,
        "cache": spec.cache,
        "use_cache": spec.use_cache,
        "compile": spec.compile,
    }


def _device_warnings(spec: HfSpec, loaded: Loaded, weights: Weights) -> list[Warn]:
    warns = []
    if "mps" in weights.devices:
        warns.append(
            Warn(
                "mps_one_step_late",
                "on MPS, recent transformers hand over each token one step "
                "late: TTFT and the last gap hold one step more and less than a user sees.",
            )
        )
    if spec.device == "auto" and loaded.device == "auto" and "cpu" in weights.devices:
        warns.append(
            Warn(
                "offloaded",
                "device: auto left part of the weights in host memory, because the "
                "cards are too small.",
            )
        )
    if spec.compile:
        warns.append(COMPILE_DYNAMIC if spec.cache == "dynamic" else COMPILE_STATIC)
    return warns


def _ignored_defaults(model: Any) -> dict[str, Any]:
    """Sampling defaults of the checkpoint that the policy's own settings replace."""
    given = model.generation_config.to_diff_dict()
    return {k: v for k, v in given.items() if k not in NOT_SAMPLING and _plain(v)}


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | list)


def _template_sha(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _versions() -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = None
    return out

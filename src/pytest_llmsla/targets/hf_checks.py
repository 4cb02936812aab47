"""What a label promises and what runs: the checks made once, right after loading.

Every check returns :class:`Warn` objects with a stable code and a message that says what was
found and what it means; what cannot be run at all raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import TargetError
from .hf_files import WeightFile
from .hf_resolve import Source
from .hf_spec import HfSpec
from .hf_weights import Weights

PLAUSIBLE_LENGTH = 10_000_000
"""Above this, a tokenizer's ``model_max_length`` means "not set" (it is then about 1e30)."""


@dataclass(frozen=True, slots=True)
class Warn:
    """One finding at load time."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The ids that end an answer and the one that pads, as they are passed to ``generate``."""

    eos: tuple[int, ...]
    pad: int | None


def end_tokens(model: Any, tokenizer: Any) -> tuple[EndTokens, list[Warn]]:
    """All end ids that tokenizer, config and generation config list, and whether they agree.

    Every listed id ends an answer: with one of them left out, a model would run past its end, or
    (where its config names a wrong one) be cut after a token or two.
    """
    config = model.config.get_text_config()
    said = {
        "tokenizer": _ids(getattr(tokenizer, "eos_token_id", None)),
        "config": _ids(getattr(config, "eos_token_id", None)),
        "generation_config": _ids(model.generation_config.eos_token_id),
    }
    eos = tuple(sorted(set().union(*said.values())))
    warns: list[Warn] = []
    # A generation config may list more end tokens than the tokenizer's own; it must list that one.
    own = [ids for ids in said.values() if ids]
    if any(not (a <= b or b <= a) for a in own for b in own):
        told = ", ".join(f"{k} {sorted(v)}" for k, v in said.items() if v)
        warns.append(
            Warn(
                "eos_disagree",
                f"end tokens differ: {told}. All of them end an answer here; correct the config so "
                "that a server does the same.",
            )
        )
    if not eos:
        warns.append(Warn("no_eos", "no end token is known: every answer runs to max_new_tokens."))
    pad, pad_warns = _pad(model, tokenizer, config, eos)
    return EndTokens(eos, pad), warns + pad_warns + _vocabulary(model, tokenizer, eos)


def _pad(
    model: Any, tokenizer: Any, config: Any, eos: tuple[int, ...]
) -> tuple[int | None, list[Warn]]:
    said = {
        "tokenizer": getattr(tokenizer, "pad_token_id", None),
        "config": getattr(config, "pad_token_id", None),
        "generation_config": model.generation_config.pad_token_id,
    }
    set_ = {k: int(v) for k, v in said.items() if v is not None and v >= 0}
    if not set_:
        pad = eos[0] if eos else None
        return pad, [
            Warn("pad_missing", f"no pad token is set; {pad} stands in (one row needs no padding).")
        ]
    warns = []
    if len(set(set_.values())) > 1:
        told = ", ".join(f"{k} {v}" for k, v in set_.items())
        warns.append(Warn("pad_disagree", f"pad tokens differ: {told}. The first is used."))
    return next(iter(set_.values())), warns


def _vocabulary(model: Any, tokenizer: Any, eos: tuple[int, ...]) -> list[Warn]:
    rows = vocabulary_rows(model)
    if rows is None:
        return []
    warns = []
    if len(tokenizer) > rows:
        warns.append(
            Warn(
                "vocabulary",
                f"the tokenizer knows {len(tokenizer)} tokens, the model has {rows} embeddings: a "
                "prompt with an id beyond them is an error. Is this the model's own tokenizer?",
            )
        )
    beyond = [i for i in eos if i >= rows]
    if beyond:
        warns.append(
            Warn("eos_unreachable", f"end tokens {beyond}: the model has only {rows} embeddings.")
        )
    return warns


def vocabulary_rows(model: Any) -> int | None:
    """Rows of the input embedding; None for a model that has none."""
    embedding = model.get_input_embeddings()
    return getattr(embedding, "num_embeddings", None)


def context_length(model: Any) -> int | None:
    """Positions of the model, tokens; None when its config does not say."""
    value = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(value) if isinstance(value, int) and value > 0 else None


def lengths(model: Any, tokenizer: Any) -> list[Warn]:
    """Length settings other than the model's own that a prompt could run into."""
    context = context_length(model)
    warns = []
    if context is None:
        warns.append(
            Warn("context_unknown", "the config states no max_position_embeddings: no check.")
        )
    limit = getattr(tokenizer, "model_max_length", None)
    if limit is not None and limit < (context or PLAUSIBLE_LENGTH):
        warns.append(
            Warn(
                "tokenizer_max_length",
                f"the tokenizer's model_max_length is {limit}, the model has {context} positions. "
                "Prompts are not cut here; a server may cut them at the smaller number.",
            )
        )
    total = model.generation_config.max_length
    # 20 is the library's default of older versions and means "not set".
    if total is not None and total != 20 and total < (context or PLAUSIBLE_LENGTH):
        warns.append(
            Warn(
                "generation_max_length",
                f"generation_config.max_length is {total} (prompt and answer together). It is not "
                "applied here, max_new_tokens decides; a server that applies it stops earlier.",
            )
        )
    return warns


def labels(
    spec: HfSpec, source: Source, model: Any, weights: Weights, files: list[WeightFile]
) -> list[Warn]:
    """Where the quantisation or dtype asked for, or named in a file, is not what runs.

    Raises:
        TargetError: quantised weights were asked for and none are there.
    """
    warns = [
        *_quantised(spec, model, weights),
        *_expanded(source, weights, files),
        *_half(weights),
    ]
    method = _own_quantisation(model)
    if method is not None and spec.quantization == "none" and not weights.expanded:
        warns.append(Warn("checkpoint_quantised", f"the checkpoint is itself quantised: {method}."))
    return warns


def _quantised(spec: HfSpec, model: Any, weights: Weights) -> Iterator[Warn]:
    if spec.quantization == "none":
        return
    if not weights.quantised_layers:
        raise TargetError(
            f"target.quantization: {spec.quantization}, but no layer of the loaded model is "
            f"quantised (dtypes: {', '.join(weights.bytes_by_dtype)}). Use quantization: none."
        )
    if spec.quantization in ("nf4", "fp4") and spec.compute_dtype is None:
        yield Warn(
            "compute_dtype_float32",
            f"{spec.quantization} without compute_dtype multiplies in float32. Set "
            "target.compute_dtype: bfloat16 (or float16) to compute as a server would.",
        )
    asked = str(model.dtype).removeprefix("torch.")
    if spec.quantization == "int8" and asked != "float16":
        yield Warn(
            "int8_casts",
            f"int8 layers cast their {asked} inputs to float16 at every step. Use dtype: float16 "
            "to compute as a server would.",
        )


def _expanded(source: Source, weights: Weights, files: list[WeightFile]) -> Iterator[Warn]:
    name, size = source.gguf_file, files[0].bytes if files else 0
    if name is None and source.made_from is not None:
        name, size = source.made_from.name, source.made_from.stat().st_size
    if name is None:
        return
    yield Warn(
        "gguf_expanded",
        f"{name} holds {_mib(size)} of quantised weights; they run expanded to "
        f"{', '.join(weights.bytes_by_dtype)}, {_mib(weights.total_bytes)}. Memory and speed are "
        "those of the expanded weights.",
    )


def _half(weights: Weights) -> Iterator[Warn]:
    if weights.devices != ("cpu",):
        return
    for dtype in ("float16", "bfloat16"):
        if dtype in weights.bytes_by_dtype:
            yield Warn(
                "half_on_cpu",
                f"{dtype} weights on a CPU: stored in 16 bit, while many operators compute in "
                "float32 inside or run slower than with dtype: float32. No measure of a GPU.",
            )


def _own_quantisation(model: Any) -> str | None:
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        return None
    given = config if isinstance(config, dict) else config.to_dict()
    return str(getattr(given.get("quant_method"), "value", given.get("quant_method")))


def _mib(size: int) -> str:
    return f"{size / 1024**2:.0f} MiB"


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return {int(value)} if isinstance(value, int) else {int(v) for v in value}

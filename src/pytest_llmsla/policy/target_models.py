"""What is under test: ``target``, of one kind. Servers: :mod:`http_models`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from . import checks
from .http_models import LlamacppTarget, MiiTarget, OpenaiTarget, TgiTarget
from .keys import (
    COUNT,
    FLAG,
    MAPPING,
    TEXT,
    TEXT_OR_NULL,
    Count,
    Index,
    Keys,
    NotNegative,
    Text,
    Timeouts,
    key,
)


class TransformersTarget(Keys):
    """A Hugging Face model in this process."""

    kind: Literal["transformers"] = key("transformers", "transformers", "What is under test.")
    model: Text = key(
        checks.EMBEDDED_MODEL,
        TEXT,
        "smollm2-135m-instruct (embedded), a hub id, a folder or a .gguf file. ${NAME} allowed.",
    )
    revision: Text | None = key(None, TEXT_OR_NULL, "Hub revision (commit); printed.")
    tokenizer: Text | None = key(None, TEXT_OR_NULL, "Folder or id; null: the model's own.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = key(
        "auto", "auto, float32, float16 or bfloat16", "Type of the parameters."
    )
    quantization: Literal["none", "nf4", "fp4", "int8"] = key(
        "none", "none, nf4, fp4 or int8", "bitsandbytes quantisation."
    )
    double_quant: StrictBool = key(False, FLAG, "Quantise the constants too (nf4, fp4).")
    compute_dtype: Literal["float32", "float16", "bfloat16"] | None = key(
        None, "float32, float16, bfloat16 or null", "Type 4-bit layers compute in."
    )
    device: Annotated[StrictStr, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = key(
        "auto", "auto, cpu, cuda, cuda:N or mps", "auto may spread layers over cards."
    )
    attn: Text = key(
        "auto", "auto, eager, sdpa, flash_attention_2 or another name", "Attention kernel."
    )
    cache: Literal["dynamic", "static"] = key("dynamic", "dynamic or static", "KV cache.")
    use_cache: Literal["auto"] | StrictBool = key(
        True, "true, false or auto", "auto: off for prompts under 32 tokens."
    )
    batching: Literal["continuous", "threads", "batch"] = key(
        "continuous", "continuous, threads or batch", "How requests in flight share the model."
    )
    compile: Literal["reduce-overhead", "max-autotune"] | Literal[False] = key(
        False, "false, reduce-overhead or max-autotune", "torch.compile mode."
    )
    compile_quantized: StrictBool = key(False, FLAG, "Compile a quantised model all the same.")
    offline: Literal["auto"] | StrictBool = key(
        "auto", "auto, true or false", "auto: no download when the environment says offline."
    )
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


class PythonTarget(Keys):
    """Any callable or (async) iterator of tokens: a team's own engine."""

    kind: Literal["python"] = key("python", "python", "What is under test.")
    entry: Text = key(..., "package.module:factory", "The engine. ${NAME} allowed.")
    tokenizer: Text | None = key(None, TEXT_OR_NULL, "Folder or id of its tokenizer.")
    max_context: Count | None = key(
        None, f"{COUNT}, or null", "Longest prompt plus output, tokens; null: unknown."
    )
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


class Script(Keys):
    """Exact virtual times of a scripted target. Lists are cycled, one entry a request."""

    ttft_ms: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = key(
        100.0, "a number of milliseconds from 0, or a list of them", "TTFT of each request."
    )
    itl_ms: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = key(
        20.0,
        "a number of milliseconds from 0, or a list of them",
        "Gap of each request.",
    )
    tokens: Index | None = key(
        None, "a whole number from 0, or null", "Tokens given; null: as many as asked."
    )
    tokens_per_chunk: Count = key(1, COUNT, "Tokens that arrive at once.")
    fail: tuple[Index, ...] = key(
        (), "a list of whole numbers from 0", "Requests that fail, counted from 0 with warm-up."
    )
    error: Text = key("scripted failure", TEXT, "What a failing request says.")


class ScriptedTarget(Keys):
    """A target with exact timestamps and no waiting: for tests."""

    kind: Literal["scripted"] = key("scripted", "scripted", "What is under test.")
    entry: Text | None = key(None, "package.module:factory", "Factory of the script.")
    script: Script | None = key(None, MAPPING, "The script, written here.")
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


Target = Annotated[
    TransformersTarget
    | PythonTarget
    | OpenaiTarget
    | TgiTarget
    | LlamacppTarget
    | MiiTarget
    | ScriptedTarget,
    Field(discriminator="kind"),
]
TARGETS: Mapping[str, type[Keys]] = {
    "transformers": TransformersTarget,
    "python": PythonTarget,
    "openai": OpenaiTarget,
    "tgi": TgiTarget,
    "llamacpp": LlamacppTarget,
    "mii": MiiTarget,
    "scripted": ScriptedTarget,
}
# Of the format: where two kinds have a key, the default of the first counts.
DEFAULTS: Mapping[str, Any] = {
    **{
        name: field.default
        for model in reversed(list(TARGETS.values()))
        for name, field in model.model_fields.items()
        if not field.is_required()
    },
    "entry": None,
    "base_url": None,
}
"""Key of ``target`` → default; a key of another kind may stand at it in any file."""

"""The ``target`` mapping of sla.yaml as this target reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

CHOICES: dict[str, tuple[Any, ...]] = {
    "dtype": ("auto", "float32", "float16", "bfloat16"),
    "quantization": ("none", "nf4", "fp4", "int8"),
    "compute_dtype": (None, "float32", "float16", "bfloat16"),
    "batching": ("continuous", "threads", "batch"),
    "cache": ("dynamic", "static"),
    "use_cache": (True, False, "auto"),
    "compile": (False, "reduce-overhead", "max-autotune"),
    "offline": ("auto", True, False),
    "double_quant": (True, False),
    "compile_quantized": (True, False),
}


@dataclass(frozen=True, slots=True)
class HfSpec:
    """Options of a ``transformers`` target, validated. Names and meanings as in sla.yaml."""

    model: str
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str = "none"
    double_quant: bool = False
    compute_dtype: str | None = None
    device: str = "auto"
    attn: str = "auto"
    batching: str = "continuous"
    """How several requests in flight share the model; one at a time, it does not matter."""
    cache: str = "dynamic"
    use_cache: bool | str = True
    compile: bool | str = False
    compile_quantized: bool = False
    offline: bool | str = "auto"

    @classmethod
    def from_mapping(cls, spec: Mapping[str, Any]) -> HfSpec:
        """Read the keys of this kind; keys of other target kinds are left alone.

        Raises:
            UsageError: a value outside its choices, with the choices; options that contradict.
        """
        known = {k: spec[k] for k in cls.__dataclass_fields__ if k in spec}
        if not known.get("model"):
            raise UsageError("target.model is missing. Give an id, a folder or a .gguf file.")
        for key, valid in CHOICES.items():
            # `in` alone would take 1 for True.
            if key in known and (type(known[key]), known[key]) not in [(type(v), v) for v in valid]:
                raise UsageError(
                    f"target.{key}: {known[key]!r}. Valid: {', '.join(_word(v) for v in valid)}."
                )
        made = cls(**known)
        made._check_device()
        made._check_compile()
        made._check_threads()
        return made

    def _check_device(self) -> None:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(self.device)):
            raise UsageError(
                f"target.device: {self.device!r}. Valid: auto, cpu, cuda, cuda:N, mps."
            )

    def _check_compile(self) -> None:
        if self.compile and self.quantization != "none" and not self.compile_quantized:
            raise UsageError(
                f"target.compile: {self.compile} with quantization: {self.quantization} is "
                "refused: torch.compile runs the quantised layers outside its graph, which adds "
                "time to the first token and jitter to the others. Use compile: false, or set "
                "compile_quantized: true to measure it all the same."
            )
        if self.compile and self.use_cache is False:
            raise UsageError(
                f"target.compile: {self.compile} with use_cache: false is refused: without a cache "
                "every step has another shape and would be compiled anew. Use use_cache: true."
            )

    def _check_threads(self) -> None:
        """A static cache lives on the model, and a compiled forward replays one thread's graphs."""
        if self.batching != "threads":
            return
        for key, value in (("cache", "static"), ("compile", self.compile)):
            if value and getattr(self, key) == value:
                raise UsageError(
                    f"target.batching: threads with {key}: {value} is refused: threads would write "
                    "into one another's cache. Use batching: batch, or leave it out where requests "
                    f"are asked one at a time, or do without {key}."
                )


def _word(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, str(value))

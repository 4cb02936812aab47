"""What is changed on a loaded model before it is measured."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers


def plain_generation_config(model: Any, eos: tuple[int, ...], pad: int | None) -> None:
    """Give ``model`` a generation config that holds its end tokens and nothing else.

    A checkpoint's own sampling defaults would otherwise fill every key that a policy leaves out.
    """
    begin = getattr(model.generation_config, "bos_token_id", None)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=begin, eos_token_id=list(eos) or None, pad_token_id=pad
    )


def compile_decode(model: Any, mode: str) -> None:
    """Compile the one-token forward of ``model`` in place; the prefill runs as it is.

    Every prompt length is another shape, so a compiled prefill would compile inside measured
    requests. The hooks that time a forward stay outside the compiled part.
    """
    plain = model.forward
    compiled = torch.compile(plain, mode=mode)

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        one_token = ids is not None and ids.shape[-1] == 1
        return (compiled if one_token else plain)(*args, **kwargs)

    model.forward = forward

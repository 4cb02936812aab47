"""What really runs: facts of a loaded model, and warnings where a label says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .hf_prompt import PromptRenderer
from .hf_spec import HfSpec

if TYPE_CHECKING:
    from .hf_load import Loaded


def inspect(spec: HfSpec, loaded: Loaded, renderer: PromptRenderer) -> dict[str, Any]:
    """Facts of a loaded model for the report, JSON-ready."""
    config = loaded.model.config
    eos = config.eos_token_id
    return {
        "model": spec.model,
        "resolved": str(loaded.source.folder),
        "context_length": getattr(config, "max_position_embeddings", None),
        "eos_token_ids": [eos] if isinstance(eos, int) else list(eos or []),
        "pad_token_id": config.pad_token_id,
        "template_overhead": renderer.overhead(),
        "warnings": [],
    }

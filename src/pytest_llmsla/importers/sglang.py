"""SGLang's ``bench_serving``: one JSON object a line and run, appended.

vLLM's object with other names; ``--output-details`` adds the lists, but no time of day of any
request, so that which of them were in flight together is not known: observed only. A gap between
chunks is shared among the tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import base, vllm
from .base import Place, Run

TOOL = "sglang.bench_serving"
_SHARED = (
    "its gaps are those between chunks, shared among a chunk's tokens: a stall before several "
    "tokens looks shorter than it was"
)


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    return isinstance(head, Mapping) and "completed" in head and vllm.is_sglang(head)


def read(path: Path, documents: list[Any]) -> list[Run]:
    """A run for each line."""
    several = len(documents) > 1
    runs = [
        vllm.run_of(base.mapping(doc, Place(path)), path, TOOL, number, several=several)
        for number, doc in enumerate(documents, 1)
    ]
    return [
        replace(run, notes=(*run.notes, _SHARED, *_from_cache(doc, Place(path))))
        for run, doc in zip(runs, documents, strict=True)
    ]


def _from_cache(doc: Mapping[str, Any], where: Place) -> tuple[str, ...]:
    """A note where the server answered prompts from its prefix cache (``--cache-report``)."""
    told = doc.get("cache_report")
    found = told.get("total_cached_tokens") if isinstance(told, Mapping) else None
    cached = base.count_or_none(found, where.at("cache_report.total_cached_tokens"))
    if not cached:
        return ()
    return (f"{cached} prompt tokens came from a prefix cache: TTFT is not of new prompts",)

"""Other tools' result files, read as evidence: one module a format.

A module has ``recognises(head)`` (the first document of a file) and ``read(path, documents)``,
which gives :class:`Run`\\ s. A new format is a module and its place in :data:`FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import UsageError
from . import (
    aiperf,
    endpoints,
    genai_bench,
    guidellm,
    inference_perf,
    llmperf,
    servebench,
    sglang,
    vllm,
)
from .base import Run, Series, Summary, Value
from .documents import SUFFIXES, documents
from .plausible import plausible

__all__ = [
    "FORMATS",
    "Run",
    "Series",
    "Summary",
    "Value",
    "documents",
    "in_folder",
    "read",
    "recognised",
]


class Format(Protocol):
    """What a module of this package offers."""

    def recognises(self, head: object) -> bool:
        """True for the first document of a file in this format."""

    def read(self, path: Path, documents: list[Any]) -> list[Run]:
        """The runs of a file. Raises UsageError where it is no evidence."""


FORMATS: tuple[Format, ...] = (
    sglang,
    vllm,
    servebench,
    guidellm,
    aiperf,
    inference_perf,
    genai_bench,
    llmperf,
    endpoints,
)
NAMES = (
    "vllm bench serve, sglang.bench_serving, servebench, GuideLLM, AIPerf, GenAI-Perf, "
    "inference-perf, genai-bench, LLMPerf, MLCommons endpoints"
)
"""The tools, for messages."""


def recognised(docs: Sequence[Any]) -> Format | None:
    """The format of a file by its first document; None: another."""
    return next((f for f in FORMATS if docs and f.recognises(docs[0])), None)


def read(path: Path) -> list[Run]:
    """The runs of a result file.

    Raises:
        UsageError: it is of no known tool or version, cut, empty, or contradicts itself.
    """
    docs = documents(path)
    found = recognised(docs)
    if found is None:
        raise UsageError(
            f"{path}: is neither a timelines.jsonl nor a result of a known tool ({NAMES}), or of "
            "a version that this one does not know"
        )
    if any(recognised([doc]) is not found for doc in docs[1:]):
        raise UsageError(f"{path}: holds results of several kinds; give one file a tool and run")
    return [plausible(run) for run in found.read(path, docs)]


def in_folder(folder: Path) -> list[Path]:
    """Result files of a folder, by name; files of other kinds are left alone."""
    out = []
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            continue
        try:
            docs = documents(path)
        except UsageError:
            raise UsageError(
                f"{path}: cannot be read, so nobody knows whether it belongs to the results of "
                f"{folder}. Give the files to judge by name"
            ) from None
        if recognised(docs) is not None:
            out.append(path)
    return out

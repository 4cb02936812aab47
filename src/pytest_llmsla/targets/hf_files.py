"""Hashes of weight files, remembered so that a large checkpoint is read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .embedded import cache_dir, file_sha256
from .hf_resolve import Source

MEMORY = "hashes.json"


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights: its name, size in bytes, and SHA-256."""

    name: str
    bytes: int
    sha256: str


def weight_files(source: Source) -> list[WeightFile]:
    """The files that hold the weights of ``source``, with their hashes, by name.

    A hash is remembered under the file's path, size and modification time.
    """
    paths = (
        [source.folder / source.gguf_file]
        if source.gguf_file is not None
        else sorted(source.folder.glob("*.safetensors"))
    )
    memory_file = cache_dir() / MEMORY
    memory = _recall(memory_file)
    keys = {p: _key(p) for p in paths}
    fresh = [p for p in paths if keys[p] not in memory]
    # hashlib releases the interpreter lock, so shards are hashed side by side.
    with ThreadPoolExecutor(max_workers=4) as pool:
        memory |= {keys[p]: h for p, h in zip(fresh, pool.map(file_sha256, fresh), strict=True)}
    if fresh:
        _remember(memory_file, memory)
    return [WeightFile(p.name, p.stat().st_size, memory[keys[p]]) for p in paths]


def combined_sha256(files: list[WeightFile]) -> str | None:
    """The hash of one file, or of the ``name sha256`` lines of several; None for none."""
    if len(files) == 1:
        return files[0].sha256
    if not files:
        return None
    lines = "".join(f"{f.name} {f.sha256}\n" for f in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _key(path: Path) -> str:
    real = path.resolve()
    stat = real.stat()
    return f"{real}|{stat.st_size}|{stat.st_mtime_ns}"


def _recall(memory_file: Path) -> dict[str, str]:
    try:
        read: Any = json.loads(memory_file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(read, dict):
        return {}
    return {k: v for k, v in read.items() if isinstance(v, str) and len(v) == 64}


def _remember(memory_file: Path, memory: dict[str, str]) -> None:
    """Write by rename, so that a reader never sees half a file. A failure only costs time."""
    with contextlib.suppress(OSError):
        memory_file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=memory_file.parent, prefix=f"{MEMORY}.")
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(memory, f, indent=0)
        Path(name).replace(memory_file)

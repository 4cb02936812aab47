"""report.json: written whole or not at all, in UTF-8, with finite numbers only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InternalError, UsageError
from . import shape

REPORT_NAME = "report.json"
LATEST = "latest"
SCHEMA = "llmsla-report/1"


def dumps(report: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """``report`` as JSON text, ending in a line break; ``series`` comes last, on one line.

    Lone surrogates, control characters and what turns or hides text are written as ``\\u`` escapes,
    so that the text always encodes as UTF-8 and every reader takes it; with ``ascii_only``
    everything outside ASCII is.

    Raises:
        InternalError: a number in it is NaN or infinite; the message names its place.
    """
    refuse_non_finite(report)
    rest = {key: value for key, value in report.items() if key != "series"}
    text = json.dumps(rest, ensure_ascii=ascii_only, allow_nan=False, indent=2)
    if "series" in report:
        # Thousands of numbers, one a line, would hide everything else.
        series = json.dumps(
            report["series"], ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":")
        )
        text = f'{text[:-2]},\n  "series": {series}\n}}'
    return _UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n"


_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
"""Controls, invisible characters, marks of direction, line separators, lone surrogates."""


def refuse_non_finite(value: object, place: str = "report") -> None:
    """Check every number inside ``value``.

    Raises:
        InternalError: one of them is NaN or infinite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise InternalError(
            f"{place} is {value!r}; a report holds finite numbers or null: "
            "whatever could not be measured must be null with its reason"
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_non_finite(inner, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            refuse_non_finite(inner, f"{place}[{index}]")


def write(report: Mapping[str, Any], run_dir: Path) -> Path:
    """Write ``run_dir/report.json`` atomically and return its path.

    Raises:
        InternalError: a number is not finite.
        OSError: the file cannot be written; whatever stood there before still stands.
    """
    path = run_dir / REPORT_NAME
    write_text(path, dumps(report))
    return path


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8 to ``path`` through a temporary file in the same folder.

    Raises:
        OSError: the file cannot be written; an earlier file of that name is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, _mode_for_new_files())  # mkstemp keeps files to their owner
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _mode_for_new_files() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def point_latest(run_dir: Path) -> Path:
    """Make ``latest`` in the report folder point at ``run_dir`` (``<report dir>/runs/<UTC>``).

    A relative symbolic link; where links are not allowed, a text file holding the same relative
    path. Returns the pointer's path.

    Raises:
        OSError: neither can be written.
    """
    report_dir = run_dir.parent.parent
    pointer = report_dir / LATEST
    target = run_dir.relative_to(report_dir)
    temporary = report_dir / f".{LATEST}.{os.getpid()}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(target, target_is_directory=True)
        os.replace(temporary, pointer)
    except (OSError, NotImplementedError):
        with contextlib.suppress(OSError):
            temporary.unlink()
        if pointer.is_symlink():
            pointer.unlink()
        write_text(pointer, target.as_posix() + "\n")
    return pointer


def resolve_latest(report_dir: Path) -> Path | None:
    """The run folder that ``latest`` points at; None when there is none."""
    pointer = report_dir / LATEST
    if pointer.is_dir():
        return pointer.resolve()
    if not pointer.is_file():
        return None
    run_dir = report_dir / pointer.read_text(encoding="utf-8", errors="replace").strip()
    return run_dir.resolve() if run_dir.is_dir() else None


def read(path: Path) -> dict[str, Any]:
    """A report.json read back: of the types of its schema, and no better than its findings.

    Raises:
        UsageError: the file is missing, no JSON, not a report of a known schema, of other types, or
            says of itself what its findings do not.
    """
    try:
        raw = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(
            f"{path}: cannot be read as a report: {err}. Give a run folder that holds "
            f"{REPORT_NAME}, such as .llmsla/latest"
        ) from err
    try:
        report = json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as err:
        raise UsageError(
            f"{path}: is no JSON ({err}). Judge its timelines.jsonl again with llmsla check"
        ) from err
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        given = report.get("schema") if isinstance(report, dict) else type(report).__name__
        raise UsageError(
            f"{path}: schema is {given!r}; this version reads {SCHEMA!r}. "
            "Use the version of pytest-llmsla that wrote it, or give another file"
        )
    if text := shape.misfit(report, schema("report")) or shape.contradiction(report):
        raise UsageError(
            f"{path}: is damaged or was edited: {text}. Judge its timelines.jsonl again with "
            "llmsla check"
        )
    return report


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that ships as ``schemas/<name>.schema.json``."""
    text = (files("pytest_llmsla") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded

"""What a file must have and a Python test need not; ``${NAME}`` of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .credentials import secret_name
from .http_models import HTTP_KINDS
from .messages import describe, nearest
from .problems import Path as KeyPath
from .problems import Problem, dig, listed

_EXPANDED: tuple[KeyPath, ...] = (
    ("target", "model"),
    ("target", "entry"),
    ("target", "base_url"),
    ("target", "metrics_url"),
)
_EXPANDED_WORDS = (
    "target.model, target.entry, target.base_url and target.metrics_url, and in target.headers and "
    "target.proxy, where it is never shown"
)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def expand(raw: dict[str, Any], environ: Mapping[str, str], to_run: bool) -> list[Problem]:
    """Put ``${NAME}`` of the allowed keys in place; refuse it elsewhere.

    In headers and proxy it stays as it is written: what it stands for is a secret, which the
    target reads for itself when the run begins. Here it is only looked whether it is set.
    """
    problems: list[Problem] = []
    for path, text in list(_strings(raw, ())):
        if "${" not in text or path == ("target", "api_key_env"):
            continue
        if path not in _EXPANDED and not _resolved_later(path):
            problems.append(
                Problem(path, f"${{NAME}} may stand only in {_EXPANDED_WORDS}: write it out")
            )
            continue
        names = _VARIABLE.findall(text)
        wrong = [n for n in names if not _VARIABLE_NAME.match(n) or secret_name(n)]
        if wrong or text.count("${") != len(names):
            problems.append(
                Problem(path, "valid: ${NAME} of letters, digits and _, without a default value")
            )
            continue
        unset = [n for n in names if not environ.get(n)]
        if unset and to_run:
            problems.append(_unset(path, unset[0]))
        elif not unset and path in _EXPANDED:
            raw["target"][path[-1]] = _VARIABLE.sub(lambda m: environ[m[1]], text)
    name = dig(raw, "target", "api_key_env")
    known = isinstance(name, str) and _VARIABLE_NAME.match(name) and not secret_name(name)
    if to_run and known and dig(raw, "target", "kind") in HTTP_KINDS and not environ.get(name):
        problems.append(_unset(("target", "api_key_env"), name))
    return problems


def _unset(path: KeyPath, name: str) -> Problem:
    return Problem(path, f"the environment variable {name} is not set (or empty): set it")


def _resolved_later(path: KeyPath) -> bool:
    return path == ("target", "proxy") or (path[:2] == ("target", "headers") and len(path) == 3)


def _strings(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from _strings(v, (*path, k))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from _strings(v, (*path, i))


def file_problems(raw: Mapping[str, Any], base: Path, to_run: bool) -> Iterator[Problem]:
    """What a file must have and a Python test need not."""
    for i, b in enumerate(listed(raw, "buckets")):
        if not isinstance(b, Mapping):
            continue
        if "prompt_min" in b:
            yield Problem(
                ("buckets", i, "prompt_min"),
                "not a key of the file: a bucket starts where the one before ends. Remove it",
            )
        if b.get("ttft_ms") is None:
            yield Problem(
                ("buckets", i, "ttft_ms"), "missing: rule 1 asks for a TTFT limit in every bucket"
            )
    if dig(raw, "itl", "p95_ms", default=0) is None:
        yield Problem(
            ("itl", "p95_ms"),
            "null would switch rule 2 off; valid: a number of milliseconds greater than 0",
        )
    if dig(raw, "tgs", "concurrency") == []:
        yield Problem(("tgs", "concurrency"), "an empty list would switch rule 3 off: write [1]")
    if to_run:
        yield from _run_problems(raw, base)


def _run_problems(raw: Mapping[str, Any], base: Path) -> Iterator[Problem]:
    """What only a run needs: a named target and the prompt files."""
    target = raw.get("target")
    if target is None:
        yield Problem(
            ("target",),
            "missing: say what is gated, such as "
            "target: {kind: transformers, model: smollm2-135m-instruct}",
        )
    elif (
        dig(target, "kind", default="transformers") == "transformers"
        and dig(target, "model") is None
    ):
        yield Problem(("target", "model"), "missing: the model to gate must be named")
    if dig(target, "kind") in HTTP_KINDS:
        yield from _missing_files(target, base)
    trace = dig(raw, "workload", "load", "trace")
    if isinstance(trace, str) and trace and not os.path.isfile(base / trace):
        yield Problem(
            ("workload", "load", "trace"),
            f"there is no file {describe(trace)} in the folder {base}",
        )
    baseline = dig(raw, "baseline", "path")
    if isinstance(baseline, str) and baseline and not os.path.exists(base / baseline):
        yield Problem(
            ("baseline", "path"),
            f"there is no {describe(baseline)} in the folder {base}: give stored runs, or leave "
            "the key out until there are some",
        )
    prompts = dig(raw, "workload", "prompts", default="builtin")
    files = {"": prompts} if isinstance(prompts, str) else prompts
    for name, file in files.items() if isinstance(files, Mapping) else ():
        if (
            not isinstance(file, str)
            or file in ("builtin", "synthetic")
            or os.path.isfile(base / file)
        ):
            continue
        path: KeyPath = ("workload", "prompts", name) if name else ("workload", "prompts")
        guess = " Did you mean builtin?" if nearest(file, ["builtin"]) and not name else ""
        yield Problem(path, f"there is no file {describe(file)} in the folder {base}.{guess}")


def _missing_files(target: Any, base: Path) -> Iterator[Problem]:
    """Files that an HTTP target names and that are not there; their names are not repeated."""
    for name, what in (("api_key_file", "file"), ("verify_tls", "CA file")):
        path = target.get(name)
        if isinstance(path, str) and path and not os.path.isfile(base / path):
            yield Problem(
                ("target", name),
                f"there is no such {what}; the path starts at the folder of the policy, {base}",
            )

"""sla.yaml → :class:`Policy`: the way in for files and for Python tests.

Every error is a :class:`~pytest_llmsla.errors.UsageError` that lists all problems of a file at
once, each with file, line, key path, what was given and what is valid.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError
from .checks import rule_problems
from .file import expand, file_problems
from .http_models import HttpTarget
from .kinds import with_known_kind
from .limit_models import Bucket
from .load_checks import pin_trace
from .messages import nearest, problems_of
from .models import Policy
from .nodes import Document, named_path, read_yaml
from .pending import split_pending
from .problems import Path as KeyPath
from .problems import Problem

PUBLISHED_RULES: Mapping[str, Any] = {
    "version": 1,
    "buckets": [
        {"name": "short", "prompt_max": 128, "ttft_ms": 300},
        {"name": "medium", "prompt_max": 512, "ttft_ms": 450},
        {"name": "long", "measured_to": 1024, "ttft_ms": 800},
    ],
    "itl": {"p95_ms": 50},
}
"""The three published rules; the default of ``@sla`` tests where there is no sla.yaml."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy and where it was written."""

    policy: Policy
    where: str
    """The file as given, or what a Python test is called; begins every message."""
    path: Path | None = None
    sha256: str = ""
    """Of the resolved policy as canonical JSON: comments and key order do not change it."""
    file_sha256: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    """Key path (``buckets.short.ttft_ms``) → line, from 1; only keys that are written."""
    base: Path = field(default_factory=Path)
    """Folder that relative paths of the policy start from."""
    written_preset: str | None = None
    """What ``evidence.preset`` was before :meth:`with_preset`; None: it is as written."""

    def source(self, key: str) -> str:
        """``sla.yaml:5 buckets.short.ttft_ms``; a key that is not written is a default."""
        name = self.path.name if self.path is not None else self.where
        line = self.lines.get(key)
        if line is not None:
            return f"{name}:{line} {key}"
        return f"{name} {key} (default)" if self.path is not None else f"{name} {key}"

    def resolve(self, path: str) -> Path:
        """A path of the policy: relative ones start at the policy's folder."""
        return self.base / path

    def target_spec(self) -> dict[str, Any]:
        """The ``target`` mapping as :func:`targets.load` takes it: paths of an HTTP target start
        at the policy's folder. The policy itself keeps them as written, so that its hash does not
        depend on where it lies."""
        spec = self.policy.target.model_dump(mode="json")
        if isinstance(self.policy.target, HttpTarget):
            for name in ("api_key_file", "verify_tls", "tokenizer"):
                path = spec.get(name)
                # A tokenizer may be an id as well: then nothing of that name is here.
                if isinstance(path, str) and self.resolve(path).exists():
                    spec[name] = str(self.resolve(path).absolute())
        return spec

    @property
    def kv_plan_path(self) -> Path | None:
        """The file of ``itl.kv_plan``."""
        plan = self.policy.itl.kv_plan
        return None if plan is None else self.resolve(plan)

    def with_preset(self, preset: str) -> LoadedPolicy:
        """The same policy under another ``evidence.preset``, checked again.

        Raises:
            UsageError: the preset is unknown, or the budget cannot reach PASS under it.
        """
        was = self.policy.evidence.preset
        if preset == was:
            return self
        raw = self.policy.model_dump(mode="json")
        raw["evidence"]["preset"] = preset
        policy = _validated(_Draft(raw, self.where))
        written = self.written_preset or was
        return replace(self, policy=policy, sha256=_digest(policy), written_preset=written)


def load_policy(
    path: str | os.PathLike[str],
    *,
    to_run: bool = True,
    environ: Mapping[str, str] | None = None,
) -> LoadedPolicy:
    """Read and check a sla.yaml.

    ``to_run=False`` is for judging stored timelines on another machine: the target may be left
    out, prompt files need not exist and an unset ``${NAME}`` stays as written.

    Raises:
        UsageError: all problems of the file, one a line.
    """
    try:
        return _loaded(Path(path), os.environ if environ is None else environ, to_run)
    except UsageError as e:
        text = str(e)
    # Anew, from here: the frames above hold the file, in which a key may be written by mistake.
    raise UsageError(text)


def _loaded(path: Path, environ: Mapping[str, str], to_run: bool) -> LoadedPolicy:
    where = str(path)
    data = _bytes(path)
    doc = read_yaml(data, where)
    if doc.value is None:
        raise UsageError(f"{where}: the file is empty; a policy begins with version: 1")
    if not isinstance(doc.value, dict):
        given = "a list" if isinstance(doc.value, list) else "a single value"
        raise UsageError(
            f"{where}: holds {given}; a policy is a mapping of keys and begins with version: 1"
        )
    draft = _Draft(doc.value, where, doc, list(doc.problems))
    draft.problems += expand(draft.raw, environ, to_run)
    draft.problems += file_problems(draft.raw, path.parent, to_run)
    draft.problems += pin_trace(draft.raw, path.parent)
    policy = _validated(draft)
    return LoadedPolicy(
        policy=policy,
        where=where,
        path=path,
        sha256=_digest(policy),
        file_sha256=hashlib.sha256(data).hexdigest(),
        lines=_named_lines(doc),
        base=path.parent,
    )


def policy_from_mapping(
    mapping: Mapping[str, Any], where: str, *, base: Path | None = None
) -> LoadedPolicy:
    """A policy from Python: the same rules, but ``prompt_min`` may be set, ``ttft_ms`` and
    ``itl.p95_ms`` may be missing or None, and nothing is expanded from the environment.

    ``where`` begins every message; relative paths start at ``base``, else the working directory.

    Raises:
        UsageError: all problems, one a line.
    """
    policy = _validated(_Draft(dict(mapping), where))
    return LoadedPolicy(policy, where, sha256=_digest(policy), base=base or Path())


def bucket_for(
    policy: Policy | None,
    prompt_min: int | None = None,
    prompt_max: int | None = None,
    name: str | None = None,
) -> Bucket:
    """The bucket a test means: by name, by its upper edge, or by both edges.

    ``prompt_max`` alone means the bucket with that edge in ``policy``, else in the published
    rules: 128 → 1–128, 512 → 129–512.

    Raises:
        UsageError: there is no such bucket, or no length is given.
    """
    published = policy_from_mapping(PUBLISHED_RULES, "published rules").policy
    own = policy.buckets if policy is not None else published.buckets
    if name is not None:
        if prompt_min is not None or prompt_max is not None:
            raise UsageError("give either bucket or prompt_min/prompt_max, not both")
        for b in own:
            if b.name == name:
                return b
        names = [b.name for b in own]
        close = nearest(name, names)
        guess = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"no bucket {name!r}.{guess} Buckets: {', '.join(names)}")
    if prompt_max is None:
        raise UsageError("no prompt length: give bucket, or prompt_max with prompt_min")
    for b in (*own, *published.buckets):
        if b.prompt_max == prompt_max and prompt_min in (None, b.prompt_min):
            return b
    if prompt_min is None:
        edges = ", ".join(str(b.prompt_max) for b in own if b.prompt_max is not None)
        raise UsageError(
            f"no bucket ends at prompt_max={prompt_max} (edges: {edges or 'none'}): give "
            "prompt_min too, so that the range is known"
        )
    raw = {
        "name": f"tokens-{prompt_min}-{prompt_max}",
        "prompt_min": prompt_min,
        "prompt_max": prompt_max,
    }
    return policy_from_mapping({"version": 1, "buckets": [raw]}, "bucket").policy.buckets[0]


@dataclass
class _Draft:
    """A mapping on its way to a policy, with the problems found so far."""

    raw: dict[str, Any]
    where: str
    doc: Document | None = None
    problems: list[Problem] = field(default_factory=list)


def _validated(draft: _Draft) -> Policy:
    raw, pending = split_pending(draft.raw)
    raw, kind = with_known_kind(raw)
    problems = [*draft.problems, *pending, *kind]
    policy: Policy | None = None
    try:
        policy = Policy.model_validate(raw)
    except ValidationError as e:
        problems += problems_of(e, raw)
    problems += rule_problems(raw)
    if policy is None or problems:
        raise UsageError(_report(problems, draft))
    return policy


def _report(problems: list[Problem], draft: _Draft) -> str:
    """All problems, in file order, one a key; the first found about a key is the most precise."""
    by_path: dict[KeyPath, list[str]] = {}
    for p in problems:
        texts = by_path.setdefault(p.path, [])
        if not texts or (draft.doc is None and p.text not in texts):
            texts.append(p.text)
    found: list[tuple[int, str]] = []
    for path, texts in by_path.items():
        line = _line(path, draft.doc)
        at = f"{draft.where}:{line}" if line else draft.where
        name = named_path(path, draft.raw)
        found += [(line or 0, f"{at}: {name}: {t}" if name else f"{at}: {t}") for t in texts]
    lines = [text for _, text in sorted(found, key=lambda f: f[0])]
    if len(lines) == 1:
        return lines[0]
    return "\n  ".join([f"{draft.where}: {len(lines)} problems", *lines])


def _line(path: KeyPath, doc: Document | None) -> int | None:
    """Line of the key, else of the nearest group around it."""
    if doc is None:
        return None
    for end in range(len(path), -1, -1):
        if path[:end] in doc.lines:
            return doc.lines[path[:end]]
    return None


def _named_lines(doc: Document) -> dict[str, int]:
    return {named_path(path, doc.value): line for path, line in doc.lines.items() if path}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file. Give the path of a sla.yaml, or write one with: llmsla init"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path}: a folder; give the sla.yaml in it") from None
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from None


def _digest(policy: Policy) -> str:
    canonical = json.dumps(
        policy.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(canonical.encode()).hexdigest()

"""Findings where a reviewer looks: beside the line of the sla.yaml that they break.

GitHub takes workflow commands on standard output; GitLab takes a Code Quality file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from . import baseline, phrases
from .escape import shortened, visible

ON_GITHUB = "GITHUB_ACTIONS"
_CHECKOUTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
"""Of GitHub Actions, GitLab CI and Jenkins."""
_SOURCE = re.compile(r"(?P<file>[^:\s][^:]*):(?P<line>\d+)(?:\s|$)")
_MOST = 10
"""GitHub shows so many annotations of one kind a step."""
_SEVERITY = {"fail": "blocker", "error": "critical"}


@dataclass(frozen=True)
class Checkout:
    """Where files are named from, and where the job runs."""

    root: Path
    here: Path

    @classmethod
    def of(cls, environ: Mapping[str, str], here: Path) -> Checkout:
        """The checkout that the CI names, where the job runs inside it; else where it runs."""
        for name in _CHECKOUTS:
            root = Path(environ.get(name, ""))
            if root.is_absolute() and here.is_relative_to(root):
                return cls(root, here)
        return cls(here, here)

    def name(self, file: str) -> str:
        """A file as the repository has it; as it is where it lies outside."""
        path = Path(file)
        whole = path if path.is_absolute() else self.here / path
        return (
            whole.relative_to(self.root) if whole.is_relative_to(self.root) else path
        ).as_posix()


def place(
    finding: Mapping[str, Any], policy_path: str | None, checkout: Checkout
) -> tuple[str, int]:
    """File, as the repository has it, and line of a finding's limit.

    A limit that no line declares is a default of the policy: its first line.
    """
    file, line = policy_path or "sla.yaml", 1
    found = _SOURCE.match(str(finding.get("source") or ""))
    if found is not None:
        line = int(found["line"])
        if policy_path is None or PurePath(policy_path).name != PurePath(found["file"]).name:
            file = found["file"]
    return checkout.name(file), line


@dataclass(frozen=True)
class _Remark:
    """One thing to say, and the key under which it is the same in every run."""

    key: str
    rule: str
    verdict: str
    title: str
    words: str
    file: str
    line: int


def github(report: Mapping[str, Any], checkout: Checkout) -> list[str]:
    """Workflow commands, one a finding or compared metric that did not pass; [] when all did.

    FAIL and ERROR are errors, the rest are warnings.
    """
    bad = _remarks(report, checkout)
    out = []
    for r in bad[:_MOST]:
        kind = "error" if r.verdict in _SEVERITY else "warning"
        where = f"file={_property(r.file)},line={r.line},title={_property(r.title)}"
        out.append(f"::{kind} {where}::{_message(r.words)}")
    if len(bad) > _MOST:
        out.append(f"::warning title=sla::{len(bad) - _MOST} more findings stand in the report")
    if not bad and report["verdict"] != "pass":
        out.append(f"::error title=sla::{_message(_whole(report))}")
    return out


def code_quality(reports: Iterable[Mapping[str, Any]], checkout: Checkout) -> str:
    """GitLab's Code Quality report, one entry a finding or compared metric that did not pass.

    A run that is no PASS for another reason has one entry of its own.
    """
    entries = [entry for report in reports for entry in _entries(report, checkout)]
    return json.dumps(entries, indent=1, ensure_ascii=True) + "\n"


def _entries(report: Mapping[str, Any], checkout: Checkout) -> list[dict[str, Any]]:
    bad = _remarks(report, checkout)
    if not bad and report["verdict"] != "pass":
        file, line = place({}, _policy(report), checkout)
        bad = [_Remark("run", "run", report["verdict"], "sla", _whole(report), file, line)]
    return [
        {
            "description": visible(f"{r.title}: {r.words}"),
            "check_name": f"llmsla/{visible(r.rule)}",
            # The same limit is the same entry in every run, whatever its figures.
            "fingerprint": hashlib.sha256(
                f"{r.file} {r.key}".encode("utf-8", "replace")
            ).hexdigest(),
            "severity": _SEVERITY.get(r.verdict, "major"),
            "location": {"path": r.file, "lines": {"begin": r.line}},
        }
        for r in bad
    ]


def _remarks(report: Mapping[str, Any], checkout: Checkout) -> list[_Remark]:
    """Findings that did not pass, then metrics that do not hold beside the baseline."""
    policy = _policy(report)
    out = [
        _Remark(f["id"], f["rule"], f["verdict"], _title(f), _words(f), *place(f, policy, checkout))
        for f in report["findings"]
        if f["verdict"] != "pass"
    ]
    found = baseline.follows(report)
    if found is None:
        return out
    by_id = {f["id"]: f for f in report["findings"]}
    for m in found.metrics:
        where = place(by_id.get(m.id, {}), policy, checkout)
        words = f"{m.text}; next: {found.step}"
        title = f"baseline: {m.word}" + ("" if m.id == baseline.WHOLE else f": {m.id}")
        out.append(_Remark(f"baseline/{m.id}", "baseline", m.verdict, title, words, *where))
    return out


def _policy(report: Mapping[str, Any]) -> str | None:
    path = (report.get("policy") or {}).get("path")
    return None if path is None else str(path)


def _whole(report: Mapping[str, Any]) -> str:
    return f"{phrases.verdict(report)}: {report.get('reason') or 'see the report'}"


def _title(f: Mapping[str, Any]) -> str:
    # The line of a limit may be that of several buckets, or of every case of a test.
    return f"{phrases.verdict(f)}: {phrases.name(f)}, {shortened(f['id'], 120)}"


def _words(f: Mapping[str, Any]) -> str:
    parts = [phrases.observed(f), f"required {phrases.requirement(f)}", phrases.reason(f)]
    return "; ".join(p for p in parts if p)


def _message(text: str) -> str:
    """As workflow commands take a message: a line break would end it, and begin another."""
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")

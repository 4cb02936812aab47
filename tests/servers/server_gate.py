"""One gate of a running server in a pytest process of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GENEROUS = {"ttft_ms": 60_000, "itl_p95_ms": 20_000}
TIGHT = {"ttft_ms": 1, "itl_p95_ms": 0.01}
"""No server here prefills in a millisecond or decodes 100,000 tokens a second."""
FORMATS = ["terminal", "json", "markdown"]
"""Without the page, which takes seconds a gate and is looked at elsewhere."""

LONGEST = 64
"""Tokens of a prompt: two cores read some fifty of them a gate, and four times as many at four."""

BUSY = "client overloaded"
TRIES = 4

LIMIT_S = 280.0
"""A gate that takes longer hangs; its pytest process is ended."""


def policy(
    target: Mapping[str, Any],
    *,
    limits: Mapping[str, float] = GENEROUS,
    itl: Mapping[str, Any] | None = None,
    tokens: int = 4,
    **rest: Any,
) -> dict[str, Any]:
    """A short gate: one bucket, few tokens, preset ``fast``."""
    return {
        "version": 1,
        "service": "a real server",
        "target": dict(target),
        "workload": {"max_new_tokens": tokens, "warmup": {"max_requests": 7}},
        "buckets": [{"name": "short", "prompt_max": LONGEST, "ttft_ms": limits["ttft_ms"]}],
        "itl": {"p95_ms": limits["itl_p95_ms"], **(itl or {})},
        "evidence": {"preset": "fast"},
        "tgs": {"concurrency": [1]},
        "report": {"formats": FORMATS},
        **rest,
    }


@dataclass(frozen=True)
class Gate:
    """What one gate left behind."""

    folder: Path
    exit: int
    said: str
    """stdout and stderr of pytest."""

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return (self.folder / ".llmsla" / "latest").resolve()

    @property
    def report(self) -> dict[str, Any]:
        """report.json"""
        report: dict[str, Any] = json.loads((self.run / "report.json").read_text("utf-8"))
        return report

    @property
    def log(self) -> list[dict[str, Any]]:
        """The typed lines of timelines.jsonl."""
        text = (self.run / "timelines.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every request that was timed, warm-up included."""
        return [line for line in self.log if line["type"] == "request"]

    def verdicts(self) -> dict[str, str]:
        """Verdict by finding id."""
        return {f["id"]: f["verdict"] for f in self.report["findings"]}

    def finding(self, name: str) -> dict[str, Any]:
        """One finding of the report."""
        found: dict[str, Any] = next(f for f in self.report["findings"] if f["id"] == name)
        return found

    def files(self) -> list[Path]:
        """Every file that the gate wrote, its policy left out."""
        return [p for p in self.folder.rglob("*") if p.is_file() and p.name != "sla.yaml"]


def start(
    folder: Path,
    contents: Mapping[str, Any] | str,
    *args: str,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Write ``sla.yaml`` and begin to gate it."""
    text = contents if isinstance(contents, str) else yaml.safe_dump(dict(contents))
    (folder / "sla.yaml").write_text(text, encoding="utf-8")
    ini = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    (folder / "pytest.ini").write_text(ini, encoding="utf-8")
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in ("CI", "PYTEST_ADDOPTS") and not k.startswith("LLMSLA")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "sla.yaml", "--junit-xml", "junit.xml", *args],
        cwd=folder,
        env={**kept, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUTF8": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen[str], folder: Path) -> Gate:
    """Wait for a gate begun by :func:`start`."""
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        raise AssertionError(f"the gate did not end within {LIMIT_S:.0f} s:\n{said}") from None
    return Gate(folder, process.returncode, said)


def gate(
    folder: Path,
    contents: Mapping[str, Any] | str,
    *args: str,
    env: Mapping[str, str] | None = None,
) -> Gate:
    """Gate ``contents`` in ``folder`` and wait for the end."""
    folder.mkdir(parents=True, exist_ok=True)
    return finish(start(folder, contents, *args, env=env), folder)


def quiet_gate(
    folder: Path,
    contents: Mapping[str, Any],
    *args: str,
    env: Mapping[str, str] | None = None,
) -> Gate:
    """Like :func:`gate`; again where this machine was too busy to be a client.

    That is an error of its own, as it should be, and says nothing of what is tested here. A gate
    with tight limits ends after five requests, so that one late reading is too many.
    """
    for n in range(1, TRIES):
        done = gate(folder / f"try{n}", contents, *args, env=env)
        if BUSY not in done.said:
            return done
    return gate(folder / f"try{TRIES}", contents, *args, env=env)

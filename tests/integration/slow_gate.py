"""A gate that takes long enough to be ended in the middle, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

ENGINE = """
    import os, time

    class Engine:
        def count(self, prompt, system=None):
            return len(prompt.split()) + 2

        def generate(self, prompt, *, max_new_tokens, sampling, system=None):
            if os.path.exists("hang"):
                open("hanging", "w").close()
                time.sleep(60)
            for i in range(max_new_tokens):
                time.sleep(0.002)
                yield i

        def describe(self):
            return {"model_version": os.environ.get("ENGINE_VERSION", "1")}

    def make():
        return Engine()
"""
POLICY = """
    version: 1
    service: slow service
    target: {{kind: python, entry: "engine:make"{target}}}
    workload: {{max_new_tokens: 8, warmup: {{max_requests: 3}}, prompts: builtin}}
    buckets:
      - {{name: short, prompt_max: 64, ttft_ms: {ttft}}}
    itl: {{p95_ms: {itl}}}
    errors: {{max_error_rate: {errors}}}
    evidence: {{preset: strict}}
    {rest}
"""
_PATIENCE_S = 60.0


class SlowGate:
    """A folder with the engine and its policy; runs of pytest on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "engine.py").write_text(textwrap.dedent(ENGINE), encoding="utf-8")
        (path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        self.policy()

    def policy(
        self,
        *,
        ttft: float = 2000,
        itl: float = 1000,
        errors: float = 0,
        target: str = "",
        rest: str = "",
    ) -> None:
        """Write the policy; the default passes on any machine."""
        text = textwrap.dedent(POLICY).format(
            ttft=ttft, itl=itl, errors=errors, target=target, rest=rest
        )
        (self.path / "sla.yaml").write_text(text, encoding="utf-8")

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Begin a run."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "sla.yaml", *args]
        return subprocess.Popen(
            command,
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            # A suite that runs in the background is started with Ctrl-C ignored, and so would its
            # children be.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def whole(self, *args: str) -> tuple[int, str]:
        """A run to its end: exit status and output."""
        run = self.start(*args)
        out, _ = run.communicate(timeout=_PATIENCE_S)
        return run.returncode, out

    def runs(self) -> list[Path]:
        """Folders of the runs so far, oldest first."""
        return sorted((self.path / ".llmsla" / "runs").glob("*"))

    def log(self) -> str:
        """timelines.jsonl of the newest run so far; empty before there is one."""
        found = [run / "timelines.jsonl" for run in self.runs()]
        return found[-1].read_text("utf-8") if found and found[-1].exists() else ""

    def wait_for_silence(self) -> None:
        """Until the process that writes the newest log is gone."""
        writer = json.loads(self.log().split("\n", 1)[0])["pid"]
        until = time.monotonic() + _PATIENCE_S
        while psutil.pid_exists(writer) and psutil.Process(writer).status() != "zombie":
            assert time.monotonic() < until, f"process {writer} goes on"
            time.sleep(0.01)

    def wait_for(self, words: str, times: int, run: subprocess.Popen[str]) -> None:
        """Until the log of the newest run holds ``words`` so often."""
        until = time.monotonic() + _PATIENCE_S
        while self.log().count(words) < times:
            self._demand(run, until)

    def hang(self, run: subprocess.Popen[str]) -> None:
        """Let the next request hang, and wait until it does."""
        (self.path / "hang").touch()
        until = time.monotonic() + _PATIENCE_S
        while not (self.path / "hanging").exists():
            self._demand(run, until)

    def _demand(self, run: subprocess.Popen[str], until: float) -> None:
        assert run.poll() is None, run.communicate(timeout=_PATIENCE_S)[0]
        if time.monotonic() >= until:
            run.kill()
            pytest.fail(f"nothing came of it: {self.log()[-2000:]}")
        time.sleep(0.01)

"""Shared by all tests: ``pytester``, and a gate on exact scripted times that never waits."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

POLICY = """
    version: 1
    service: scripted service
    target: {{kind: scripted, script: {{ttft_ms: {ttft}, itl_ms: {itl}{more}}}}}
    workload: {{max_new_tokens: 8}}
    buckets:
      - {{name: short, prompt_max: 64, ttft_ms: 300}}
      - {{name: long, prompt_max: 128, ttft_ms: 450}}
    itl: {{p95_ms: 50}}
    evidence: {{preset: {preset}}}
    {rest}
"""


@pytest.fixture
def policy_text() -> Callable[..., str]:
    """A policy for a scripted target; the defaults pass every limit."""

    def text(
        *,
        ttft: object = 100,
        itl: object = 20,
        more: str = "",
        preset: str = "fast",
        rest: str = "",
    ) -> str:
        extra = f", {more}" if more else ""
        if "report:" not in rest:  # a page takes half a second, and hundreds of gates read none
            rest = f"report: {{formats: [terminal, json, markdown]}}\n{rest}"
        return textwrap.dedent(POLICY).format(
            ttft=ttft, itl=itl, more=extra, preset=preset, rest=rest
        )

    return text


@pytest.fixture(scope="session")
def heavy_imports() -> None:
    """Import what a gate needs before ``pytester`` notes sys.modules, which it restores.

    NumPy cannot be imported twice in a process, and the rest costs seconds a test.
    """
    import scipy.stats  # noqa: F401

    import pytest_llmsla.gating.collection
    import pytest_llmsla.gating.measuring
    import pytest_llmsla.gating.reporting
    import pytest_llmsla.reports.html.page  # noqa: F401


@pytest.fixture
def gated(
    heavy_imports: None,
    pytester: pytest.Pytester,
    policy_text: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Gated:
    """A folder with ``sla.yaml`` on a scripted target; the environment is no CI."""
    monkeypatch.delenv("CI", raising=False)
    return Gated(pytester, policy_text)


class Gated:
    """Writes policies and tests, runs pytest on them, reads the reports."""

    def __init__(self, pytester: pytest.Pytester, policy_text: Callable[..., str]) -> None:
        self.pytester = pytester
        self._policy_text = policy_text
        self.ini()
        self.policy()

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.pytester.path

    def policy(self, name: str = "sla.yaml", **settings: Any) -> Path:
        """Write a policy."""
        path = self.path / name
        path.write_text(self._policy_text(**settings), encoding="utf-8")
        return path

    def ini(self, *lines: str) -> None:
        """Write pytest.ini. pytest-asyncio warns without its line; Hypothesis's plugin would be
        imported anew, for seconds, in every run."""
        every = [
            "[pytest]",
            "addopts = -p no:hypothesispytest",
            "asyncio_default_fixture_loop_scope = function",
            *lines,
        ]
        self.pytester.makefile(".ini", pytest="\n".join(every))

    def tests(self, body: str, *, ini: bool = True, name: str = "test_it") -> Path:
        """Write a test module; ``ini`` makes ``sla.yaml`` the default policy of its marks."""
        if ini:
            self.ini("sla_policy = sla.yaml")
        source = "import pytest\nfrom pytest_llmsla import sla\n\n" + textwrap.dedent(body)
        return self.pytester.makepyfile(**{name: source})

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest in this process."""
        return self.pytester.runpytest_inprocess(*args)

    def run_apart(self, *args: str) -> pytest.RunResult:
        """Run pytest in a process of its own."""
        return self.pytester.runpytest_subprocess(*args)

    def runs(self, folder: str = ".llmsla") -> list[Path]:
        """The folders of the runs so far, oldest first."""
        return sorted((self.path / folder / "runs").glob("*"))

    def report(self, folder: str = ".llmsla") -> dict[str, Any]:
        """report.json of the newest run."""
        text = (self.runs(folder)[-1] / "report.json").read_text(encoding="utf-8")
        report: dict[str, Any] = json.loads(text)
        return report

    def verdicts(self, folder: str = ".llmsla") -> dict[str, str]:
        """Verdict by finding id in the newest report."""
        return {f["id"]: f["verdict"] for f in self.report(folder)["findings"]}

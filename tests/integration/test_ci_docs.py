"""The pipelines of docs/ci.md, run as the shell steps that they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

DOC = Path(__file__).resolve().parents[2] / "docs" / "ci.md"
POLICY = """\
version: 1
service: a service
target: {kind: scripted, script: {ttft_ms: TTFT, itl_ms: 20}}
workload: {max_new_tokens: 8}
buckets:
  - {name: short, prompt_max: 128, ttft_ms: 300}
"""
LINE_OF_TTFT = 6


def block(title: str) -> str:
    """The code block with this title."""
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', DOC.read_text("utf-8"), re.S)
    assert found is not None, f"docs/ci.md has no block {title}"
    return found[1]


def github_steps() -> tuple[list[str], list[str]]:
    """Steps that run, and none that runs whatever was before."""
    job = yaml.safe_load(block(".github/workflows/sla.yml"))["jobs"]["gate"]
    assert any(
        "upload-artifact" in s.get("uses", "") and s["if"] == "always()" for s in job["steps"]
    )
    return [s["run"] for s in job["steps"] if "run" in s], []


def gitlab_steps() -> tuple[list[str], list[str]]:
    """The script, and what runs after it whatever came of it."""
    job = yaml.safe_load(block(".gitlab-ci.yml"))["sla"]
    assert job["artifacts"]["when"] == "always"
    return [*job["before_script"], *job["script"]], job["after_script"]


def jenkins_steps() -> tuple[list[str], list[str]]:
    """Its sh steps."""
    text = block("Jenkinsfile")
    assert re.search(r"always \{\s*junit 'junit.xml'", text)
    return re.findall(r"sh '([^']*)'", text), []


SYSTEMS = [github_steps, gitlab_steps, jenkins_steps]


class Job:
    """A folder in which steps are run as a runner does."""

    def __init__(self, folder: Path, ttft_ms: int) -> None:
        self.folder = folder
        self.summary = folder / "summary.md"
        (folder / "sla.yaml").write_text(POLICY.replace("TTFT", str(ttft_ms)), "utf-8")
        self.said = ""

    def run(self, step: str, **env: str) -> int:
        """One step by a shell; its exit code."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", step],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "CI": "true", **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        self.said += done.stdout + done.stderr
        return done.returncode

    def run_all(self, steps: Callable[[], tuple[list[str], list[str]]], **env: str) -> int:
        """All steps until one fails, then those that always run. Nothing is installed."""
        script, always = steps()
        assert "pip install" in script[0]
        code = 0
        for step in script[1:]:
            code = code or self.run(step, **env)
        for step in always:
            assert self.run(step, **env) == 0
        return code


# A scripted target is no model, so a sign-off of it is never complete.
def not_signed(
    steps: Callable[[], tuple[list[str], list[str]]],
) -> Callable[[], tuple[list[str], list[str]]]:
    """The same steps without --sla-signoff."""
    script, always = steps()
    assert any("--sla-signoff" in s for s in script)
    return lambda: ([s.replace(" --sla-signoff", "") for s in script], always)


@pytest.mark.parametrize("steps", SYSTEMS)
def test_a_service_that_keeps_its_limits_is_green(
    tmp_path: Path, steps: Callable[[], tuple[list[str], list[str]]]
) -> None:
    """Exit 0, a test per limit, and a report to keep."""
    job = Job(tmp_path, 100)
    assert job.run_all(not_signed(steps)) == 0, job.said
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert len(list(suite.iter("testcase"))) == 4
    assert (tmp_path / ".llmsla" / "latest" / "report.json").exists()


@pytest.mark.parametrize("steps", SYSTEMS)
def test_a_service_that_breaks_one_is_red_and_its_report_is_there(
    tmp_path: Path, steps: Callable[[], tuple[list[str], list[str]]]
) -> None:
    """The job fails, and what it measured is kept."""
    job = Job(tmp_path, 900)
    assert job.run_all(not_signed(steps)) == 1, job.said
    report = json.loads((tmp_path / ".llmsla" / "latest" / "report.json").read_text("utf-8"))
    assert report["verdict"] == "fail"


@pytest.mark.parametrize("steps", SYSTEMS)
def test_as_written_a_script_is_not_signed_off(
    tmp_path: Path, steps: Callable[[], tuple[list[str], list[str]]]
) -> None:
    """The pipelines sign off, and no script can be signed off, however fast it is."""
    job = Job(tmp_path, 100)
    assert job.run_all(steps) == 1
    assert "no model was measured" in job.said


def test_github_gets_annotations_at_the_line_and_a_summary(tmp_path: Path) -> None:
    """The broken limit is shown at its line of the sla.yaml; the report is the job's page."""
    job = Job(tmp_path, 900)
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(job.summary)}
    assert job.run_all(not_signed(github_steps), **env) == 1
    commands = [x for x in job.said.splitlines() if x.startswith("::")]
    assert commands[0].startswith(f"::error file=sla.yaml,line={LINE_OF_TTFT},title=FAIL%3A ttft")
    assert "a service" in job.summary.read_text("utf-8")


def test_annotations_name_the_file_from_where_the_job_runs(tmp_path: Path) -> None:
    """Run from the repository's root, a policy in a folder below it is shown at its own lines."""
    job = Job(tmp_path, 900)
    (tmp_path / "services").mkdir()
    (tmp_path / "sla.yaml").rename(tmp_path / "services" / "chat.yaml")
    assert job.run("pytest services/chat.yaml", GITHUB_ACTIONS="true") == 1
    commands = [x for x in job.said.splitlines() if x.startswith("::")]
    assert commands[0].startswith(f"::error file=services/chat.yaml,line={LINE_OF_TTFT},")


def test_a_baseline_beside_the_limits(tmp_path: Path) -> None:
    """Its command, with the run folders of three releases kept as it says: compared, and green."""
    (step,) = re.findall(r"```text\n(pytest [^`]*--sla-baseline[^`]*)```", DOC.read_text("utf-8"))
    job = Job(tmp_path, 100)
    for _ in range(3):
        assert job.run("pytest sla.yaml") == 0, job.said
    assert job.run("mkdir baselines && cp -r .llmsla/runs/* baselines/") == 0, job.said
    assert job.run(step) == 0, job.said
    report = json.loads((tmp_path / ".llmsla" / "latest" / "report.json").read_text("utf-8"))
    assert len(report["baseline"]["runs"]) == 3


def test_nothing_is_annotated_elsewhere(tmp_path: Path) -> None:
    """Workflow commands are noise where nobody reads them."""
    job = Job(tmp_path, 900)
    job.run_all(not_signed(jenkins_steps), GITHUB_ACTIONS="")
    assert not [x for x in job.said.splitlines() if x.startswith("::")]


def test_gitlab_gets_a_code_quality_report(tmp_path: Path) -> None:
    """Of every broken limit its file and line, and a fingerprint that stays."""
    job = Job(tmp_path, 900)
    assert job.run_all(not_signed(gitlab_steps)) == 1
    path = tmp_path / "gl-code-quality-report.json"
    first = json.loads(path.read_text("utf-8"))
    assert first[0]["location"] == {"path": "sla.yaml", "lines": {"begin": LINE_OF_TTFT}}
    assert first[0]["severity"] == "blocker"
    assert job.run_all(not_signed(gitlab_steps)) == 1
    again = json.loads(path.read_text("utf-8"))
    assert [e["fingerprint"] for e in again] == [e["fingerprint"] for e in first]

"""The shipped JSON Schemas take what a run writes, and refuse what may never be written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report_samples import NORMAL, passed, report, tgs_entry, ttft

from pytest_llmsla.finding import Evidence, Finding
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import load_policy
from pytest_llmsla.reports.json_report import schema
from pytest_llmsla.session import Session, finish

Checker = jsonschema.Draft202012Validator
POLICY = """
version: 1
service: scripted
target: {{kind: scripted, script: {script}}}
workload: {{max_new_tokens: 4}}
buckets: [{{name: short, prompt_max: 64, ttft_ms: 300}}]
itl: {{p99_ms: 80, stall_p95_ms: 90}}
tgs: {{min_tokens_per_s: 1}}
memory: {{rss_peak_gib: 64, allocated_peak_gib: 1}}
evidence: {{preset: {preset}, max_requests: 400}}
"""


@pytest.fixture
def run_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    script, preset = request.param
    path = tmp_path / "sla.yaml"
    path.write_text(POLICY.format(script=script, preset=preset))
    loaded = load_policy(path)
    session = Session(tmp_path / "out", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    finish(session.run_dir)
    return session.run_dir


RUNS = [
    ("{ttft_ms: 100, itl_ms: 20}", "fast"),
    ("{ttft_ms: 700, itl_ms: 60}", "fast"),
    ("{ttft_ms: 100, fail: [12, 40]}", "fast"),
    ("{fail: [0, 1, 2, 3]}", "normal"),
    ("{ttft_ms: 100, itl_ms: 20}", "observed"),
]


@pytest.mark.parametrize("run_dir", RUNS, indirect=True)
def test_what_a_run_writes_is_valid(run_dir: Path) -> None:
    """Passing, failing, broken and observed runs write files that keep to the schemas."""
    Checker(schema("report")).validate(json.loads((run_dir / "report.json").read_bytes()))
    line = Checker(schema("timelines"))
    lines = (run_dir / "timelines.jsonl").read_text(encoding="utf-8").splitlines()
    for text in lines:
        line.validate(json.loads(text))
    kinds = [json.loads(text)["type"] for text in lines]
    assert kinds[0] == "run"
    assert kinds[-1] == "end"
    assert read_run(run_dir / "timelines.jsonl").truncated is False


def test_every_key_of_a_finding_is_described() -> None:
    """The schema of a finding has exactly the fields a Finding has."""
    given = schema("report")["$defs"]
    assert set(given["finding"]["properties"]) == set(ttft().to_json())
    assert set(given["finding"]["required"]) == set(Finding.__dataclass_fields__)
    assert set(given["evidence"]["properties"]) == set(Evidence.__dataclass_fields__)


def good() -> dict[str, Any]:
    return report(passed(evidence=NORMAL), verdict="pass", tgs=[tgs_entry()])


BROKEN: dict[str, Any] = {
    "incomplete": lambda r: r.update(complete=False, not_measured=[{"id": "x", "reason": "y"}]),
    "nothing found": lambda r: r.update(findings=[]),
    "a failed limit": lambda r: r["findings"][0].update(verdict="fail"),
    "no request": lambda r: r["findings"][0].update(requests=0),
    "a missing limit": lambda r: r.update(not_measured=[{"id": "x", "reason": "y"}]),
    "a number as text": lambda r: r["findings"][0].update(observed="101.0"),
    "a percentile as share": lambda r: r["findings"][0].update(percentile=0),
    "a confidence in percent": lambda r: r["findings"][0].update(confidence=95),
    "an unknown verdict": lambda r: r.update(verdict="ok"),
    "local time": lambda r: r.update(started="2026-11-29 10:00"),
    "another schema": lambda r: r.update(schema="llmsla-report/2"),
    "three conditions": lambda r: r["tgs"][0]["conditions"].pop("memory"),
    "no reason": lambda r: r["findings"][0].pop("reason"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_false_pass_breaks_the_schema(name: str) -> None:
    """A report that says PASS over something missing is no valid report."""
    checker = Checker(schema("report"))
    checker.validate(good())
    broken = copy.deepcopy(good())
    BROKEN[name](broken)
    assert not checker.is_valid(broken)


@pytest.mark.parametrize("name", ["report", "timelines"])
def test_the_schemas_themselves_are_valid(name: str) -> None:
    """Both files keep to draft 2020-12 and say so."""
    given = schema(name)
    assert given["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Checker.check_schema(given)

"""What pytest's reports add up to: a failure stays, silence is never a result."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.gating.outcomes import Outcomes, Plan, Planned, outcomes_of

NODE = "test_it.py::test_a"


def report(when: str, outcome: str, **extra: Any) -> pytest.TestReport:
    """A phase report as pytest makes it."""
    made = pytest.TestReport(
        nodeid=NODE,
        location=("test_it.py", 1, "test_a"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=("test_it.py", 1, "Skipped: no card") if outcome == "skipped" else None,
        when=when,  # type: ignore[arg-type]
    )
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def status(*reports: pytest.TestReport) -> tuple[str, str, int]:
    """Status, reason and reruns after ``reports``."""
    seen = Outcomes()
    for one in reports:
        seen.add(one)
    found = seen.of(NODE)
    return found.status, found.reason, found.reruns


SETUP, DONE = report("setup", "passed"), report("teardown", "passed")


def test_the_ways_a_test_can_end() -> None:
    """Each way has its status."""
    assert status() == ("not reached", "", 0)
    assert status(SETUP)[0] == "no result received"
    assert status(SETUP, report("call", "passed"), DONE) == ("passed", "", 0)
    assert status(SETUP, report("call", "failed"), DONE) == ("failed", "", 0)
    assert status(report("setup", "failed"), DONE) == ("failed", "failed in setup", 0)
    assert status(report("setup", "skipped"), DONE) == ("skipped", "no card", 0)
    assert status(SETUP, report("call", "skipped", wasxfail="known"), DONE)[:2] == (
        "xfailed",
        "known",
    )
    assert status(SETUP, report("call", "passed"), report("teardown", "failed"))[0] == "failed"
    assert status(SETUP, report("???", "failed"))[0] == "no result received"


def test_a_rerun_starts_anew_and_is_counted() -> None:
    """A failed attempt that was run again does not decide; how often stays known."""
    first = (SETUP, report("call", "rerun"), DONE)
    assert status(*first, SETUP, report("call", "passed"), DONE) == ("passed", "", 1)
    assert status(*first, SETUP, report("call", "failed"), DONE) == ("failed", "", 1)
    assert status(*first)[0] == "no result received"


PHASES = [
    report(when, outcome)
    for when, outcome in itertools.product(
        ("setup", "call", "teardown"), ("passed", "failed", "skipped")
    )
]


@given(st.lists(st.sampled_from(PHASES), max_size=6), st.lists(st.sampled_from(PHASES), max_size=6))
def test_a_failure_stays(before: list[pytest.TestReport], after: list[pytest.TestReport]) -> None:
    """Nothing that comes before or after turns a failed phase into anything else."""
    assert status(*before, report("call", "failed"), *after)[0] == "failed"


@given(st.lists(st.sampled_from(PHASES), max_size=6))
def test_passed_needs_a_passed_call(reports: list[pytest.TestReport]) -> None:
    """No other report makes a pass."""
    if status(*reports)[0] == "passed":
        assert any(r.when == "call" and r.outcome == "passed" for r in reports)


def test_limits_without_a_report() -> None:
    """A planned limit is deselected, not reached, or lost with its worker; never absent."""
    plan = Plan(
        planned=(Planned("a", NODE, selected=True), Planned("b", "other", selected=False)),
        selected_tests=1,
    )
    assert {k: o.status for k, o in outcomes_of(plan, Outcomes()).items()} == {
        "a": "not reached",
        "b": "deselected",
    }
    lost = outcomes_of(plan, Outcomes(), worker_died=True)
    assert lost["a"].status == "no result received"


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """What a worker writes is what the controller reads."""
    plan = Plan(
        planned=(Planned("s/ttft_p95", "sla.yaml::s::ttft_p95", selected=True),),
        selected_tests=3,
        unplanned=(("test_x.py", "skipped: no card"),),
        error=None,
    )
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan

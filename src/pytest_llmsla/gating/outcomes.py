"""What pytest said of each planned limit: the plan of a run against the reports received."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

Status = Literal[
    "passed",
    "failed",
    "skipped",
    "xfailed",
    "deselected",
    "not reached",
    "no result received",
]


NO_RESULT = ("llmsla", "no result received")
"""Property of a test that could not run because the process that measured had died."""


@dataclass(frozen=True)
class Planned:
    """One limit and the test that carries it."""

    limit_id: str
    nodeid: str
    selected: bool


@dataclass(frozen=True)
class Plan:
    """What a run sets out to judge. Written by the process that collects."""

    planned: tuple[Planned, ...] = ()
    selected_tests: int = 0
    """Tests of this plugin that will run (a test may carry several limits or none)."""
    unplanned: tuple[tuple[str, str], ...] = ()
    """(what, why): parts of the suite that were left out before their marks could be seen."""
    error: str | None = None
    """A usage error found after collection."""

    def __bool__(self) -> bool:
        return bool(self.planned or self.selected_tests or self.error)

    def write(self, path: Path) -> None:
        """Write as JSON, for the controller of a distributed run."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what :meth:`write` wrote."""
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        planned = tuple(Planned(**p) for p in raw.pop("planned"))
        unplanned = tuple((what, why) for what, why in raw.pop("unplanned"))
        return cls(planned=planned, unplanned=unplanned, **raw)


@dataclass(frozen=True)
class Outcome:
    """What became of one limit's test."""

    status: Status
    reason: str = ""
    reruns: int = 0


@dataclass
class _Seen:
    status: Status | None = None
    reason: str = ""
    reruns: int = 0
    phases: set[str] = field(default_factory=set)

    def settle(self, status: Status, reason: str = "") -> None:
        # A failure stays, whatever a later phase or subtest reports.
        if self.status not in ("failed", "no result received"):
            self.status, self.reason = status, reason


class Outcomes:
    """Collects reports by node id. Fed by ``pytest_runtest_logreport``."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase report (or a subtest's, or a crash's) into account."""
        seen = self._seen.setdefault(report.nodeid, _Seen())
        outcome, when = str(report.outcome), str(report.when)
        if outcome == "rerun":
            reruns = seen.reruns + 1
            self._seen[report.nodeid] = _Seen(reruns=reruns)
        elif NO_RESULT in map(tuple, report.user_properties):
            seen.settle("no result received", "the worker that measured died")
        elif when not in ("setup", "call", "teardown"):
            seen.settle("no result received", str(report.longrepr))
        elif outcome == "failed":
            seen.settle("failed", "" if when == "call" else f"failed in {when}")
        elif type(report) is not pytest.TestReport:
            return  # a subtest that did not fail says nothing about the whole test
        elif outcome == "skipped":
            if hasattr(report, "wasxfail"):
                seen.settle("xfailed", str(report.wasxfail))
            else:
                seen.settle("skipped", skip_reason(report))
        elif when == "call":
            seen.settle("passed")
        seen.phases.add(when)

    def of(self, nodeid: str, *, silent: Status = "not reached") -> Outcome:
        """The outcome of a selected test; ``silent`` when nothing at all was received.

        A test that began and never reported its call is ``no result received``.
        """
        seen = self._seen.get(nodeid)
        if seen is None:
            return Outcome(silent)
        if seen.status is None:
            return Outcome("no result received", "it began and never reported", seen.reruns)
        return Outcome(seen.status, seen.reason, seen.reruns)

    def summary(self) -> str:
        """What may be said of the tests of a run in which pytest saw no failure."""
        ended = [seen.status for seen in self._seen.values()]
        expected = ended.count("xfailed")
        if expected:
            return f"no test failed but {expected} that may (xfail)"
        return "every test that ran passed" if "passed" in ended else "no test was carried out"


def outcomes_of(plan: Plan, seen: Outcomes, *, worker_died: bool = False) -> dict[str, Outcome]:
    """The outcome of every planned limit, by limit id."""
    silent: Status = "no result received" if worker_died else "not reached"
    return {
        p.limit_id: seen.of(p.nodeid, silent=silent) if p.selected else Outcome("deselected")
        for p in plan.planned
    }


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or a file was skipped, in its author's words; empty when none are given."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return ""

"""In the process that has the terminal: the run's report, its exit status and its summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ..errors import LlmslaError
from ..reports import annotate, ci, escape, folder, html, terminal
from ..session import Session, finish
from . import running
from .outcomes import Outcome, Outcomes, Plan, outcomes_of
from .properties import is_inconclusive
from .state import LOADED, OPTIONS, RESUME

_EXIT_RED = pytest.ExitCode.TESTS_FAILED
_FORMATS = ("terminal", "json", "markdown", "html")
"""Reports of tests that have no sla.yaml; the default of report.formats."""


class Reporting:
    """Collects outcomes; at the end makes the report and sets the exit status."""

    def __init__(self, config: pytest.Config, plan: Plan) -> None:
        self._config = config
        self._opts = config.stash[OPTIONS]
        self._plan = plan
        self._seen = Outcomes()
        self._report: dict[str, Any] | None = None
        self._run_dir: Path | None = None
        self._notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What pytest says of each test."""
        self._seen.add(report)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        """``INCONCLUSIVE``, not ``PASSED``, for what ``--sla-inconclusive=warn`` lets through."""
        if report.when == "call" and report.passed and is_inconclusive(report.user_properties):
            return "inconclusive", "~", ("INCONCLUSIVE", {"yellow": True})
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge the whole run. Anything but PASS makes the exit status non-zero."""
        if exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        if not self._plan.selected_tests and not self._must_report():
            self._notes.append(
                f"{len(self._plan.planned)} limits were deselected and nothing was measured: this "
                "run says nothing about the SLA."
            )
            return
        try:
            self._report = self._make_report()
        except Exception as e:  # whatever broke: without a report the run is red, and says why
            kind = "" if isinstance(e, (LlmslaError, OSError)) else f"{type(e).__name__}: "
            self._notes.append(f"ERROR: the report could not be made: {kind}{e}")
            if self._config.pluginmanager.getplugin("terminalreporter") is None:
                sys.stderr.write(escape.visible(self._notes[-1]) + "\n")
            _make_red(session)
            return
        self._summarise(self._report)
        self._conclude(session, self._report)

    def _summarise(self, report: dict[str, Any]) -> None:
        """The summary page of a CI job; without it the verdict is the same."""
        try:
            ci.append_summary(report, os.environ)
        except OSError as e:
            self._notes.append(f"WARNING: {ci.VARIABLE} cannot be written: {e}")

    def _must_report(self) -> bool:
        return self._opts.by_option or self._opts.signoff

    def _conclude(self, session: pytest.Session, report: dict[str, Any]) -> None:
        if not self._plan.planned or report["verdict"] == "pass":
            return
        if self._opts.inconclusive == "warn" and report["verdict"] == "inconclusive":
            self._notes.append(
                "WARNING: inconclusive, and let through by --sla-inconclusive=warn. "
                "This run is not a PASS and signs nothing off."
            )
            return
        if session.exitstatus == pytest.ExitCode.OK:
            self._notes.append(
                f"Exit status 1: {self._seen.summary()}, and the gate as a whole is "
                f"{report['verdict'].upper()}"
                + (f" ({report['reason']})" if report.get("reason") else "")
                + "."
                + (" For a local run: --sla-inconclusive=warn." if self._may_warn(report) else "")
            )
        _make_red(session)

    def _may_warn(self, report: dict[str, Any]) -> bool:
        """Whether --sla-inconclusive=warn would be accepted here and let this run through."""
        local = not self._opts.signoff and not os.environ.get("CI")
        return local and report["verdict"] == "inconclusive"

    def _make_report(self) -> dict[str, Any]:
        run_dir = self._run_dir = running.run_dir(self._config)
        if not (run_dir / folder.TIMELINES_NAME).exists():
            self._open_log(run_dir)
        controller = running.bridge(self._config)
        died = [] if controller is None else controller.died
        outcomes = outcomes_of(self._plan, self._seen, worker_died=bool(died))
        missing = [*self._plan.unplanned, *(("worker", why) for why in died)]
        report = self._finish(run_dir, outcomes, missing)
        if report["verdict"] == "pass" and (broken := self._failed_otherwise(outcomes)):
            report = self._finish(run_dir, outcomes, [*missing, *broken])
        return report

    def _finish(
        self, run_dir: Path, outcomes: dict[str, Outcome], missing: Collection[tuple[str, str]]
    ) -> dict[str, Any]:
        loaded = self._config.stash.get(LOADED, None)
        formats = _FORMATS if loaded is None else loaded.policy.report.formats
        return finish(
            run_dir,
            outcomes if self._plan.planned else None,
            signoff=self._opts.signoff,
            missing=missing,
            formats=formats,
            baseline=self._opts.baseline,
        )

    def _failed_otherwise(self, outcomes: dict[str, Outcome]) -> list[tuple[str, str]]:
        """Tests that failed although each of their limits is met: no sign-off either."""
        failed = {p.nodeid for p in self._plan.planned if outcomes[p.limit_id].status == "failed"}
        return [(nodeid, "its limits are met, but the test failed") for nodeid in sorted(failed)]

    def _open_log(self, run_dir: Path) -> None:
        """Nothing was measured, or the process that measures died first: say so on record."""
        named = self._opts.policy is not None
        session = Session(
            running.report_dir(self._config),
            release=self._config.stash[LOADED] if named else None,
            run_dir=run_dir,
            signoff=self._opts.signoff,
            resume=self._config.stash.get(RESUME, None),
        )
        assert session.writer  # writes the run line
        session.close("nothing was measured")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The report as a table, where it lies, and what the exit status means."""
        if self._report is None and not self._notes:
            return
        stream = getattr(terminalreporter, "_tw", None)
        encoding = getattr(getattr(stream, "_file", None), "encoding", None)
        terminalreporter.section("sla")
        lines: list[str] = []
        if self._report is not None and self._wants("terminal"):
            table = terminal.render(
                self._report,
                width=int(getattr(stream, "fullwidth", 100)),
                unicode=escape.speaks_unicode(encoding),
                color=bool(getattr(terminalreporter, "hasmarkup", False)),
            )
            lines += table.splitlines()
        if self._run_dir is not None and self._report is not None:
            lines.append(escape.fit(f"reports: {self._shown(self._run_dir)}", encoding))
            if self._wants("html") and (lacking := html.missing()):
                lines.append(f"note: {lacking}")
        lines += [
            escape.fit(escape.visible(note, keep_newlines=True), encoding) for note in self._notes
        ]
        if self._report is not None and os.environ.get(annotate.ON_GITHUB) == "true":
            checkout = annotate.Checkout.of(os.environ, self._opts.cwd)
            lines += annotate.github(self._report, checkout)
        for line in lines:
            terminalreporter.write_line(line)

    def _wants(self, what: str) -> bool:
        loaded = self._config.stash.get(LOADED, None)
        return what in (_FORMATS if loaded is None else loaded.policy.report.formats)

    def _shown(self, path: Path) -> str:
        cwd = self._opts.cwd
        return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _make_red(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = _EXIT_RED

"""Parallel workers: refused for more than one, and one worker's run brought to the controller."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .outcomes import Plan
from .stopping import Terminated, stoppable

BRIDGE_NAME = "llmsla-xdist"
_KEY = "llmsla"
REFUSAL = (
    "{workers} pytest-xdist workers, and {tests} selected test(s) that time a model: workers side "
    "by side compete for the machine, so what they measure is not the latency of one request at "
    "a time. Run the gate with -n0 or -n1, or in a job of its own (for example pytest -n auto "
    "-m 'not sla', then pytest -n0 -m sla)."
)


class WorkerInput(NamedTuple):
    """What a worker knows of its controller."""

    folder: Path | None
    """Where its plan and the place of its run go; None when it shares no disk."""
    name: str
    refused: str | None
    """Why this worker may not measure."""

    def tell_plan(self, plan: Plan) -> None:
        """Give the controller this worker's plan."""
        if self.folder is not None:
            (self.folder / f"{self.name}.pid").write_text(str(os.getpid()), encoding="utf-8")
            plan.write(self.folder / f"{self.name}.plan.json")

    def tell_run_dir(self, path: Path) -> None:
        """Tell the controller where this worker's run is written."""
        if self.folder is not None:
            (self.folder / f"{self.name}.run_dir").write_text(str(path), encoding="utf-8")


def worker_input(config: pytest.Config) -> WorkerInput | None:
    """What this worker was told; None in a process that is no worker."""
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is None:
        return None
    folder, refused = given.get(_KEY, (None, "the controller runs without pytest-llmsla"))
    return WorkerInput(Path(folder) if folder else None, str(given["workerid"]), refused)


class XdistBridge:
    """In the controller: reads each worker's plan before any test is handed out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder: Path | None = None
        self._stoppable = ExitStack()
        self.died: list[str] = []
        """Workers that ended without finishing, and what is known of it."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where its plan goes, and whether it may measure."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="llmsla-"))
        spec = node.gateway.spec
        local = bool(spec.popen) and not spec.chdir
        refused = None
        if len(node.nodemanager.specs) > 1:
            refused = "refused: several workers"  # the controller says it all, before any test
        elif self.died:
            refused = f"no result received: {self.died[0]}, and with it the measurement"
        elif not local:
            refused = (
                f"this worker ({spec}) is not a local process of the controller, which writes the "
                "report. Run the gate with -n0 or -n1 on the machine that is to be measured."
            )
        node.workerinput[_KEY] = (str(self._folder) if local else None, refused)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Refuse, or take the plan over.

        Raises:
            pytest.UsageError: what a worker found after collection, or several workers.
        """
        from . import running

        plan = self._plan(node.gateway.id)
        if plan is None:
            return
        if plan.error is not None:
            raise pytest.UsageError(plan.error)
        workers = len(node.nodemanager.specs)
        if plan.selected_tests and workers > 1:
            raise pytest.UsageError(REFUSAL.format(workers=workers, tests=plan.selected_tests))
        running.report_for(self._config, plan)
        if plan.selected_tests:
            self._stoppable.enter_context(stoppable())

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Told to end (SIGTERM), end the worker that measures, as Ctrl-C does: it closes the log,
        and this process reports. pytest-xdist by itself lets it go on for another five seconds."""
        if self._folder is None or not isinstance(excinfo.value, Terminated):
            return
        for path in self._folder.glob("*.pid"):
            with suppress(OSError, ValueError):  # it has ended by itself
                os.kill(int(path.read_text(encoding="utf-8")), signal.SIGINT)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Remember a worker that died; its process id may be another process's from now on."""
        if self._folder is not None:
            (self._folder / f"{node.gateway.id}.pid").unlink(missing_ok=True)
        if error:
            self.died.append(f"worker {node.gateway.id} died ({error})")

    def pytest_unconfigure(self) -> None:
        """Remove what the workers told."""
        self._stoppable.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def run_dir(self) -> Path | None:
        """Where the worker that measured wrote its run; None when it wrote nothing."""
        if self._folder is None:
            return None
        for path in sorted(self._folder.glob("*.run_dir")):
            return Path(path.read_text(encoding="utf-8"))
        return None

    def _plan(self, name: str) -> Plan | None:
        if self._folder is None:
            return None
        path = self._folder / f"{name}.plan.json"
        return Plan.read(path) if path.is_file() else None

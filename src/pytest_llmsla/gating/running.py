"""Who does what in this process: measures, reports, or both; decided once, after collection."""

from __future__ import annotations

from pathlib import Path

import pytest

from .outcomes import Plan
from .state import LOADED, MEASURING, OPTIONS, RUN_DIR
from .xdist_bridge import BRIDGE_NAME, XdistBridge, worker_input

_MEASURING_NAME = "llmsla-measuring"
_REPORTING_NAME = "llmsla-reporting"


def begin(config: pytest.Config, plan: Plan) -> None:
    """Start measuring and reporting as the plan and the kind of process ask for."""
    worker = worker_input(config)
    if not plan:
        return
    if worker is not None:
        worker.tell_plan(plan)
    if config.option.collectonly:
        return
    if plan.selected_tests:
        from .measuring import Measuring

        refused = None if worker is None else worker.refused
        config.stash[MEASURING] = Measuring(config, refused=refused, planned=bool(plan.planned))
        config.pluginmanager.register(config.stash[MEASURING], _MEASURING_NAME)
    if worker is None:
        report_for(config, plan)


def report_for(config: pytest.Config, plan: Plan) -> None:
    """Make this process the one that writes the report of ``plan``. A second call is ignored."""
    if not config.pluginmanager.hasplugin(_REPORTING_NAME):
        from .reporting import Reporting

        config.pluginmanager.register(Reporting(config, plan), _REPORTING_NAME)


def refuse(config: pytest.Config, text: str) -> None:
    """Tell the controller of a distributed run about a usage error found in a worker."""
    worker = worker_input(config)
    if worker is not None:
        worker.tell_plan(Plan(error=text))


def report_dir(config: pytest.Config) -> Path:
    """The folder of all runs: ``--sla-report``, else the policy's ``report.dir``."""
    opts = config.stash[OPTIONS]
    if opts.report_dir is not None:
        return opts.report_dir
    loaded = config.stash.get(LOADED, None)
    return opts.cwd / (loaded.policy.report.dir if loaded is not None else ".llmsla")


def run_dir(config: pytest.Config) -> Path:
    """The folder of this run, made on first use; under xdist it is made by the worker.

    Raises:
        OSError: it cannot be made.
    """
    if RUN_DIR not in config.stash:
        config.stash[RUN_DIR] = _worker_run_dir(config) or _new_run_dir(config)
    return config.stash[RUN_DIR]


def bridge(config: pytest.Config) -> XdistBridge | None:
    """The controller's end of pytest-xdist, None without that plugin."""
    found: XdistBridge | None = config.pluginmanager.getplugin(BRIDGE_NAME)
    return found


def _worker_run_dir(config: pytest.Config) -> Path | None:
    controller = bridge(config)
    return None if controller is None else controller.run_dir()


def _new_run_dir(config: pytest.Config) -> Path:
    from ..session import new_run_dir

    path = new_run_dir(report_dir(config))
    worker = worker_input(config)
    if worker is not None:
        worker.tell_run_dir(path)
    return path

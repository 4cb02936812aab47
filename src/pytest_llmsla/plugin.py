"""pytest hooks and nothing else. Loading this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from .gating import options, planning
from .gating.fixtures import record_tgs, sla_model, sla_prompts, sla_run, timed_generate
from .gating.state import LOADED, OPTIONS, PLACE, RESUME, SKIPPED_FILES

__all__ = ["record_tgs", "sla_model", "sla_prompts", "sla_run", "timed_generate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare ``--sla…`` and ``sla_policy``."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and the policy where one is named: its errors end here, with exit 4."""
    config.addinivalue_line("markers", options.MARK_HELP)
    opts = config.stash[OPTIONS] = options.read(config)
    if opts.policy is not None:
        from .gating.collection import load_named, take_argument

        config.stash[LOADED] = load_named(opts, opts.policy)
        take_argument(config, opts)
    if opts.resume is not None:
        from .gating.resuming import take_up

        config.stash[RESUME] = take_up(opts, config.stash.get(LOADED, None))
    if config.getoption("dist", "no") != "no" and config.getoption("tx", None):
        from .gating.xdist_bridge import BRIDGE_NAME, XdistBridge

        config.pluginmanager.register(XdistBridge(config), BRIDGE_NAME)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the policy where node ids of it were named; every other file is somebody else's."""
    policy = parent.config.stash[OPTIONS].policy
    if policy is None or file_path != policy or PLACE in parent.config.stash:
        return None
    from .gating.items import SlaFile

    return SlaFile.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add a policy that was named as a whole, and note files that skip themselves.

    The marks in a file that skips itself are never seen.
    """
    report = yield
    stash = collector.config.stash
    if report.skipped:
        stash.setdefault(SKIPPED_FILES, []).append((collector.path, report))
    elif PLACE in stash and isinstance(collector, pytest.Session) and report.passed:
        from .gating.items import SlaFile

        policy = stash[OPTIONS].policy
        report.result.insert(stash[PLACE], SlaFile.from_parent(collector, path=policy))
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is gated; nothing where no policy is named."""
    loaded = config.stash.get(LOADED, None)
    if loaded is None:
        return []
    from .gating.running import report_dir

    preset = loaded.policy.evidence.preset
    return [f"sla: {loaded.where}, preset {preset}, reports in {report_dir(config)}"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Compare what was collected with what is left after every other plugin has selected."""
    collected = tuple(items)
    planning.mark_users(collected)
    yield
    planning.plan(session, collected, items)

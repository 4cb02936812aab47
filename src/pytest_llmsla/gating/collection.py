"""Policies and marks, checked in configure or after collection: every error ends with exit 4."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ..errors import UsageError
from ..policy import LoadedPolicy, load_policy
from ..reports import html
from ..verdict import limits_of
from .fixtures import NEED_MARK
from .items import SlaFile, SlaItem, declared_limits, nodeid_of
from .mark_policy import policy_of, require_plan
from .marker import parse, where
from .options import Options
from .outcomes import Plan, Planned, skip_reason
from .state import GATE, IMPLIED, LOADED, OPTIONS, PLACE, RESUME, SKIPPED_FILES, MarkGate

_SPEAKS_OF_US = re.compile(r"\bsla\b|\bsla_|pytest_llmsla|timed_generate|record_tgs")


def load_named(opts: Options, path: Path) -> LoadedPolicy:
    """Load a policy for a run, under ``--sla-preset`` where that is given.

    Raises:
        pytest.UsageError: with every problem of the file.
    """
    try:
        # Named relative to where pytest was called, so that messages and ids are short.
        loaded = load_policy(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path)
        loaded = replace(loaded, path=path, base=path.parent)
        _refuse_unwritable(loaded)
        require_plan(loaded)
        if opts.preset is not None:
            _refuse_weaker(opts, loaded.policy.evidence.preset)
            loaded = loaded.with_preset(opts.preset)
        _refuse_bad_trace(loaded)
        return loaded
    except UsageError as e:
        raise pytest.UsageError(str(e)) from None


def _refuse_unwritable(loaded: LoadedPolicy) -> None:
    """A page that was asked for by name must be possible; by default it is made where it is."""
    asked = "html" in loaded.policy.report.formats and "report.formats" in loaded.lines
    if asked and (lacking := html.missing()):
        raise UsageError(f"{loaded.source('report.formats')}: {lacking}")


def _refuse_bad_trace(loaded: LoadedPolicy) -> None:
    """Read it now, under the preset in force: how many requests it has to bring depends on that."""
    if loaded.policy.load.kind == "trace":
        from ..gate import check_trace  # most policies have none, and need none of this yet

        check_trace(loaded)


def _refuse_weaker(opts: Options, written: str) -> None:
    strength = ("observed", "fast", "normal", "strict")
    if opts.signoff and strength.index(str(opts.preset)) < strength.index(written):
        raise UsageError(
            f"--sla-preset {opts.preset} asks for less evidence than the policy (evidence.preset: "
            f"{written}), and --sla-signoff signs a release off by the policy. Leave one of the "
            "two options out, or change the policy."
        )


def take_argument(config: pytest.Config, opts: Options) -> None:
    """Take a policy that is gated as a whole out of the arguments; it is collected on its own.

    Left there, a folder that holds it would hide it (pytest 9 merges overlapping arguments) or
    be hidden by it (pytest 8 then collects the file alone), and ignore rules would apply to a
    file that was named. Node ids of single limits stay with pytest.
    """
    ours = [os.path.abspath(opts.cwd / str(arg).split("::", 1)[0]) for arg in config.args]
    mine = [path == str(opts.policy) for path in ours]
    whole = opts.by_option or any(
        is_mine and "::" not in str(arg) for is_mine, arg in zip(mine, config.args, strict=True)
    )
    if whole:
        config.stash[PLACE] = 0 if mine and mine[0] else sys.maxsize
        config.args[:] = [
            arg for is_mine, arg in zip(mine, config.args, strict=True) if not is_mine
        ]


def take_over(session: pytest.Session, ours: Sequence[pytest.Item], selected: set[int]) -> None:
    """Check every mark, attach its gate, and plan the run.

    Args:
        session: after collection.
        ours: this plugin's tests, selected or not.
        selected: ``id()`` of the items that will run.

    Raises:
        pytest.UsageError: a mark or policy that cannot be judged by.
    """
    config = session.config
    from . import running

    try:
        plan = _plan(session, ours, selected)
    except (UsageError, pytest.UsageError) as e:
        running.refuse(config, str(e))
        raise pytest.UsageError(*e.args) from None
    running.begin(config, plan)


def _plan(session: pytest.Session, ours: Sequence[pytest.Item], selected: set[int]) -> Plan:
    config = session.config
    opts = config.stash[OPTIONS]
    planned: list[Planned] = []
    if not ours and opts.policy is None:
        raise UsageError(
            "--sla-signoff: no SLA test was collected, so there is nothing to sign off. Name the "
            "sla.yaml (or --sla PATH), or the tests that carry @sla."
        )
    if opts.policy is not None:
        planned += _of_policy(config, ours, selected)
    run = config.stash.get(LOADED, None)
    if run is None and opts.default_policy is not None and any(map(_is_marked, ours)):
        run = config.stash[LOADED] = load_named(opts, opts.default_policy)
    problems: list[str] = []
    for item in ours:
        if isinstance(item, SlaItem):
            continue
        try:
            gate = _gate(item, run, opts)
            _check_resume(config, item.nodeid, gate)
        except (UsageError, pytest.UsageError) as e:
            problems.append(str(e))
            continue
        if gate is not None:
            item.stash[GATE] = gate
            planned += [Planned(x.id, item.nodeid, id(item) in selected) for x in gate.limits]
    if problems:
        raise UsageError("\n".join(dict.fromkeys(problems)))
    return Plan(
        planned=tuple(planned),
        selected_tests=sum(id(item) in selected for item in ours),
        unplanned=(*_skipped_files(config), *_left_out_by_last_failed(config)),
    )


def _check_resume(config: pytest.Config, nodeid: str, gate: MarkGate | None) -> None:
    earlier = config.stash.get(RESUME, None)
    if earlier is not None and gate is not None:
        from .resuming import check_gate

        check_gate(earlier, nodeid, gate.loaded)


def _is_marked(item: pytest.Item) -> bool:
    return not isinstance(item, SlaItem)


def _of_policy(
    config: pytest.Config, ours: Sequence[pytest.Item], selected: set[int]
) -> list[Planned]:
    items = [item for item in ours if isinstance(item, SlaItem)]
    path = config.stash[OPTIONS].policy
    assert path is not None  # the caller saw it
    parent = items[0].getparent(SlaFile) if items else None  # --lf may leave a whole file out
    file_nodeid = parent.nodeid if parent is not None else path.name
    by_limit = {item.limit.id: item for item in items}
    planned = []
    for limit in declared_limits(config.stash[LOADED]):
        item = by_limit.get(limit.id)
        nodeid = nodeid_of(file_nodeid, limit) if item is None else item.nodeid
        planned.append(Planned(limit.id, nodeid, item is not None and id(item) in selected))
    return planned


def _gate(item: pytest.Item, run: LoadedPolicy | None, opts: Options) -> MarkGate | None:
    mark = parse(item, implied=IMPLIED in item.stash)
    if mark is None:
        needs = [name for name in NEED_MARK if name in getattr(item, "fixturenames", ())]
        if needs:
            raise UsageError(
                f"{where(item)}: {needs[0]} needs a mark that says what to measure and hold it "
                "to: add @sla(prompt_max=128, ttft_ms=300), with limits of yours, to the test."
            )
        return None
    loaded = policy_of(mark, run, folder=item.path.parent)
    if "timed_generate" in getattr(item, "fixturenames", ()) and loaded.policy.levels != (1,):
        raise UsageError(
            f"{where(item)}: concurrency={mark.get('concurrency')} with timed_generate, which asks "
            "once and waits. Use sla_run(): it keeps so many requests in flight until every limit "
            "is decided. Or leave concurrency out."
        )
    if opts.preset is not None and not mark.says("evidence"):
        loaded = loaded.with_preset(opts.preset)
    return MarkGate(mark, loaded, limits_of(loaded, item.nodeid))


def _skipped_files(config: pytest.Config) -> list[tuple[str, str]]:
    """Files that skipped themselves whole and speak of this plugin: gates that were never seen."""
    out = []
    for path, report in config.stash.get(SKIPPED_FILES, []):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = "sla"  # unknown counts as one of ours
        if _SPEAKS_OF_US.search(text):
            why = skip_reason(report)
            out.append((report.nodeid, f"skipped: {why}" if why else "skipped"))
    return out


def _left_out_by_last_failed(config: pytest.Config) -> list[tuple[str, str]]:
    """``--lf`` leaves whole files out without collecting them, so that no plan can be complete."""
    if not config.getoption("lf", False):
        return []
    plugin = config.pluginmanager.getplugin("lfplugin")
    # Zero only when pytest itself says that it skipped no file; unknown counts as some.
    if getattr(plugin, "_skipped_files", None) == 0:
        return []
    return [("selection", "--last-failed left test files out without collecting them")]

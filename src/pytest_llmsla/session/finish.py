"""After a run: judged again from its log as it lies on the disk, and its reports written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .. import baselines, judging
from ..log import RunWriter, read_run
from ..reports import folder

_NOT_COMPARED = {
    "verdict": "inconclusive",
    "reason": "a comparison was asked for (--sla-baseline) and did not come to its end",
}
"""On record until the comparison is: whoever ends a run in between has not compared it."""


def _remember(
    path: Path,
    outcomes: Mapping[str, judging.Outcome],
    missing: Collection[tuple[str, str]],
    *,
    signoff: bool,
    compared: Mapping[str, Any] | None = None,
) -> None:
    """Put on record what the test runner and a baseline said, so that a later check cannot
    forget it."""
    writer = RunWriter(path)
    writer.line(
        {
            "type": "outcomes",
            "outcomes": {
                name: {"status": o.status, "reason": o.reason, "reruns": o.reruns}
                for name, o in outcomes.items()
            },
            "missing": [list(pair) for pair in missing],
            "signoff": signoff,
            "compared": None
            if compared is None
            else {"verdict": compared["verdict"], "reason": compared["reason"]},
        }
    )
    writer.close()


def finish(
    run_dir: Path,
    outcomes: Mapping[str, judging.Outcome] | None = None,
    *,
    signoff: bool = False,
    missing: Collection[tuple[str, str]] = (),
    formats: tuple[str, ...] = ("json", "markdown"),
    baseline: Path | None = None,
) -> dict[str, Any]:
    """Judge a run from its timelines.jsonl and write its reports; returns report.json's dict.

    ``baseline``: stored runs it is compared with, instead of those that its policy names.

    Raises:
        UsageError: the log cannot be read.
        OSError: a report cannot be written.
    """
    path = run_dir / folder.TIMELINES_NAME
    pending = None if baseline is None else _NOT_COMPARED
    if outcomes is not None or missing or pending:
        _remember(path, outcomes or {}, missing, signoff=signoff, compared=pending)
    log = read_run(path)
    gates = judging.judge_log(log)
    report = judging.build_report(log, gates, outcomes, signoff=signoff, missing=missing)
    report = baselines.apply(report, log, gates, path=baseline)
    if (compared := report.get("baseline")) is not None:
        _remember(path, outcomes or {}, missing, signoff=signoff, compared=compared)
    report["history"] = folder.history(run_dir)
    folder.write_reports(report, run_dir, formats=formats)
    return report

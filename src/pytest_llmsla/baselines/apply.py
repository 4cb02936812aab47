"""The policy's ``baseline`` in a run's report: the comparison, and what it does to the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..finding import worst
from ..log import RunLog
from ..replay import JudgedGate
from .against import Against, against
from .store import StoredRun, stored


def apply(
    report: dict[str, Any],
    log: RunLog,
    gates: list[JudgedGate],
    *,
    path: Path | None = None,
) -> dict[str, Any]:
    """``report`` with its ``baseline``, where the policy or ``path`` names one; else as it is.

    A slower run is FAIL, one that may not be compared ERROR, one that is undecided INCONCLUSIVE;
    the limits' own findings stay as they are.
    """
    release = next((g for g in gates if g.key is None), None)
    settings = None if release is None else release.loaded.policy.baseline
    where = path
    if where is None and release is not None and settings is not None and settings.path:
        where = release.loaded.resolve(settings.path)
    if where is None:
        return report
    tolerance, min_runs = (0.10, 3) if settings is None else (settings.tolerance, settings.min_runs)
    new = StoredRun(Path(log.path), log, tuple(gates))
    try:
        runs, left_out = stored(where)
        found = against(runs, new, tolerance=tolerance, min_runs=min_runs, left_out=left_out)
    except UsageError as e:
        found = Against("error", str(e), 0, 0, tolerance, min_runs, (), (), (), str(new.path))
    return with_baseline(report, found)


def with_baseline(report: dict[str, Any], found: Against) -> dict[str, Any]:
    """``report`` with the comparison; its verdict is the worse of the two."""
    verdict = worst((report["verdict"], found.verdict))
    reason = report.get("reason") or ""
    if found.verdict != "pass" and verdict != report["verdict"]:
        reason = f"baseline: {found.reason}"
    return {**report, "verdict": verdict, "reason": reason, "baseline": found.to_json()}

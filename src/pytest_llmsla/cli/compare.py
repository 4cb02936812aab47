"""``llmsla compare``: is a run slower than stored ones? Exit 0, 1, 2, 3 as everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..baselines import Against, Row, against, load, stored
from ..errors import UsageError
from ..reports.baseline import row_word
from ..reports.escape import visible
from ..reports.found import timelines_at
from .tables import table

_HEAD = ("metric", "baseline", "new", "ratio", "bounds (95 % each)", "runs", "verdict")


def compare(base: Path, new: Path, *, tolerance: float | None, min_runs: int | None) -> Against:
    """Compare the run at ``new`` with every stored run at ``base``.

    Args:
        base: a folder of runs, a run folder or a timelines.jsonl.
        new: the run that is judged; of a report folder its latest.
        tolerance: how much slower is allowed; None: as the new run's policy says, else 0.10.
        min_runs: fewest stored runs that decide; None: as the policy says, else 3.

    Raises:
        UsageError: a path holds no run, or the new run cannot be read.
    """
    if tolerance is not None and not 0 <= tolerance < 10:
        raise UsageError(
            f"--tolerance: got {tolerance:g}; valid: a share from 0, write 10 % as 0.10"
        )
    if min_runs is not None and min_runs < 1:
        raise UsageError(f"--min-runs: got {min_runs}; valid: a whole number from 1")
    run = load(timelines_at(new))
    runs, left_out = stored(base)
    settings = _settings(run.log.run.get("policy"))
    return against(
        runs,
        run,
        tolerance=settings["tolerance"] if tolerance is None else tolerance,
        min_runs=settings["min_runs"] if min_runs is None else min_runs,
        left_out=left_out,
    )


def _settings(policy: object) -> Mapping[str, Any]:
    found = policy.get("baseline") if isinstance(policy, Mapping) else None
    given = found if isinstance(found, Mapping) else {}
    return {"tolerance": given.get("tolerance", 0.10), "min_runs": given.get("min_runs", 3)}


def describe(found: Against) -> str:
    """The comparison as text: one row a metric, then what was left out and why."""
    lines = [
        f"{_VERDICTS[found.verdict]}: compared {found.compared} of {found.of} metrics with "
        f"{len(found.runs)} stored runs, tolerance {found.tolerance * 100:g} %"
    ]
    if found.reason:
        lines.append(visible(found.reason))
    if found.rows:
        lines += ["", table(_HEAD, [_cells(row) for row in found.rows])]
    lines += [f"{visible(row.id)}: {visible(row.reason)}" for row in found.rows]
    if found.left_out:
        lines += ["", f"not used ({len(found.left_out)}):"]
        lines += [f"  {visible(run)}: {visible(why)}" for run, why in found.left_out]
    return "\n".join(lines)


_VERDICTS = {
    "pass": "OK",
    "fail": "SLOWER",
    "inconclusive": "INCONCLUSIVE",
    "conditional": "INCONCLUSIVE",
    "error": "ERROR",
}


def _cells(row: Row) -> tuple[str, ...]:
    bounds = "–"
    if row.lower is not None or row.upper is not None:
        bounds = f"{_ratio(row.lower)} to {_ratio(row.upper)}"
    return (
        visible(row.id),
        _figure(row.base, row.unit),
        _figure(row.new, row.unit),
        _ratio(row.ratio),
        bounds,
        str(row.runs),
        row_word(row.verdict),
    )


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.4g} {unit}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"× {value:.3f}"

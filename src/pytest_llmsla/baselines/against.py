"""One run against stored runs, metric by metric: ok, slower, undecided, or not comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..finding import EXIT_CODES, Verdict, worst
from ..stats import compare_with_runs, nearest_rank
from .same import differences
from .samples import Measured, measured
from .store import StoredRun, cut_short

RowVerdict = Literal["ok", "regression", "inconclusive", "error", "no baseline"]
CONFIDENCE = 0.95
"""One-sided, of each bound."""

_AS_VERDICT: Mapping[RowVerdict, Verdict] = {
    "ok": "pass",
    "regression": "fail",
    "inconclusive": "inconclusive",
    "error": "error",
    "no baseline": "inconclusive",
}


@dataclass(frozen=True)
class Row:
    """One limit's metric, compared. Ratios are new over baseline: above 1 is slower."""

    id: str
    metric: str
    bucket: str | None
    concurrency: int | None
    percentile: float
    verdict: RowVerdict
    reason: str
    unit: str = "ms"
    base: float | None = None
    """Nearest rank over all requests of the stored runs."""
    new: float | None = None
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    runs: int = 0
    between: float | None = None
    """Standard deviation of the stored runs' log percentiles: about their relative scatter."""


@dataclass(frozen=True)
class Against:
    """A whole comparison. ``compared`` of ``of`` metrics of the baseline were compared."""

    verdict: Verdict
    reason: str
    compared: int
    of: int
    tolerance: float
    min_runs: int
    rows: tuple[Row, ...]
    runs: tuple[str, ...]
    """Stored runs that were used."""
    left_out: tuple[tuple[str, str], ...]
    """Stored runs that were not, each with why."""
    new: str
    confidence: float = CONFIDENCE

    @property
    def exit_code(self) -> int:
        """0 only when every metric was compared and none is slower."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        out = asdict(self)
        out["rows"] = list(out["rows"])
        out["runs"] = list(self.runs)
        out["left_out"] = [{"run": run, "reason": why} for run, why in self.left_out]
        return out


def against(
    base: Sequence[StoredRun],
    new: StoredRun,
    *,
    tolerance: float,
    min_runs: int,
    left_out: Sequence[tuple[Path, str]] = (),
) -> Against:
    """Compare ``new`` with the stored runs that are of the same machine, model and workload.

    Fewer than ``min_runs`` of them decide nothing; none at all is an error with what differs.
    """
    others, copies = _each_once([run for run in base if not _is_same_run(run, new)])
    out = [(str(path), why) for path, why in left_out] + copies
    usable: list[StoredRun] = []
    for run in others:
        found = differences(run.log, new.log)
        if found:
            out.append((str(run.path), "other " + "; other ".join(found)))
        else:
            usable.append(run)
    theirs = [measured(run.gates) for run in usable]
    mine = measured(new.gates)
    names = list(dict.fromkeys(name for each in theirs for name in each))
    rows = [_row(name, theirs, mine, tolerance, min_runs) for name in names]
    rows += [_unknown(m) for name, m in mine.items() if usable and name not in names]
    compared = sum(r.verdict in ("ok", "regression") for r in rows)
    verdict, reason = _conclude(rows, usable, out, new)
    return Against(
        verdict=verdict,
        reason=reason,
        compared=compared,
        of=len(names),
        tolerance=tolerance,
        min_runs=min_runs,
        rows=tuple(rows),
        runs=tuple(str(run.path) for run in usable),
        left_out=tuple(out),
        new=str(new.path),
    )


def _is_same_run(one: StoredRun, two: StoredRun) -> bool:
    """A run is no baseline of itself, nor is its copy, nor what it went on from."""
    if one.path.resolve() == two.path.resolve():
        return True
    keys = ("started", "pid", "policy_sha256")
    if any(one.log.run.get(k) != two.log.run.get(k) for k in keys):
        return False
    return one.started != "" or one.log.timelines == two.log.timelines


def _each_once(
    runs: Sequence[StoredRun],
) -> tuple[list[StoredRun], list[tuple[str, str]]]:
    """The runs without copies of each other, which would hide how far runs lie apart."""
    kept: list[StoredRun] = []
    copies: list[tuple[str, str]] = []
    for run in sorted(runs, key=lambda r: -len(r.log.timelines)):
        twin = next((k for k in kept if _is_same_run(run, k)), None)
        if twin is None:
            kept.append(run)
        else:
            copies.append((str(run.path), f"the same run as {twin.path}: it counts once"))
    return [run for run in runs if any(run is k for k in kept)], copies


def _conclude(
    rows: Sequence[Row],
    usable: Sequence[StoredRun],
    left_out: Sequence[tuple[str, str]],
    new: StoredRun,
) -> tuple[Verdict, str]:
    if not usable:
        if not left_out:
            return "error", "there is no stored run besides the one that is compared"
        run, why = left_out[-1]
        return "error", f"refused: no stored run may be compared with this one ({run}: {why})"
    if not rows:
        return "error", "the stored runs hold nothing to compare"
    if cut_short(new.log):
        return "error", "the run is cut short: what is missing of it may have been slow"
    verdict = worst(_AS_VERDICT[r.verdict] for r in rows)
    told = [f"{r.id}: {r.reason}" for r in rows if _AS_VERDICT[r.verdict] == verdict]
    return verdict, "" if verdict == "pass" else told[0]


def _unknown(m: Measured) -> Row:
    return _named(m, "no baseline", "the stored runs do not have it")


def _named(m: Measured, verdict: RowVerdict, reason: str, **figures: Any) -> Row:
    return Row(
        id=m.limit.id,
        metric=m.limit.metric,
        bucket=m.limit.bucket,
        concurrency=m.limit.concurrency,
        percentile=m.quantile * 100,
        verdict=verdict,
        reason=reason,
        unit=m.unit,
        **figures,
    )


def _row(
    name: str,
    theirs: Sequence[Mapping[str, Measured]],
    mine: Mapping[str, Measured],
    tolerance: float,
    min_runs: int,
) -> Row:
    sound = [each[name] for each in theirs if name in each and each[name].problem is None]
    any_of = next(each[name] for each in theirs if name in each)
    new = mine.get(name)
    if new is None:
        return _named(any_of, "error", "missing: the new run does not have it")
    if new.problem is not None:
        return _named(new, "error", f"the new run has no figure: {new.problem}")
    if not sound:
        return _named(new, "error", f"the stored runs have no figure: {any_of.problem}")
    found = compare_with_runs(
        [m.requests for m in sound], new.requests, new.quantile, tolerance, CONFIDENCE
    )
    figures = {
        "base": found.within.base.estimate,
        "new": found.within.new.estimate,
        "ratio": found.ratio,
        "lower": found.lower,
        "upper": found.upper,
        "runs": len(sound),
        "between": found.between,
    }
    if nearest_rank([v for r in new.requests for v in r], new.quantile) is None:
        return _named(new, "error", "the new run has no sample of it", **figures)
    if len(sound) < min_runs:
        return _named(
            new,
            "inconclusive",
            f"{len(sound)} of at least {min_runs} stored runs: a change cannot be told from the "
            "difference between one run and the next",
            **figures,
        )
    return _named(new, found.verdict, _words(found.verdict, tolerance), **figures)


def _words(verdict: str, tolerance: float) -> str:
    share, sure = f"{tolerance * 100:g} %", f"with {CONFIDENCE:.0%} confidence".replace("%", " %")
    if verdict == "ok":
        return f"at most {share} slower, {sure}"
    if verdict == "regression":
        return f"more than {share} slower, {sure}"
    return f"more than {share} slower or not: these runs do not decide it {sure}"

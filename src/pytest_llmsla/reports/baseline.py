"""The comparison with stored runs in words: one line a metric, what follows, what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import numbers
from .escape import shortened

_WORDS = {"pass": "OK", "fail": "SLOWER", "inconclusive": "INCONCLUSIVE", "error": "ERROR"}
_ROW_WORDS = {"ok": "OK", "regression": "SLOWER", **_WORDS}
_AS_VERDICT = {"regression": "fail", "fail": "fail", "error": "error"}
"""What is neither of these and not ok is undecided."""

_TITLES = {
    "fail": "Stopped: slower than the baseline",
    "inconclusive": "Sent back: undecided beside the baseline, to be measured again",
}
_NOT_COMPARED = "Stopped: the comparison with the baseline has no result"
_STEPS = {
    "fail": (
        "find what changed since the stored runs, mend it and measure again; where the slowdown is "
        "meant, store runs of this version as the new baseline"
    ),
    "inconclusive": (
        "store more runs of the baseline, or measure more requests a run (evidence.max_requests) "
        "on a quieter machine"
    ),
}
_MAKE_COMPARABLE = (
    "measure on the machine and under the target, workload and load of the stored runs, or store "
    "runs of this set-up and name their folder (baseline.path in sla.yaml, --sla-baseline)"
)


@dataclass(frozen=True)
class Metric:
    """One metric that is not OK beside the baseline, or the comparison as a whole."""

    id: str
    """The limit it belongs to; ``baseline`` for the comparison as a whole."""
    verdict: str
    """As of a finding: ``fail``, ``error`` or ``inconclusive``."""
    word: str
    """``SLOWER``, ``ERROR``, …"""
    text: str
    """Figures and reason."""

    @property
    def line(self) -> str:
        """``short/ttft_p95: SLOWER than the baseline: 28.95 ms to 61.60 ms, × 2.13; …``."""
        than = " than the baseline" if self.word == "SLOWER" else " beside the baseline"
        name = "baseline" if self.id == WHOLE else shortened(self.id)
        return f"{name}: {self.word}{'' if self.id == WHOLE else than}: {self.text}"


@dataclass(frozen=True)
class Follows:
    """What a comparison that is not PASS means for the release."""

    title: str
    metrics: tuple[Metric, ...]
    step: str


WHOLE = "baseline"
_SAID = "baseline: "
"""How the reason of a run begins that its baseline has decided."""


def verdict(report: Mapping[str, Any]) -> str:
    """The comparison's verdict; ``pass`` where none was asked for."""
    found = _found(report)
    if found is None:
        return str(report["verdict"]) if _earlier(report) else "pass"
    return str(found["verdict"])


def headline(report: Mapping[str, Any]) -> str:
    """``SLOWER: compared 3 of 3 metrics with 4 stored runs, tolerance 10 %``; empty: none.

    With its reason, where neither the run's own reason nor a metric has it.
    """
    found = _found(report)
    if found is None:
        return ""
    word = _WORDS.get(str(found["verdict"]), "ERROR")
    text = (
        f"{word}: compared {found['compared']} of {found['of']} metrics with "
        f"{numbers.counted(len(found['runs']), 'stored run')}, tolerance "
        f"{numbers.percent(found['tolerance'])}"
    )
    reason = str(found["reason"] or "")
    told = [str(report.get("reason") or ""), *(f"{r['id']}: {r['reason']}" for r in found["rows"])]
    new = reason and not any(reason in each for each in told)
    return f"{text}: {shortened(reason)}" if new else text


def rows(report: Mapping[str, Any]) -> list[str]:
    """One line a metric: baseline, new, how much slower at least and at most, verdict."""
    found = _found(report)
    if found is None:
        return []
    return [
        f"{shortened(row['id'])}: {_word(row)}: {_figures(row, found['tolerance'])}"
        for row in found["rows"]
    ]


def follows(report: Mapping[str, Any]) -> Follows | None:
    """What follows from the comparison; None where it is OK or was not asked for."""
    found = _found(report)
    if found is None:
        kind, text = verdict(report), _earlier(report)
        return None if kind == "pass" else _follows(kind, (_whole(kind, text),))
    if found["verdict"] == "pass":
        return None
    metrics = tuple(
        Metric(
            id=str(row["id"]),
            verdict=_AS_VERDICT.get(str(row["verdict"]), "inconclusive"),
            word=_word(row),
            text=_figures(row, found["tolerance"]),
        )
        for row in found["rows"]
        if row["verdict"] not in ("ok", "pass")
    )
    kind = str(found["verdict"])
    return _follows(kind, metrics or (_whole(kind, found["reason"]),))


def _follows(kind: str, metrics: tuple[Metric, ...]) -> Follows:
    return Follows(_TITLES.get(kind, _NOT_COMPARED), metrics, _STEPS.get(kind, _MAKE_COMPARABLE))


def _whole(kind: str, reason: object) -> Metric:
    known = kind if kind in _WORDS else "error"
    return Metric(WHOLE, known, _WORDS[known], shortened(reason or "no reason is on record"))


def _earlier(report: Mapping[str, Any]) -> str:
    """What a comparison said that is not in this report but is on the run's record."""
    reason = str(report.get("reason") or "")
    bad = reason.startswith(_SAID) and report["verdict"] != "pass"
    return reason[len(_SAID) :] if bad else ""


def left_out(report: Mapping[str, Any]) -> list[str]:
    """Stored runs that were not used, each with why."""
    found = _found(report)
    if found is None:
        return []
    return [f"{shortened(x['run'])}: {shortened(x['reason'])}" for x in found["left_out"]]


def lines(report: Mapping[str, Any]) -> list[str]:
    """All of it; empty where no comparison was asked for."""
    first = headline(report)
    if not first:
        earlier = follows(report)
        return [m.line for m in earlier.metrics] if earlier else []
    return [first, *rows(report), *(f"not used: {x}" for x in left_out(report))]


def _found(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = report.get("baseline")
    return found if isinstance(found, Mapping) else None


def row_word(verdict: str) -> str:
    """How a metric's verdict is called: ``regression`` is ``SLOWER``."""
    return _ROW_WORDS.get(verdict, verdict.upper())


def _word(row: Mapping[str, Any]) -> str:
    return shortened(row_word(str(row["verdict"])))


def _figures(row: Mapping[str, Any], tolerance: float) -> str:
    reason = shortened(row["reason"])
    if row.get("base") is None and row.get("new") is None:
        return reason
    figures = (
        f"{_figure(row.get('base'), row)} to {_figure(row.get('new'), row)}, "
        f"× {numbers.times(row.get('ratio'), tolerance)}"
    )
    edges = [row.get("lower"), row.get("upper")]
    if any(edge is not None for edge in edges):
        low, high = (numbers.times(edge, tolerance) for edge in edges)
        figures += f" ({low} to {high})"
    return f"{figures}; {reason}"


def _figure(value: float | None, row: Mapping[str, Any]) -> str:
    return numbers.significant(value, row["unit"])

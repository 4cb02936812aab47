"""Small robust comparisons that the diagnoses share. Medians only: one outlier says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ..finding import Finding
from ..timeline import Timeline

LEAST = 9
"""Fewest values for a comparison of thirds: three on either side."""


@dataclass(frozen=True)
class Step:
    """Medians of the first and the last third of an ordered series, clearly apart."""

    low: float
    high: float
    low_at: float
    """Median of the ordering key (tokens, position) over the first third."""
    high_at: float

    @property
    def ratio(self) -> float:
        """``high / low``; infinite when the first third is zero."""
        return self.high / self.low if self.low > 0 else float("inf")


def evidence_of(finding: Finding, timelines: Sequence[Timeline]) -> list[Timeline]:
    """The measured requests that ``finding`` rests on, in start order; failures included."""
    gates = {t.gate for t in timelines if t.gate and finding.id.startswith(f"{t.gate}/")}
    gate = max(gates, key=len, default=None)
    mine = (
        t
        for t in timelines
        if not t.warmup
        and t.gate == gate
        and (finding.bucket is None or t.bucket == finding.bucket)
        and (t.purpose is None or finding.rule == "tgs")
    )
    return sorted(mine, key=lambda t: (t.segment, t.start_ns))


def thirds(pairs: Sequence[tuple[float, float]]) -> Step | None:
    """First against last third of ``(key, value)`` pairs ordered by key.

    None when there are fewer than :data:`LEAST`, when the keys of the thirds overlap, or when
    their values do: the middle half of the one must lie outside the middle half of the other.
    """
    if len(pairs) < LEAST:
        return None
    ordered = sorted(
        pairs, key=lambda pair: pair[0]
    )  # by key alone: equal keys must not sort values
    size = len(ordered) // 3
    first, last = ordered[:size], ordered[-size:]
    if first[-1][0] >= last[0][0]:
        return None
    one, other = [v for _, v in first], [v for _, v in last]
    apart = _quartiles(one)[1] < _quartiles(other)[0] or _quartiles(other)[1] < _quartiles(one)[0]
    if not apart:
        return None
    return Step(median(one), median(other), median(k for k, _ in first), median(k for k, _ in last))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def drift(name: str, values: Sequence[float], *, least_change: float = 1.25) -> str | None:
    """A sentence when ``values``, in order of time, rose clearly over the run; else None.

    Args:
        name: what the values are, for the sentence.
        values: milliseconds, one a request, in start order.
        least_change: smallest ratio of medians, last third over first, that is worth a word.
    """
    step = thirds(list(enumerate(values)))
    if step is None or step.ratio < least_change:
        return None
    return (
        f"{name} rose over the run, {step.low:.1f} ms in its first third and {step.high:.1f} ms "
        "in its last → look at heat and clock speed, other work on the machine, growing memory"
    )


def explainable(finding: Finding) -> bool:
    """True for findings that need an explanation: anything but PASS."""
    return finding.verdict != "pass"

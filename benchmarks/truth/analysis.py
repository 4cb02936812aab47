"""What a client said against what the truth server did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pytest_llmsla.stats import nearest_rank
from truth.schedule import JUDGED

DOUBTFUL_US = 200.0
"""A ``send`` that took longer leaves the moment of its event open: it is in no figure."""

_MEASURED = re.compile(rf"{JUDGED}\d+")


@dataclass(frozen=True, slots=True)
class Truth:
    """One request as the server knows it. ``None``: an event whose moment is in doubt."""

    key: str
    ttft_ms: float | None
    gaps_ms: tuple[float | None, ...]
    arrived_ns: int
    first_ns: int
    end_ns: int
    late_ms: tuple[float, ...]
    """How much later than planned each token was sent."""
    complete: bool
    stalls: int
    """Times the client's buffers were full."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One request as a client reports it, ms. What it does not report is None."""

    key: str
    ttft_ms: float | None = None
    gaps_ms: tuple[float, ...] | None = None
    mean_itl_ms: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a client gave."""

    said: Sequence[Said]
    cpu_s: float | None = None
    """CPU time of the client's processes while the judged requests were open."""
    merged: int | None = None
    """Token events that shared a read with the one before."""
    done_ns: int | None = None
    """When everything was read and parsed, where the client says so."""
    notes: tuple[str, ...] = ()


@dataclass
class Errors:
    """Signed errors, ms: what was said minus what was so."""

    ttft: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    mean_itl: list[float] = field(default_factory=list)
    span: list[float] = field(default_factory=list)
    """Of the time from first to last token, as a share of it: a client that falls behind
    stretches every gap a little."""
    doubtful: int = 0
    """Token events left out, because the server cannot say when it sent them."""
    lost: int = 0
    """Requests that the client does not report."""
    miscounted: int = 0
    """Requests whose gaps the client reports in another number than there were."""

    def extend(self, other: Errors) -> None:
        """Pool with another run's."""
        self.ttft += other.ttft
        self.gap += other.gap
        self.mean_itl += other.mean_itl
        self.span += other.span
        self.doubtful += other.doubtful
        self.lost += other.lost
        self.miscounted += other.miscounted


def truths(records: Iterable[Mapping[str, Any]]) -> dict[str, Truth]:
    """The judged requests by key; the last one where a client sent a key twice.

    An event's moment is the one just before its ``send``: the kernel has it some µs later.
    """
    out: dict[str, Truth] = {}
    for record in records:
        if _MEASURED.fullmatch(record["key"]):
            out[record["key"]] = _truth(record)
    return out


def _truth(record: Mapping[str, Any]) -> Truth:
    before: list[int] = record["before_ns"]
    sure = [a - b <= DOUBTFUL_US * 1e3 for b, a in zip(before, record["after_ns"], strict=True)]
    gaps = tuple(
        (before[i] - before[i - 1]) / 1e6 if sure[i] and sure[i - 1] else None
        for i in range(1, len(before))
    )
    arrived = record["arrived_ns"]
    return Truth(
        key=record["key"],
        ttft_ms=(before[0] - arrived) / 1e6 if before and sure[0] else None,
        gaps_ms=gaps,
        arrived_ns=arrived,
        first_ns=before[0] if before else arrived,
        end_ns=before[-1] if before else arrived,
        late_ms=tuple((b - d) / 1e6 for b, d in zip(before, record["due_ns"], strict=False)),
        complete=len(before) == len(record["due_ns"]) and not record["closed"],
        stalls=record["stalls"],
        id=record["id"],
    )


def errors(truth: Mapping[str, Truth], said: Iterable[Said]) -> Errors:
    """Errors of every figure that both sides have.

    A client that reports one gap more than there were counts the chunk with the role as a token:
    that gap, the first, is not compared.
    """
    out = Errors()
    by_key = {s.key: s for s in said}
    for key, true in truth.items():
        mine = by_key.get(key)
        if mine is None:
            out.lost += 1
            continue
        out.doubtful += sum(g is None for g in true.gaps_ms)
        if mine.ttft_ms is not None and true.ttft_ms is not None:
            out.ttft.append(mine.ttft_ms - true.ttft_ms)
        if mine.gaps_ms is not None:
            gaps = mine.gaps_ms
            if len(gaps) == len(true.gaps_ms) + 1:
                gaps = gaps[1:]
            if len(gaps) == len(true.gaps_ms):
                pairs = zip(gaps, true.gaps_ms, strict=True)
                out.gap += [a - b for a, b in pairs if b is not None]
                out.span += _stretched(sum(gaps), true)
            else:
                out.miscounted += 1
        if mine.mean_itl_ms is not None and true.gaps_ms and None not in true.gaps_ms:
            out.mean_itl.append(mine.mean_itl_ms - mean_of(true.gaps_ms))
            out.span += _stretched(mine.mean_itl_ms * len(true.gaps_ms), true)
    return out


def _stretched(said_ms: float, true: Truth) -> list[float]:
    span_ms = (true.end_ns - true.first_ns) / 1e6
    return [said_ms / span_ms - 1] if span_ms > 0 else []


def mean_of(values: Iterable[float | None]) -> float:
    """Mean of what is known."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known)


def spread(values: Iterable[float]) -> dict[str, float | int | None]:
    """Percentiles of the absolute values, nearest rank."""
    sizes = [abs(v) for v in values]
    out: dict[str, float | int | None] = {
        f"p{round(q * 100)}": nearest_rank(sizes, q) for q in (0.5, 0.95, 0.99)
    }
    return out | {"n": len(sizes)}


def reported(truth: Mapping[str, Truth], said: Sequence[Said]) -> dict[str, float | None]:
    """Percentiles as a client's own figures give them, minus those of the same requests' truth.

    ITL is pooled over gaps where the client has them. Where it has only each request's mean, that
    is weighed by its number of gaps and compared with the truth's pooled gaps, as a reader would.
    """
    seen = [s for s in said if s.key in truth]
    true = [truth[s.key] for s in seen]
    ttft = [s.ttft_ms for s in seen if s.ttft_ms is not None]
    true_ttft = [t.ttft_ms for t in true if t.ttft_ms is not None]
    itl: list[float] = []
    for s, t in zip(seen, true, strict=True):
        if s.gaps_ms is not None:
            itl += s.gaps_ms
        elif s.mean_itl_ms is not None:
            itl += [s.mean_itl_ms] * len(t.gaps_ms)
    true_itl = [g for t in true for g in t.gaps_ms if g is not None]
    return {
        "ttft_p50": _minus(nearest_rank(ttft, 0.5), nearest_rank(true_ttft, 0.5)),
        "ttft_p95": _minus(nearest_rank(ttft, 0.95), nearest_rank(true_ttft, 0.95)),
        "itl_p95": _minus(nearest_rank(itl, 0.95), nearest_rank(true_itl, 0.95)),
        "itl_p95_truth": nearest_rank(true_itl, 0.95),
    }


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def merged(gaps: Iterable[Sequence[float]]) -> int:
    """Token events that came with the one before: their gap is nothing."""
    return sum(g == 0 for gs in gaps for g in gs)


def window_ns(truth: Mapping[str, Truth]) -> tuple[int, int]:
    """First arrival and last token of the judged requests."""
    return min(t.arrived_ns for t in truth.values()), max(t.end_ns for t in truth.values())


def events(truth: Mapping[str, Truth]) -> int:
    """Token events that were sent."""
    return sum(len(t.gaps_ms) + 1 for t in truth.values())


def rate(truth: Mapping[str, Truth]) -> float:
    """Token events a second while tokens flowed, in all streams together."""
    first = min(t.first_ns for t in truth.values())
    last = max(t.end_ns for t in truth.values())
    return events(truth) / max(last - first, 1) * 1e9


def cpu_between(samples: Sequence[tuple[int, float]], since: int, until: int) -> float | None:
    """CPU seconds used between two moments, by straight lines between samples (ns, s)."""
    if not samples or samples[0][0] > since or samples[-1][0] < until:
        return None
    return _at(samples, until) - _at(samples, since)


def _at(samples: Sequence[tuple[int, float]], t: int) -> float:
    for (t0, c0), (t1, c1) in pairwise(samples):
        if t0 <= t <= t1:
            return c0 + (c1 - c0) * (t - t0) / (t1 - t0) if t1 > t0 else c0
    return samples[-1][1]

"""Rule 3: TGS (tokens generated per second) carries four conditions, or it is no number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..finding import Finding, Limit, Verdict
from ..stats import nearest_rank
from ..timeline import NS_PER_S, Timeline
from .base import Demand, Requests, finite, percentiles
from .checks import cut_short, miscounted
from .memory import FIGURES, peaks, reasons

CONDITIONS = ("prompt_lengths", "sampling", "concurrency", "memory")
"""The four conditions of rule 3; none may be left out."""

_MIN_WINDOW_NS = 2 * NS_PER_S
_HOW = {
    "prompt_lengths": "the target must tell the prompt's token count",
    "sampling": "give the sampling parameters as sent",
    "concurrency": "give the number of requests in flight",
    "memory": "make a figure readable (process RSS, framework peak, NVML), or declare it with "
    "its source where the target allows that",
}


class Windows:
    """Rates over consecutive windows of fixed length, of requests laid end to end.

    One request is in flight at a time, so the time between requests (prompt making, records) is
    no serving time and is left out. A failed request's time counts, its tokens do not.
    """

    def __init__(self, length_ns: int) -> None:
        self.length_ns = length_ns
        self.rates: list[float] = []
        self.total_ns = 0
        self.total_tokens = 0
        self._in_window = 0

    def add(self, t: Timeline, bad: str | None) -> list[float]:
        """Append one request; the rates (tokens/s) of the windows it completes."""
        base, done = self.total_ns, []
        for at, k in t.arrivals if bad is None else ():
            done += self._close_until(base + at - t.start_ns)
            self._in_window += k
            self.total_tokens += k
        self.total_ns = base + max(t.end_ns - t.start_ns, 0)
        done += self._close_until(self.total_ns)
        return done

    def _close_until(self, now: int) -> list[float]:
        done = []
        while now >= (len(self.rates) + 1) * self.length_ns:
            rate = self._in_window * NS_PER_S / self.length_ns
            self.rates.append(rate)
            done.append(rate)
            self._in_window = 0
        return done


def window_length_ns(warmup: Sequence[Timeline]) -> int:
    """At least 2 s and at least the median warm-up request, so fixed before measuring."""
    spans = [t.end_ns - t.start_ns for t in warmup if t.ok]
    return max(_MIN_WINDOW_NS, round(median(spans)) if spans else 0)


class TgsJudge:
    """Steady TGS at concurrency 1: documented or not, and the limit on the median window."""

    def __init__(self, limit: Limit, demand: Demand, *, force_length: bool) -> None:
        self.limit = limit
        self._demand = demand
        self._force_length = force_length
        self._windows: Windows | None = None
        self._warmup: list[Timeline] = []
        self._gate = None if limit.limit is None else demand.gate(0.5, 1 / limit.limit, 1)
        self._ok: list[Timeline] = []
        self._n = 0
        self._failed: Counter[str] = Counter()

    def warm(self, t: Timeline) -> None:
        """A warm-up request: it sets the window length."""
        self._warmup.append(t)

    def add(self, t: Timeline, bad: str | None) -> None:
        """One more measured request, in start order over all buckets."""
        self._n += 1
        if bad is None:
            self._ok.append(t)
        else:
            self._failed[bad] += 1
        if self._windows is None:
            self._windows = Windows(window_length_ns(self._warmup))
        for rate in self._windows.add(t, bad):
            if self._gate is not None:
                # Seconds per token, so that "slower than the limit" exceeds like a latency.
                self._gate.add([1 / rate] if rate > 0 else [float("inf")])

    @property
    def undecided(self) -> bool:
        """True while a limit on the rate is open."""
        return self._gate is not None and self._gate.decision is None

    @property
    def rate(self) -> float | None:
        """Tokens per second over all serving time, None before any."""
        w = self._windows
        return None if w is None or not w.total_ns else w.total_tokens * NS_PER_S / w.total_ns

    def entry(self, resources: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The ``steady`` entry of report.json's ``tgs``; None when nothing was measured."""
        if not self._n or self._windows is None:
            return None
        w = self._windows
        rates = sorted(w.rates)
        return _entry(
            "steady",
            self.rate if self._ok else None,
            w.length_ns / NS_PER_S,
            list(w.rates),
            conditions(self._ok, resources),
            self.limit.id,
            median_window=nearest_rank(rates, 0.5) if rates else None,
        )

    def finding(self, resources: Sequence[Mapping[str, Any]]) -> Finding | None:
        """The finding, None when nothing was measured."""
        entry = self.entry(resources)
        if entry is None:
            return None
        verdict, reason = self._conclude(entry)
        gate, rates = self._gate, list(entry["windows"])
        low = high = None
        if gate is not None and self._ok:
            slow, fast = gate.bounds()
            high = None if not slow else finite(1 / slow)
            low = None if not fast else finite(1 / fast)
        return Finding(
            id=self.limit.id,
            rule="tgs",
            metric="tgs",
            bucket=None,
            percentile=None if gate is None else 50,
            limit=self.limit.limit,
            unit="tokens/s",
            verdict=verdict,
            reason=reason,
            observed=entry["tokens_per_s"] if gate is None else entry["median_window"],
            lower=low,
            upper=high,
            confidence=None if gate is None else round(1 - (self._demand.alpha_pass or 0), 4),
            requests=self._n,
            units=len(rates) if gate is not None else self._n,
            samples=len(rates) if gate is not None else self._n,
            exceeded=0 if self.limit.limit is None else sum(r < self.limit.limit for r in rates),
            decided_at=None if gate is None else gate.decided_at,
            prompt_tokens=_length_summary(self._ok),
            percentiles=percentiles(rates),
            evidence=self._demand.evidence(gate, 0.5, 1),
            source=self.limit.source,
        )

    def _conclude(self, entry: Mapping[str, Any]) -> tuple[Verdict, str]:
        if not self._ok:
            reason, times = self._failed.most_common(1)[0]
            return "error", f"no tokens generated: {reason} ({times} of {self._n} requests)"
        wrong = [why for t in self._ok if (why := miscounted(t))]
        if wrong:
            return "error", f"{wrong[0]} ({len(wrong)} of {len(self._ok)} requests)"
        short = cut_short(self._ok, force_length=self._force_length)
        if short is not None:
            return "error", short
        missing = undocumented(entry["conditions"])
        if missing:
            return "fail", missing
        if self.limit.limit is None:
            return "pass", "all four conditions are on record"
        if self._gate is None:
            value = entry["median_window"]
            label = f"observed, n={self._n}: not release evidence"
            if value is None:
                return "error", "no complete window"
            if value < self.limit.limit:
                return "fail", label
            return ("inconclusive" if self._demand.release else "pass"), label
        verdict: Verdict = self._gate.verdict()
        n = len(entry["windows"])
        if verdict == "inconclusive":
            need = self._demand.min_units(0.5)
            return verdict, f"{n} windows of {entry['window_s']:g} s; at least {need} are needed"
        return verdict, f"decided after {self._gate.decided_at} windows of {entry['window_s']:g} s"


def peak_entry(
    requests: Requests, resources: Sequence[Mapping[str, Any]], finding_id: str
) -> dict[str, Any] | None:
    """The ``peak`` entry: one request at a time, short prompt, greedy. None when not measured."""
    if not requests.count:
        return None
    ok = requests.ok
    span = sum(t.end_ns - t.start_ns for t in ok)
    rate = sum(t.tokens for t in ok) * NS_PER_S / span if span else None
    return _entry("peak", rate, span / NS_PER_S, [], conditions(ok, resources), finding_id)


def recorded_entry(line: Mapping[str, Any]) -> dict[str, Any]:
    """A figure measured elsewhere, as ``record_tgs`` put it on the record."""
    given = {name: line.get(name) for name in CONDITIONS}
    return _entry("recorded", line.get("value"), None, [], given, str(line.get("id", "tgs")))


def _entry(
    kind: str,
    rate: float | None,
    window_s: float | None,
    windows: list[float],
    given: Mapping[str, Any],
    finding_id: str,
    **extra: Any,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "tokens_per_s": finite(rate),
        "per_request_tokens_per_s": finite(rate),
        "concurrency": (given.get("concurrency") or {}).get("asked")
        if isinstance(given.get("concurrency"), Mapping)
        else given.get("concurrency"),
        "window_s": finite(window_s),
        "windows": windows,
        "median_window": None,
        "conditions": dict(given),
        "finding": finding_id,
        "documented": not undocumented(given),
        "undocumented": undocumented(given),
        **extra,
    }


def conditions(ok: Sequence[Timeline], resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The four conditions as the run recorded them; a value is None where it is unknown."""
    return {
        "prompt_lengths": _prompt_lengths(ok),
        "sampling": _sampling(ok),
        "concurrency": {"asked": 1, "actual": 1.0} if ok else None,
        "memory": _memory(resources, len(ok)),
    }


def _sampling(ok: Sequence[Timeline]) -> dict[str, Any] | None:
    """As sent with every request; several ways are all named, one unknown makes it unknown."""
    seen: list[dict[str, Any]] = []
    for t in ok:
        if not t.sampling:
            return None
        if dict(t.sampling) not in seen:
            seen.append(dict(t.sampling))
    if len(seen) > 1:
        return {"mixed": seen}
    return seen[0] if seen else None


def _prompt_lengths(ok: Sequence[Timeline]) -> dict[str, Any] | None:
    lengths = sorted(t.prompt_tokens for t in ok if t.prompt_tokens is not None)
    if not lengths or len(lengths) != len(ok):
        return None
    return {
        **_length_summary(ok),
        "p95": nearest_rank(lengths, 0.95),
        "requests": len(lengths),
        "by_bucket": dict(Counter(t.bucket for t in ok)),
        "source": sorted({t.token_source or "unknown" for t in ok}),
    }


def _length_summary(ok: Sequence[Timeline]) -> dict[str, float | None]:
    lengths = [t.prompt_tokens for t in ok if t.prompt_tokens is not None]
    if not lengths:
        return {"min": None, "median": None, "max": None}
    return {"min": min(lengths), "median": median(lengths), "max": max(lengths)}


def _memory(resources: Sequence[Mapping[str, Any]], answered: int) -> dict[str, Any] | None:
    figures = peaks(resources, answered)
    known = {f"{name}_gib": value for name, value in figures.items() if value is not None}
    if not known:
        return None
    why = reasons(resources, answered)
    missing = {f"{name}_reason": why[name] for name in FIGURES if name in why}
    read = [line["memory"] for line in resources if line.get("memory")]
    last: Mapping[str, Any] = read[-1] if read else {}
    device = str(last.get("device", ""))
    if device.startswith("cuda") and not known.keys() & {
        "allocated_peak_gib",
        "device_used_peak_gib",
    }:
        return None  # host memory says nothing about a model on a card
    return {**known, **missing, "methods": dict(last.get("methods") or {}), "device": device}


def undocumented(given: Mapping[str, Any]) -> str:
    """``undocumented: memory …`` with how to document it, or an empty string."""
    missing = [name for name in CONDITIONS if _unknown(given.get(name))]
    if not missing:
        return ""
    how = "; ".join(f"{name}: {_HOW[name]}" for name in missing)
    return f"undocumented: {', '.join(missing)} ({how})"


def _unknown(value: Any) -> bool:
    if value is None or value == "" or value == {} or value == []:
        return True
    return isinstance(value, str) and value.strip().lower() in {
        "unknown", "n/a", "na", "none", "null", "tbd", "todo", "?", "-",
    }  # fmt: skip

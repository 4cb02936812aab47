"""Rule 3: TGS (tokens generated per second) carries four conditions, or it is no number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..finding import CONDITIONS, Finding, Limit, Verdict
from ..stats import nearest_rank
from ..stats.samples import finite
from ..timeline import NS_PER_S, Timeline
from .base import Demand, Requests, length_summary, percentiles
from .checks import cut_short, miscounted
from .conditions import ALONE, conditions, differ, undocumented
from .held import Epoch
from .windows import LevelWindows, Windows, window_length_ns


class TgsJudge:
    """TGS at one level: documented or not, and the limit on the median window.

    At concurrency 1 it is *steady*: requests laid end to end. At any other level it is
    *concurrent*: windows of the clock, ramp-up and drain excluded.
    """

    def __init__(
        self, limit: Limit, demand: Demand, *, force_length: bool, estimates: bool = False
    ) -> None:
        self.limit = limit
        self._estimates = estimates
        self._demand = demand
        self._force_length = force_length
        self._alone: Windows | None = None
        self._level = None if limit.concurrency == 1 else LevelWindows()
        self._warmup: list[Timeline] = []
        self._gate = None if limit.limit is None else demand.gate(0.5, 1 / limit.limit, 1)
        self._ok: list[Timeline] = []
        self._n = 0
        self._failed: Counter[str] = Counter()

    def warm(self, t: Timeline, bad: str | None = None, epoch: Epoch = (1, 0, 0)) -> None:
        """A warm-up request: it sets the window length, and may reach into the first window."""
        if self._level is None:
            self._warmup.append(t)
        else:
            self._level.add(t, bad, epoch)

    def add(self, t: Timeline, bad: str | None, epoch: Epoch = (1, 0, 0)) -> None:
        """One more measured request, in start order over all buckets."""
        self._n += 1
        if bad is None:
            self._ok.append(t)
        else:
            self._failed[bad] += 1
        for rate in self._ended_windows(t, bad, epoch):
            if self._gate is not None:
                # Seconds per token, so that "slower than the limit" exceeds like a latency.
                self._gate.add([1 / rate] if rate > 0 else [float("inf")])

    def _ended_windows(self, t: Timeline, bad: str | None, epoch: Epoch) -> list[float]:
        if self._level is not None:
            return self._level.add(t, bad, epoch)
        if self._alone is None:
            self._alone = Windows(window_length_ns(self._warmup))
        return self._alone.add(t, bad)

    @property
    def failed(self) -> bool:
        """True once it has failed for good."""
        return self._gate is not None and self._gate.failed

    @property
    def undecided(self) -> bool:
        """True while a limit on the rate is open."""
        return self._gate is not None and self._gate.decision is None

    @property
    def rate(self) -> float | None:
        """Tokens per second over all serving time, None before any."""
        if self._level is not None:
            return self._level.rate
        w = self._alone
        return None if w is None or not w.total_ns else w.total_tokens * NS_PER_S / w.total_ns

    def entry(
        self,
        resources: Sequence[Mapping[str, Any]],
        concurrency: Mapping[str, Any] = ALONE,
    ) -> dict[str, Any] | None:
        """The entry of report.json's ``tgs``; None when nothing was measured.

        ``concurrency``: as asked and as it was (``actual``), for the third condition.
        """
        windows = self._level or self._alone
        if not self._n or windows is None:
            return None
        rates, length = sorted(windows.rates), windows.length_ns
        entry = _entry(
            "steady" if self._level is None else "concurrent",
            self.rate if self._ok else None,
            None if length is None else length / NS_PER_S,
            list(windows.rates),
            conditions(self._ok, resources, concurrency),
            self.limit.id,
            median_window=nearest_rank(rates, 0.5) if rates else None,
        )
        if self._level is None:
            return entry
        return {**entry, **self._shares(entry["tokens_per_s"], concurrency.get("actual"))}

    def _shares(self, rate: float | None, actual: float | None) -> dict[str, Any]:
        """The total divided among the requests in flight: those asked for, else those there."""
        among = self.limit.concurrency or actual
        return {
            "concurrency": self.limit.concurrency,
            "per_request_tokens_per_s": None if rate is None or not among else rate / among,
            "actual_concurrency": actual,
            "load": self.limit.load,
        }

    def finding(
        self,
        resources: Sequence[Mapping[str, Any]],
        concurrency: Mapping[str, Any] = ALONE,
    ) -> Finding | None:
        """The finding, None when nothing was measured."""
        entry = self.entry(resources, concurrency)
        if entry is None:
            return None
        verdict, reason = self._conclude(entry)
        gate, rates = self._gate, list(entry["windows"])
        low = high = None
        if gate is not None and self._ok and not differ(entry["conditions"]):
            slow, fast = gate.bounds()
            high = None if not slow else finite(1 / slow)
            low = None if not fast else finite(1 / fast)
            low, high = _around(
                entry["median_window"], low, high, recovered=self._recovered(entry, verdict)
            )
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
            prompt_tokens=length_summary(self._ok),
            percentiles=percentiles(rates),
            evidence=self._demand.evidence(gate, 0.5, 1),
            source=self.limit.source,
        )

    def _recovered(self, entry: Mapping[str, Any], verdict: Verdict) -> bool:
        """Whether it failed, and the median over all windows keeps the limit again."""
        median = entry["median_window"]
        return verdict == "fail" and median is not None and median >= (self.limit.limit or 0)

    def _conclude(self, entry: Mapping[str, Any]) -> tuple[Verdict, str]:
        if not self._ok:
            reason, times = self._failed.most_common(1)[0]
            return "error", f"no tokens generated: {reason} ({times} of {self._n} requests)"
        wrong = [why for t in self._ok if (why := miscounted(t, estimates=self._estimates))]
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
        if verdict == "pass" and entry["median_window"] < (self.limit.limit or 0):
            # Of an even number there are two in the middle; the test takes the faster one.
            return "inconclusive", "was passed, but the median over all windows is under the limit"
        if verdict == "inconclusive":
            need = self._demand.min_units(0.5)
            return verdict, f"{n} windows of {entry['window_s']:g} s; at least {need} are needed"
        return verdict, f"decided after {self._gate.decided_at} windows of {entry['window_s']:g} s"


def _around(
    median: float | None, low: float | None, high: float | None, *, recovered: bool
) -> tuple[float | None, float | None]:
    """Bounds of a rate with its median between them; but for a FAIL that it has recovered from."""
    if median is None:
        return low, high
    if high is not None and not recovered:
        high = max(high, median)
    return None if low is None else min(low, median), high


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
    """One entry. Parts of a run under different conditions have no pooled figure to show."""
    if differ(given):
        rate, windows, extra = None, [], {**extra, "median_window": None}
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

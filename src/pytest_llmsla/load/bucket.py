"""One bucket of a level while it runs: its prompts, its warm-up, and when it is given up."""

from __future__ import annotations

from ..runner import BucketPlan
from ..stats import WarmupMonitor
from ..timeline import NS_PER_MS, Timeline
from .stock import Stock

_STOP_AFTER_FAILURES = 5
_STOP_WARMUP_AFTER_ERRORS = 3
_FEWEST_WARMUPS = 11  # ready before the level begins


class Bucket:
    """``wave``: how many of the level's first requests are its own; they are no steady ones."""

    def __init__(self, plan: BucketPlan, stock: Stock, wave: int) -> None:
        self.plan = plan
        self.stock = stock
        self.started = plan.already
        self.warm_started = 0
        most = plan.warmup_max + wave - 1 if plan.warmup_max else 0
        self._monitor = WarmupMonitor(most, dropped=wave)
        self._warm_errors = 0
        self._failures: int | None = 0
        """Failures since the beginning; None after the first success."""

    @property
    def warm(self) -> bool:
        """Whether it was warmed up enough, or has had as many warm-ups as it may."""
        return self._monitor.done or self.warm_started >= self.warmups_most

    @property
    def warmups_most(self) -> int:
        """Warm-up requests it may have."""
        return self._monitor.max_requests

    def make_ahead(self, measured: int) -> None:
        """Have so many prompts ready, and those that its warm-up takes at least."""
        likely = _FEWEST_WARMUPS + self._monitor.dropped
        self.stock.fill(warmups=min(self.warmups_most, likely), measured=measured)

    def judged(self, t: Timeline) -> str | None:
        """Its next request in start order, judged. Why it is given up; None: it is not."""
        return self._warmed(t) if t.warmup else self._measured(t)

    def _warmed(self, t: Timeline) -> str | None:
        if t.ok:
            self._warm_errors = 0
            self._monitor.add((t.end_ns - t.start_ns) / NS_PER_MS)
            return None
        self._warm_errors += 1
        if self._warm_errors < _STOP_WARMUP_AFTER_ERRORS:
            return None
        return f"{self._warm_errors} consecutive warm-up requests failed: {t.error}"

    def _measured(self, t: Timeline) -> str | None:
        if t.ok:
            self._failures = None
        if self._failures is None:
            return None
        self._failures += 1
        if self._failures < _STOP_AFTER_FAILURES:
            return None
        return f"the first {_STOP_AFTER_FAILURES} measured requests all failed: {t.error}"

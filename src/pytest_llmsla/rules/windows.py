"""Rates over consecutive windows of fixed length: of one request at a time, and of a level."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..timeline import NS_PER_S, Timeline
from .held import Epoch

_MIN_WINDOW_NS = 2 * NS_PER_S


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
        self._end = length_ns
        """Of the open window."""

    def add(self, t: Timeline, bad: str | None) -> list[float]:
        """Append one request; the rates (tokens/s) of the windows it completes."""
        base, done = self.total_ns, []
        for at, k in t.arrivals if bad is None else ():
            if base + at - t.start_ns >= self._end:  # asked of every token: not through a call
                done += self._close_until(base + at - t.start_ns)
            self._in_window += k
            self.total_tokens += k
        self.total_ns = base + max(t.end_ns - t.start_ns, 0)
        done += self._close_until(self.total_ns)
        return done

    def _close_until(self, now: int) -> list[float]:
        done = []
        while now >= self._end:
            rate = self._in_window * NS_PER_S / self.length_ns
            self.rates.append(rate)
            done.append(rate)
            self._in_window = 0
            self._end += self.length_ns
        return done


def window_length_ns(warmup: Sequence[Timeline]) -> int:
    """At least 2 s and at least the median warm-up request, so fixed before measuring."""
    spans = [t.end_ns - t.start_ns for t in warmup if t.ok]
    return max(_MIN_WINDOW_NS, round(median(spans)) if spans else 0)


class LevelWindows:
    """Rates over consecutive windows of a level where many requests are in flight.

    The first window begins with the first measured start (all places are taken by then), and
    none goes beyond the last one (the drain is out). A window holds every token that arrived in
    it, whichever request it is of, warm-up included; failed requests' tokens do not count. It
    closes when a measured request that began after it is added: in start order all that began
    in it have been added by then.
    """

    def __init__(self) -> None:
        self.length_ns: int | None = None
        """Fixed with the first measured request."""
        self.rates: list[float] = []
        self._warmup: list[Timeline] = []
        self._epoch: Epoch | None = None
        self._from: int | None = None
        """Where the open window begins; None before the first measured start."""
        self._last = 0
        self._pending: list[tuple[int, int]] = []
        """Arrivals that belong to no closed window."""
        self._tokens = 0
        self._span = 0

    def add(self, t: Timeline, bad: str | None, epoch: Epoch) -> list[float]:
        """One more request, warm-up or measured, in start order; rates of the windows that end."""
        done: list[float] = []
        if epoch != self._epoch:
            self._settle()
            self._epoch, self._from, self._pending = epoch, None, []
        if t.warmup:
            if self.length_ns is None:
                self._warmup.append(t)
        else:
            if self.length_ns is None:
                self.length_ns, self._warmup = window_length_ns(self._warmup), []
            if self._from is None:
                self._from = self._last = t.start_ns
            self._last = max(self._last, t.start_ns)
            done = self._close_until(t.start_ns)
        if bad is None:
            since = self._from
            self._pending += [(at, k) for at, k in t.arrivals if since is None or at >= since]
        return done

    def _close_until(self, now: int) -> list[float]:
        done = []
        assert self._from is not None  # a measured request set both
        assert self.length_ns is not None
        while now >= self._from + self.length_ns:
            tokens = self._take(self._from + self.length_ns)
            done.append(tokens * NS_PER_S / self.length_ns)
            self._tokens += tokens
            self._span += self.length_ns
            self._from += self.length_ns
        self.rates += done
        return done

    def _take(self, end: int) -> int:
        """Tokens of the open window up to ``end``; later ones stay."""
        begin, tokens, later = self._from or 0, 0, []
        for at, k in self._pending:
            if at >= end:
                later.append((at, k))
            elif at >= begin:
                tokens += k
        self._pending = later
        return tokens

    def _settle(self) -> None:
        """The level is left: the part of a window up to the last measured start counts in the
        whole rate."""
        tokens, span = self._open_part()
        self._tokens += tokens
        self._span += span

    def _open_part(self) -> tuple[int, int]:
        if self._from is None:
            return 0, 0
        tokens = sum(k for at, k in self._pending if self._from <= at < self._last)
        return tokens, max(0, self._last - self._from)

    @property
    def rate(self) -> float | None:
        """Tokens/s from first to last measured start; None where no time lies between them."""
        tokens, span = self._open_part()
        span += self._span
        return (self._tokens + tokens) * NS_PER_S / span if span else None

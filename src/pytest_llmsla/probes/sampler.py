"""Resources over time: threads that read a few figures at a steady rate and stay within a budget.

One thread reads what answers at once; a source that may wait (a driver, a server) has one of its
own, so that it delays nothing else. What all of it costs is measured, and a source is read less
often rather than more than :data:`BUDGET` of a core be spent.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HZ = 10.0
"""Readings a second, unless they would cost too much."""
BUDGET = 0.008
"""Most CPU time of a while, as a share of one core, so that the whole stays within 1 %."""
FLUSH_S = 5.0
FAST = -1
"""The thread of what answers at once, among the numbers of slow sources."""
_MOST_STRIDE = 32
_SETTLE = 8  # readings after which a source's cost is believed
_JOIN_S = 4.0
_DIGITS = 3

Clock = Callable[[], int]
Value = float | str | None
"""A number, or the reason why there is none; None where it was not its turn."""
Emit = Callable[[Mapping[str, Any]], None]
"""Takes ``columns`` (``t_ns`` and the figures, lists of one length), and once each ``reasons``
(why a column has no number) and ``about`` (what a column's name stands for)."""


@dataclass(frozen=True)
class Source:
    """Figures that are read together.

    Args:
        columns: their names, in the order of what ``read`` returns.
        read: the figures now. What it raises is the reason why all of them are missing.
        hz: readings a second, at most the sampler's own.
        slow: it may wait for something, so it is read in a thread of its own.
        close: called once, when sampling has ended.
        about: by column, what its name leaves open (which card).
    """

    columns: tuple[str, ...]
    read: Callable[[], Sequence[Value]]
    hz: float = HZ
    slow: bool = False
    close: Callable[[], None] | None = None
    about: Mapping[str, str] = field(default_factory=dict)


class _Reader:
    """One source with what it costs."""

    def __init__(self, source: Source, hz: float) -> None:
        self.source = source
        self.every = max(1, round(hz / source.hz))
        self._turn = 0
        self._spent_ns = 0
        self._reads = 0

    def due(self) -> bool:
        """Whether this tick is one of its own."""
        self._turn += 1
        return (self._turn - 1) % self.every == 0

    def read(self) -> Sequence[Value]:
        """The figures now, or the reason for each; never raises."""
        began = time.thread_time_ns()
        wanted = len(self.source.columns)
        try:
            values = tuple(self.source.read())
        except Exception as e:  # a probe that fails is an unknown figure
            values = (_words(e),) * wanted
        if len(values) != wanted:
            values = (f"gave {len(values)} figures of {wanted}",) * wanted
        self._spent_ns += time.thread_time_ns() - began
        self._reads += 1
        return values

    def share(self, hz: float) -> float:
        """CPU time it takes at its present rate, as a share of one core."""
        if self._reads < _SETTLE:
            return 0.0
        return self._spent_ns / self._reads * hz / self.every / 1e9


class Sampler:
    """Reads ``sources`` between :meth:`start` and :meth:`stop` and hands rows to ``emit``.

    Every column is null until its source was read, where it could not be read (the reason is
    given once) and at ticks that were not its turn. Nothing here raises while it runs.

    Args:
        sources: what to read.
        emit: called every :data:`FLUSH_S` seconds and at the end, from the sampler's thread or,
            at the end, from the one that stops it.
        hz: readings a second.
        clock: stamps the rows, ns.
        say: told once what went wrong for good.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        emit: Emit,
        *,
        hz: float = HZ,
        clock: Clock = time.perf_counter_ns,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._hz = hz
        self._clock = clock
        self._emit: Emit | None = emit
        self._say = say
        self._fast = [_Reader(s, hz) for s in sources if not s.slow]
        self._slow = [_Reader(s, hz) for s in sources if s.slow]
        names = [name for s in sources for name in s.columns]
        self._columns: dict[str, list[float | int | None]] = {n: [] for n in ("t_ns", *names)}
        self._reasons: dict[str, str] = {}
        self._news: dict[str, dict[str, str]] = {"reasons": {}, "about": {}}
        for source in sources:
            self._news["about"].update(source.about)
        self._fresh: dict[str, Value] = {}
        """Figures of slow sources since the last row."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._spent_ns: dict[int, int] = {}
        """CPU time of each thread so far, waking and rows included: :data:`FAST`, or of slow."""
        self._before_ns: dict[int, int] = {}
        self._stride = 1
        self._began = time.monotonic()
        self.rows = 0
        """Rows so far."""

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin. A sampler is started once."""
        self._began = time.monotonic()
        self._row()
        self._threads = [
            threading.Thread(target=self._run_fast, name="llmsla-sampler", daemon=True),
            *(
                threading.Thread(
                    target=self._run_slow, args=(r, n), name="llmsla-probe", daemon=True
                )
                for n, r in enumerate(self._slow)
            ),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End with a last row, and give out what is left. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        until = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._row()
        self.flush()
        # One that still waits for its server keeps what it opened: it is in use.
        ended = [not thread.is_alive() for thread in self._threads]
        readers = [
            *self._fast,
            *(r for r, done in zip(self._slow, ended[1:], strict=False) if done),
        ]
        for reader in readers:
            self._close(reader.source)

    def _close(self, source: Source) -> None:
        try:
            if source.close is not None:
                source.close()
        except Exception as e:  # the figures are on record, and so is the gate that goes on
            self._say(f"closing the probe of {', '.join(source.columns)} raised {_words(e)}")

    @property
    def share(self) -> float:
        """CPU time that the threads took so far, as a share of one core."""
        return sum(self._spent_ns.values()) / 1e9 / max(time.monotonic() - self._began, 1e-9)

    def flush(self) -> None:
        """Hand out the rows so far."""
        found = self.drain()
        if found is None or self._emit is None:
            return
        try:
            self._emit(found)
        except Exception as e:  # the disk that refuses this refuses the requests too, loudly
            self._emit = None
            self._say(f"resources are not recorded any more: {_words(e)}")

    def drain(self) -> dict[str, Any] | None:
        """The rows since the last call, as :data:`Emit` takes them; None without one."""
        with self._lock:
            if not self._columns["t_ns"]:
                return None
            columns = {name: list(values) for name, values in self._columns.items()}
            for values in self._columns.values():
                values.clear()
            news = {name: dict(said) for name, said in self._news.items() if said}
            for said in self._news.values():
                said.clear()
        return {"columns": columns, **news}

    # -- the threads

    def _run_fast(self) -> None:
        due = flushed = time.monotonic()
        while True:
            now = time.monotonic()
            # A tick that was missed is left out: two readings at once would say nothing more.
            due = max(due + self._stride / self._hz, now)
            if self._stop.wait(due - now):
                return
            self._row()
            self._spent_ns[FAST] = time.thread_time_ns()
            since = time.monotonic() - flushed
            if since >= FLUSH_S:
                flushed += since
                self.flush()
                self._keep_budget(since)

    def _run_slow(self, reader: _Reader, number: int) -> None:
        while True:
            values = reader.read()
            with self._lock:
                self._fresh.update(zip(reader.source.columns, values, strict=True))
            self._spent_ns[number] = time.thread_time_ns()
            if self._stop.wait(reader.every / self._hz):
                return

    def _keep_budget(self, seconds: float) -> None:
        """Halve the rate of the thread that costs most where all together cost too much."""
        spent = {n: at - self._before_ns.get(n, 0) for n, at in self._spent_ns.items()}
        self._before_ns = dict(self._spent_ns)
        if sum(spent.values()) <= BUDGET * seconds * 1e9:
            return
        costliest = max(spent, key=lambda n: spent[n])
        if costliest != FAST:
            self._slow[costliest].every *= 2
            return
        reader = max(self._fast, key=lambda r: r.share(self._hz), default=None)
        if reader is not None and reader.share(self._hz) * seconds * 1e9 > spent[FAST] / 2:
            reader.every *= 2
        else:
            self._stride = min(2 * self._stride, _MOST_STRIDE)

    def _row(self) -> None:
        read = {r: r.read() for r in self._fast if r.due()}
        at = self._clock()
        with self._lock:
            row, self._fresh = self._fresh, {}
            for reader, values in read.items():
                row.update(zip(reader.source.columns, values, strict=True))
            for name, held in self._columns.items():
                held.append(at if name == "t_ns" else self._number(name, row.get(name)))
            self.rows += 1

    def _number(self, name: str, value: Value) -> float | None:
        if value is None:
            return None
        if not isinstance(value, str):
            try:
                return round(float(value), _DIGITS) if math.isfinite(value) else None
            except (TypeError, ValueError, OverflowError):
                value = f"gave {value!r:.40}, which is no number"
        if name not in self._reasons:
            self._reasons[name] = self._news["reasons"][name] = value
        return None


def _words(e: BaseException) -> str:
    text = " ".join(str(e).split())[:200]
    return f"{type(e).__name__}: {text}" if text else type(e).__name__

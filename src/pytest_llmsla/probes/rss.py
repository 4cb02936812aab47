"""Resident memory of this process: now, and its peak over a window.

A peak needs the kernel: samples between requests miss what a request needs inside. Linux keeps a
high-water mark and can restart it; elsewhere, and where it cannot be restarted, the mark is that
of the whole process. It then counts for the window as an upper bound, so that a limit on it can
be red without cause but never green without cause.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from .high_water import high_water

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class RssReading:
    """Bytes. ``peak`` is None, with its reason, where the system keeps no high-water mark."""

    now: int
    sampled_peak: int
    peak: int | None
    method: str
    reason: str | None = None


class RssWindow:
    """High-water mark of resident memory since :meth:`reset`; children are not counted."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._process = psutil.Process()
        self._sampled = 0
        self._exact = False
        self._mark_at_reset: int | None = None
        self.sample()

    def reset(self) -> None:
        """Start the window. Restarts the kernel's high-water mark where that is possible.

        The restart is seen by every reader of the mark in this process (``VmHWM``, ``ru_maxrss``).
        """
        self._sampled = 0
        now = self.sample()
        before = high_water_mark(self._proc)
        _restart_mark(self._proc)
        after = high_water_mark(self._proc)
        # Trust the restart only when it shows: the mark came down, or it stood at today's size.
        self._exact = before is not None and after is not None and (after < before or before <= now)
        self._mark_at_reset = after

    def sample(self) -> int:
        """Resident bytes now; kept in the window's sampled peak."""
        now = int(self._process.memory_info().rss)
        self._sampled = max(self._sampled, now)
        return now

    def read(self) -> RssReading:
        """The window so far."""
        now = self.sample()
        mark = high_water_mark(self._proc)
        if mark is None:
            return RssReading(
                now,
                self._sampled,
                None,
                "not measured",
                "the system keeps no high-water mark of resident memory, and samples between "
                "requests do not bound the peak",
            )
        peak = max(mark, self._sampled)
        at_reset = self._mark_at_reset
        if self._exact:
            method = "kernel high-water mark of the window"
        elif at_reset is not None and mark > at_reset:
            method = "kernel high-water mark, which rose inside the window"
        else:
            method = (
                "kernel high-water mark since process start: an upper bound, as the peak may lie "
                "before the window (rss_sampled_peak is the largest sample inside it)"
            )
        return RssReading(now, self._sampled, peak, method)


def high_water_mark(proc: Path = _PROC) -> int | None:
    """Peak resident bytes of this process since its start (or the last restart); None: not kept."""
    mark = high_water(proc)
    return _ru_maxrss() if mark is None else mark


def _ru_maxrss() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    raw = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if raw <= 0:
        return None
    return int(raw) if sys.platform == "darwin" else int(raw) * 1024


def _restart_mark(proc: Path) -> None:
    """Linux: writing 5 to clear_refs restarts the peak and touches nothing else (proc(5))."""
    try:
        (proc / "clear_refs").write_text("5\n", encoding="ascii")
    except OSError:
        return

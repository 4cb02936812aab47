"""Resident memory of a server's processes over a window, watched from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from .high_water import high_water, proc_bytes
from .listener import ListenerError, Member, Tree

_PROC = Path("/proc")
_PSS_BUDGET_S = 0.05
"""A reading that walks the page tables for longer than this is not repeated."""
_SHOWN = 10


class Processes:
    """One server: its listeners may not change; what they start may come and go.

    ``peak`` is an upper bound: the kernel's high-water marks (which another process's window
    cannot restart) of every process ever seen, added up.
    """

    def __init__(self, tree: Tree) -> None:
        self._listeners = frozenset(tree.listeners)
        self._marks: dict[Member, int] = {}
        self._unmarked = False
        self._pss_allowed = True
        self.now = 0
        self.sampled_peak = 0
        self.pss: int | None = None
        self._largest: list[dict[str, Any]] = []
        self.count = 0

    def sample(self, tree: Tree) -> None:
        """Read every process of the tree now.

        Raises:
            ListenerError: another process listens, or one may not be read.
        """
        if frozenset(tree.listeners) != self._listeners:
            was, now = _pids(self._listeners), _pids(frozenset(tree.listeners))
            raise ListenerError(
                f"the server was restarted while it was measured: pid {was} became {now}, so no "
                "figure holds for all of it"
            )
        sizes = {m: size for m in tree.members if (size := _resident(m)) is not None}
        if not sizes:
            raise ListenerError("the server's processes ended while they were read")
        self.count = len(sizes)
        self.now = sum(sizes.values())
        self.sampled_peak = max(self.sampled_peak, self.now)
        for m, size in sizes.items():
            mark = high_water(_PROC / str(m.pid), m.pid)
            self._unmarked = self._unmarked or mark is None
            self._marks[m] = max(self._marks.get(m, 0), mark or 0, size)
        self._sample_pss(list(sizes))
        self._largest = [
            {"pid": m.pid, "name": m.name, "rss_gib": size / (1 << 30)}
            for m, size in sorted(sizes.items(), key=lambda kv: -kv[1])[:_SHOWN]
        ]

    def _sample_pss(self, members: list[Member]) -> None:
        """Shared pages matter only among several processes."""
        if len(members) < 2 or not self._pss_allowed:
            return
        began = time.perf_counter()
        total = 0
        for m in members:
            one = proc_bytes(_PROC / str(m.pid) / "smaps_rollup", "Pss:")
            if one is None:
                self._pss_allowed, self.pss = False, None
                return
            total += one
        self._pss_allowed = time.perf_counter() - began < _PSS_BUDGET_S
        self.pss = max(total, self.pss or 0) if self._pss_allowed else None

    @property
    def peak(self) -> int | None:
        """Bytes; None where the system keeps no high-water mark of other processes."""
        return None if self._unmarked else sum(self._marks.values())

    @property
    def peak_reason(self) -> str | None:
        """Why there is no peak."""
        if not self._unmarked:
            return None
        return (
            "the system keeps no high-water mark of another process, and samples between requests "
            "do not bound the peak"
        )

    @property
    def peak_method(self) -> str:
        """How the peak was taken."""
        return (
            f"sum of the kernel's high-water marks of the server's {len(self._marks)} process(es) "
            "since each began: an upper bound, with shared pages once in each"
        )

    def describe(self) -> list[dict[str, Any]]:
        """The largest processes at the last sample, for the report."""
        return self._largest


def _pids(members: frozenset[Member]) -> str:
    return ", ".join(str(m.pid) for m in sorted(members, key=lambda m: m.pid))


def _resident(m: Member) -> int | None:
    """Bytes; None when the process has ended."""
    try:
        p = psutil.Process(m.pid)
        return int(p.memory_info().rss) if p.create_time() == m.started else None
    except psutil.NoSuchProcess:
        return None
    except psutil.Error as e:
        raise ListenerError(f"memory of pid {m.pid} ({m.name}) may not be read: {e}") from None

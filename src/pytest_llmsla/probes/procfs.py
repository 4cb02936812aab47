"""Linux's own counters, read from files that stay open: a tenth of the work of opening them.

A sampler wakes on a processor that has forgotten it, so that every line of code costs several
times its usual time. Values are those of proc(5); psutil reads the same where there are none.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_LINE = 1024
_UTIME, _STIME, _RSS = 11, 12, 21  # fields of stat after the name, from 0
_IDLE, _IOWAIT = 3, 4
_GUESTS = 8  # guest and guest_nice are counted in user and nice already


class ProcFile:
    """One file of /proc, open.

    Raises:
        OSError: it is not there or may not be read.
    """

    def __init__(self, path: str, proc: Path = _PROC) -> None:
        self._fd = os.open(proc / path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Its beginning, as it is now; OSError where the process has ended."""
        return os.pread(self._fd, _LINE, 0)

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def system_times(stat: bytes) -> tuple[float, float]:
    """Ticks of all cores since boot, by the first line of ``stat``: busy, and all."""
    fields = [int(v) for v in stat.split(b"\n", 1)[0].split()[1:]]
    total = sum(fields[:_GUESTS])
    return float(total - fields[_IDLE] - fields[_IOWAIT]), float(total)


def process_use(stat: bytes) -> tuple[float, int]:
    """Of a process, by its ``stat``: CPU seconds so far, and resident bytes."""
    # The name may hold blanks and brackets; what follows its last bracket does not.
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = int(fields[_UTIME]) + int(fields[_STIME])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[_RSS]) * os.sysconf("SC_PAGE_SIZE")


def resident(statm: bytes) -> int:
    """Resident bytes, by ``statm``."""
    return int(statm.split(None, 2)[1]) * os.sysconf("SC_PAGE_SIZE")

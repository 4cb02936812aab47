"""What this process, this machine and the processes of a server use: sources for the sampler."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import psutil

from .listener import ListenerError, Tree
from .procfs import ProcFile, process_use, resident, system_times
from .sampler import Source, Value

MIB = float(1 << 20)

PROCESS_HZ = 2.0
_SHORTEST_S = 0.02  # over less the kernel's counters say nothing
_LOOK_AGAIN_S = 30.0
"""How often a server's new children are looked for: that reads every process of the machine."""


class HostUse:
    """CPU in percent (own: of one core; system: of all of them), load and resident memory."""

    columns = ("process_cpu", "system_cpu", "load_1m", "process_rss_mib")

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._files = _opened("stat", "self/statm")
        self._own = _Rate()
        self._busy = 0.0
        self._total = 0.0
        self.read()

    def read(self) -> Sequence[Value]:
        """The figures since the reading before."""
        own = self._own.percent(time.process_time())
        system = self._system()
        if self._files is None:
            rss = self._process.memory_info().rss
        else:
            rss = resident(self._files[1].read())
        return own, system, _load(), rss / MIB

    def close(self) -> None:
        """Close what it reads."""
        for file in self._files or ():
            file.close()

    def _system(self) -> float | None:
        busy, total = self._system_times()
        passed = total - self._total
        if passed <= 0:
            return None
        share = (busy - self._busy) / passed
        self._busy, self._total = busy, total
        return 100 * min(max(share, 0.0), 1.0)

    def _system_times(self) -> tuple[float, float]:
        """Time of all cores since boot: busy, and all. Guests are counted in ``user`` already."""
        if self._files is not None:
            return system_times(self._files[0].read())
        t = psutil.cpu_times()
        total = sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0)
        return total - t.idle - getattr(t, "iowait", 0.0), total


def _opened(*paths: str) -> list[ProcFile] | None:
    """The files, open; None where this system has them not."""
    try:
        return [ProcFile(path) for path in paths]
    except OSError:
        return None


def _load() -> Value:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return "the system keeps no load average"


class _Rate:
    """Percent of one core from a counter of CPU seconds."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._was = 0.0

    def percent(self, seconds: float) -> float | None:
        """Since the call before; None at the first, and so soon after it that it says nothing."""
        now, before = time.monotonic(), self._at
        if before is not None and now - before < _SHORTEST_S:
            return None
        spent, self._was, self._at = seconds - self._was, seconds, now
        return None if before is None else 100 * max(spent, 0.0) / (now - before)


class ServerUse:
    """CPU (percent of one core) and resident memory of a server's processes on this host.

    Memory is the sum over its processes, shared pages once in each. ``find`` gives them, now.
    """

    columns = ("server_cpu", "server_rss_mib")

    def __init__(self, find: Callable[[], Tree]) -> None:
        self._find = find
        self._found_at: float | None = None
        self._members: dict[int, _Member] = {}
        self._rate = _Rate()
        self._counted = 0.0

    def read(self) -> Sequence[Value]:
        """The figures since the reading before.

        Raises:
            ListenerError: its processes cannot be told or have ended.
        """
        now = time.monotonic()
        if self._found_at is None or now - self._found_at > _LOOK_AGAIN_S:
            self._look(self._find())
            self._found_at = now
        rss = 0
        for pid, member in list(self._members.items()):
            try:
                added, size = member.read()
            except (psutil.NoSuchProcess, OSError):
                self._members.pop(pid).close()
                continue
            self._counted += added
            rss += size
        if not self._members:
            self._found_at = None
            raise ListenerError("the server's processes have ended")
        return self._rate.percent(self._counted), rss / MIB

    def _look(self, tree: Tree) -> None:
        now = {m.pid for m in tree.members if psutil.pid_exists(m.pid)}
        for pid in self._members.keys() - now:
            self._members.pop(pid).close()
        for pid in now - self._members.keys():
            self._members[pid] = _Member(pid)

    def close(self) -> None:
        """Close what it reads."""
        for member in self._members.values():
            member.close()
        self._members.clear()


class _Member:
    """One process of a server."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._files = _opened(f"{pid}/stat")
        self._before: float | None = None

    def read(self) -> tuple[float, int]:
        """CPU seconds since the reading before, and resident bytes.

        Raises:
            psutil.NoSuchProcess, OSError: it has ended.
        """
        if self._files is not None:
            used, rss = process_use(self._files[0].read())
        else:
            with self._process.oneshot():
                times = self._process.cpu_times()
                used, rss = times.user + times.system, int(self._process.memory_info().rss)
        # From its first sight on: what it used before belongs to no reading.
        added = 0.0 if self._before is None else used - self._before
        self._before = used
        return added, rss

    def close(self) -> None:
        """Close what it reads."""
        for file in self._files or ():
            file.close()


def host_source() -> Source:
    """This process and this machine."""
    use = HostUse()
    return Source(HostUse.columns, use.read, close=use.close)


def server_source(find: Callable[[], Tree]) -> Source:
    """The processes of a server on this host."""
    use = ServerUse(find)
    return Source(ServerUse.columns, use.read, hz=PROCESS_HZ, slow=True, close=use.close)

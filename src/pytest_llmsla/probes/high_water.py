"""The kernel's high-water mark of a process's resident memory, and other figures of /proc."""

from __future__ import annotations

from pathlib import Path

import psutil


def high_water(proc: Path, pid: int | None = None) -> int | None:
    """Peak resident bytes since the process began (or its mark was restarted).

    Args:
        proc: its folder below /proc.
        pid: None: this process.

    Returns:
        None where the system keeps none, or it may not be read.
    """
    mark = proc_bytes(proc / "status", "VmHWM:")
    if mark is not None:
        return mark
    try:
        peak = getattr(psutil.Process(pid).memory_info(), "peak_wset", None)  # Windows
    except psutil.Error:
        return None
    return peak if isinstance(peak, int) and peak > 0 else None


def proc_bytes(path: Path, name: str) -> int | None:
    """A figure of a file such as /proc/PID/status, which gives it in KiB; None: it is not there."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None

"""The high-water mark of a process, read where the system keeps it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from pytest_llmsla.probes.high_water import high_water, proc_bytes


def test_the_mark_is_read_in_bytes(tmp_path: Path) -> None:
    """/proc gives KiB, and other lines before it."""
    (tmp_path / "status").write_text("Name:\tx\nVmRSS:\t 7 kB\nVmHWM:\t 12 kB\n", "ascii")
    assert high_water(tmp_path) == 12 * 1024
    assert proc_bytes(tmp_path / "status", "VmRSS:") == 7 * 1024


def test_a_figure_that_is_not_there_is_none(tmp_path: Path) -> None:
    """Neither a missing line nor a missing file is a zero."""
    (tmp_path / "smaps_rollup").write_text("Rss: 3 kB\n", "ascii")
    assert proc_bytes(tmp_path / "smaps_rollup", "Pss:") is None
    assert proc_bytes(tmp_path / "none", "Pss:") is None


def test_windows_keeps_it_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, the peak that psutil knows; of a process that is gone there is none."""

    class Known:
        peak_wset = 4096

    class Process:
        def __init__(self, pid: int | None) -> None:
            if pid == 1:
                raise psutil.NoSuchProcess(pid)

        def memory_info(self) -> Known:
            return Known()

    monkeypatch.setattr("pytest_llmsla.probes.high_water.psutil.Process", Process)
    assert high_water(tmp_path, os.getpid()) == 4096
    assert high_water(tmp_path, 1) is None

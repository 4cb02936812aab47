"""A resident peak is never understated."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from pytest_llmsla.probes.rss import RssWindow, high_water_mark

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def fake_proc(folder: Path, mark_kib: int) -> Path:
    (folder / "status").write_text(f"Name:\tx\nVmHWM:\t {mark_kib} kB\nVmRSS:\t 1 kB\n")
    return folder


def test_peak_inside_a_request_is_seen() -> None:
    """Memory taken and returned between two samples is in the peak, not in the samples."""
    window = RssWindow()
    window.reset()
    start = window.read().now
    # Mapped, because a heap that has grown before would be used again.
    with mmap.mmap(-1, 64 * MIB) as block:
        for page in range(0, 64 * MIB, mmap.PAGESIZE):
            block[page] = 1
    reading = window.read()
    assert reading.peak is not None
    assert reading.peak - start >= 60 * MIB


def test_mark_that_cannot_be_restarted_is_an_upper_bound(tmp_path: Path) -> None:
    """The mark of the whole process counts, and the method says that it may be older."""
    window = RssWindow(fake_proc(tmp_path, 64 * 1024 * 1024))
    window.reset()
    reading = window.read()
    assert reading.peak == 64 * 1024 * MIB
    assert "upper bound" in reading.method


def test_mark_that_rose_inside_the_window_is_exact(tmp_path: Path) -> None:
    """A rise after the start can only come from the window."""
    window = RssWindow(fake_proc(tmp_path, 64 * 1024 * 1024))
    window.reset()
    fake_proc(tmp_path, 65 * 1024 * 1024)
    reading = window.read()
    assert reading.peak == 65 * 1024 * MIB
    assert "rose inside the window" in reading.method


def test_samples_alone_are_no_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A system without a high-water mark gives a reason instead of a peak."""
    monkeypatch.setattr("pytest_llmsla.probes.rss.high_water_mark", lambda proc: None)
    reading = RssWindow(tmp_path).read()
    assert reading.peak is None
    assert reading.reason is not None
    assert "high-water mark" in reading.reason
    assert reading.sampled_peak >= reading.now > 0


def test_status_without_the_mark_falls_back_to_the_system(tmp_path: Path) -> None:
    """Where /proc keeps no mark, getrusage (or Windows' peak) gives one."""
    mark = high_water_mark(tmp_path)
    assert mark is not None
    assert mark > MIB

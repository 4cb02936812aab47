"""When a warm-up is over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest

from pytest_llmsla.errors import InternalError, UsageError
from pytest_llmsla.stats import WarmupMonitor


def warmed(series: Iterable[float], max_requests: int = 31) -> WarmupMonitor:
    monitor = WarmupMonitor(max_requests)
    for ms in series:
        if monitor.done:
            break
        monitor.add(ms)
    return monitor


def test_steady_at_eleven() -> None:
    """Steady requests end the warm-up at 11, however slow the first one was."""
    monitor = warmed(itertools.chain([5000.0], itertools.repeat(100.0)))
    assert (monitor.done, monitor.steady, monitor.count) == (True, True, 11)
    assert monitor.values[0] == 5000.0


@pytest.mark.parametrize("cap", [0, 1, 5, 10])
def test_a_cap_below_eleven_is_never_steady(cap: int) -> None:
    """Fewer than two blocks cannot show that anything is steady."""
    monitor = warmed(itertools.repeat(100.0), cap)
    assert (monitor.done, monitor.steady, monitor.count) == (True, False, cap)


def test_falling_times_go_on_to_the_cap() -> None:
    """A block 20 % faster than the one before is not steady, up to the most requests allowed."""
    monitor = warmed(1000.0 * 0.8 ** (i // 5) for i in range(-1, 100))
    assert (monitor.done, monitor.steady, monitor.count) == (True, False, 31)


def test_steady_after_a_change() -> None:
    """Two blocks that differ, then one like the last: steady at 16."""
    monitor = warmed([9000.0] + [400.0] * 5 + [100.0] * 50)
    assert (monitor.steady, monitor.count) == (True, 16)


@pytest.mark.parametrize(
    ("first", "second", "steady"),
    [(100.0, 115.0, True), (115.0, 100.0, True), (100.0, 115.1, False), (115.1, 100.0, False)],
)
def test_within_a_factor_of_1_15(first: float, second: float, steady: bool) -> None:
    """The border itself counts as steady, in both directions."""
    assert warmed([1.0] + [first] * 5 + [second] * 5, 11).steady is steady


def test_the_median_of_a_block_counts() -> None:
    """Two outliers in a block of five do not matter."""
    block = [100.0, 900.0, 100.0, 900.0, 100.0]
    assert warmed([1.0, *block, *[100.0] * 5]).steady


def test_zero_times_are_steady_among_themselves() -> None:
    """Scripted targets may answer in no time; zero against anything else is a change."""
    assert warmed([0.0] * 11).steady
    assert not warmed([0.0] * 6 + [1.0] * 5, 11).steady


@pytest.mark.parametrize("ms", [math.nan, math.inf, -1.0])
def test_a_broken_time_is_an_internal_error(ms: float) -> None:
    """A failed warm-up request is for the runner; it is no time."""
    with pytest.raises(InternalError, match="leave failed warm-up requests out"):
        WarmupMonitor().add(ms)


@pytest.mark.parametrize("cap", [-1, 1.5, True])
def test_a_wrong_cap_is_a_usage_error(cap: int) -> None:
    """The cap is a whole number from 0."""
    with pytest.raises(UsageError, match=r"warmup\.max_requests: got"):
        WarmupMonitor(cap)

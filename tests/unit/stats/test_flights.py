"""Requests in flight beside a request: bursts are seen however long the pause after them."""

from __future__ import annotations

import pytest

from pytest_llmsla.stats.flights import others_met


@pytest.mark.parametrize("pause", [10, 1_000, 1_000_000])
def test_a_burst_of_eight_met_seven_others_whatever_the_pause(pause: int) -> None:
    """The mean over time falls with the pause; what a request met does not."""
    spans = [(at, at + 10) for at in range(0, 5 * pause, pause) for _ in range(8)]
    assert others_met(spans, 0, 5 * pause) == 7


def test_one_at_a_time_meets_nobody() -> None:
    """Requests laid end to end, and none at all."""
    assert others_met([(at, at + 10) for at in range(0, 100, 10)], 0, 100) == 0
    assert others_met([], 0, 100) == 0
    assert others_met([(0, 10)], 20, 30) == 0


def test_only_what_lies_in_the_window_counts() -> None:
    """Two together for the latter half of it: 2·1² and 2·2² over 2 + 4, less one."""
    assert others_met([(0, 99), (12, 20)], 10, 14) == pytest.approx((2 * 1 + 2 * 4) / 6 - 1)

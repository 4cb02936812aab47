"""What a timeline says of itself, in bare integers."""

from __future__ import annotations

import dataclasses

import pytest

from gate_samples import MS, timeline
from pytest_llmsla.timeline import Timeline


def of(*arrivals: tuple[int, int], start: int = 0, scheduled: int | None = None) -> Timeline:
    return Timeline(
        id="r", bucket="b", start_ns=start, end_ns=0, arrivals=arrivals, scheduled_ns=scheduled
    )


def test_ttft_is_first_arrival_minus_start() -> None:
    """TTFT counts from the start of the request, whatever the clock's zero is."""
    assert of((350 * MS, 1), start=50 * MS).ttft_ms == 300.0


def test_with_a_schedule_ttft_counts_from_the_due_time() -> None:
    """Ten requests due at once and sent one by one wait 100, 200 … 1000 ms, not 100 each."""
    sent = [of(((n + 1) * 100 * MS, 1), start=n * 100 * MS, scheduled=0) for n in range(10)]
    assert [t.ttft_ms for t in sent] == [100.0 * n for n in range(1, 11)]


def test_no_token_has_no_ttft() -> None:
    """Without an arrival there is no number, and never 0."""
    t = of()
    assert (t.ttft_ns, t.ttft_ms, t.tpot_ms) == (None, None, None)
    assert t.itl_ns() == t.chunk_gaps_ns() == []


def test_several_tokens_at_once_share_their_gap() -> None:
    """k tokens after a gap g give k samples of g/k; the raw gap stays beside them."""
    t = of((100, 1), (160, 3), (170, 1))
    assert t.itl_ns() == [20.0, 20.0, 20.0, 10.0]
    assert t.chunk_gaps_ns() == [60, 10]


def test_extra_tokens_of_the_first_arrival_give_no_gap() -> None:
    """What came with the first token was never waited for."""
    assert of((100, 5), (130, 1)).itl_ns() == [30.0]
    assert of((100, 64)).itl_ns() == []


def test_tpot_is_a_mean_over_later_tokens() -> None:
    """(last − first arrival) / tokens after the first arrival."""
    assert of((10 * MS, 2), (40 * MS, 1), (70 * MS, 2)).tpot_ms == 20.0
    assert of((10 * MS, 9)).tpot_ms is None


def test_tokens_are_counted_at_arrival() -> None:
    """The sum of what arrived, whatever the target says."""
    assert dataclasses.replace(of((1, 2), (2, 3)), output_tokens=99).tokens == 5


def test_a_timeline_cannot_be_changed() -> None:
    """A record stays as it was made."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        timeline().status = "error"  # type: ignore[misc]

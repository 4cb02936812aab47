"""How many requests of an open loop share their luck, by hand."""

from __future__ import annotations

import pytest

from pytest_llmsla.load.shared_luck import SharedLuck


def test_a_block_has_room_for_a_quarter_more_than_were_in_flight() -> None:
    """Four in flight over the latter half, one of them not over yet: five."""
    luck = SharedLuck(bursty=False)
    for name in "abcd":
        luck.began(name, 0)
    for name in "abc":
        luck.ended(name, 1_000)
    assert luck.block(0, 1_000) == 5


def test_only_the_latter_half_counts() -> None:
    """What was over in the first half was a start from nothing."""
    luck = SharedLuck(bursty=False)
    for name in "abcd":
        luck.began(name, 0)
        luck.ended(name, 500)
    assert luck.block(0, 1_000) == 1


def test_a_burst_is_a_block_although_it_is_short() -> None:
    """Ten at one moment and then nothing: few on average, and each met nine."""
    plain, bursty = SharedLuck(bursty=False), SharedLuck(bursty=True)
    for luck in (plain, bursty):
        for k in range(10):
            luck.began(f"{k}", 900)
            luck.ended(f"{k}", 910)
    assert plain.block(0, 1_000) == 1
    assert bursty.block(0, 1_000) >= 10


@pytest.mark.parametrize(("bursty", "least"), [(False, 11), (True, 31)])
def test_enough_has_to_be_seen_or_as_much_as_may_be(bursty: bool, least: int) -> None:
    """Bursts take more; where there are fewer warm-ups, all of them are enough."""
    luck = SharedLuck(bursty=bursty)
    for k in range(least - 1):
        luck.began(f"{k}", k)
        luck.ended(f"{k}", k + 1)
    assert not luck.seen(1_000)
    assert luck.seen(least - 1)
    luck.began("last", least)
    luck.ended("last", least + 1)
    assert luck.seen(1_000)


def test_nothing_is_kept_of_a_long_run() -> None:
    """Once it is settled, what ends leaves no trace."""
    luck = SharedLuck(bursty=False)
    luck.began("a", 0)
    luck.settle()
    luck.ended("a", 1_000)
    assert not luck.seen(1)

"""Timelines of other machines: their clocks on ours, and their way here."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmsla.load.blocks import pack, unpack
from pytest_llmsla.load.clocks import DRIFT, Alignment, Reading
from pytest_llmsla.timeline import Timeline

SECOND = 1_000_000_000
times = st.integers(0, 2**60)


def timeline(number: int, arrivals: tuple[tuple[int, int], ...]) -> Timeline:
    """A request with every kind of field filled."""
    return Timeline(
        id=f"r{number}",
        bucket="short",
        start_ns=5,
        end_ns=arrivals[-1][0] if arrivals else 9,
        arrivals=arrivals,
        prompt_tokens=12,
        status="ok" if arrivals else "error",
        error=None if arrivals else "boom",
        stages={"connect": 3},
        sampling={"seed": 1},
        server_ms={"prefill": 1.5},
        first_visible_ns=arrivals[0][0] if arrivals else None,
        late_ns=7,
        block=4,
        concurrency=4,
    )


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(times, st.integers(0, 9)), max_size=5).map(tuple), max_size=6),
    st.integers(-(2**59), 2**59),
)
def test_a_block_gives_back_what_was_packed_with_every_time_moved(
    many: list[tuple[tuple[int, int], ...]], shift: int
) -> None:
    """No field is lost on the way, and every time moves by the same."""
    sent = [timeline(n, a) for n, a in enumerate(many)]
    back = unpack(pack(sent), shift)
    moved = [
        replace(
            t,
            start_ns=t.start_ns + shift,
            end_ns=t.end_ns + shift,
            arrivals=tuple((at + shift, k) for at, k in t.arrivals),
            first_visible_ns=None if t.first_visible_ns is None else t.first_visible_ns + shift,
        )
        for t in sent
    ]
    assert back == moved


@settings(deadline=None)
@given(
    offset=st.integers(-(10**15), 10**15),
    way_there=st.lists(st.integers(0, 5_000_000), min_size=1, max_size=20),
    way_back=st.integers(0, 5_000_000),
    event=st.integers(0, SECOND),
)
def test_a_remote_time_is_never_too_early_and_at_most_two_bounds_late(
    offset: int, way_there: list[int], way_back: int, event: int
) -> None:
    """Whatever the way to the other machine and back takes, and however the clocks differ."""
    aligned, now = Alignment(), 0
    for way in way_there:
        before = now
        there = before + way + offset
        now = before + way + way_back
        aligned.add(Reading(before, there, now))
    at = now + event
    bound = aligned.bound_ns(at)
    ours = at + offset + aligned.shift_ns(at)
    assert at <= ours <= at + 2 * bound + 1
    assert aligned.worst_bound_ns == bound


def test_the_bound_grows_with_the_age_of_the_reading() -> None:
    """Two clocks drift apart; an old reading knows less, so a fresh one replaces it."""
    aligned = Alignment()
    aligned.add(Reading(0, 1_000, 100))
    assert aligned.bound_ns(100) == 50
    assert aligned.bound_ns(100 + 10 * SECOND) == 50 + round(10 * SECOND * DRIFT)
    aligned.add(Reading(10 * SECOND, 10 * SECOND + 1_000, 10 * SECOND + 400))
    assert aligned.bound_ns(10 * SECOND + 400) == 200


def test_a_worse_reading_changes_nothing() -> None:
    """One answer that took long does not spoil what is known."""
    aligned = Alignment()
    aligned.add(Reading(0, 1_000, 100))
    aligned.add(Reading(1_000, 900_000, 1_000_000))
    assert aligned.bound_ns(1_000_000) < 200


def test_one_clock_for_both_needs_no_alignment() -> None:
    """Two processes of one machine share the monotonic clock: exact, whatever the way takes."""
    aligned = Alignment(same=True)
    aligned.add(Reading(0, 10**9, 10**6))
    assert (aligned.shift_ns(5), aligned.theirs(5), aligned.bound_ns(10**12)) == (0, 5, 0)

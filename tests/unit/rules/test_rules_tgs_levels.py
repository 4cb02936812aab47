"""Rule 3 under load: which tokens count in which window, and what is not documented."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate_samples import MS, TOKENS, broken, judged, only, policy, timeline
from load_samples import at_levels, closed, opened, read_at, seen
from pytest_llmsla.rules.windows import LevelWindows
from pytest_llmsla.timeline import NS_PER_S, PEAK, Timeline
from pytest_llmsla.verdict import Gatekeeper

FOUR = "tgs/concurrency-4"
EPOCH = (1, 0, 0)
REQUEST_S = (100 + 20 * (TOKENS - 1)) / 1000
"""A plain request: 0.24 s."""


def entry_at(keeper: Gatekeeper, concurrency: int | None) -> dict[str, Any]:
    return next(
        e
        for e in keeper.tgs_entries()
        if e["concurrency"] == concurrency and e["kind"] == "concurrent"
    )


# -- windows


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8), st.integers(1, 120), st.integers(0, 12), st.randoms(use_true_random=False)
)
def test_windows_hold_the_tokens_that_arrived_in_them(
    n: int, requests: int, warmups: int, chance: random.Random
) -> None:
    """Counted anew, from every sound request there is: warm-up reaches in, the drain is out."""

    def shape(i: int) -> Timeline:
        gaps = [chance.uniform(1, 300) for _ in range(TOKENS - 1)]
        return timeline(i, ttft=chance.uniform(1, 900), gaps=gaps)

    every = closed(n, requests, shape, warmups=warmups)
    failed = {t.id for t in every if chance.random() < 0.1}
    windows, given_out = LevelWindows(), []
    for t in every:
        given_out += windows.add(t, "boom" if t.id in failed else None, EPOCH)
    measured = [t for t in every if not t.warmup]
    first, last = measured[0].start_ns, measured[-1].start_ns
    arrivals = [(at, k) for t in every if t.id not in failed for at, k in t.arrivals]
    length = windows.length_ns
    assert length is not None
    assert length >= 2 * NS_PER_S
    assert given_out == windows.rates
    assert len(windows.rates) == (last - first) // length
    for i, rate in enumerate(windows.rates):
        lo, hi = first + i * length, first + (i + 1) * length
        assert rate == sum(k for at, k in arrivals if lo <= at < hi) * NS_PER_S / length
    if last > first:
        inside = sum(k for at, k in arrivals if first <= at < last)
        assert windows.rate == pytest.approx(inside * NS_PER_S / (last - first))
    else:
        assert windows.rate is None


def test_a_window_is_as_long_as_a_request_at_that_level() -> None:
    """Warm-up at four tells how long requests are there; 2 s at least."""
    slow = closed(4, 40, lambda i: timeline(i, ttft=6000), warmups=4)
    keeper = seen(at_levels(4), slow)
    assert entry_at(keeper, 4)["window_s"] == pytest.approx(6.14)
    assert entry_at(seen(at_levels(4), closed(4, 80, warmups=4)), 4)["window_s"] == 2


# -- the figure


def test_the_total_and_the_share_of_one_request() -> None:
    """Four places of eight tokens every 0.24 s: 133 tokens/s, of which each has a quarter."""
    keeper = seen(at_levels(1, 4), [timeline(n) for n in range(20)], after(20, closed(4, 200)))
    entry = entry_at(keeper, 4)
    assert entry["tokens_per_s"] == pytest.approx(4 * TOKENS / REQUEST_S, rel=0.01)
    assert entry["per_request_tokens_per_s"] == pytest.approx(TOKENS / REQUEST_S, rel=0.01)
    assert entry["efficiency"] == pytest.approx(1, rel=0.01)
    assert entry["documented"]
    assert entry["conditions"]["prompt_lengths"]["by_bucket"] == {"short": 200}
    assert entry["median_window"] == pytest.approx(entry["tokens_per_s"], rel=0.02)


def after(requests: int, timelines: list[Timeline]) -> list[Timeline]:
    """The same, once so many requests of one at a time are over."""
    by = max(timeline(n).end_ns for n in range(requests)) + MS
    return [
        replace(
            t,
            start_ns=t.start_ns + by,
            end_ns=t.end_ns + by,
            arrivals=tuple((at + by, k) for at, k in t.arrivals),
        )
        for t in timelines
    ]


def test_efficiency_is_that_of_as_many_alone() -> None:
    """Twice as slow at four: half the rate of four that run alone; without level 1 nobody knows."""
    slow = closed(4, 200, lambda i: timeline(i, ttft=200, gaps=(40,) * (TOKENS - 1)))
    both = seen(at_levels(1, 4), [timeline(n) for n in range(20)], after(20, slow))
    assert entry_at(both, 4)["efficiency"] == pytest.approx(0.5, rel=0.01)
    assert entry_at(seen(at_levels(4), slow), 4)["efficiency"] is None


def test_failed_requests_take_a_place_and_give_no_tokens() -> None:
    """A quarter fails after its time: three quarters of the rate."""

    def shape(i: int) -> Timeline:
        return broken(i, end_ns=timeline(i).end_ns) if i % 4 == 0 else timeline(i)

    entry = entry_at(seen(at_levels(4), closed(4, 400, shape)), 4)
    assert entry["tokens_per_s"] == pytest.approx(3 * TOKENS / REQUEST_S, rel=0.02)


# -- the limit


@pytest.mark.parametrize(("floor", "verdict"), [(100, "pass"), (150, "fail")])
def test_each_level_has_its_floor(floor: float, verdict: str) -> None:
    """{1: …, 4: …}: the rate at four is held to the number for four, by windows."""
    loaded = at_levels(1, 4).policy.model_dump(mode="json")
    loaded["tgs"]["min_tokens_per_s"] = {"1": 5, "4": floor}
    keeper = seen(
        policy(**{k: loaded[k] for k in ("tgs",)}),
        [timeline(n) for n in range(69)],
        after(69, closed(4, 500)),
    )
    found = only(keeper, FOUR)
    assert (found.verdict, found.limit, found.concurrency) == (verdict, floor, 4)
    assert "windows of 2 s" in found.reason
    assert only(keeper, "tgs/concurrency-1").limit == 5


def test_one_number_holds_at_every_level() -> None:
    """A floor that is not a mapping is that of each level."""
    loaded = policy(tgs={"concurrency": [1, 4], "min_tokens_per_s": 50})
    keeper = seen(loaded, [timeline(n) for n in range(69)], after(69, closed(4, 500)))
    assert only(keeper, FOUR).verdict == "pass"
    assert only(keeper, "tgs/concurrency-1").verdict == "fail"


# -- the conditions


def test_without_a_reading_at_the_end_memory_is_not_documented() -> None:
    """A peak read before the last answers may be too small."""
    keeper = Gatekeeper(at_levels(4))
    for t in closed(4, 276):
        keeper.add(t)
    keeper.resources(read_at(4, 200))
    found = only(keeper, FOUR)
    assert found.verdict == "fail"
    assert "memory" in found.reason
    assert "read after 200 of 276 requests" in found.reason
    keeper.resources(read_at(4, 276))
    assert only(keeper, FOUR).verdict == "pass"


def test_the_memory_of_a_level_is_its_own() -> None:
    """Level 4 takes more than level 1; neither has the other's figure."""
    loaded = at_levels(1, 4)
    keeper = judged(loaded, [timeline(n) for n in range(69)])
    for t in after(69, closed(4, 276)):
        keeper.add(t)
    keeper.resources(read_at(4, 276, gib=3.0))
    peaks = {
        e["concurrency"]: e["conditions"]["memory"]["rss_peak_gib"] for e in keeper.tgs_entries()
    }
    assert peaks == {1: 1.5, 4: 3.0}


def test_a_limit_on_memory_is_held_by_the_worst_level() -> None:
    """3 GiB at four breaks a limit of 2, whatever level 1 took; a level not read is an error."""
    loaded = policy(tgs={"concurrency": [1, 4]}, memory={"rss_peak_gib": 2})
    keeper = judged(loaded, [timeline(n) for n in range(69)])
    for t in after(69, closed(4, 276)):
        keeper.add(t)
    assert only(keeper, "memory/rss_peak").verdict == "error"
    keeper.resources(read_at(4, 276, gib=3.0))
    found = only(keeper, "memory/rss_peak")
    assert (found.verdict, found.observed) == ("fail", 3.0)


def test_a_peak_that_failed_is_level_ones_affair() -> None:
    """Peak TGS is that of one request: four at once have a figure of their own."""
    keeper = seen(at_levels(1, 4), [timeline(n) for n in range(69)], after(69, closed(4, 276)))
    last = max(t.end_ns for t in after(69, closed(4, 276))) // (10_000_000 * MS) + 2
    keeper.add(broken(last, bucket=PEAK, purpose=PEAK, unit=0))
    assert only(keeper, "tgs/concurrency-1").verdict == "error"
    assert only(keeper, FOUR).verdict == "pass"


def test_concurrency_that_cannot_be_told_is_not_documented() -> None:
    """All began at one moment: nobody knows how many were in flight on average."""
    every = [
        replace(
            t,
            start_ns=0,
            arrivals=tuple((at - t.start_ns, k) for at, k in t.arrivals),
            end_ns=t.end_ns - t.start_ns,
        )
        for t in closed(4, 4)
    ]
    found = only(seen(at_levels(4), every), FOUR)
    assert found.verdict == "fail"
    assert "undocumented: concurrency" in found.reason


def test_an_open_loop_has_its_rate_for_a_condition() -> None:
    """Asked: the schedule; actual: in flight on average. The entry has no number of places."""
    loaded = policy(workload={"load": {"kind": "constant", "rate": 4}})
    every = opened([250.0 * i for i in range(300)], places=4, block=2)
    entry = entry_at(seen(loaded, every), None)
    assert entry["conditions"]["concurrency"] == {
        "asked": "open loop, 4 requests/s",
        "actual": pytest.approx(0.96, abs=0.01),
    }
    assert (entry["documented"], entry["load"]) == (True, "open loop, 4 requests/s")
    assert entry["tokens_per_s"] == pytest.approx(4 * TOKENS, rel=0.02)

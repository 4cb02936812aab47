"""Goodput: which requests are good, that the others are counted, and that nothing unknown is."""

from __future__ import annotations

import pytest

from gate_samples import LONG, SHORT, TOKENS, broken, judged, only, policy, timeline
from load_samples import closed, seen
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline


def share(value: float, *buckets: dict[str, object], **groups: object) -> LoadedPolicy:
    return policy(*(buckets or (dict(SHORT),)), goodput={"min_share": value}, **groups)


STRICT = {"p50_ms": 30, "p95_ms": 50, "stall_p95_ms": 500}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (timeline(0, ttft=301), "ttft 1"),
        (timeline(0, gaps=(60,) * (TOKENS - 1)), "itl 1"),
        (timeline(0, gaps=(31,) * (TOKENS - 1)), "itl 1"),
        (timeline(0, gaps=(20,) * (TOKENS - 2) + (501,)), "itl 1"),
        (broken(0), "failed 1"),
        (timeline(0, prompt=None), "failed 1"),
        (timeline(0, arrivals=timeline(0).arrivals[:1], output_tokens=1), "itl 1"),
    ],
)
def test_a_request_that_misses_one_limit_is_not_good(bad: Timeline, why: str) -> None:
    """Any limit of its bucket, a failure, and a metric that is unknown: each costs it."""
    every = [bad, *(timeline(n) for n in range(1, 40))]
    found = only(judged(share(0.8, itl=STRICT), every), "goodput")
    assert (found.observed, found.exceeded, found.samples) == (39 / 40, 1, 40)
    assert f"39 of 40 requests met every limit of their bucket (not met: {why})" in found.reason


def test_a_stall_counts_by_its_own_limit() -> None:
    """A gap that no percentile of 7 gaps at P50 shows is a stall all the same."""
    loaded = share(0.8, itl={"p50_ms": 30, "p95_ms": None, "stall_p95_ms": 500})
    every = [timeline(0, gaps=(20,) * (TOKENS - 2) + (501,)), *map(timeline, range(1, 40))]
    assert "not met: stall 1" in only(judged(loaded, every), "goodput").reason


def test_the_share_is_held_by_the_test() -> None:
    """Clean: PASS as soon as the test can tell; a third that miss it: FAIL; too few: neither."""
    loaded = share(0.9)
    clean = only(judged(loaded, map(timeline, range(69))), "goodput")
    assert (clean.verdict, clean.decided_at, clean.limit) == ("pass", 34, 0.9)
    third = [timeline(n, ttft=900 if n % 3 == 0 else 100) for n in range(69)]
    assert only(judged(loaded, third), "goodput").verdict == "fail"
    few = only(judged(loaded, map(timeline, range(20))), "goodput")
    assert few.verdict == "inconclusive"
    assert "20 of at least 34 requests" in few.reason


def test_each_bucket_has_its_own_limits() -> None:
    """400 ms is good for a long prompt and not for a short one."""
    loaded = share(0.9, dict(SHORT), dict(LONG))
    every = []
    for n in range(40):
        every.append(timeline(2 * n, unit=n))
        every.append(timeline(2 * n + 1, unit=n, bucket="long", prompt=500, ttft=400))
    assert only(judged(loaded, every), "goodput").observed == 1
    swapped = [timeline(n, ttft=400) for n in range(40)]
    assert only(judged(loaded, swapped), "goodput").observed == 0


def test_it_rests_on_limits_that_can_be_judged() -> None:
    """Where ITL is not measurable, tokens handed over at once are not good requests; one that is
    not told is not good, and no verdict on the rest either."""
    at_once = [timeline(n, gaps=(0.001,) * (TOKENS - 1)) for n in range(69)]
    found = only(judged(share(0.9), at_once), "goodput")
    assert found.verdict == "error"
    assert found.reason.startswith("rests on short/itl_p95, which could not be judged: ")
    guess = [timeline(0, estimated="half came at once"), *map(timeline, range(1, 69))]
    one = only(judged(share(0.9), guess), "goodput")
    assert (one.verdict, one.observed) == ("error", 68 / 69)


def test_lengths_that_are_not_covered_leave_it_open() -> None:
    """A share over short prompts alone is not that of the bucket."""
    found = only(judged(share(0.9), [timeline(n, prompt=9) for n in range(69)]), "goodput")
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("bucket short: lengths not covered")


def test_under_load_it_counts_blocks() -> None:
    """Four at once: 34 blocks, and good requests a second between first and last start."""
    loaded = share(0.9, tgs={"concurrency": [4]})
    found = only(seen(loaded, closed(4, 276)), "goodput")
    assert (found.verdict, found.units, found.block, found.concurrency) == ("pass", 69, 4, 4)
    assert "decided after 34 blocks of 4 requests" in found.reason
    # Four places, 240 ms each: 16.7 a second, all of them good.
    assert any(note.startswith("goodput 16.") for note in found.notes)


def test_it_keeps_every_bucket_going() -> None:
    """A share of 99 % takes more requests than a P95: nobody stops before it is told."""
    from pytest_llmsla.verdict import Gatekeeper

    keeper = Gatekeeper(share(0.99))
    for t in map(timeline, range(100)):
        keeper.add(t)
    assert keeper.open_limits("short") == []
    assert keeper.undecided("short")


def test_observed_evidence_is_no_release_evidence() -> None:
    """A look passes nothing; a share under the limit fails."""
    loaded = share(0.9, evidence={"preset": "observed"})
    assert only(judged(loaded, map(timeline, range(5))), "goodput").verdict == "inconclusive"
    half = [timeline(n, ttft=900 if n % 2 else 100) for n in range(6)]
    assert only(judged(loaded, half), "goodput").verdict == "fail"


def test_nothing_measured_is_no_share() -> None:
    """No request, no finding: 0 of 0 is not all of them."""
    assert judged(share(0.9), []).finding("goodput") is None

"""A resumed run: its parts are one run's evidence, and never one figure of two conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gate_samples import MS, TOKENS, only, policy, reading, timeline
from load_samples import closed, opened, read_at
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.rules.parts import parts_of
from pytest_llmsla.timeline import PEAK, Timeline
from pytest_llmsla.verdict import Gatekeeper

TGS = "tgs/concurrency-1"
FOUR = "tgs/concurrency-4"
GREEDY = {"greedy": True}
PASSES = policy(tgs={"min_tokens_per_s": 1})


def part(segment: int, count: int = 9, **fields: Any) -> list[Timeline]:
    """Requests of one second, in one part of a run."""
    every = [
        timeline(n, gaps=(890 / (TOKENS - 1),) * (TOKENS - 1), segment=segment, **fields)
        for n in range(100 * segment, 100 * segment + count)
    ]
    return [replace(t, end_ns=t.start_ns + 1000 * MS, attempt=segment + 1) for t in every]


def resumed(
    *parts: Sequence[Timeline],
    memory: Sequence[dict[str, Any]] = ({}, {}),
    loaded: LoadedPolicy = PASSES,
) -> Gatekeeper:
    """A judge that has seen the parts, each with a reading after every request."""
    keeper = Gatekeeper(loaded)
    for timelines, given in zip(parts, memory, strict=True):
        for t in timelines:
            keeper.add(t)
            keeper.resources({**reading(**given), "segment": t.segment})
    keeper.end("decided")
    return keeper


def shows_no_figure(keeper: Gatekeeper, limit_id: str, *words: str) -> Finding:
    """Red, without any number of the whole, and each part's condition is named."""
    found = only(keeper, limit_id)
    assert found.verdict == "fail"
    assert (found.observed, found.lower, found.upper) == (None, None, None)
    assert set(found.percentiles.values()) == {None}
    assert "not the same in every part of this run (part 1: " in found.reason
    for text in (*words, "; part 2: "):
        assert text in found.reason
    assert all(e["tokens_per_s"] is not None for e in keeper.tgs_entries())
    assert not [e for e in keeper.tgs_entries() if e["kind"] in ("steady", "concurrent")]
    return found


def test_parts_under_the_same_conditions_are_one_figure() -> None:
    """The rate goes on as if there had been no break; of memory the larger reading counts."""
    keeper = resumed(part(0), part(1), memory=({"gib": 1.5}, {"gib": 1.6}))
    found = only(keeper, TGS)
    assert (found.verdict, found.requests, found.units) == ("pass", 18, 9)
    (entry,) = keeper.tgs_entries()
    assert entry["conditions"]["memory"]["rss_peak_gib"] == 1.6


@pytest.mark.parametrize(
    "other",
    [{"sampling": GREEDY}, {"max_new_tokens": TOKENS + 1}],
    ids=["parameters", "length"],
)
def test_another_sampling_in_a_part_is_no_one_figure(other: dict[str, Any]) -> None:
    """The test that asks was edited between the two runs, under the same mark."""
    loaded = policy(workload={"max_new_tokens": TOKENS + 1, "force_length": False})
    keeper = resumed(part(0), part(1, **other), loaded=loaded)
    shows_no_figure(keeper, TGS, "undocumented: sampling", "for 8 tokens")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"gib": 2.0}, "rss_peak_gib 2, cpu"),
        ({"device": "mps"}, "rss_peak_gib 1.5, mps"),
        ({"declared": 7.0, "declared_source": "mine"}, None),
    ],
)
def test_other_memory_in_a_part_is_no_one_figure(other: dict[str, Any], words: str | None) -> None:
    """A third more, or memory of another device; what only one of them declares is left out."""
    keeper = resumed(part(0), part(1), memory=({}, other))
    if words is None:
        assert only(keeper, TGS).verdict == "fail"
        assert "mine" in only(keeper, TGS).reason
    else:
        shows_no_figure(keeper, TGS, "undocumented: memory", "rss_peak_gib 1.5, cpu", words)


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_part_whose_memory_is_unknown_makes_it_unknown(lacking: int) -> None:
    """The other part's reading is not lent to it, whichever comes first."""
    keeper = Gatekeeper(policy(memory={"rss_peak_gib": 2}))
    for t in [*part(0), *part(1)]:
        keeper.add(t)
        if t.segment != lacking:
            keeper.resources({**reading(), "segment": t.segment})
    found = only(keeper, TGS)
    assert found.verdict == "fail"
    assert f"part {lacking + 1} of this run has no figure" in found.reason
    limit = only(keeper, "memory/rss_peak")
    assert (limit.verdict, limit.observed) == ("error", None)
    assert "read after 0 of 9 requests" in limit.reason


def test_a_peak_read_at_the_end_covers_its_own_process_only() -> None:
    """Part 1 was killed before its reading: what it took nobody knows, however much came later."""
    loaded = policy(tgs={"concurrency": [4]}, memory={"rss_peak_gib": 2})
    keeper = level(loaded, [closed(4, 40), closed(4, 300)])
    keeper.resources({**read_at(4, keeper.answered(4, segment=1)), "segment": 1})
    limit = only(keeper, "memory/rss_peak")
    assert limit.verdict == "error"
    assert "read after 0 of 40 requests" in limit.reason
    keeper.resources({**read_at(4, 40), "segment": 0})
    assert only(keeper, "memory/rss_peak").verdict == "pass"
    assert only(keeper, FOUR).verdict == "pass"


@pytest.mark.parametrize(("read", "documented"), [(90, True), (89, False)])
def test_a_part_that_was_killed_may_lack_its_last_reading(read: int, documented: bool) -> None:
    """Under load memory is read once a second, and after a kill there is no last one: a tenth of
    the answers of an earlier part may come after it, for a rate and never for a limit."""
    loaded = policy(tgs={"concurrency": [4]}, memory={"rss_peak_gib": 2})
    keeper = level(loaded, [closed(4, 100), closed(4, 300)])
    for segment, answered in ((0, read), (1, 300)):
        keeper.resources({**read_at(4, answered), "segment": segment})
    assert only(keeper, FOUR).verdict == ("pass" if documented else "fail")
    assert only(keeper, "memory/rss_peak").verdict == "error"


def level(
    loaded: LoadedPolicy, parts: Sequence[Sequence[Timeline]], modes: Sequence[str] = ("a", "a")
) -> Gatekeeper:
    """A judge that has seen a level in parts, without a reading of memory."""
    keeper = Gatekeeper(loaded)
    for segment, timelines in enumerate(parts):
        n = None if timelines[0].scheduled_ns is not None else timelines[0].concurrency
        keeper.opened(n, 0, segment=segment, mode=modes[segment])
        for t in timelines:
            keeper.add(replace(t, segment=segment, attempt=segment + 1, id=f"{segment}{t.id}"))
    keeper.end("decided")
    return keeper


def test_memory_of_a_new_process_is_no_growth() -> None:
    """It begins anew where the other had come to: each part has its own slope."""
    loaded = policy(memory={"growth_mib_per_request": 0})
    flat = resumed(part(0), part(1), memory=({"rss_now": 5.0}, {"rss_now": 4.0}), loaded=loaded)
    assert only(flat, "memory/growth").verdict == "pass"
    keeper = Gatekeeper(loaded)
    for n, t in enumerate([*part(0), *part(1)]):
        keeper.add(t)
        # Each part leaks 0.3 GiB a request; together they look like one step down.
        keeper.resources({**reading(rss_now=4 + 0.3 * (n % 9)), "segment": t.segment})
    assert only(keeper, "memory/growth").verdict == "fail"


def test_requests_that_share_the_model_in_another_way_are_no_one_figure() -> None:
    """Threads in one part and batches in the other."""
    loaded = policy(tgs={"concurrency": [4]})
    keeper = level(loaded, [closed(4, 300), closed(4, 300)], ["threads", "batch"])
    for segment in (0, 1):
        keeper.resources({**read_at(4, 300), "segment": segment})
    shows_no_figure(keeper, FOUR, "undocumented: concurrency", "4 in flight by threads")


def test_a_short_part_that_did_not_hold_the_load_is_not_hidden_by_a_long_one() -> None:
    """Two of four in flight over 60 requests, four over 600: 3.7 on average."""
    half = [replace(t, concurrency=4, block=4, unit=n // 4) for n, t in enumerate(closed(2, 60))]
    loaded = policy(tgs={"concurrency": [4]})
    found = only(level(loaded, [half, closed(4, 600)]), "short/ttft_p95")
    assert found.verdict == "error"
    assert "concurrency not held: 2.0 requests in flight" in found.reason
    assert only(level(loaded, [closed(4, 60), closed(4, 600)]), "short/ttft_p95").verdict == "pass"


def test_a_short_part_of_another_rate_is_not_hidden_by_a_long_one() -> None:
    """Half the rate over the first 60 requests is 98 % of it over all."""
    loaded = policy(workload={"load": {"kind": "constant", "rate": 4}})
    slow = opened([500.0 * i for i in range(60)], places=4, block=2)
    long = opened([250.0 * i for i in range(4000)], places=4, block=2)
    found = only(level(loaded, [slow, long]), "short/ttft_p95")
    assert found.verdict == "error"
    assert "the schedule was not kept: 2 requests/s were due, 4 were asked for" in found.reason
    assert only(level(loaded, [long, long]), "short/ttft_p95").verdict == "pass"


def test_a_peak_of_two_conditions_is_no_figure_either() -> None:
    """Peak TGS is held to the same."""
    keeper = resumed(part(0), part(1), loaded=policy())
    for segment, sampling in ((0, GREEDY), (1, {"temperature": 1.0})):
        for t in part(segment, 2, bucket=PEAK, purpose=PEAK, sampling=sampling, prompt=30):
            keeper.add(
                replace(
                    t,
                    start_ns=t.start_ns + 10**13,
                    end_ns=t.end_ns + 10**13,
                    arrivals=tuple((at + 10**13, k) for at, k in t.arrivals),
                )
            )
            keeper.resources({**reading(), "segment": segment, "purpose": PEAK})
    found = only(keeper, TGS)
    assert found.verdict == "fail"
    assert found.reason.startswith("peak: undocumented: sampling")
    assert "peak" not in {e["kind"] for e in keeper.tgs_entries()}


def test_a_line_without_a_segment_is_of_the_only_part() -> None:
    """Where there are several nobody knows whose it is."""
    line = reading()
    assert [p.resources for p in parts_of(part(0), [line])] == [[line]]
    assert [p.resources for p in parts_of([*part(0), *part(1)], [line])] == [[], []]
    assert parts_of([], [line]) == []

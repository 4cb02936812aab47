"""What was in flight when a run was killed: failed, and no reason to doubt the load before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from gate_samples import MS, only, timeline
from load_samples import at_levels, closed, seen, shifted
from pytest_llmsla.finding import Finding
from pytest_llmsla.log.request_lines import IN_FLIGHT
from pytest_llmsla.rules.held import Flight, each_run_condition, in_flight
from pytest_llmsla.timeline import Timeline

N = 8
LOADED = at_levels(N, errors={"max_error_rate": 0.2})
TTFT, RATE = "short/ttft_p95", "short/error_rate"


def lost(t: Timeline) -> Timeline:
    """As read back where the log holds its start alone."""
    return replace(
        t, status="error", error=IN_FLIGHT, end_ns=t.start_ns, arrivals=(), output_tokens=None
    )


def killed(every: Iterable[Timeline], at_ns: int) -> list[Timeline]:
    """What a run killed at that moment has on record."""
    begun = [t for t in every if t.start_ns <= at_ns]
    return [t if t.end_ns <= at_ns else lost(t) for t in begun]


def of(name: str, *parts: list[Timeline]) -> Finding:
    """One limit judged over parts of a run, each another process's."""
    each = [
        replace(t, id=f"{n}:{t.id}", attempt=n + 1, segment=n)
        for n, part in enumerate(parts)
        for t in part
    ]
    return only(seen(LOADED, each), name)


def flights(timelines: Iterable[Timeline]) -> list[Flight]:
    return [
        Flight((1, 0, 0), t.due_ns, t.start_ns, t.end_ns, True, lost=t.error == IN_FLIGHT)
        for t in timelines
    ]


def uneven(index: int) -> Timeline:
    """Between 0.2 and 2.2 s, as answers of free length are."""
    return timeline(index, gaps=[Random(index).uniform(10, 300)] * 7)


@pytest.mark.parametrize("shape", [timeline, uneven])
def test_a_run_that_was_killed_and_went_on_is_judged(shape: object) -> None:
    """Eight were in flight to the end of either part: no error of the load for the eight lost.

    They failed, and the share of failures says so.
    """
    first = killed(closed(N, 48, shape), closed(N, 48, shape)[4 * N + 2].end_ns)  # type: ignore[arg-type]
    assert sum(t.error == IN_FLIGHT for t in first) >= N - 1
    both = of(TTFT, first, closed(N, 30 * N, shape))  # type: ignore[arg-type]
    assert "in flight" not in both.reason
    assert both.verdict != "error"
    assert of(RATE, first, closed(N, 30 * N, shape)).exceeded >= N - 1  # type: ignore[arg-type]


def test_the_load_before_the_kill_is_as_it_was() -> None:
    """The mean of the run that was not killed, to a hundredth; the lost are not among the most."""
    every = closed(N, 6 * N, uneven)
    cut = killed(every, every[5 * N].start_ns)
    begun = [t for t in every if t.start_ns <= every[5 * N].start_ns]
    found, whole = in_flight(flights(cut)), in_flight(flights(begun))
    assert found.mean == pytest.approx(whole.mean, abs=0.01)
    assert found.met == pytest.approx(whole.met, abs=0.01)
    assert found.most <= N


def test_a_load_that_was_not_held_is_still_an_error() -> None:
    """Four in flight of eight, and four of these lost."""
    every = closed(N // 2, 20 * N)
    cut = flights(killed(every, every[-1].start_ns + MS))
    told = each_run_condition(N, cut)
    assert told is not None
    assert told.error
    assert "concurrency not held: 4.0 requests" in told.reason


@pytest.mark.parametrize("where", range(3))
def test_no_answer_cut_out_of_a_log_makes_a_load_of_it(where: int) -> None:
    """One in ten of a run at 7.1 of 8 taken out in the middle: less in flight, not more."""
    held = closed(7, 40 * N)
    spare = shifted(timeline(0), held[-1].start_ns // 2, concurrency=N, block=N)
    every = sorted([*held, spare], key=lambda t: t.start_ns)
    cut = [lost(t) if k % 10 == where and k < 30 * N else t for k, t in enumerate(every)]
    before, after = in_flight(flights(every)).mean, in_flight(flights(cut)).mean
    assert before is not None
    assert after is not None
    assert after < before
    assert each_run_condition(N, flights(cut)) is not None

"""Memory limits: the named figure, read after every request, or an error."""

from __future__ import annotations

from typing import Any

import pytest

from gate_samples import broken, only, policy, timeline
from pytest_llmsla.finding import Finding
from pytest_llmsla.rules.memory import FIGURES
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper


def found(
    readings: list[dict[str, Any]], timelines: list[Timeline] | None = None, **limits: float
) -> Finding:
    limits = limits or {"rss_peak_gib": 2.0}
    keeper = Gatekeeper(policy(memory=limits))
    for t in timelines or [timeline(n) for n in range(3)]:
        keeper.add(t)
    for memory in readings:
        keeper.resources({"phase": "measured", "purpose": None, "memory": memory})
    return only(keeper, f"memory/{next(iter(limits)).removesuffix('_gib')}")


def rss(*values: Any) -> list[dict[str, Any]]:
    return [{"rss_peak": value} for value in values]


@pytest.mark.parametrize(
    ("values", "verdict", "observed"),
    [
        ((1.0, 1.5, 1.2), "pass", 1.5),
        ((1.0, 2.0, 1.0), "pass", 2.0),
        ((1.0, 2.1, 1.0), "fail", 2.1),
    ],
)
def test_the_highest_reading_counts(
    values: tuple[float, ...], verdict: str, observed: float
) -> None:
    """Whenever it was read; the limit itself is kept."""
    it = found(rss(*values))
    assert (it.verdict, it.observed, it.unit) == (verdict, observed, "GiB")


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([], "read after 0 of 3 requests"),
        (rss(1.0, 1.0), "read after 2 of 3 requests"),
        (rss(1.0, None, 1.0), "1 of 3 readings lack it"),
        (rss(0, 0, 0), "3 of 3 readings lack it (one is 0)"),
        (rss(1.0, 0.0, 1.0), "(one is 0.0)"),
        (rss(-1.0, 1.0, 1.0), "(one is -1.0)"),
        (rss(True, 1.0, 1.0), "(one is True)"),
        (rss("1.0", 1.0, 1.0), "(one is '1.0')"),
        (rss(float("nan"), 1.0, 1.0), "(one is nan)"),
        (rss(float("inf"), 1.0, 1.0), "(one is inf)"),
        ([{"rss_peak": None, "rss_peak_reason": "no high-water mark"}] * 3, "no high-water mark"),
        ([{"problem": "OSError: gone"}] * 3, "OSError: gone"),
        ([{"allocated_peak": 1.0}] * 3, "3 of 3 readings lack it"),
    ],
)
def test_a_figure_that_is_not_known_is_an_error(readings: list[dict[str, Any]], words: str) -> None:
    """Never 0, never a part of the readings, never another figure."""
    it = found(readings)
    assert (it.verdict, it.observed) == ("error", None)
    assert it.reason.startswith("rss_peak is not readable: ")
    assert words in it.reason


def test_three_figures_are_three_limits() -> None:
    """Allocated, reserved and used on the card are never mixed."""
    readings = [{"allocated_peak": 10.0, "reserved_peak": 14.0, "device_used_peak": 15.2}] * 3
    verdicts = {
        name: found(readings, **{f"{name}_gib": 12.0}).verdict
        for name in ("allocated_peak", "reserved_peak", "device_used_peak")
    }
    assert verdicts == {
        "allocated_peak": "pass",
        "reserved_peak": "fail",
        "device_used_peak": "fail",
    }


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_limited(name: str) -> None:
    """Each name of a limit reads its own figure."""
    assert found([{name: 3.0}] * 3, **{f"{name}_gib": 2.0}).verdict == "fail"
    assert found([{name: 1.0}] * 3, **{f"{name}_gib": 2.0}).verdict == "pass"


def test_a_failed_request_may_lack_a_reading() -> None:
    """It is red for its failure; the memory of those that answered is known."""
    assert found(rss(1.0, 1.0), [timeline(0), broken(1), timeline(2)]).verdict == "pass"


def test_warm_up_and_peak_readings_are_not_the_measured_window() -> None:
    """A figure of another time is none of this one."""
    keeper = Gatekeeper(policy(memory={"rss_peak_gib": 2.0}))
    keeper.add(timeline(0))
    keeper.resources({"phase": "warm-up", "purpose": None, "memory": {"rss_peak": 1.0}})
    keeper.resources({"phase": "measured", "purpose": "tgs-peak", "memory": {"rss_peak": 1.0}})
    assert only(keeper, "memory/rss_peak").verdict == "error"


def test_nothing_measured_has_no_finding() -> None:
    """A limit that was never reached is missing, not met."""
    keeper = Gatekeeper(policy(memory={"rss_peak_gib": 2.0}))
    assert keeper.finding("memory/rss_peak") is None

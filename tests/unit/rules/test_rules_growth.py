"""Memory that grows with every request, and memory that is taken once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gate_samples import judged, only, policy, reading, timeline
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.verdict import Gatekeeper

ID = "memory/growth"


def leak_limit(mib: float) -> LoadedPolicy:
    return policy(memory={"growth_mib_per_request": mib})


def fed(loaded: LoadedPolicy, readings: Sequence[dict[str, Any]]) -> Gatekeeper:
    keeper = Gatekeeper(loaded)
    for n, line in enumerate(readings):
        keeper.add(timeline(n))
        keeper.resources(line)
    return keeper


def host(*gib: float | None) -> list[dict[str, Any]]:
    return [reading(rss_now=value) for value in gib]


def card(host_gib: float, *gib: float | None) -> list[dict[str, Any]]:
    return [reading(rss_now=host_gib, allocated_peak=value, device="cuda:0") for value in gib]


def found(loaded: LoadedPolicy, readings: Sequence[dict[str, Any]]) -> Finding:
    return only(fed(loaded, readings), ID)


def test_a_plateau_is_no_leak() -> None:
    """5.5 GiB after each of five calls, whatever was there before: growth 0."""
    one = found(leak_limit(0), host(5.5, 5.5, 5.5, 5.5, 5.5))
    assert (one.verdict, one.observed) == ("pass", 0)


def test_growth_by_a_constant_is_a_leak() -> None:
    """5.5, 5.8, 6.1, 6.4 GiB: 0.3 a request, over a limit of 0."""
    one = found(leak_limit(0), host(5.5, 5.8, 6.1, 6.4))
    assert one.verdict == "fail"
    assert one.observed == pytest.approx(0.3 * 1024)
    assert one.unit == "MiB/request"


def test_one_step_up_is_no_leak_wherever_it_comes() -> None:
    """A cache that is kept from the 20th of 60 requests on is taken once."""
    for at in (1, 20, 40):
        steps = [4.0] * at + [4.5] * (60 - at)
        assert found(leak_limit(0), host(*steps)).verdict == "pass"


def test_a_leak_that_comes_in_steps_is_one() -> None:
    """40 MiB every tenth request is 4 MiB a request, not 0."""
    steps = [4.0 + (n // 10) * 40 / 1024 for n in range(100)]
    one = found(leak_limit(1), host(*steps))
    assert one.verdict == "fail"
    assert one.observed == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("readings", [host(4.0, 4.1), host(4.0), host(4.0, None, 4.2, 4.4)])
def test_too_few_readings_are_no_slope(readings: list[dict[str, Any]]) -> None:
    """Two points make any line, and a missing one makes another series: error, never PASS."""
    one = found(leak_limit(1000), readings)
    assert (one.verdict, one.observed) == ("error", None)
    assert "was not read after at least 3 equal requests" in one.reason


def test_the_card_is_looked_at_for_itself() -> None:
    """Host flat and card growing is a leak; a card that cannot be read is an error."""
    assert found(leak_limit(0.1), card(3.0, 4.0, 4.2, 4.4, 4.6)).verdict == "fail"
    assert found(leak_limit(0.1), card(3.0, 4.0, 4.0, 4.0, 4.0)).verdict == "pass"
    unread = found(leak_limit(0.1), card(3.0, None, None, None))
    assert unread.verdict == "error"
    assert "memory of the card" in unread.reason


def test_host_memory_grows_while_the_card_is_flat() -> None:
    """4.0, 4.2, 4.4, 4.6 GiB on the host, 40.0 on the card: red by the host alone."""
    lines = [
        reading(rss_now=value, allocated_peak=40.0, device="cuda:0")
        for value in (4.0, 4.2, 4.4, 4.6)
    ]
    one = found(leak_limit(0.1 * 1024), lines)
    assert one.verdict == "fail"
    assert one.reason.startswith("grows: rss_now 205 MiB a request (4 to 4.6 GiB over 4 requests)")
    assert any(note.startswith("allocated_peak 0 MiB a request") for note in one.notes)
    # No limit set: the reader is warned, and nothing fails for it.
    free = fed(policy(), lines)
    assert free.notes() == [
        "memory grew: rss_now 205 MiB a request (4 to 4.6 GiB over 4 requests). "
        "memory.growth_mib_per_request holds it to a limit"
    ]


def test_noise_is_no_warning() -> None:
    """A few pages up and down are not told."""
    steady = [4.0 + (n % 3) * 1e-4 for n in range(40)]
    assert fed(policy(), host(*steady)).notes() == []


def test_only_equal_requests_are_compared() -> None:
    """Long prompts take more than short ones; taking turns is no growth."""
    long = {"name": "long", "prompt_max": 512, "ttft_ms": 450}
    short = {"name": "short", "prompt_max": 128, "ttft_ms": 300}
    keeper = Gatekeeper(policy(short, long, memory={"growth_mib_per_request": 0}))
    for n in range(4):
        keeper.add(timeline(2 * n, unit=n))
        keeper.resources(reading(rss_now=4.0))
        keeper.add(timeline(2 * n + 1, unit=n, bucket="long", prompt=500))
        keeper.resources({**reading(rss_now=5.0), "bucket": "long"})
    assert only(keeper, ID).verdict == "pass"


def test_nothing_answered_used_no_memory() -> None:
    """Failed requests are no measurement of it."""
    from gate_samples import broken

    keeper = judged(leak_limit(1), [broken(n) for n in range(5)])
    assert only(keeper, ID).verdict == "error"


def test_readings_of_a_level_say_how_many_answers_lie_between() -> None:
    """Under load memory is read once a second: growth is by request, not by reading."""
    loaded = policy(tgs={"concurrency": [4]}, memory={"growth_mib_per_request": 1})
    keeper = Gatekeeper(loaded)
    for n in range(40):
        keeper.add(timeline(n, concurrency=4, block=4, unit=n // 4))
    for answered, gib in ((10, 4.0), (20, 4.1), (40, 4.3)):
        keeper.resources({**reading(rss_now=gib), "concurrency": 4, "answered": answered})
    one = only(keeper, ID)
    assert one.verdict == "fail"
    assert one.observed == pytest.approx(0.1 * 1024 / 10)

"""The search for capacity: what may be said of a service from the levels that were tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.errors import UsageError
from pytest_llmsla.finding import Verdict
from pytest_llmsla.load.search import Tried, search, summary


def up_to(limit: float, seen: list[float] | None = None) -> Callable[[float], Tried]:
    """A service that passes up to a level."""

    def attempt(level: float) -> Tried:
        if seen is not None:
            seen.append(level)
        return Tried(level, "pass" if level <= limit else "fail")

    return attempt


@given(limit=st.integers(0, 300), most=st.integers(1, 300))
def test_the_highest_whole_level_is_found_exactly(limit: int, most: int) -> None:
    """Of a service that passes up to a level, that level, in a number of tries like log₂."""
    seen: list[float] = []
    found = search(up_to(limit, seen), lowest=1, highest=most, whole=True)
    assert found.highest == (min(limit, most) or None)
    assert found.monotone
    assert len(seen) == len(set(seen)) <= 2 * most.bit_length() + 3
    assert all(x == int(x) for x in seen)
    if limit < most:
        assert found.next_tried == min(limit, most) + 1
        assert found.next_verdict == "fail"
    else:
        assert found.next_tried is None


@given(limit=st.floats(0.5, 500.0), most=st.floats(1.0, 1_000.0))
def test_a_rate_is_found_to_a_tenth(limit: float, most: float) -> None:
    """What passed is told, and the next rate that did not lies within a tenth of it."""
    found = search(up_to(limit), lowest=0.5, highest=most, whole=False)
    assert found.highest is not None
    assert found.highest <= limit
    if found.next_tried is not None:
        assert limit < found.next_tried <= 1.1 * found.highest * (1 + 1e-9)


@pytest.mark.parametrize("verdict", ["fail", "error", "inconclusive", "conditional"])
def test_only_a_pass_counts(verdict: Verdict) -> None:
    """What could not be decided is not shown, and stands as what it is."""
    found = search(
        lambda level: Tried(level, "pass" if level < 3 else verdict, "itl"),
        lowest=1,
        highest=8,
        whole=True,
    )
    assert (found.highest, found.next_tried, found.next_verdict) == (2, 3, verdict)


def test_a_level_that_fails_below_one_that_passes_takes_the_capacity_down() -> None:
    """3 fails although 6 passes: nothing above 3 is shown, and the curve is said not to be one."""
    found = search(
        lambda level: Tried(level, "fail" if level in (3, 7, 8) else "pass"),
        lowest=1,
        highest=8,
        whole=True,
    )
    assert found.highest == 2
    assert not found.monotone


def test_the_gap_below_the_result_is_looked_into() -> None:
    """Doubling jumps over 3: it is tried before 4 is told."""
    seen: list[float] = []
    search(up_to(4, seen), lowest=1, highest=8, whole=True)
    assert 3 in seen


def test_not_even_the_lowest() -> None:
    """Then there is no capacity to tell."""
    found = search(up_to(0), lowest=1, highest=8, whole=True)
    assert (found.highest, found.next_tried, len(found.tried)) == (None, 1, 1)


def test_summary_of_nothing_is_nothing() -> None:
    """No level was tried: no number."""
    assert summary([]).highest is None


@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 4.0), (4.0, 2.0), (-1.0, 1.0)])
def test_a_range_that_is_none_is_refused(lowest: float, highest: float) -> None:
    """The message names both ends."""
    with pytest.raises(UsageError, match="lowest"):
        search(up_to(1), lowest=lowest, highest=highest, whole=True)

"""A pool of samples is a sorted list in less room."""

from __future__ import annotations

import math
from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.stats import pool as room
from pytest_llmsla.stats.pool import STEP, SortedPool, in_order

samples = st.lists(st.floats(0, allow_nan=False), max_size=60)


@given(samples, samples, st.floats(0, allow_nan=False))
def test_it_is_the_sorted_list(first: list[float], more: list[float], limit: float) -> None:
    """Whatever the order they come in; a copy is fed apart."""
    pool = SortedPool(first)
    apart = pool.copy()
    pool.extend(more)
    expected = sorted([*first, *more])
    assert list(pool) == expected
    assert [pool[i] for i in range(-len(pool), len(pool))] == expected * 2
    assert pool[1:5] == expected[1:5]
    assert pool.above(limit) == sum(v > limit for v in expected)
    assert list(apart) == sorted(first)


def test_it_stays_sorted_over_many_blocks() -> None:
    """Rising, falling, equal and mixed samples, beyond several splits of a block."""
    n = 5 * room._BLOCK
    rng = Random(7)
    series = {
        "rising": [float(i) for i in range(n)],
        "falling": [float(n - i) for i in range(n)],
        "equal": [1.0] * n,
        "mixed": [rng.choice([rng.random(), 0.5, float("inf")]) for _ in range(n)],
    }
    for values in series.values():
        pool, expected = SortedPool(values), sorted(values)
        assert list(pool) == expected
        assert len(pool) == n
        assert [pool[i] for i in (0, n // 2, n - 1, -1)] == [
            expected[i] for i in (0, n // 2, n - 1, -1)
        ]
        assert pool.above(0.5) == sum(v > 0.5 for v in values)


def test_there_is_no_sample_beyond_the_last() -> None:
    """As with a list."""
    pool = SortedPool([1.0, 2.0])
    for index in (2, -3):
        with pytest.raises(IndexError, match="of 2"):
            pool[index]
    with pytest.raises(IndexError):
        SortedPool()[0]


@given(st.lists(st.floats(1e-6, 1e6), min_size=30, max_size=200), st.floats(1e-3, 1e3))
def test_many_samples_are_rounded_up_a_little_and_never_across_the_limit(
    values: list[float], edge: float
) -> None:
    """Each rank is that of the exact list or up to 1e-4 more of it, on its side of the limit."""
    pool, exact = SortedPool(values, edge=edge, exact=20), sorted(values)
    assert len(pool) == len(list(pool)) == len(exact)
    assert list(pool) == sorted(pool)
    for k, value in enumerate(exact):
        assert value <= pool[k] <= value * (1 + 2 * STEP)
        assert (pool[k] > edge) == (value > edge)
    assert pool.above(edge) == sum(v > edge for v in exact)
    assert list(pool.copy()) == list(pool)


@pytest.mark.parametrize("exact", [10, 10_000, 1 << 18])
def test_many_at_once_are_as_one_by_one(exact: int) -> None:
    """Taken in parts, before and after it begins to round: each rank within a step, none across."""
    rng = Random(5)
    parts = [
        sorted(rng.choice([0.0, 50.0, rng.uniform(1, 90)]) for _ in range(7)) for _ in [0] * 900
    ]
    parts[3] = [math.inf] * 7
    pool = SortedPool([3.0, 60.0], edge=50.0, exact=exact)
    for few in (parts[:2], parts[2:700], parts[700:]):
        pool.take(few)
    expected = sorted([3.0, 60.0, *(v for part in parts for v in part)])
    assert len(pool) == len(expected)
    if exact >= len(expected):
        assert list(pool) == expected
    assert sum(pool._weights) == len(expected)
    for k, value in enumerate(expected):
        assert value <= pool[k] <= value * (1 + 2 * STEP)
        assert (pool[k] > 50.0) == (value > 50.0)
    pool.take([[70.0]])
    assert pool[-8] == pytest.approx(90, abs=0.3)


def test_nothing_is_rounded_that_cannot_be() -> None:
    """Zero and infinite samples (failed requests) stay what they are."""
    edge = 50.0
    pool = SortedPool([0.0, math.inf, edge, 7.0], edge=edge, exact=1)
    assert (pool[0], pool[2], pool[3]) == (0.0, edge, math.inf)


@pytest.mark.parametrize("most", [1, 1_000])
def test_samples_of_many_requests_in_order(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample to the last bit, however many there are, from arrays and views alike."""
    monkeypatch.setattr(room, "EXACT", most)
    parts = [array("d", [3.25, 5.0, math.inf]), memoryview(array("d", [0.1, 4.0])), array("d")]
    assert in_order(parts) == array("d", [0.1, 3.25, 4.0, 5.0, math.inf])


def test_memory_is_bounded() -> None:
    """Many samples take no more numbers than there are steps between the least and the most.

    10 to 30 ms is ln 3 / ln 1.0001, about 10,987 steps.
    """
    spread = Random(3)
    pool = SortedPool((spread.uniform(10.0, 30.0) for _ in range(60_000)), exact=1_000)
    assert sum(len(block) for block in pool._blocks) <= 10_989
    assert len(pool) == 60_000

"""Arrivals kept in little room are those that were given."""

from __future__ import annotations

import copy
import pickle
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.timeline import NS_PER_MS, Arrivals, Timeline

pairs = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5)), max_size=30)


@given(pairs, st.slices(30))
def test_they_are_the_tuple_of_them(given_pairs: list[tuple[int, int]], part: slice) -> None:
    """Equal both ways, with its hash, its items, its slices and its text; copies are too."""
    plain, kept = tuple(given_pairs), Arrivals(given_pairs)
    assert kept == plain
    assert plain == kept
    assert hash(kept) == hash(plain)
    assert repr(kept) == repr(plain)
    assert list(kept) == given_pairs
    assert [kept[i] for i in range(len(kept))] == given_pairs
    assert kept[part] == plain[part]
    assert kept[part] == Arrivals(plain[part])
    assert pickle.loads(pickle.dumps(kept)) == copy.copy(kept) == copy.deepcopy(kept) == plain
    assert Arrivals(iter(given_pairs)) == kept
    assert bool(kept) == bool(plain)


def test_they_differ_from_others() -> None:
    """One time, one count, one more: never equal; and a list is no tuple."""
    kept = Arrivals([(1, 1), (2, 1)])
    assert kept != ((1, 1), (3, 1))
    assert kept != ((1, 1), (2, 2))
    assert kept != ((1, 1),)
    assert kept != [(1, 1), (2, 1)]
    with pytest.raises(IndexError):
        kept[2]
    with pytest.raises(OverflowError):
        Arrivals([(2**63, 1)])


@given(pairs)
def test_latencies_are_the_same_digits(given_pairs: list[tuple[int, int]]) -> None:
    """However they are kept, a request's figures do not change."""
    plain = tuple(given_pairs)
    one, other = (
        Timeline("r", "b", start_ns=0, end_ns=0, arrivals=a) for a in (plain, Arrivals(plain))
    )
    assert one.itl_ms() == other.itl_ms()
    assert one.itl_ns() == [
        (b - a) / k for (a, _), (b, k) in pairwise(plain) if k for _ in range(k)
    ]
    assert (
        one.chunk_gaps_ns()
        == other.chunk_gaps_ns()
        == [b - a for (a, _), (b, _) in pairwise(plain)]
    )
    assert (one.ttft_ms, one.tokens, one.tpot_ms) == (other.ttft_ms, other.tokens, other.tpot_ms)
    assert one == other


def test_a_token_takes_eight_bytes() -> None:
    """As tuples it would take a hundred, and a long run has millions."""
    kept = Arrivals((20 * NS_PER_MS * i, 1) for i in range(1000))
    size = sum(sys.getsizeof(getattr(kept, name)) for name in ("_times", "_tokens"))
    assert size < 9 * 1000

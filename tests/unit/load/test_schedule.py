"""When requests are due."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.errors import UsageError
from pytest_llmsla.load.mix import Mix
from pytest_llmsla.load.schedule import arrivals

SECOND = 1_000_000_000
KINDS = ("constant", "poisson", "gamma")


def gaps(due: Iterator[int], n: int) -> list[float]:
    """Gaps between the first n due times, s."""
    return [(b - a) / SECOND for a, b in pairwise(islice(due, n + 1))]


def test_a_constant_rate_is_exact_and_does_not_drift() -> None:
    """The millionth request is due where a clock would put it: nothing adds up rounding."""
    due = list(islice(arrivals("constant", 3.0, seed=0), 30_001))
    assert due[:4] == [0, 333_333_333, 666_666_667, SECOND]
    assert due[30_000] == 10_000 * SECOND


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**64), rate=st.floats(0.01, 5_000), shape=st.floats(0.1, 10))
def test_due_times_ascend_and_are_the_same_for_a_seed(
    kind: str, seed: int, rate: float, shape: float
) -> None:
    """The same policy offers the same load, and never asks for the past."""
    one = list(islice(arrivals(kind, rate, seed=seed, burstiness=shape), 50))
    two = list(islice(arrivals(kind, rate, seed=seed, burstiness=shape), 50))
    assert one == two
    assert one == sorted(one)
    assert one[0] >= 0


def test_poisson_gaps_are_exponential() -> None:
    """Mean and standard deviation of the gaps are both 1/rate."""
    found = gaps(arrivals("poisson", 4.0, seed=1), 20_000)
    assert mean(found) == pytest.approx(0.25, rel=0.03)
    assert pstdev(found) == pytest.approx(0.25, rel=0.03)


@pytest.mark.parametrize(("shape", "spread"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gamma_gaps_have_the_rate_and_the_burstiness_asked_for(shape: float, spread: float) -> None:
    """A gamma distribution of shape k has a coefficient of variation of 1/√k."""
    found = gaps(arrivals("gamma", 4.0, seed=2, burstiness=shape), 40_000)
    assert mean(found) == pytest.approx(0.25, rel=0.05)
    assert pstdev(found) / mean(found) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ramp_offers_half_the_requests_while_it_lasts(kind: str) -> None:
    """The rate grows linearly: rate·ramp/2 requests in the ramp, the full rate after it."""
    due = list(islice(arrivals(kind, 100.0, seed=3, ramp_s=20.0), 5_000))
    first_half = sum(at < 10 * SECOND for at in due)
    in_ramp = sum(at < 20 * SECOND for at in due)
    after = sum(20 * SECOND <= at < 40 * SECOND for at in due)
    assert in_ramp == pytest.approx(1_000, rel=0.1)
    assert first_half == pytest.approx(250, rel=0.2)
    assert after == pytest.approx(2_000, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "rate", "shape", "words"),
    [
        ("uniform", 1.0, None, "constant, poisson, gamma"),
        ("poisson", 0.0, None, "greater than 0"),
        ("poisson", float("nan"), None, "greater than 0"),
        ("gamma", 1.0, -1.0, "burstiness"),
        ("gamma", 1.0, float("inf"), "burstiness"),
    ],
)
def test_what_is_no_load_is_refused(
    kind: str, rate: float, shape: float | None, words: str
) -> None:
    """A schedule that means nothing never starts."""
    with pytest.raises(UsageError, match=words):
        arrivals(kind, rate, seed=0, burstiness=shape)


@given(weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1, max_size=4))
def test_every_round_of_a_mix_holds_the_weights(weights: dict[str, int]) -> None:
    """In as many requests as the weights sum to, each name has exactly its weight."""
    mix, total = Mix({k: float(v) for k, v in weights.items()}), sum(weights.values())
    for _ in range(3):
        drawn = [mix.next() for _ in range(total)]
        assert {name: drawn.count(name) for name in weights} == weights


def test_a_mix_interleaves() -> None:
    """Requests of a bucket are spread: none of them comes in a row while another is due."""
    mix = Mix({"a": 2.0, "b": 1.0, "c": 1.0})
    assert "".join(mix.next() for _ in range(8)) == "abcaabca"


def test_a_name_that_is_dropped_leaves_the_shares_of_the_others() -> None:
    """The rest of the mix goes on by its weights."""
    mix = Mix({"a": 2.0, "b": 1.0, "c": 1.0})
    mix.next()
    mix.drop("c")
    drawn = [mix.next() for _ in range(30)]
    assert drawn.count("a") == pytest.approx(20, abs=1)
    assert "c" not in drawn

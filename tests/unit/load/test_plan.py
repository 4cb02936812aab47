"""How many prompts a level takes: counted before anything is measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.load.mix import Mix
from pytest_llmsla.load.plan import prompts_needed

NAMES = "abcd"


def dealt(mix: Mix, least: dict[str, int], at_least: int = 0) -> dict[str, int]:
    """Requests of each bucket until each has had so many."""
    out = dict.fromkeys(least, 0)
    while any(out[n] < least[n] for n in least) or sum(out.values()) < at_least:
        out[mix.next()] += 1
    return out


def first_wave(weights: dict[str, float], n: int) -> dict[str, int]:
    """Requests of each bucket among the first n."""
    mix = Mix(weights)
    drawn = [mix.next() for _ in range(n)]
    return {name: max(1, drawn.count(name)) for name in weights}


@given(
    weights=st.lists(st.sampled_from([0.1, 1.0, 2.5, 3.0, 9.0]), min_size=1, max_size=4),
    budgets=st.lists(st.integers(1, 60), min_size=4, max_size=4),
    warmup=st.sampled_from([0, 11, 31]),
    at_once=st.integers(1, 12),
    skipped=st.integers(0, 20),
)
def test_no_mix_takes_more_prompts_than_were_counted(
    weights: list[float], budgets: list[int], warmup: int, at_once: int, skipped: int
) -> None:
    """Whatever is dealt until the rarest bucket is warm, and then has its budget, was foreseen."""
    shares = dict(zip(NAMES, weights, strict=False))
    least = dict(zip(shares, budgets, strict=False))
    needed = prompts_needed(shares, least, warmup, at_once)
    mix = Mix(shares)
    warm = dict.fromkeys(shares, 0)
    if warmup:
        wave = first_wave(shares, at_once)
        warm = dealt(mix, {n: warmup + wave[n] - 1 for n in shares}, at_once)
    else:
        for _ in range(skipped):  # turns begin anywhere
            mix.next()
    measured = dealt(mix, least)
    for name in shares:
        assert warm[name] + measured[name] <= needed[name]


def test_a_bucket_alone_needs_what_it_measures_and_warms_up_with() -> None:
    """Nothing is added where nothing is mixed."""
    assert prompts_needed({"a": 3.0}, {"a": 300}, 31, 1) == {"a": 331}
    assert prompts_needed({"a": 3.0}, {"a": 1200}, 31, 4) == {"a": 1200 + 34}
    assert prompts_needed({"a": 3.0}, {"a": 300}, 0, 1) == {"a": 300}


def test_a_frequent_bucket_is_asked_as_long_as_the_rare_one_needs() -> None:
    """Nine times as often: nine times as many prompts, and a few."""
    found = prompts_needed({"often": 9.0, "rare": 1.0}, {"often": 300, "rare": 300}, 0, 4)
    assert 300 <= found["rare"] <= 304
    assert 2_700 <= found["often"] <= 2_730

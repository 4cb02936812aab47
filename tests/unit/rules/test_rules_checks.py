"""What makes a request unusable, and what makes a bucket's ITL unmeasurable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_samples import MS, TOKENS, broken, timeline
from pytest_llmsla.rules.checks import (
    Range,
    burst_share,
    covers,
    cut_short,
    defect,
    itl_problem,
    itl_samples_ms,
    miscounted,
    too_cached,
)
from pytest_llmsla.timeline import NOT_FORCED, Timeline

SHORT = Range("short", 1, 128)
MEDIUM = Range("medium", 129, 512)
OPEN = Range("long", 513, None, 1024)


def test_a_sound_request_has_no_defect() -> None:
    """The sample that all wrong ones below are made from is right."""
    assert defect(timeline(), SHORT) is None


def arrivals(*given: tuple[int, int]) -> dict[str, Any]:
    return {"arrivals": given, "end_ns": given[-1][0] if given else 0}


DEFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "no token": (arrivals(), "no token arrived"),
    "an arrival of nothing": (arrivals((5, 1), (9, 0)), "without tokens"),
    "times run backwards": (arrivals((9, 1), (5, 1)), "run backwards"),
    "first token before the start": (arrivals((-1, 1), (5, 1)), "run backwards"),
    "no time before the first token": (arrivals((0, 1), (5, 1)), "clock stands still"),
    "an end before its last token": ({"end_ns": 5}, "before its last token"),
    "sent before it was due": ({"scheduled_ns": 50 * MS}, "before it was due"),
    "prompt length unknown": ({"prompt": None}, "prompt length unknown"),
    "prompt too long": ({"prompt": 129}, "outside bucket short (1–128 tokens)"),
    "prompt of nothing": ({"prompt": 0}, "outside bucket"),
    "asked for nothing": ({"max_new_tokens": 0}, "max_new_tokens is not on record"),
    "more tokens than asked": (
        {"max_new_tokens": TOKENS - 1},
        f"returned {TOKENS} tokens, {TOKENS - 1} were asked for",
    ),
    "failed in silence": ({"status": "error"}, "failed without a reason"),
    "failed": ({"status": "error", "error": "boom"}, "boom"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_named(name: str) -> None:
    """Each way to be unusable says what it is."""
    fields, words = DEFECTS[name]
    assert words in str(defect(timeline(**fields), SHORT))


@given(
    st.lists(st.tuples(st.integers(-50, 200), st.integers(0, 3)), max_size=5),
    st.integers(-50, 200),
    st.none() | st.integers(-50, 200),
)
def test_no_time_of_a_sound_request_is_below_zero(
    given_arrivals: list[tuple[int, int]], end: int, due: int | None
) -> None:
    """What passes as sound has positive TTFT, no negative gap, and an end after its tokens."""
    t = timeline(arrivals=tuple(given_arrivals), end_ns=end, scheduled_ns=due)
    if defect(t, SHORT) is None:
        assert t.ttft_ns is not None
        assert t.ttft_ns > 0
        assert min(t.chunk_gaps_ns(), default=0) >= 0
        assert t.end_ns >= t.arrivals[-1][0] > t.start_ns


def test_requests_of_no_bucket_need_no_length() -> None:
    """Peak TGS asks outside the buckets; its prompts have no range to keep."""
    assert defect(timeline(prompt=None), None) is None
    assert defect(timeline(prompt=9000), None) is None


@pytest.mark.parametrize(
    ("bucket", "inside", "outside"),
    [
        (SHORT, (1, 128), (0, 129)),
        (MEDIUM, (129, 512), (128, 513)),
        (OPEN, (513, 1024, 90_000), (512,)),
    ],
)
def test_both_ends_of_a_bucket_belong_to_it(
    bucket: Range, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    """128 is short, 129 is medium, 512 is medium, 513 is long."""
    assert all(n in bucket for n in inside)
    assert not any(n in bucket for n in outside)


# -- counts


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"output_tokens": None}, "token count unknown"),
        ({"token_source": None}, "token count unknown"),
        ({"output_tokens": TOKENS + 1}, f"{TOKENS} tokens arrived but {TOKENS + 1} were counted"),
        ({"token_source": "events"}, "counted as events"),
    ],
)
def test_counts_must_agree(fields: dict[str, Any], words: str | None) -> None:
    """Arrivals that another count contradicts cannot be split into gaps."""
    found = miscounted(timeline(**fields))
    assert found is None if words is None else words in str(found)


# -- ITL


def problem(*ok: Timeline, bursts_allowed: bool = False, force_length: bool = True) -> str | None:
    return itl_problem(ok, bursts_allowed=bursts_allowed, force_length=force_length)


def mostly(odd: Timeline, share: float, n: int = 20) -> list[Timeline]:
    """``n`` requests of which ``share`` are like ``odd``."""
    return [odd if i < share * n else timeline(i) for i in range(n)]


def test_steady_tokens_are_measurable() -> None:
    """Also where each arrival holds several tokens."""
    assert problem(*[timeline(n) for n in range(20)]) is None
    several = timeline(arrivals=((MS * 100, 1), (MS * 160, 3), (MS * 240, 4)), end_ns=MS * 240)
    assert problem(several) is None


ODD: dict[str, tuple[Timeline, str]] = {
    "two tokens of eight": (
        timeline(gaps=(20,), finish_reason="length"),
        "asked 8 tokens, got 2, finish length",
    ),
    "one token": (timeline(gaps=()), "fewer than two gaps"),
    "one single piece": (
        timeline(arrivals=((MS * 400, TOKENS),), end_ns=MS * 400, output_tokens=TOKENS),
        "fewer than two gaps",
    ),
    "stopped early although forced": (
        timeline(gaps=(20, 20, 20), finish_reason="stop"),
        "forced length was not honoured",
    ),
    "all at once after a long wait": (
        timeline(ttft=900, gaps=(0.001,) * 7),
        "handed over together",
    ),
    "two pieces in one moment": (
        timeline(arrivals=((MS * 900, 1), (MS * 900 + 100, TOKENS - 1)), end_ns=MS * 900 + 100),
        "handed over together",
    ),
}


@pytest.mark.parametrize("bursts_allowed", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_what_gives_no_gaps_is_an_error(name: str, bursts_allowed: bool) -> None:
    """More than a tenth of such requests make ITL unmeasurable; bursts: allow is no way out."""
    odd, words = ODD[name]
    odd = replace(odd, output_tokens=odd.tokens)
    assert words in str(problem(*mostly(odd, 0.15), bursts_allowed=bursts_allowed))
    assert problem(*mostly(odd, 0.10), bursts_allowed=bursts_allowed) is None


def test_one_miscounted_request_is_enough() -> None:
    """Counts that disagree once cannot be trusted anywhere."""
    ok = [timeline(n) for n in range(60)] + [timeline(60, output_tokens=9)]
    assert "(1 of 61 requests)" in str(problem(*ok))


def test_an_early_end_is_fine_where_length_is_not_forced() -> None:
    """A natural stop is no error; nor is one on a target that cannot force and says so."""
    short = [timeline(n, gaps=(20, 20, 20), finish_reason="stop") for n in range(9)]
    assert problem(*short, force_length=False) is None
    noted = [replace(t, notes=(f"{NOT_FORCED}: decides its own",)) for t in short]
    assert problem(*noted, timeline(9)) is None


def test_nothing_but_early_ends_is_not_the_length_that_was_asked_for() -> None:
    """A target that cannot force the length must reach it once, or the policy must say so."""
    short = [
        timeline(n, gaps=(20,) * 5, finish_reason="stop", notes=(f"{NOT_FORCED}: decides",))
        for n in range(9)
    ]
    for found in (problem(*short), cut_short(short, force_length=True)):
        assert "all 9 answers stopped early (asked 8 tokens, longest 6, finish stop)" in str(found)
    assert problem(*short, force_length=False) is None
    assert cut_short(short, force_length=False) is None
    assert problem(*short[:4]) is None  # under five nobody can tell


BURSTY = timeline(gaps=(70, 0.01, 0.01, 0.01, 70, 0.01, 0.01))


def test_delivery_in_bursts_is_an_error_unless_allowed() -> None:
    """Four tokens at a time after 70 ms is something buffering, with its share in the words."""
    assert "buffered: 71% of the gaps" in str(problem(BURSTY))
    assert problem(BURSTY, bursts_allowed=True) is None


def test_a_fast_model_is_no_burst() -> None:
    """Gaps that are all short are decode steps; nothing longer holds the time."""
    assert burst_share([timeline(gaps=(0.5,) * 7)]) is None
    assert burst_share([timeline(gaps=(0.5,) * 6 + (2,))]) is None


def test_gaps_of_no_time_at_all_are_bursts() -> None:
    """A second clock tick never came: that is no speed."""
    assert burst_share([timeline(gaps=(0,) * 7)]) == 1.0


def test_inside_a_burst_the_gap_before_it_is_shared() -> None:
    """Four tokens after 70.03 ms are four samples of a quarter of it."""
    samples = itl_samples_ms(BURSTY, bursts_allowed=True)
    assert samples == pytest.approx([70.03 / 4] * 4 + [70.02 / 3] * 3)
    assert itl_samples_ms(BURSTY, bursts_allowed=False) == BURSTY.itl_ms()


@given(st.lists(st.tuples(st.integers(0, 5 * MS), st.integers(1, 4)), min_size=1, max_size=20))
def test_sharing_a_burst_loses_no_time_and_no_token(steps: list[tuple[int, int]]) -> None:
    """However tokens arrive: as many samples as later tokens, and they sum to the decode time."""
    at, given_arrivals = 100 * MS, [(100 * MS, 1)]
    for gap, k in steps:
        at += gap
        given_arrivals.append((at, k))
    t = timeline(arrivals=tuple(given_arrivals), end_ns=at)
    samples = itl_samples_ms(t, bursts_allowed=True)
    assert len(samples) == sum(k for _, k in steps)
    assert sum(samples) == pytest.approx((at - 100 * MS) / MS)


# -- too short for a rate


@pytest.mark.parametrize(
    ("odd", "force_length", "words"),
    [
        (timeline(gaps=(20,)), False, "too few tokens"),
        (timeline(gaps=()), True, "asked 8 tokens, got 1"),
        (timeline(gaps=(20, 20, 20)), True, "forced length was not honoured"),
        (timeline(gaps=(20, 20, 20)), False, None),
        (timeline(arrivals=((MS * 400, TOKENS),), end_ns=MS * 400), True, None),
    ],
)
def test_answers_cut_short_tell_no_rate(
    odd: Timeline, force_length: bool, words: str | None
) -> None:
    """Two tokens of eight say nothing about throughput; one whole answer in one piece does."""
    found = cut_short(mostly(odd, 0.15), force_length=force_length)
    assert found is None if words is None else words in str(found)


# -- lengths


@pytest.mark.parametrize(
    ("bucket", "lengths", "covered"),
    [
        (SHORT, [97, 10, 10], True),
        (SHORT, [96, 10, 10], False),
        (SHORT, [128, 10, 10, 10], False),
        (SHORT, [128, 128, 10, 10, 10, 10], True),
        (MEDIUM, [417, 129, 129], True),
        (MEDIUM, [416, 129, 129], False),
        (OPEN, [897, 513, 513], True),
        (OPEN, [896, 513, 513], False),
        (OPEN, [5000, 513, 513], True),
    ],
)
def test_a_third_must_lie_in_the_top_quarter(
    bucket: Range, lengths: list[int], covered: bool
) -> None:
    """Short prompts do not stand for the long ones of their bucket."""
    found = covers(lengths, bucket)
    assert found is None if covered else "lengths not covered" in str(found)


def test_an_open_bucket_without_an_end_is_never_covered() -> None:
    """Nobody knows how far it was to be measured."""
    assert "no upper end" in str(covers([600], Range("long", 513, None)))


# -- caches


@pytest.mark.parametrize(
    ("prompt", "cached", "template", "expected"),
    [
        (100, None, 24, False),
        (100, 0, 24, False),
        (100, 40, 24, False),  # template and one block of 16
        (100, 41, 24, True),
        (1000, 100, 24, False),  # a tenth of the prompt
        (1000, 101, 24, True),
        (1000, 17, 0, False),
    ],
)
def test_only_the_template_may_come_from_a_cache(
    prompt: int, cached: int | None, template: int, expected: bool
) -> None:
    """More than that means that the prompt was not new."""
    assert too_cached(timeline(prompt=prompt, cached_tokens=cached), template) is expected


def test_a_failed_request_is_never_sound() -> None:
    """Whatever it holds besides."""
    assert defect(replace(timeline(), status="error", error="x"), SHORT) == "x"
    assert defect(broken(), SHORT) == "RuntimeError: boom"

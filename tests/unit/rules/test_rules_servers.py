"""What only servers bring to the rules: estimates, a busy client, retries, caches, late text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gate_samples import MS, TOKENS, policy, timeline
from pytest_llmsla.finding import Finding
from pytest_llmsla.rules.checks import itl_problem, misplaced, overloaded
from pytest_llmsla.targets.http.answering import disputed
from pytest_llmsla.timeline import DISPUTED, FIRST_UNSURE, Timeline
from pytest_llmsla.verdict import Gatekeeper


def judged(timelines: list[Timeline], **keys: Any) -> dict[str, Finding]:
    """Findings of a gate on these requests, by id."""
    keeper = Gatekeeper(policy(evidence={"preset": "fast"}, **keys))
    for t in timelines:
        keeper.add(t)
    return {f.id: f for f in keeper.findings()}


def sound(n: int, **changes: Any) -> list[Timeline]:
    """``n`` requests a second apart, each with ``changes``."""
    return [replace(timeline(i, unit=i), **changes) for i in range(n)]


GUESSED = {"estimated": "13 tokens came in 4 events"}


def test_estimated_counts_give_no_itl_verdict_unless_the_policy_takes_them() -> None:
    """And then every finding says that they are estimates."""
    strict = judged(sound(60, **GUESSED))["short/itl_p95"]
    assert strict.verdict == "error"
    assert "13 tokens came in 4 events" in strict.reason
    allowed = judged(sound(60, **GUESSED), itl={"p95_ms": 50, "estimated": "allow"})
    assert allowed["short/itl_p95"].verdict == "pass"
    assert any("estimated token counts" in note for note in allowed["short/itl_p95"].notes)


def test_a_count_of_events_is_no_count_of_tokens() -> None:
    """For ITL and TGS alike, unless the policy takes it."""
    events = sound(60, token_source="events", estimated="events were counted")
    found = judged(events)
    assert found["short/itl_p95"].verdict == "error"
    assert found["tgs/concurrency-1"].verdict == "error"
    assert misplaced(events[0], estimates=True) is None


def test_ttft_does_not_need_exact_counts() -> None:
    """The first arrival is where it is."""
    assert judged(sound(60, **GUESSED))["short/ttft_p95"].verdict == "pass"


LATE = {"lag_ns": 300 * MS}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"stamp": "user", **LATE}, True),
        ({"stamp": "kernel", "merged": 3, **LATE}, True),
        ({"stamp": "kernel", "merged": 0, **LATE}, False),
        ({"stamp": "user", "lag_ns": 5 * MS}, False),
        ({"stamp": "user", "lag_ns": None}, False),
    ],
)
def test_a_client_that_was_too_late_to_see_tokens_cannot_judge(
    changes: dict[str, Any], wrong: bool
) -> None:
    """Unless the kernel stamped every arrival on its own."""
    some = sound(10, **changes)
    assert (overloaded(some) is not None) is wrong
    if wrong:
        assert "client overloaded" in str(
            itl_problem(some, bursts_allowed=False, force_length=False)
        )


def test_a_late_client_is_an_error_and_neither_pass_nor_fail() -> None:
    """For TTFT and ITL."""
    found = judged(sound(60, stamp="user", **LATE))
    assert found["short/ttft_p95"].verdict == "error"
    assert found["short/itl_p95"].verdict == "error"
    assert "client overloaded" in found["short/ttft_p95"].reason


def test_a_tenth_of_late_requests_is_tolerated() -> None:
    """One hiccup of the machine is no verdict on the run."""
    some = [*sound(54), *(replace(t, stamp="user", **LATE) for t in sound(6))]
    assert overloaded(some) is None


def test_retries_merged_reads_cached_shares_and_late_text_stand_beside_the_finding() -> None:
    """What a reader of the report must know of the numbers."""
    ts = [
        replace(
            t,
            retries=1,
            merged=2,
            cached_tokens=8,
            first_visible_ns=t.arrivals[-1][0],
        )
        for t in sound(60)
    ]
    notes = " | ".join(judged(ts)["short/ttft_p95"].notes)
    assert "60 retries in 60 requests" in notes
    assert f"120 of {60 * TOKENS} arrivals shared a read" in notes
    assert "prefix cache: 60 of 60 prompts partly cached" in notes
    assert "first visible output (TTFO) came after the first token in 60 of 60" in notes


@pytest.mark.parametrize(("share", "verdict"), [(6, "pass"), (7, "error")])
def test_a_prompt_length_that_two_counts_dispute_binds_no_ttft(share: int, verdict: str) -> None:
    """More than a tenth of the requests: nobody knows which bucket they are of."""
    note = f"{DISPUTED}: 100 tokens were counted before sending, 120 in the answer"
    some = [*sound(60 - share), *(replace(t, notes=(note,)) for t in sound(60)[60 - share :])]
    found = judged(some)["short/ttft_p95"]
    assert found.verdict == verdict
    if verdict == "error":
        assert "100 tokens were counted before sending, 120 in the answer (7 of 60" in found.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "margin", "said"),
    [
        (100, 102, 0.0, False),
        (100, 103, 0.0, True),
        (1000, 1020, 0.0, False),
        (1000, 979, 0.0, True),
        (100, 112, 0.04, False),
        (100, 113, 0.04, True),
        (None, 100, 0.0, False),
        (100, None, 0.0, False),
    ],
)
def test_counts_that_differ_by_more_than_a_date_are_disputed(
    ours: int | None, theirs: int | None, margin: float, said: bool
) -> None:
    """Two tokens or 2 %; three margins of a calibration."""
    assert bool(disputed(ours, theirs, margin)) is said


def test_a_declared_warm_cache_is_named() -> None:
    """With the share that was cached."""
    ts = [replace(t, cached_tokens=(t.prompt_tokens or 0) - 1) for t in sound(60)]
    undeclared = judged(ts)["short/ttft_p95"]
    assert undeclared.verdict == "error"
    declared = judged(ts, workload={"warm_cache": True})["short/ttft_p95"]
    assert declared.verdict == "pass"
    assert any(note.startswith("warm cache: 60 of 60") for note in declared.notes)


def test_a_first_event_that_may_hold_no_token_gives_no_ttft() -> None:
    """A sign of life sent as text would else be the first token: in one request, and in all."""
    unsure = {"estimated": f"16 tokens for 17 events: {FIRST_UNSURE}"}
    every = sound(60)
    for made in (sound(60, **unsure), [*every[:-1], replace(every[-1], **unsure)]):
        found = judged(made, itl={"p95_ms": 50, "estimated": "allow"})["short/ttft_p95"]
        assert found.verdict == "error"
        assert FIRST_UNSURE in found.reason
    assert judged(sound(60, **GUESSED))["short/ttft_p95"].verdict == "pass"

"""The order of verdicts, their exit codes, and a finding as JSON."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from gate_samples import plain_json
from pytest_llmsla.finding import EXIT_CODES, Evidence, Finding, Verdict, worst

ORDER: tuple[Verdict, ...] = ("fail", "error", "inconclusive", "conditional", "pass")


def test_every_verdict_has_a_place_and_an_exit_code() -> None:
    """Nothing that can be said is without a rank or a code."""
    assert set(ORDER) == set(get_args(Verdict)) == set(EXIT_CODES)


@pytest.mark.parametrize("pair", list(itertools.product(ORDER, repeat=2)))
def test_the_worse_of_two_wins(pair: tuple[Verdict, Verdict]) -> None:
    """fail > error > inconclusive > conditional > pass, in whatever order they come."""
    assert worst(pair) == ORDER[min(ORDER.index(v) for v in pair)]


def test_nothing_judged_is_an_error() -> None:
    """An empty gate does not pass."""
    assert worst([]) == "error"


def test_only_pass_exits_zero() -> None:
    """Every other verdict is red for the shell too."""
    assert [v for v, code in EXIT_CODES.items() if code == 0] == ["pass"]


def test_a_finding_goes_through_json_unchanged() -> None:
    """to_json holds plain values only, so reading it back gives the same."""
    found = Finding(
        id="short/ttft_p95",
        rule="ttft",
        metric="ttft",
        bucket="short",
        percentile=95.0,
        limit=300.0,
        unit="ms",
        verdict="pass",
        reason="decided after 69 requests",
        evidence=Evidence("normal", 0.05, 0.01, 1, 3.02, -3.5, 1.0, 69),
        diagnosis=("likely: nothing",),
        attempts=({"attempt": 1, "requests": 69, "observed": 100.0},),
    ).to_json()
    assert plain_json(found) == found

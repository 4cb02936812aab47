"""The server's own times beside ours, and what the client went through."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate_samples import broken, timeline
from pytest_llmsla.rules.server_side import beside, for_target, ours_ms, transport
from pytest_llmsla.timeline import PEAK

THEIRS: dict[str, Any] = {
    "requests": {"ours": 4},
    "ttft": {
        "name": "vllm:time_to_first_token_seconds",
        "what": "",
        "count": 4,
        "mean_ms": 90.0,
        "percentiles": {
            "p50": {"over_ms": 80.0, "to_ms": 100.0},
            "p95": {"over_ms": 80.0, "to_ms": None},
        },
        "reason": None,
    },
}


def test_the_difference_is_ours_minus_theirs() -> None:
    """Exact for the mean; an interval for a percentile that is known to its bucket only."""
    ours = ours_ms([timeline(n) for n in range(4)])
    found = beside(ours, THEIRS)["ttft"]
    assert found["ours"]["mean_ms"] == found["ours"]["p95_ms"] == 100.0
    assert found["difference"]["mean_ms"] == 10.0
    assert found["difference"]["p50_ms"] == [0.0, 20.0]
    assert found["difference"]["p95_ms"] == [None, 20.0]
    assert "p99_ms" not in found["difference"]
    assert found["reason"] is None


def test_what_the_server_does_not_tell_has_no_difference() -> None:
    """The server's own reason stays; nothing is put in its place."""
    theirs = {"itl": {"mean_ms": None, "reason": "this server publishes none"}}
    found = beside(ours_ms([timeline(0)]), theirs)
    assert found["itl"]["reason"] == "this server publishes none"
    assert found["ttft"]["reason"] == "the server does not tell it"
    assert found["itl"]["difference"] == found["ttft"]["difference"] == {}
    nothing = beside(ours_ms([broken(0)]), THEIRS)["ttft"]
    assert nothing["ours"]["mean_ms"] is None
    assert nothing["reason"] == "no answer of ours has it"


def test_failed_and_estimated_requests_give_no_gaps() -> None:
    """An estimate of where tokens were is not set beside a measurement."""
    guessed = replace(timeline(0), estimated="usage and events disagree")
    found = ours_ms([guessed, broken(1)])
    assert (found["itl"]["count"], found["ttft"]["count"]) == (0, 1)
    assert found["itl"]["mean_ms"] is None


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6) | st.text(),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(
                    ["ttft", "itl", "mean_ms", "percentiles", "p50", "over_ms", "to_ms", "requests"]
                ),
                inner,
            )
            | st.lists(inner, max_size=2)
        ),
    )
)
def test_any_line_is_survived(said: Any) -> None:
    """A log from elsewhere may hold anything: figures or reasons, and no exception."""
    out = for_target([{"gate": None, "server": said}], [timeline(0)])
    json.dumps(out, allow_nan=False)


def test_the_release_gate_and_its_measured_requests_are_compared() -> None:
    """Not a test's own gate, not the warm-up, not the peak requests."""
    mine = [timeline(n) for n in range(4)]
    rest = [
        replace(timeline(4), warmup=True),
        replace(timeline(5), purpose=PEAK),
        replace(timeline(6), gate="t.py::test_a"),
    ]
    lines = [
        {"gate": "t.py::test_a", "server": {**THEIRS, "source": "other"}},
        {"gate": None, "server": {**THEIRS, "requests": {"ours": 1}}},
        {"gate": None, "server": THEIRS},
    ]
    found = for_target(lines, [*mine, *rest])["server_side"]
    assert found["requests"] == {"ours": 4}
    assert found["beside"]["ttft"]["ours"]["count"] == 4
    assert "beside_note" not in found
    assert "source" not in found


def test_figures_of_other_requests_are_marked() -> None:
    """A window that held more or fewer of our requests is said, with both numbers."""
    found = for_target([{"gate": None, "server": THEIRS}], [timeline(0)])["server_side"]
    assert found["beside_note"] == "the server's figures are of 4 requests of ours, ours of 1"


def test_nothing_is_said_of_a_target_without_a_server() -> None:
    """In-process targets have neither."""
    assert for_target([], [timeline(0)]) == {}
    assert for_target([{"gate": None, "server": None}], []) == {}


def test_retries_merged_reads_estimates_and_lag_are_counted() -> None:
    """Over all requests, failed ones too."""
    heard = [
        replace(timeline(0), stamp="kernel", lag_ns=200_000, retries=2, merged=3),
        replace(timeline(1), stamp="user", lag_ns=900_000, estimated="why", server_ms={}),
        replace(timeline(2), stamp="kernel", server_ms={"prefill": 60.0}),
        replace(broken(3), lag_ns=100, retries=1),
    ]
    found = transport(heard)
    assert found["requests"] == 4
    assert found["stamps"] == {"kernel": 2, "user": 1}
    assert (found["retries"], found["retried"]) == (3, 2)
    arrivals = sum(len(t.arrivals) for t in heard)
    assert found["merged_share"] == pytest.approx(3 / arrivals)
    assert found["estimated_reasons"] == [{"reason": "why", "count": 1}]
    assert found["lag_p95_ms"] == 0.9
    assert found["prefill"] == {"requests": 1, "median_ms": 60.0, "after_prefill_ms": 40.0}

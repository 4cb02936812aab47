"""Diagnoses speak only where the figures give ground, and always show the figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmsla import diagnose
from pytest_llmsla.finding import Finding
from pytest_llmsla.timeline import Timeline

MS = 1_000_000


def finding(rule: str, **changes: Any) -> Finding:
    base = Finding(
        id=f"short/{rule}_p95",
        rule=rule,  # type: ignore[arg-type]
        metric=rule,
        bucket="short",
        percentile=95,
        limit=300,
        unit="ms",
        verdict="fail",
        reason="over",
    )
    return replace(base, **changes)


def request(
    index: int = 0, *, ttft: float = 100, gaps: tuple[float, ...] = (), **changes: Any
) -> Timeline:
    start = index * 10_000 * MS
    at = start + int(ttft * MS)
    arrivals = [(at, 1)]
    for gap in gaps:
        at += int(gap * MS)
        arrivals.append((at, 1))
    base = Timeline(
        id=str(index),
        bucket="short",
        start_ns=start,
        end_ns=at,
        arrivals=tuple(arrivals),
        prompt_tokens=60,
        max_new_tokens=len(arrivals),
    )
    return replace(base, **changes)


def test_growth_with_prompt_length_is_named_with_both_ends() -> None:
    """A TTFT that follows prompt length is told so, with the figures of either end."""
    runs = [
        request(i, ttft=3 * n, prompt_tokens=n) for i, n in enumerate((40, 120) * 3 + (80,) * 3)
    ]
    (line, *_) = diagnose.explain(finding("ttft", stages={"prefill": 0.88, "sample": 0.06}), runs)
    assert "prefill dominates (88% of TTFT) and grows with prompt length" in line
    assert "120.0 ms at about 40 tokens" in line
    assert "360.0 ms at about 120" in line


def test_flat_ttft_over_the_limit_points_to_fixed_costs() -> None:
    """Slow at every length is not blamed on prompt processing."""
    runs = [request(i, ttft=400 + i % 2, prompt_tokens=20 + 10 * i) for i in range(12)]
    lines = diagnose.explain(finding("ttft"), runs)
    assert any("fixed cost" in line for line in lines)
    assert not any("grows" in line for line in lines)


def test_a_cold_first_request_is_named() -> None:
    """A first sample more than five times the rest is called cold and stays on record."""
    runs = [request(0, ttft=5000)] + [request(i, ttft=100) for i in range(1, 20)]
    assert any(
        "cold (5000.0 ms, median of the rest 100.0 ms)" in line
        for line in diagnose.explain(finding("ttft"), runs)
    )


def test_drift_over_the_run_is_seen_and_steady_noise_is_not() -> None:
    """Only a clear rise from the first to the last third is called drift."""
    rising = [request(i, ttft=100 + 10 * i) for i in range(30)]
    noisy = [request(i, ttft=100 + 30 * (i % 3)) for i in range(30)]
    assert any("rose over the run" in line for line in diagnose.explain(finding("ttft"), rising))
    assert diagnose.explain(finding("ttft"), noisy) == ()


def test_itl_that_rises_with_position_points_to_the_kv_cache() -> None:
    """The published staircase of gaps (24 to 68 ms) is recognised as cache reads."""
    stairs = (24.3,) * 10 + (31.7,) * 40 + (42.1,) * 50 + (68.5,) * 10
    runs = [request(i, gaps=stairs) for i in range(6)]
    lines = diagnose.explain(finding("itl", limit=50), runs)
    assert "KV-cache reads grow" in lines[0]
    assert "31.7 ms near token" in lines[0]
    assert "42.1 ms near token" in lines[0]


def test_single_stalls_are_told_from_slow_steps() -> None:
    """One gap of 900 ms among gaps of 20 is a stall; gaps of 60 are a slow step."""
    stalled = [request(i, gaps=(20,) * 60 + (900,) + (20,) * 60) for i in range(5)]
    slow = [request(i, gaps=(60,) * 60) for i in range(5)]
    by_stall = diagnose.explain(finding("itl", metric="stall", limit=500), stalled)
    by_step = diagnose.explain(finding("itl", limit=50), slow)
    assert len(by_stall) == 1
    assert "single stalls: 5 of 605 gaps" in by_stall[0]
    assert "longest 900.0 ms" in by_stall[0]
    assert len(by_step) == 1
    assert "ordinary step is over the limit (median 60.0 ms)" in by_step[0]


def test_costly_sampling_is_named_with_its_settings() -> None:
    """A quarter of a step spent in sampling is worth a word."""
    runs = [
        request(
            i,
            gaps=(40,) * 30,
            stages={"sample": 30, "decode": 70},
            sampling={"temperature": 0.8, "top_p": 0.9, "greedy": False, "top_k": None},
        )
        for i in range(3)
    ]
    lines = diagnose.explain(finding("itl", limit=35), runs)
    assert any("sampling takes 30% of a step with temperature, top_p" in line for line in lines)


def test_throughput_lost_to_waiting_or_short_answers() -> None:
    """A floor on throughput is explained by time before the first token and by early stops."""
    runs = [request(i, ttft=900, gaps=(20,) * 5, max_new_tokens=64) for i in range(4)]
    tgs = finding("tgs", bucket=None, id="tgs/concurrency-1", limit=60, unit="tok/s")
    lines = diagnose.explain(tgs, runs)
    assert lines[0].startswith("90% of request time")
    assert "24 of 256 tokens" in lines[1]
    assert diagnose.explain(replace(tgs, limit=None), runs) == ()


def test_errors_of_one_kind_are_one_line() -> None:
    """5000 errors of three kinds make three lines with counts, whatever figures they hold."""
    kinds = ("CUDA out of memory: tried {} MiB", "connection refused by port {}", "odd thing {}")
    runs = [request(i, status="error", error=kinds[i % 3].format(i)) for i in range(5000)]
    lines = diagnose.explain(finding("error", metric="error_rate", limit=0), runs)
    assert [line.split(" ", 1)[0] for line in lines] == ["1667", "1667", "1666"]
    assert "more memory" in lines[0]
    assert "→" not in lines[2]


def test_only_the_requests_of_the_finding_count() -> None:
    """Warm-up, other buckets and other gates never enter a diagnosis."""
    slow = [request(i, ttft=100 + 50 * i) for i in range(12)]
    others = [
        *[replace(t, warmup=True) for t in slow],
        *[replace(t, bucket="long") for t in slow],
        *[replace(t, gate="test_a.py::test_b") for t in slow],
    ]
    assert diagnose.explain(finding("ttft"), others) == ()
    own_gate = finding("ttft", id="test_a.py::test_b/short/ttft_p95")
    assert diagnose.explain(own_gate, others) == diagnose.explain(finding("ttft"), slow) != ()


@pytest.mark.parametrize("rule", ["ttft", "itl", "tgs", "error", "memory"])
def test_no_ground_no_word(rule: str) -> None:
    """Without requests, and for a PASS that met its limit, nothing is said."""
    assert diagnose.explain(finding(rule), []) == ()
    fine = [request(i, gaps=(20,) * 10) for i in range(20)]
    assert diagnose.explain(finding(rule, verdict="pass"), fine) == ()


whole = st.integers(min_value=0, max_value=10**12)
timelines = st.builds(
    Timeline,
    id=st.uuids().map(str),
    bucket=st.sampled_from(["short", "long"]),
    start_ns=whole,
    end_ns=whole,
    arrivals=st.lists(st.tuples(whole, st.integers(0, 4)), max_size=30).map(
        lambda a: tuple(sorted(a))
    ),
    prompt_tokens=st.none() | st.integers(0, 2000),
    output_tokens=st.none() | st.integers(0, 50),
    max_new_tokens=st.integers(0, 64),
    status=st.sampled_from(["ok", "error"]),
    error=st.none() | st.text(max_size=20),
    stages=st.dictionaries(st.sampled_from(["prefill", "sample", "decode"]), whole, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(["ttft", "itl", "tgs", "error", "memory"]),
    runs=st.lists(timelines, max_size=25),
    limit=st.none() | st.floats(0.1, 1e4),
)
def test_any_timelines_are_survived(rule: str, runs: list[Timeline], limit: float | None) -> None:
    """A diagnosis never breaks a report: whatever the timelines, it answers in finite words."""
    for line in diagnose.explain(finding(rule, limit=limit), runs):
        assert line.strip()
        assert not re.search(r"\b(nan|inf) ms|\bnan%", line)

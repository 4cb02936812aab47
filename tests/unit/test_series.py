"""What pictures are drawn from: right, bounded, the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate_samples import MS, broken, log_lines_of, policy, timeline, write_log
from pytest_llmsla.judging import judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.reports.json_report import schema
from pytest_llmsla.series import arrival_rows, request_rows, series_of
from pytest_llmsla.series.decay import decay_of
from pytest_llmsla.series.resources import resources_of
from pytest_llmsla.series.shapes import by_position, histogram, thinned
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.timeline import PEAK
from run_samples import release, requests, samples

POSITIVE = st.lists(st.floats(0.0, 1e7), min_size=1, max_size=200)


def series(tmp_path: Path, loaded: Any, timelines: Any, *more: Any) -> dict[str, Any]:
    lines = log_lines_of(loaded, timelines)
    log = read_run(write_log(tmp_path / "t.jsonl", [*lines[:-1], *more, lines[-1]]))
    made = series_of(log, judge_log(log))
    shape = {**schema("report"), **schema("report")["properties"]["series"]}
    for key in ("allOf", "title", "$id"):
        shape.pop(key, None)
    jsonschema.Draft202012Validator(shape).validate(json.loads(json.dumps(made)))
    return made


@settings(deadline=None)
@given(POSITIVE, st.integers(1, 40))
def test_a_histogram_counts_every_value_once(values: list[float], bins: int) -> None:
    """Counts add up, edges rise, and no more bins than asked for are made."""
    shape = histogram(values, bins)
    assert shape is not None
    assert sum(shape["counts"]) == len(values)
    assert len(shape["edges"]) == len(shape["counts"]) + 1 <= bins + 1
    assert shape["edges"] == sorted(shape["edges"])
    assert shape["scale"] == "linear" or shape["edges"][0] > 0


def test_no_values_have_no_histogram() -> None:
    """Nothing measured is nothing drawn, not a bar at 0."""
    assert histogram([], 10) is None
    assert by_position([2], [[]], 10) is None


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1e5), min_size=1, max_size=30), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_quantiles_along_the_answer_are_nearest_ranks(gaps: list[list[float]], most: int) -> None:
    """Each bin holds exactly its positions' samples, and their nearest ranks."""
    made = by_position([2] * len(gaps), gaps, most)
    assert made is not None
    assert len(made["from"]) <= most
    for k, (first, last) in enumerate(zip(made["from"], made["to"], strict=True)):
        inside = [v for g in gaps for i, v in enumerate(g, 2) if first <= i <= last]
        assert made["n"][k] == len(inside)
        assert made["median"][k] == pytest.approx(nearest_rank(inside, 0.50), abs=1e-3)
        assert made["p95"][k] == pytest.approx(nearest_rank(inside, 0.95), abs=1e-3)
    assert sum(made["n"]) == sum(map(len, gaps))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=400), st.integers(5, 80))
def test_thinning_keeps_order_and_the_heaviest(weights: list[float], most: int) -> None:
    """At most so many, in their order, the largest among them, the same every time."""
    items = list(range(len(weights)))
    kept = thinned(items, weights, most)
    assert kept == sorted(set(kept)) == thinned(items, weights, most)
    assert len(kept) == min(most, len(items))
    if items:
        assert weights.index(max(weights)) in kept


def test_a_bucket_s_series_are_its_sound_measured_requests(tmp_path: Path) -> None:
    """Warm-up, peak and failed requests are in no series; failed ones are counted."""
    given = [
        timeline(0, warmup=True, ttft=5000),
        *(timeline(n, unit=n - 1, ttft=100 + n, prompt=100 + n) for n in range(1, 9)),
        broken(9, unit=8),
        timeline(10, purpose=PEAK, unit=0, ttft=7000, prompt=20),
    ]
    [group] = series(tmp_path, policy(), given)["buckets"]
    assert (group["requests"], group["failed"]) == (9, 1)
    assert group["lengths"] == {
        "prompt_tokens": list(range(101, 109)),
        "ttft_ms": [100.0 + n for n in range(1, 9)],
        "of": 8,
    }
    assert sum(group["ttft"]["counts"]) == 8
    assert sum(group["itl"]["counts"]) == 8 * 7
    assert group["positions"]["from"] == list(range(2, 9))


def test_levels_of_concurrency_are_groups_of_their_own(tmp_path: Path) -> None:
    """Requests at another concurrency, or on a schedule, are never pooled with the others."""
    given = [timeline(n, unit=n) for n in range(4)]
    loaded = policy(tgs={"concurrency": [1, 4]})
    given += [
        timeline(4 + n, unit=0, concurrency=4, block=4, start_ns=MS * 10**9 + n, prompt=120 - n)
        for n in range(4)
    ]
    groups = series(tmp_path, loaded, given)["buckets"]
    assert [(g["concurrency"], g["requests"]) for g in groups] == [(1, 4), (4, 4)]


def test_the_slowest_are_told_with_their_reason(tmp_path: Path) -> None:
    """The longest TTFT and the longest gap are among them, and one that is usual."""
    given = [timeline(n) for n in range(30)]
    given[7] = timeline(7, ttft=900)
    given[11] = timeline(11, gaps=(20, 20, 700, 20, 20, 20, 20))
    [group] = series(tmp_path, policy(), given)["buckets"]
    by_why = {one["why"]: one for one in reversed(group["slowest"])}
    assert by_why["ttft"]["id"] == "r000007"
    assert by_why["gap"]["id"] == "r000011"
    assert by_why["gap"]["largest_gap_ms"] == 700
    assert [140, 840] in by_why["gap"]["gaps"]
    assert by_why["usual"]["total_ms"] == 240
    assert len(group["slowest"]) <= 8


def test_the_size_has_a_bound(tmp_path: Path) -> None:
    """Long answers and many gates make no large report: points, ticks and bins are thinned."""
    loaded = release({"name": "only", "prompt_max": 128, "ttft_ms": 300}, tokens=2000)
    few = series(tmp_path, loaded, requests(loaded, each=8))
    assert len(json.dumps(few)) < 60_000
    names = [{"name": f"b{n}", "prompt_max": n * 10 + 10, "ttft_ms": 300} for n in range(60)]
    many = series(tmp_path, policy(*names), [
        timeline(n, bucket=f"b{n}", prompt=n * 10 + 5, unit=0) for n in range(60)
    ])  # fmt: skip
    assert len(many["buckets"]) == 60
    assert len(json.dumps(many)) < 60 * 3_000


def test_readings_over_time_are_binned_whatever_their_columns(tmp_path: Path) -> None:
    """Columns come by their names, with least, most and the mean of each stretch."""
    lines = list(samples(30.0))
    made = series(tmp_path, policy(), [timeline(0)], *lines)["resources"]
    columns = {c["name"]: c for c in made["columns"]}
    assert made["readings"] == 300
    assert columns["gpu_util"]["about"] == "GPU-0, made up"
    rss = columns["process_rss_mib"]
    assert (rss["least"], rss["most"]) == (820, pytest.approx(820 + 299 / 9, abs=0.01))
    assert rss["values"] == sorted(rss["values"])
    assert len(rss["values"]) == len(made["seconds"]) <= 120


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"phase": "sample", "columns": {"t_ns": [5], "x": [1.0]}}],
        [{"phase": "sample", "columns": {"t_ns": [], "x": []}}],
        [{"phase": "measured", "t_ns": 0, "memory": {"rss_peak": 1.0}}] * 3,
    ],
)
def test_readings_at_one_moment_are_no_series(lines: list[Any]) -> None:
    """Nothing over time is drawn from fewer than two moments."""
    assert resources_of(lines) is None


def test_missing_and_odd_readings_leave_holes() -> None:
    """null, text and huge numbers are no readings; a clock that starts anew is put at the end."""
    lines = [
        {"phase": "sample", "columns": {"t_ns": [0, 10**9], "x": [None, 2.0], "y": [1, "a"]}},
        {"phase": "sample", "columns": {"t_ns": [0, 10**9], "x": [4.0, 10**400], "y": [1, 1]}},
    ]
    made = resources_of(lines)
    assert made is not None
    columns = {c["name"]: c["values"] for c in made["columns"]}
    assert columns["x"] == [None, None, 3.0, None]
    assert columns["y"] == [1.0, None, 1.0, 1.0]
    assert made["readings"] == 4


def test_decay_needs_two_levels_and_names_what_no_loss_gives() -> None:
    """Rates over concurrency; peak and recorded figures are no part of it."""
    entries = [
        {"kind": "steady", "concurrency": 1, "tokens_per_s": 63.0},
        {"kind": "peak", "concurrency": 1, "tokens_per_s": 128.0},
        {"kind": "recorded", "concurrency": 8, "tokens_per_s": 999.0},
    ]
    assert decay_of(entries) is None
    made = decay_of([*entries, {"kind": "concurrent", "concurrency": 4, "tokens_per_s": 182.0}])
    assert made == {
        "concurrency": [1, 4],
        "tokens_per_s": [63.0, 182.0],
        "per_request": [63.0, 45.5],
        "without_loss": [63.0, 252.0],
    }


def test_rows_of_the_tables() -> None:
    """A request's row has its TTFT, TPOT and longest gap; an arrival's the gap before it."""
    given = [timeline(0, gaps=(20, 60, 10)), broken(1)]
    first, failed = request_rows(given)
    assert (first["ttft_ms"], first["largest_gap_ms"], first["tpot_ms"]) == (100.0, 60.0, 30.0)
    assert failed["ttft_ms"] is None
    assert failed["error"] == "RuntimeError: boom"
    rows = list(arrival_rows(given))
    assert [r["gap_ms"] for r in rows] == [None, 20.0, 60.0, 10.0]
    assert [r["t_ms"] for r in rows] == [100.0, 120.0, 180.0, 190.0]

"""What every limit promises: PASS only on evidence, and never for what is missing or broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate_samples import (
    MS,
    SHORT,
    TOKENS,
    broken,
    judged,
    log_lines_of,
    policy,
    reading,
    timeline,
    verdicts,
    write_log,
)
from pytest_llmsla.errors import UsageError
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import PEAK, Timeline
from pytest_llmsla.verdict import Gatekeeper, limits_of

EVERYTHING: dict[str, Any] = {
    "itl": {"p50_ms": 50, "p95_ms": 50, "p99_ms": 50, "stall_p95_ms": 50},
    "tgs": {"min_tokens_per_s": 5},
    "memory": {
        "allocated_peak_gib": 64,
        "reserved_peak_gib": 64,
        "device_used_peak_gib": 64,
        "rss_peak_gib": 64,
    },
}
PRESETS = ("fast", "normal", "strict", "observed")
GATES = (None, "t.py::t")
ENOUGH = 700
"""Clean requests that pass every limit under every preset but ``observed``."""


def everything(preset: str, **groups: Any) -> LoadedPolicy:
    budget = {"max_requests": "auto"}
    return policy(SHORT, **EVERYTHING, **groups, evidence={"preset": preset, **budget})


def full(n: int) -> dict[str, Any]:
    figures = dict.fromkeys(("allocated_peak", "reserved_peak", "device_used_peak"), 2.0)
    return reading(2.0, **figures)


def complete(loaded: LoadedPolicy, timelines: list[Timeline], gate: str | None) -> Gatekeeper:
    keeper = Gatekeeper(loaded, gate=gate)
    for n, t in enumerate(timelines):
        keeper.add(t)
        keeper.resources(full(n))
    keeper.end("requests")
    return keeper


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_limit_can_pass_where_it_may(preset: str, gate: str | None) -> None:
    """With clean evidence each passes; observed evidence passes no statistics of a release."""
    keeper = complete(everything(preset), [timeline(n) for n in range(ENOUGH)], gate)
    found = verdicts(keeper)
    assert set(found) == {limit.id for limit in keeper.limits}
    if preset != "observed" or gate is not None:
        assert set(found.values()) == {"pass"}
    else:
        passed = {name for name, v in found.items() if v == "pass"}
        assert all(name.startswith("memory/") for name in passed)


NOTHING: dict[str, Callable[[], list[Timeline]]] = {
    "no request": list,
    "warm-up only": lambda: [timeline(n, warmup=True) for n in range(200)],
    "peak only": lambda: [timeline(n, purpose=PEAK, bucket=PEAK) for n in range(200)],
    "another bucket only": lambda: [timeline(n, bucket="else") for n in range(200)],
    "failures only": lambda: [broken(n) for n in range(200)],
    "no token": lambda: [timeline(n, arrivals=()) for n in range(200)],
    "no length": lambda: [timeline(n, prompt=None) for n in range(200)],
    "outside": lambda: [timeline(n, prompt=4000) for n in range(200)],
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NOTHING)
def test_no_limit_passes_on_nothing(name: str, preset: str, gate: str | None) -> None:
    """Absent, an error, inconclusive or failed, whatever was asked for."""
    keeper = complete(everything(preset), NOTHING[name](), gate)
    assert "pass" not in verdicts(keeper).values()
    keeper.problem(None, "gone")
    assert "pass" not in verdicts(keeper).values()


DAMAGE: dict[str, Callable[[Timeline], Timeline]] = {
    "failed": lambda t: replace(t, status="error", error="boom"),
    "no token": lambda t: replace(t, arrivals=()),
    "an empty arrival": lambda t: replace(t, arrivals=(*t.arrivals, (t.end_ns, 0))),
    "length unknown": lambda t: replace(t, prompt_tokens=None),
    "too long a prompt": lambda t: replace(t, prompt_tokens=129),
    "too many tokens": lambda t: replace(t, max_new_tokens=TOKENS - 1),
    "more than judged": lambda t: replace(t, max_new_tokens=TOKENS + 1),
    "asked for nothing": lambda t: replace(t, max_new_tokens=0),
    "a first token before the start": lambda t: replace(t, start_ns=t.end_ns),
    "a first token at the start": lambda t: replace(t, start_ns=t.arrivals[0][0]),
    "times out of order": lambda t: replace(t, arrivals=t.arrivals[::-1]),
    "an end before its tokens": lambda t: replace(t, end_ns=t.start_ns),
    "sent before it was due": lambda t: replace(t, scheduled_ns=t.start_ns + 1),
    "not alone": lambda t: replace(t, concurrency=2),
    "counted otherwise": lambda t: replace(t, output_tokens=TOKENS + 1),
    "not counted": lambda t: replace(t, output_tokens=None),
    "of an unknown source": lambda t: replace(t, token_source=None),
    "counted as events": lambda t: replace(t, token_source="events"),
    "from a cache": lambda t: replace(t, cached_tokens=100),
    "a prompt sent before": lambda t: replace(t, notes=("prompt repeated: again",)),
    "sampling unknown": lambda t: replace(t, sampling={}),
    "begun within the one before": lambda t: replace(
        t, start_ns=t.start_ns - 10_000_000 * MS + 5, arrivals=t.arrivals
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
@settings(max_examples=8, deadline=None)
@given(at=st.integers(1, 44))
def test_one_damaged_request_keeps_a_run_from_passing(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: int
) -> None:
    """A run that would pass does not, wherever the damaged request stands, live or from its log."""
    loaded = policy(evidence={"preset": "fast"})
    every = [timeline(n) for n in range(45)]
    every[at] = DAMAGE[name](every[at])
    assert worst_of(judged(loaded, every)) != "pass"
    path = tmp_path_factory.mktemp("log") / "timelines.jsonl"
    write_log(path, log_lines_of(loaded, every))
    try:
        log = read_run(path)
    except UsageError:
        return  # refused: there is no verdict at all
    assert build_report(log, judge_log(log))["verdict"] != "pass"


def worst_of(keeper: Gatekeeper) -> str:
    found = set(verdicts(keeper).values())
    return "pass" if found == {"pass"} else "red"


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([100.0, 250.0, 300.0, 301.0, 900.0]),
        st.sampled_from([20.0, 50.0, 50.1, 200.0]),
        st.integers(1, 140),
        st.sampled_from([None, None, None, None, None, None, None, None, *DAMAGE]),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.sampled_from(PRESETS), st.sampled_from(GATES))
def test_a_pass_always_rests_on_its_evidence(
    requests: list[tuple[float, float, int, str | None]], preset: str, gate: str | None
) -> None:
    """Enough sound requests, a value and a bound that keep the limit, no failure hidden."""
    every = []
    for n, (ttft, gap, prompt, damage) in enumerate(requests):
        t = timeline(n, ttft=ttft, gaps=(gap,) * (TOKENS - 1), prompt=prompt)
        every.append(t if damage is None else DAMAGE[damage](t))
    keeper = complete(everything(preset), every, gate)
    for found in keeper.findings():
        if found.verdict != "pass":
            continue
        assert found.limit is not None
        assert found.requests > 0
        assert found.observed is not None
        if found.rule in ("ttft", "itl"):
            assert found.observed <= found.limit
            assert found.evidence is not None
            if found.evidence.min_units is not None:
                assert found.units >= found.evidence.min_units
                assert found.upper is not None
                assert found.upper <= found.limit
            else:
                assert gate is not None
        if found.rule == "error":
            assert found.exceeded == 0
            assert all(t.prompt_tokens is not None and t.prompt_tokens <= 128 for t in every)
        if found.rule == "tgs":
            assert found.observed >= found.limit


@pytest.mark.parametrize("gate", GATES)
def test_every_limit_says_where_it_is_written(gate: str | None) -> None:
    """Ids are unique, units are named, sources are there."""
    limits = limits_of(everything("normal"), gate)
    assert len({limit.id for limit in limits}) == len(limits)
    assert all(limit.unit and limit.source for limit in limits)


def test_the_same_requests_give_the_same_findings(tmp_path: Path) -> None:
    """Nothing in a verdict depends on when or how often it is asked for."""
    every = [timeline(n, ttft=90 + n % 13) for n in range(50)]
    keeper = complete(everything("fast"), every, None)
    first = [f.to_json() for f in keeper.findings()]
    assert [f.to_json() for f in keeper.findings()] == first
    asked_often = Gatekeeper(everything("fast"))
    for n, t in enumerate(every):
        asked_often.add(t)
        asked_often.resources(full(n))
        asked_often.findings()
        asked_often.running("short")
        asked_often.undecided("short")
    asked_often.end("requests")
    assert [f.to_json() for f in asked_often.findings()] == first

"""The load that limits are to hold under: every bucket in the mix, bursts judged as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, takewhile

import pytest

from gate_samples import LONG, MS, SHORT, judged, policy
from load_samples import closed, opened
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline

BOTH = policy(SHORT, LONG, tgs={"concurrency": [4]})
REQUESTS = 4 * 69


def found(loaded: LoadedPolicy, timelines: Iterable[Timeline]) -> dict[str, Finding]:
    """Findings by id."""
    return {f.id: f for f in judged(loaded, timelines).findings()}


def test_a_bucket_asked_alone_was_not_under_the_load_of_the_policy() -> None:
    """``-k short``, then the same for the other: no two such runs make a PASS."""
    alone = found(BOTH, closed(4, REQUESTS, buckets=("short",)))["short/ttft_p95"]
    assert alone.verdict == "inconclusive"
    assert "the mix was not kept: 0 of 276 requests were of bucket long" in alone.reason
    whole = found(BOTH, closed(4, 2 * REQUESTS, buckets=("short", "long")))
    assert whole["short/ttft_p95"].verdict == whole["long/ttft_p95"].verdict == "pass"


def test_another_mix_is_another_load() -> None:
    """Equal shares where three of four were to be long; the bucket that had enough is no better."""
    heavy = policy(
        SHORT, LONG, tgs={"concurrency": [4]}, workload={"load": {"mix": {"short": 1, "long": 3}}}
    )
    equal = closed(4, 2 * REQUESTS, buckets=("short", "long"))
    assert found(heavy, equal)["short/ttft_p95"].verdict == "inconclusive"
    asked = closed(4, 4 * REQUESTS, buckets=("short", "long", "long", "long"))
    assert found(heavy, asked)["short/ttft_p95"].verdict == "pass"


@pytest.mark.parametrize(("block", "verdict"), [(1, "inconclusive"), (8, "pass")])
def test_a_burst_is_one_unit_however_long_the_pause(block: int, verdict: str) -> None:
    """Eight at once each minute: 0.04 in flight on average, and still eight share their luck."""
    load = {"kind": "trace", "trace": "bursts.csv"}
    due = (float(k // 8 * 60_000) for k in count())
    bursts = opened(list(takewhile(lambda at: at < 75 * 60_000, due)), places=64, block=block)
    f = found(policy(workload={"load": load}), bursts)["short/ttft_p95"]
    assert f.verdict == verdict
    assert ("in bursts, each met 7.0 others" in f.reason) == (block == 1)


@pytest.mark.parametrize(
    ("bound", "every", "verdict"), [(None, 10, "inconclusive"), (4, 10, "pass"), (None, 30, "pass")]
)
def test_a_client_without_places_is_no_load_unless_it_is_asked_for(
    bound: int | None, every: int, verdict: str
) -> None:
    """One in ten waits for a place: fewer were in flight than came, and no gap was held under it.

    A bound that the policy sets is part of its load; one request in thirty is under P95.
    """
    load = {"kind": "constant", "rate": 4, "max_in_flight": bound}
    sent = [
        replace(t, stages={"client_queue": 40 * MS}) if i % every == 0 else t
        for i, t in enumerate(opened([250.0 * i for i in range(300)], places=4, block=2))
    ]
    by_id = found(policy(workload={"load": load}), sent)
    assert {f.verdict for name, f in by_id.items() if name.startswith("short/")} == {verdict}
    (note,) = [n for n in by_id["short/ttft_p95"].notes if "waited for a place" in n]
    assert note.startswith(f"{300 // every} of 300 requests waited")
    assert ("all places of the client were taken" in by_id["short/itl_p95"].reason) == (
        verdict == "inconclusive"
    )

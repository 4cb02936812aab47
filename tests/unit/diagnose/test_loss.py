"""What many requests at once lose: shares that add up, evidence that is there, else no cause."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_llmsla.diagnose.bandwidth import bandwidth_of
from pytest_llmsla.diagnose.loss import LEAST, NOT_ATTRIBUTABLE, Load, attribute
from pytest_llmsla.diagnose.samples import Samples, samples_of
from pytest_llmsla.reports import summary
from pytest_llmsla.timeline import NS_PER_MS, Timeline

TOKENS = 11
H200 = "NVIDIA H200, GPU-1"


def request(ttft: float, step: float, **stages: float) -> Timeline:
    """One answer of eleven tokens; milliseconds."""
    arrivals = tuple((round((ttft + i * step) * NS_PER_MS), 1) for i in range(TOKENS))
    return Timeline(
        "r",
        "b",
        start_ns=0,
        end_ns=arrivals[-1][0],
        arrivals=arrivals,
        prompt_tokens=100,
        output_tokens=TOKENS,
        max_new_tokens=TOKENS,
        stages={name: round(ms * NS_PER_MS) for name, ms in stages.items()},
    )


def load(
    n: int,
    ttft: float,
    step: float,
    *,
    mode: str | None = None,
    columns: dict[str, list[float]] | None = None,
    about: dict[str, str] | None = None,
    **stages: float,
) -> Load:
    """A level that keeps n such requests in flight."""
    rate = n * TOKENS / (ttft + (TOKENS - 1) * step) * 1000
    samples = Samples(columns or {}, about or {})
    return Load(n, rate, [request(ttft, step, **stages)] * 3, samples, mode)


def causes(found: list[dict[str, Any]]) -> dict[str, float | None]:
    return {f["cause"]: f["share"] for f in found}


ALONE = load(1, 100, 10)


def test_nothing_lost_is_no_cause() -> None:
    """n requests that are as fast as one need no explanation, and faster ones none either."""
    assert attribute(load(4, 100, 10), ALONE) == []
    assert attribute(load(4, 90, 9), ALONE) == []
    assert attribute(load(4, 101, 10.1), ALONE) == []


def test_shares_are_those_of_the_requests_time() -> None:
    """A request of 600 ms instead of 200: half of it waits longer, a sixth decodes longer."""
    found = attribute(load(4, 400, 20), ALONE)
    assert causes(found) == {"prefill": 0.5, NOT_ATTRIBUTABLE: pytest.approx(1 / 6, abs=1e-3)}
    assert sum(f["share"] for f in found) == pytest.approx(1 - 200 / 600, abs=2e-3)
    assert "400.0 instead of 100.0 ms" in found[0]["evidence"]
    assert "no probe says why" in found[1]["evidence"]


def test_waiting_by_the_requests_own_stages() -> None:
    """What they waited for their turn is a queue; the rest before the first token is not."""
    found = attribute(load(4, 400, 10, queue=150.0, client_queue=50.0), ALONE)
    assert causes(found) == {"queue": 0.4, "prefill": 0.2}
    assert "waits 200.0 ms for its turn" in found[0]["evidence"]


def test_waiting_by_the_servers_metrics() -> None:
    """Requests that wait in the server generate nothing: their share of all there."""
    columns = {"server_waiting": [2.0, 2.0], "server_running": [2.0, 2.0]}
    found = attribute(load(4, 400, 10, columns=columns), ALONE)
    assert causes(found) == {"queue": 0.5, "prefill": 0.1}
    assert "2.0 requests wait in the server on average, 2.0 run" in found[0]["evidence"]


def test_a_queue_is_no_more_than_what_the_wait_grew_by() -> None:
    """Metrics of a server that others use too cannot explain more than was lost."""
    columns = {"server_waiting": [90.0], "server_running": [10.0]}
    found = attribute(load(4, 200, 10, columns=columns), ALONE)
    assert causes(found) == {"queue": pytest.approx(1 / 3, abs=1e-3)}


def test_device_and_host_are_told_apart() -> None:
    """Where the device's own time is known, the growth is divided."""
    alone = load(1, 100, 10, decode_device=80.0)
    found = attribute(load(4, 100, 30, mode="continuous", decode_device=180.0), alone)
    assert causes(found) == {"device": 0.25, "launches/host": 0.25}
    found = attribute(load(4, 100, 30, mode="threads", decode_device=80.0), alone)
    assert causes(found) == {"lock": 0.5}
    assert "on the device 8.0 instead of 8.0 ms" in found[0]["evidence"]


def test_a_step_that_reads_as_fast_as_the_card_can() -> None:
    """13 GB every 4 ms are 3.3 of the 4.8 TB/s of the card: bandwidth, with the figures."""
    facts = {"weight_bytes": 13 * 10**9, "kv_bytes_per_token": 500_000}
    more = {"columns": {"gpu_util": [99.0]}, "about": {"gpu_util": H200}}
    alone = load(1, 20, 3, decode_device=29.0)
    level = load(4, 20, 4, mode="continuous", decode_device=39.0, **more)  # type: ignore[arg-type]
    found = attribute(level, alone, facts)
    assert causes(found) == {"bandwidth": pytest.approx(1 / 6, abs=1e-3)}
    assert "13.2 GB a step) are read at 69%" in found[0]["evidence"]
    slow = load(4, 20, 40, mode="continuous", decode_device=390.0, **more)  # type: ignore[arg-type]
    assert "bandwidth" not in causes(attribute(slow, alone, facts))


def test_threads_that_wait_for_each_other() -> None:
    """Steps grow with the threads while card and cores have time: the interpreter's lock."""
    for columns in ({"gpu_util": [30.0], "system_cpu": [99.0]}, {"system_cpu": [50.0]}):
        found = attribute(load(4, 100, 40, mode="threads", columns=columns), ALONE)
        assert causes(found) == {"lock": 0.6}
        assert "4.0 times, 4 threads" in found[0]["evidence"]
    busy = load(4, 100, 40, mode="threads", columns={"gpu_util": [95.0]})
    assert causes(attribute(busy, ALONE)) == {NOT_ATTRIBUTABLE: 0.6}


def test_a_busy_processor() -> None:
    """Without a card, cores that are all busy are the ground."""
    columns = {"system_cpu": [97.0, 99.0], "process_cpu": [190.0], "server_cpu": [3.0]}
    found = attribute(load(4, 100, 30, mode="http", columns=columns), ALONE)
    assert causes(found) == {"cpu": 0.5}
    assert (
        "98 % of all cores are busy (this process 190 % of a core, the server 3 %"
        in (found[0]["evidence"])
    )


def test_signs_have_no_share() -> None:
    """Preemptions, a full cache and a lowered clock are told without a figure that nobody has."""
    columns = {
        "server_preemptions": [0.0, 7.0],
        "server_kv_percent": [60.0, 99.0],
        "gpu_slowed": [0.0, 4.0],
        "gpu_sm_mhz": [1980.0, 1200.0],
    }
    found = attribute(load(4, 400, 10, columns=columns, about={"gpu_slowed": H200}), ALONE)
    assert [f["cause"] for f in found] == ["prefill", "preemption", "kv cache", "throttling"]
    assert [f["share"] for f in found[1:]] == [None] * 3
    assert "preempted 7 requests" in found[1]["evidence"]
    words = "1 of 2 samples (software power cap), usually at 1590 MHz"
    assert words in found[3]["evidence"]


def test_why_a_clock_was_held_down_is_said_once_and_only_where_it_is_known() -> None:
    """Reasons of all samples together; a figure that is no mask gives none, and breaks nothing."""
    columns = {"gpu_slowed": [0x40, 0x44, 0x1, -1.0, math.inf]}
    found = attribute(load(4, 400, 10, columns=columns, about={"gpu_slowed": H200}), ALONE)
    (slow,) = [f for f in found if f["cause"] == "throttling"]
    assert "5 of 5 samples (hardware thermal slowdown, software power cap)" in slow["evidence"]
    columns = {"gpu_slowed": [1.0, 1.0]}
    found = attribute(load(4, 400, 10, columns=columns, about={"gpu_slowed": H200}), ALONE)
    (slow,) = [f for f in found if f["cause"] == "throttling"]
    assert slow["evidence"].endswith("2 of 2 samples")


def test_a_loss_that_nothing_explains_is_not_attributable() -> None:
    """Requests as fast as alone and a rate that is not: no cause is made up."""
    level = load(4, 100, 10)
    found = attribute(Load(4, level.rate / 2, level.timelines), ALONE)
    assert causes(found) == {NOT_ATTRIBUTABLE: None}
    assert "50% of n × single is lost" in found[0]["evidence"]


def test_answers_of_one_token_say_nothing() -> None:
    """Without a step there is nothing to compare."""
    one = Timeline("r", "b", start_ns=0, end_ns=5, arrivals=((5, 1),))
    assert attribute(Load(4, 10.0, [one]), Load(1, 10.0, [one])) == []


def test_samples_are_those_of_the_level() -> None:
    """From its first to its last start, in its own clock segment; nulls are left out."""

    def line(segment: int, **columns: list[Any]) -> dict[str, Any]:
        return {"phase": "sample", "segment": segment, "columns": columns}

    timelines = [
        Timeline("a", "b", start_ns=10, end_ns=20, segment=1),
        Timeline("c", "b", start_ns=30, end_ns=90, segment=1),
    ]
    lines = [
        line(0, t_ns=[20], x=[99.0]),
        line(1, t_ns=[5, 10, 20], x=[1.0, 2.0, None], y=[None] * 3),
        line(1, t_ns=[30, 31], x=[4.0, 5.0]),
        {"phase": "measured", "memory": {}},
    ]
    found = samples_of(lines, timelines)
    assert found.columns == {"x": [2.0, 4.0]}
    assert (found.mean("x"), found.most("x"), found.median("y")) == (3.0, 4.0, None)


@pytest.mark.parametrize(
    ("name", "tb"),
    [
        ("NVIDIA H200, GPU-4aaa", 4.8),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA A100-SXM4-40GB", 1.555),
        ("NVIDIA A10G", 0.6),
        ("Tesla T4", 0.32),
        ("NVIDIA H200, MIG-1", None),
        ("NVIDIA L400", None),
        ("", None),
    ],
)
def test_bandwidth_by_name(name: str, tb: float | None) -> None:
    """A card that is not known, and a slice of one, has no figure."""
    assert bandwidth_of(name) == (None if tb is None else pytest.approx(tb * 1e12))
    assert LEAST < 1


def test_reports_word_it_with_its_evidence() -> None:
    """A loss stands beside the figure it explains, its share only where it is known."""
    entry = {"losses": attribute(load(4, 400, 10, columns={"server_preemptions": [7.0]}), ALONE)}
    assert summary.tgs_remarks(entry) == [
        (
            "likely lost to prefill",
            "about 60 % of what as many requests would give one by one: "
            "the first token comes after 400.0 instead of 100.0 ms: "
            "prompts of the others are computed before or beside it",
        ),
        ("likely lost to preemption", "the server preempted 7 requests: its KV cache is short"),
    ]

"""A server's figures over time: by the names it has, on a connection of their own."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.errors import TargetError
from pytest_llmsla.targets.http.samples import MetricsOverTime
from pytest_llmsla.wire.loop import Loop

RECORDED = Path(__file__).parents[2] / "servers" / "recorded"
COLUMNS = ("server_running", "server_waiting", "server_kv_percent", "server_preemptions")
NONE = "the server publishes none"


class Told:
    """A client whose server says ``bodies``, one a fetch, the last for ever."""

    def __init__(self, *bodies: str, status: int = 200) -> None:
        self._bodies = [body.encode() for body in bodies]
        self.status = status
        self.headers: Mapping[str, str] = {}
        self.body = b""
        self.asked: list[tuple[str, bool]] = []
        self.closed = 0

    def fetch(
        self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0, root: bool
    ) -> Told:
        self.asked.append((path, root))
        self.body = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]
        return self

    def close(self) -> None:
        self.closed += 1


def read(*bodies: str) -> list[Any]:
    """The last of as many readings."""
    over_time = MetricsOverTime(Told(*bodies), "metrics", root=True)
    for _ in bodies[1:]:
        over_time.read()
    return list(over_time.read())


def test_columns_are_the_gauges() -> None:
    assert MetricsOverTime.columns == COLUMNS


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("vllm_metrics.http", [0.0, 0.0, 0.0, 0.0]),
        ("llamacpp_metrics.http", [0.0, 0.0, NONE, NONE]),
    ],
)
def test_what_real_servers_publish(file: str, expected: list[Any]) -> None:
    """Their recorded metrics have these figures, and what they lack is no 0."""
    assert read((RECORDED / file).read_text(encoding="utf-8")) == expected


def test_engines_are_added_up_and_the_fullest_cache_counts() -> None:
    """Two engines of one server: their requests together, the larger share of the two."""
    body = "\n".join(
        [
            'vllm:num_requests_running{engine="0"} 3',
            'vllm:num_requests_running{engine="1"} 5',
            'vllm:num_requests_waiting{engine="0"} 2',
            'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            'vllm:kv_cache_usage_perc{engine="1"} 0.75',
        ]
    )
    assert read(body) == [8.0, 2.0, 75.0, NONE]


def test_preemptions_count_from_the_first_reading() -> None:
    """A counter is what was added since; one that went back is no figure."""
    lines = ["vllm:num_preemptions_total 40", "vllm:num_preemptions_total 47"]
    assert read(*lines)[3] == 7.0
    assert "went back" in read(*reversed(lines))[3]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_what_cannot_be_a_count_is_none(value: str) -> None:
    """Never a figure, never 0."""
    assert read(f"vllm:num_requests_running {value}")[0] == NONE


def test_a_server_that_refuses_is_a_reason() -> None:
    """No metrics, no figure."""
    client = Told("", status=503)
    with pytest.raises(TargetError, match="503"):
        MetricsOverTime(client, "metrics", root=True).read()


def test_its_connection_is_its_own_and_is_closed() -> None:
    """The sampler reads where the metrics were found, seldom, and closes what it opened."""
    client = Told("vllm:num_requests_running 1")
    source = MetricsOverTime(client, "prometheus/metrics", root=True).source()
    source.read()
    assert client.asked == [("prometheus/metrics", True)]
    assert source.slow
    assert source.close is not None
    source.close()
    assert client.closed == 1


def test_a_loop_that_nobody_times_leaves_collection_alone() -> None:
    """The end of such an exchange must not begin collection again under another's streams."""
    gc.disable()
    try:
        loop = Loop(timed=False)
        loop._hold_collection()
        loop._collect_again()
        assert not gc.isenabled()
        loop.close()
    finally:
        gc.enable()

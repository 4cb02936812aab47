"""The difference of two readings of a server's metrics: exact, or absent with its reason."""

from __future__ import annotations

import bisect
import itertools
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from http_answers import served
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PromCounter
from prometheus_client import Histogram as PromHistogram

from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.http.metric_names import EVERY, VLLM, Histogram
from pytest_llmsla.targets.http.metrics import RESET, Snapshot, histogram
from pytest_llmsla.targets.http.server_side import OTHERS, Sent, server_side
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.wire.errors import WireError

TTFT = Histogram(("vllm:time_to_first_token_seconds",))
EDGES = (0.1, 0.25, 0.5, 1.0)
EMPTY = Snapshot("/metrics")


def text(
    counts: tuple[float, ...], total: float, *, name: str = TTFT.names[0], labels: str = ""
) -> str:
    """A histogram as a server writes it; ``counts`` are cumulated, the last is that of +Inf."""
    edges = [*map(str, EDGES[: len(counts) - 1]), "+Inf"]
    comma = "," if labels else ""
    lines = [f"# HELP {name} of the test", f"# TYPE {name} histogram"]
    lines += [
        f'{name}_bucket{{{labels}{comma}le="{e}"}} {c}' for e, c in zip(edges, counts, strict=True)
    ]
    return "\n".join(
        [*lines, f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {counts[-1]}"]
    )


def gained(before: str, after: str, model: str | None = None) -> dict[str, Any]:
    return histogram(Snapshot.parse(before), Snapshot.parse(after), TTFT, model)


# -- histograms


@settings(deadline=None)
@given(
    st.lists(st.floats(0.001, 3.0), max_size=30),
    st.lists(st.floats(0.001, 3.0), min_size=1, max_size=60),
)
def test_the_bucket_holds_the_nearest_rank_of_what_was_added(
    earlier: list[float], added: list[float]
) -> None:
    """Against the client library's own histogram: only the values added between count."""
    registry = CollectorRegistry()
    h = PromHistogram(TTFT.names[0], "x", ["model_name"], buckets=EDGES, registry=registry)
    for value in earlier:
        h.labels("m").observe(value)
    before = generate_latest(registry).decode()
    for value in added:
        h.labels("m").observe(value)
    found = gained(before, generate_latest(registry).decode())
    assert found["reason"] is None
    assert found["count"] == len(added)
    assert found["mean_ms"] == pytest.approx(sum(added) / len(added) * 1000, rel=1e-6)
    edges = [0.0, *EDGES, math.inf]
    for percent in (50, 95, 99):
        value = nearest_rank(added, percent / 100)
        assert value is not None
        place = bisect.bisect_left(edges, value)
        upper = edges[place]
        assert found["percentiles"][f"p{percent}"] == {
            "over_ms": edges[place - 1] * 1000,
            "to_ms": None if upper == math.inf else upper * 1000,
        }


def test_series_of_several_engines_are_added_up() -> None:
    """Data-parallel engines publish a series each."""
    one = text((0, 1, 2, 2, 2), 0.8, labels='engine="0"')
    two = text((0, 0, 0, 0, 8), 16.0, labels='engine="1"')
    found = gained("", f"{one}\n{two}")
    assert (found["count"], found["mean_ms"]) == (10, 1680.0)
    assert found["percentiles"]["p50"] == {"over_ms": 1000.0, "to_ms": None}


def test_only_the_series_of_the_model_count_where_it_is_named() -> None:
    """Another model of the same server is left out; a server that names none is taken whole."""
    ours = text((4, 4, 4, 4, 4), 0.2, labels='model_name="a"')
    other = text((0, 0, 0, 0, 4), 40.0, labels='model_name="b"')
    assert gained("", f"{ours}\n{other}", "a")["mean_ms"] == 50.0
    assert gained("", f"{ours}\n{other}", "not listed")["count"] == 8
    assert gained("", text((4, 4, 4, 4, 4), 0.2), "a")["count"] == 4


REASONS = {
    "nothing there": ("", "", "is not there"),
    "nothing added": (text((1, 1, 1, 1, 1), 0.1), text((1, 1, 1, 1, 1), 0.1), "nothing was added"),
    "went back": (text((5, 5, 5, 5, 5), 0.5), text((1, 1, 1, 1, 1), 0.1), RESET),
    "a series vanished": (
        text((1, 1, 1, 1, 1), 0.1, labels='engine="1"'),
        text((9, 9, 9, 9, 9), 0.1, labels='engine="0"'),
        RESET,
    ),
    "NaN": ("", text((1, 1, 1, 1, 1), math.nan), "no finite number"),
    "infinite": ("", text((1, 1, 1, 1, math.inf), 0.1), "no finite number"),
    "too large": ("", text((1e300,) * 5, 0.1), "no finite number"),
    "too large for a float": ("", text((1, 1, 1, 1, 1), 0.1).replace(" 0.1", " 1e999"), "finite"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_had_is_absent_with_its_reason(name: str) -> None:
    """No count, no mean, no percentile is made up from broken counters."""
    before, after, reason = REASONS[name]
    found = gained(before, after)
    assert reason in found["reason"]
    assert (found["count"], found["mean_ms"], found["percentiles"]) == (None, None, {})


NO_BUCKETS = {
    "no buckets": "\n".join(
        f"{TTFT.names[0]}_{part} {value}" for part, value in (("sum", 0.4), ("count", 4))
    ),
    "no last bucket": text((1, 2, 3, 4, 4), 0.4).replace('le="+Inf"', 'le="2"'),
    "no edge": text((1, 2, 3, 4, 4), 0.4).replace('{le="0.5"}', "{}"),
    "an edge that is no number": text((1, 2, 3, 4, 4), 0.4).replace("0.5", "half"),
    "an edge below 0": text((1, 2, 3, 4, 4), 0.4).replace("0.5", "-3"),
    "an edge that is NaN": text((1, 2, 3, 4, 4), 0.4).replace("0.5", "NaN"),
    "not cumulated": text((3, 2, 1, 1, 4), 0.4),
    "count and buckets differ": text((1, 2, 3, 4, 5), 0.4).replace("_count{} 5", "_count{} 4"),
    "series with other buckets": "\n".join(
        [
            text((1, 1, 2), 0.2, labels='engine="0"'),
            text((1, 1, 1, 1, 2), 0.2, labels='engine="1"'),
        ]
    ),
}


@pytest.mark.parametrize("name", NO_BUCKETS)
def test_without_sound_buckets_there_is_a_mean_and_no_percentile(name: str) -> None:
    """Sum and count still tell the mean; nothing is interpolated."""
    found = gained("", NO_BUCKETS[name])
    assert (found["count"], found["mean_ms"]) == (4, 100.0)
    assert found["percentiles"] == {}
    assert found["reason"]


def test_a_broken_line_costs_no_other() -> None:
    """Garbage between the lines, also with known names, is left out."""
    good = text((4, 4, 4, 4, 4), 0.4)
    bad = [f'{TTFT.names[0]}_bucket{{le="', f"{TTFT.names[0]}_sum", "}{", "\x00", "# EOF", ""]
    bad += [f"{TTFT.names[0]}_count x" + "y" * 50_000, f"{TTFT.names[0]}_count{{a=b}} 1"]
    assert gained("", "\n".join([*bad, good, *bad]))["count"] == 4


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(0, 4))
def test_any_text_is_survived(noise: str, where: int) -> None:
    """A mutated exposition gives figures or reasons, finite and JSON-ready."""
    lines = text((1, 2, 3, 4, 4), 0.4).split("\n")
    lines[where] = lines[where][: len(noise) % 40] + noise
    line = server_side(EMPTY, Snapshot.parse("\n".join(lines)), Sent(4, 16), "m")
    json.dumps(line, allow_nan=False)


# -- readings


def test_metrics_are_found_below_the_root() -> None:
    """base_url's /v1 is not part of it; TensorRT-LLM has them elsewhere, with JSON at /metrics."""
    good = text((4, 4, 4, 4, 4), 0.4)
    for answers, source in (
        ({"/metrics": good}, "/metrics"),
        ({"/metrics": "[]", "/prometheus/metrics": good}, "/prometheus/metrics"),
    ):
        with served(answers) as (client, _):
            found = Snapshot.take(client)
        assert (found.problem, found.source) == (None, source)


class Silent:
    """Gives no answer below ``/metrics``; ``page`` on the other path."""

    def __init__(self, error: str, page: str) -> None:
        self.asked: list[str] = []
        self._error = error
        self._page = page

    def fetch(self, method: str, path: str, *_: object, **__: object) -> Any:
        self.asked.append(path)
        if path == "metrics":
            raise WireError(self._error)
        return SimpleNamespace(status=200, headers={}, body=self._page.encode())


def test_a_reset_on_the_first_path_keeps_nobody_from_the_second() -> None:
    """Some front ends hang up on paths that they do not know; both found nothing: the first says
    why. One that was waited for in vain is not waited for twice."""
    good = f"{TTFT.names[0]}_sum 1"
    reset = Silent("the server reset the connection", good)
    assert Snapshot.take(reset).source == "/prometheus/metrics"
    found = Snapshot.take(Silent("the server reset the connection", "nothing"))
    assert (found.answered, "reset the connection" in str(found.problem)) == (False, True)
    slow = Silent("timed out: not complete after 10 s", good)
    assert not Snapshot.take(slow).answered
    assert slow.asked == ["metrics"]


def test_a_metrics_url_is_read_as_it_stands() -> None:
    """Another port or path: nothing is put behind it."""
    with served({"/stats/prom?x=1": text((4, 4, 4, 4, 4), 0.4)}) as (client, server):
        url = f"http://127.0.0.1:{server.server_port}/stats/prom?x=1"
        own = Client(Address.parse(url))
        assert Snapshot.take(own, url).problem is None
        own.close()
        assert client.address.prefix == "/v1"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "answered 404"),
        ({"/metrics": "<html>"}, "no figure with a name that is known"),
        ({"/metrics": b"\xff\xfe"}, "no figure with a name that is known"),
        ({"/metrics": "vllm:num_requests_running 1"}, "no figure with a name that is known"),
        ({"/metrics": "\n".join([f"{TTFT.names[0]}_sum 1"] * 60_000)}, "over 50000 samples"),
    ],
)
def test_a_reading_that_fails_says_why(answers: dict[str, Any], words: str) -> None:
    """The line then holds the reason and no figure."""
    with served(answers) as (client, _):
        found = Snapshot.take(client)
    assert words in str(found.problem)
    line = server_side(found, found, Sent(1))
    assert line["reason"] == found.problem
    assert "ttft" not in line


def test_gauges_are_given_by_name() -> None:
    """Finite values of every series; names without one are left out."""
    found = Snapshot.parse(
        'nv_gpu_memory_used_bytes{gpu="0"} 5\nnv_gpu_memory_used_bytes{gpu="1"} NaN\n'
        "process_resident_memory_bytes NaN"
    )
    names = ["nv_gpu_memory_used_bytes", "process_resident_memory_bytes", "x"]
    assert found.values(names) == {"nv_gpu_memory_used_bytes": [5.0]}


# -- the whole line


def vllm(requests: int, tokens: int, start: float = 100.0, kv: object = 0.5) -> Snapshot:
    return Snapshot.parse(
        f"""process_start_time_seconds {start}
vllm:request_success_total{{finished_reason="stop"}} {requests - 1}
vllm:request_success_total{{finished_reason="length"}} 1
vllm:generation_tokens_total {tokens}
vllm:kv_cache_usage_perc{{engine="0"}} 0.1
vllm:kv_cache_usage_perc{{engine="1"}} {kv}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="100",engine="0"}} 1
vllm:cache_config_info{{block_size="16",num_gpu_blocks="50",engine="1"}} 1
"""
        + text((requests,) * 5, requests * 0.08)
    )


def test_the_line_of_a_server_that_was_ours_alone() -> None:
    """Counts agree, no warning, the fullest cache, the capacity of all engines."""
    line = server_side(vllm(10, 640), vllm(30, 1920), Sent(20, 1280))
    assert line["type"] == "server"
    assert (line["software"], line["reason"], line["warnings"]) == ("vllm", None, [])
    assert (line["requests"]["server"], line["requests"]["others"]) == (20, 0)
    assert line["ttft"]["mean_ms"] == pytest.approx(80)
    assert line["kv_cache"]["after"] == 0.5
    assert line["kv_cache"]["capacity_tokens"] == 2400
    assert line["itl"]["reason"].endswith("is not there")
    json.dumps(line, allow_nan=False)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (Sent(15, 1280), "counted 20 requests between the two readings, 15 of them ours"),
        (Sent(20, None), None),
        (Sent(25, 1280), None),  # one that failed was never counted
    ],
)
def test_requests_of_others_are_told(sent: Sent, words: str | None) -> None:
    """More requests than ours: a warning with both numbers."""
    warnings = server_side(vllm(10, 640), vllm(30, 1920), sent)["warnings"]
    if words is None:
        assert warnings == []
    else:
        assert warnings[0].startswith(OTHERS)
        assert words in warnings[0]


CACHED = {
    "vllm:prefix_cache_hits_total": "vllm:request_success_total",
    "sglang:cached_tokens_total": "sglang:num_requests_total",
    "llamacpp:prompt_tokens_cached_total": "llamacpp:tokens_predicted_total",
}


@pytest.mark.parametrize("name", CACHED)
def test_hits_of_a_prefix_cache_stand_beside_what_answers_told(name: str) -> None:
    """The counter's gain over all its labels, the tokens told, and how many requests told none."""

    def reading(n: int) -> Snapshot:
        return Snapshot.parse(
            f'{CACHED[name]} {n}\n{name}{{cache_source="device"}} {n * 16}\n'
            f'{name}{{cache_source="host"}} 5\n'
        )

    sent = Sent(20, 100, cached_tokens=96, silent=14)
    cache = server_side(reading(10), reading(30), sent)["prefix_cache"]
    assert cache == {"names": [name], "hits": 320, "told": 96, "silent": 14, "reason": None}


def test_hits_in_a_cache_behind_vllm_are_added() -> None:
    """A connector (LMCache and the like) has a counter of its own; those of another model not."""

    def reading(own: int, behind: int) -> Snapshot:
        names = ("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total")
        return Snapshot.parse(
            "vllm:request_success_total 1\n"
            + "".join(
                f'{n}{{model_name="m"}} {v}\n{n}{{model_name="other"}} {9 * v}\n'
                for n, v in zip(names, (own, behind), strict=True)
            )
        )

    cache = server_side(reading(10, 0), reading(58, 32), Sent(3), "m")["prefix_cache"]
    assert cache["hits"] == 80
    assert len(cache["names"]) == 2


def test_a_cache_without_a_counter_says_nothing() -> None:
    """None with a reason, never 0: also where the counter went back."""
    none = server_side(vllm(10, 640), vllm(30, 1920), Sent(20, 1280, silent=20))["prefix_cache"]
    assert (none["hits"], none["silent"]) == (None, 20)
    assert none["reason"] == "this server publishes no counter of them"
    name = "vllm:prefix_cache_hits_total"
    before = Snapshot.parse(f"{name} 50\nvllm:generation_tokens_total 1")
    after = Snapshot.parse(f"{name} 10\nvllm:generation_tokens_total 2")
    assert server_side(before, after, Sent(1))["prefix_cache"]["reason"] == RESET


def test_a_restart_leaves_no_figure() -> None:
    """Even counters that only rose belong to two processes when the start time changed."""
    line = server_side(vllm(10, 640), vllm(30, 1920, start=200.0), Sent(20, 1280))
    assert line["reason"] == RESET
    assert "ttft" not in line
    behind = server_side(vllm(30, 1920), vllm(10, 640), Sent(20, 1280))
    assert behind["warnings"] == [RESET]
    assert behind["ttft"]["reason"] == RESET


@pytest.mark.parametrize("kv", ["NaN", "1.5", "-0.1", "55"])
def test_a_usage_that_is_no_share_is_absent(kv: str) -> None:
    """55 may be percent or tokens: not guessed."""
    line = server_side(vllm(10, 640), vllm(30, 1920, kv=kv), Sent(20, 1280))
    assert line["kv_cache"]["after"] is None
    assert "no share" in line["kv_cache"]["reason"]


def test_every_known_server_is_told_by_its_names() -> None:
    """One request counter or token counter is enough to know the software."""
    for names in EVERY:
        name = (*names.requests, *names.tokens)[0]
        found = server_side(Snapshot.parse(f"{name} 0"), Snapshot.parse(f"{name} 5"), Sent(5, 5))
        assert found["software"] == names.software
        assert found["reason"] is None


def test_the_names_of_a_server_are_its_own() -> None:
    """No sample name stands for two servers, so that the software cannot be mistaken."""
    for one, two in itertools.combinations(EVERY, 2):
        assert not {n for h in one.histograms().values() for n in h.names} & {
            n for h in two.histograms().values() for n in h.names
        }
    assert VLLM.itl.names[0] == "vllm:inter_token_latency_seconds"  # the older name comes second


def test_tgi_counters_keep_their_names() -> None:
    """They are declared as counters without the suffix that the library would add."""
    registry = CollectorRegistry()
    PromCounter("tgi_request_success", "x", registry=registry).inc(7)
    plain = "# TYPE tgi_request_success counter\ntgi_request_success 7"
    suffixed = generate_latest(registry).decode()
    for after in (plain, suffixed):
        before = after.replace(" 7", " 0")
        line = server_side(Snapshot.parse(before), Snapshot.parse(after), Sent(5))
        assert line["requests"]["server"] == 7


# -- llama.cpp: sums alone


def llamacpp(prompt_s: float, tokens: int, decode_s: float) -> Snapshot:
    return Snapshot.parse(
        f"llamacpp:prompt_seconds_total {prompt_s}\nllamacpp:tokens_predicted_total {tokens}\n"
        f"llamacpp:tokens_predicted_seconds_total {decode_s}"
    )


def test_llamacpp_sums_give_means_when_all_of_it_is_ours() -> None:
    """Two requests of 11 tokens have 20 gaps; its decode time begins with the first token."""
    line = server_side(llamacpp(1.0, 100, 2.0), llamacpp(1.5, 122, 2.4), Sent(2, 22))
    assert line["itl"]["mean_ms"] == pytest.approx(20)
    assert line["prefill"]["mean_ms"] == pytest.approx(250)
    assert (line["itl"]["count"], line["itl"]["percentiles"]) == (20, {})
    assert "no percentiles" in line["itl"]["reason"]


@pytest.mark.parametrize("sent", [Sent(2, 21), Sent(2, None)])
def test_llamacpp_sums_with_others_in_them_give_nothing(sent: Sent) -> None:
    """A mean over others' requests would be nobody's."""
    line = server_side(llamacpp(1.0, 100, 2.0), llamacpp(1.5, 122, 2.4), sent)
    assert line["itl"]["mean_ms"] is None
    assert line["prefill"]["mean_ms"] is None

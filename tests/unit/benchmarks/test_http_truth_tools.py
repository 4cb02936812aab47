"""What other tools write is read by request; what is not measured decides no claim."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other by name, from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> Any:
    return importlib.import_module(name)


def test_vllm_gives_gaps_in_seconds_and_the_key_in_the_text() -> None:
    """Columns of one index belong to one request."""
    found = module("peers.tools").vllm_said(
        {
            "generated_texts": ["key=m4 on on", ""],
            "ttfts": [0.1, 0.0],
            "itls": [[0.02, 0.03], []],
            "output_lens": [3, 0],
        }
    )
    assert (found[0].key, found[0].ttft_ms, found[0].tokens) == ("m4", 100.0, 3)
    assert found[0].gaps_ms == pytest.approx((20.0, 30.0))
    assert found[1].key == ""


def test_guidellm_gives_a_mean_and_the_key_in_the_body() -> None:
    """Requests that failed are not there, so that they are lost."""
    request = {
        "request_args": '{"body":{"messages":[{"content":"key=m2 Say"}]}}',
        "time_to_first_token_ms": 101.0,
        "inter_token_latency_ms": 20.5,
        "output_tokens": 32,
    }
    found = module("peers.tools").guidellm_said(
        {"benchmarks": [{"requests": {"successful": [request], "errored": [{}]}}]}
    )
    assert [(s.key, s.ttft_ms, s.gaps_ms, s.mean_itl_ms) for s in found] == [
        ("m2", 101.0, None, 20.5)
    ]


def test_aiperf_is_matched_by_the_request_id_that_it_sent() -> None:
    """A request that the server did not see, or that failed, is not there."""
    metrics = {
        "time_to_first_token": {"value": 101.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [20.0, 21.0], "unit": "ms"},
    }
    lines = [
        {"metadata": {"x_request_id": "a"}, "metrics": metrics},
        {"metadata": {"x_request_id": "b"}, "metrics": metrics},
        {"metadata": {"x_request_id": "c"}, "metrics": {}, "error": {"code": 500}},
    ]
    found = module("peers.tools").aiperf_said(lines, {"a": "m0", "c": "m2"})
    assert [(s.key, s.ttft_ms, s.gaps_ms) for s in found] == [("m0", 101.0, (20.0, 21.0))]


def test_servebench_is_matched_by_index() -> None:
    """Moments in seconds from the start of the request; a failed one is not there."""
    requests = [
        {"index": 1, "ok": True, "chunk_times": [0.1, 0.12, 0.15], "output_tokens": 3},
        {"index": 0, "ok": False, "chunk_times": [], "output_tokens": None},
    ]
    found = module("peers.tools").servebench_said(
        {"levels": [{"requests": requests}]}, ["w0", "m0"]
    )
    assert [(s.key, s.ttft_ms) for s in found] == [("m0", 100.0)]
    assert found[0].gaps_ms == pytest.approx((20.0, 30.0))


def test_a_load_warms_each_stream_and_names_every_request() -> None:
    """Warm-ups first; each prompt holds its key, none occurs twice."""
    load = module("peers.base").Load.of("http://x", 8, 4, 32, None, Path())
    keys = [k for k, _ in load.asks]
    assert keys == [f"w{i}" for i in range(8)] + [f"m{i}" for i in range(32)]
    assert all(f"key={k} " in p for k, p in load.asks)


def test_an_environment_that_is_not_there_is_absent() -> None:
    """With the name of the folder to make."""
    base = module("peers.base")
    with pytest.raises(base.Absent, match=r"\.venv-no-such-tool"):
        base.installed("no-such-tool", "no-such-tool")


def results(ours: float, other: float, late: float = 0.0) -> Any:
    def row(value: float) -> dict[str, Any]:
        return {
            "runs": 1,
            "ttft_error": {"p99": value},
            "gap_error": {"p99": value},
            "reported_itl_p95_minus_truth": -value,
            "server_late": {"p95": late},
            "quiet": late < 1,
        }

    return {"ours": {"8": row(ours)}, "tool": {"8": row(other)}}


@pytest.mark.parametrize(
    ("ours", "other", "late", "holds"),
    [(0.1, 0.2, 0.0, True), (0.3, 0.2, 0.0, False), (0.3, 0.2, 5.0, None), (0.1, 0.2, 5.0, None)],
)
def test_ours_is_held_to_the_best_other(ours: float, other: float, late: float, holds: Any) -> None:
    """Three figures at each number of streams; what disturbed a run leaves them open."""
    claims = module("http_accuracy").accuracy_claims(results(ours, other, late), (8,))
    assert [c["holds"] for c in claims] == [holds] * 3


def test_nothing_to_compare_with_decides_nothing() -> None:
    """Without another client, or without a result of ours, a claim stays open."""
    alone = results(0.1, 0.2)
    del alone["tool"]
    failed = results(0.1, 0.2)
    failed["ours"]["8"] = {"runs": 0, "failed": ["exit code 1"]}
    for given in (alone, failed):
        claims = module("http_accuracy").accuracy_claims(given, (8,))
        assert [c["holds"] for c in claims] == [None] * 3


def step(rate: float) -> Any:
    return module("truth.search").Step(rate, rate, 1.0, 0.1, 0.0)


def test_the_rate_is_held_to_three_times_the_best_tool() -> None:
    """The plain client is no tool: it is held against our wire room without the rest."""
    claims = module("http_accuracy").rate_claims
    both = {"ours": step(3000.0), "a": step(900.0), "b": step(1000.0)}
    both |= {"ours-bare": step(4000.0), "aiohttp": step(1500.0)}
    assert [(c["holds"], "(b)" in c["what"]) for c in claims(both)] == [
        (True, True),
        (False, False),
    ]
    assert [c["holds"] for c in claims({"ours": step(2900.0), "a": step(1000.0)})] == [False]
    assert [c["holds"] for c in claims({"ours": None, "a": step(1000.0)})] == [None]
    assert [c["holds"] for c in claims({"ours": step(9.0), "a": None})] == [None]

"""Figures that somebody else made: observed, labelled, and never a PASS."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from foreign_files import (
    BOTH,
    DECLARED,
    SUMMARIES,
    VALUES,
    aiperf,
    aiperf_summary,
    calls,
    checked,
    endpoints_summary,
    inference_perf,
    llmperf_summary,
    policy,
    vllm_summary,
    write,
)

from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.errors import UsageError
from pytest_llmsla.reports.json_report import schema

TELLS_LENGTHS = sorted(set(SUMMARIES) - {"vllm"})


def summary(folder: Path, name: str, **changed: Any) -> Path:
    return write(folder / f"{name}.json", SUMMARIES[name](**changed))


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_never_passes(name: str, tmp_path: Path) -> None:
    """However good its figures, and with everything declared that rule 3 asks for: exit not 0."""
    got = checked(summary(tmp_path, name), policy(tmp_path, target=DECLARED))
    assert "pass" not in got.verdicts.values()
    assert got.report["verdict"] != "pass"
    assert got.code in (1, 2, 3)
    jsonschema.Draft202012Validator(schema("report")).validate(got.report)


@pytest.mark.parametrize("name", VALUES)
def test_requests_without_their_place_never_pass(name: str, tmp_path: Path) -> None:
    """Requests of unknown overlap are observed only."""
    got = checked(VALUES[name](tmp_path, calls(400)), policy(tmp_path, target=DECLARED))
    found = got.finding("short/ttft_p95")
    assert (found["verdict"], found["observed"]) == ("inconclusive", 100.0)
    assert "observed, n=400: not release evidence" in found["reason"]
    assert found["notes"] == ["percentiles: nearest rank over the file's requests"]
    assert got.code in (1, 2, 3)
    jsonschema.Draft202012Validator(schema("report")).validate(got.report)


@pytest.mark.parametrize("name", TELLS_LENGTHS)
def test_the_tool_s_percentile_is_shown_with_its_method(name: str, tmp_path: Path) -> None:
    """P95 as the tool gives it, with how it takes percentiles."""
    found = checked(summary(tmp_path, name), policy(tmp_path)).finding("short/ttft_p95")
    assert found["observed"] == pytest.approx(110.0)
    assert found["verdict"] == "inconclusive"
    assert found["notes"][0].startswith("percentiles: ")
    assert found["prompt_tokens"] == {"min": 100, "median": None, "max": 120}


def test_older_summaries_count_requests_only(tmp_path: Path) -> None:
    """Without a count beside each metric: TTFT is one a request, of gaps nobody knows how many."""
    doc = aiperf_summary()
    for name in ("time_to_first_token", "inter_chunk_latency"):
        del doc[name]["count"]
    got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
    ttft, itl = got.finding("short/ttft_p95"), got.finding("short/itl_p95")
    assert (ttft["verdict"], ttft["observed"], ttft["samples"]) == ("inconclusive", 110.0, 100)
    assert itl["verdict"] == "error"
    assert "rule 2 is not shown by this file" in itl["reason"]


@pytest.mark.parametrize("name", VALUES)
def test_observed_limits_that_break_fail(name: str, tmp_path: Path) -> None:
    """No better measurement would mend a percentile over its limit."""
    got = checked(VALUES[name](tmp_path, calls(ttft=400)), policy(tmp_path))
    assert got.verdicts["short/ttft_p95"] == "fail"


def test_no_prompt_length(tmp_path: Path) -> None:
    """vllm bench without detail: rule 1 cannot be shown, and the figure is named all the same."""
    found = checked(summary(tmp_path, "vllm"), policy(tmp_path)).finding("short/ttft_p95")
    assert found["verdict"] == "error"
    assert found["reason"].startswith("no prompt length: ")
    assert "over all prompts: P95 110.0 ms" in found["reason"]
    assert found["observed"] is None


def test_prompts_of_several_buckets(tmp_path: Path) -> None:
    """One percentile over prompts of two buckets shows neither."""
    path = summary(
        tmp_path, "aiperf", input_sequence_length={"unit": "tokens", "min": 100, "max": 300}
    )
    got = checked(path, policy(tmp_path, buckets=BOTH))
    for bucket in ("short", "long"):
        found = got.finding(f"{bucket}/ttft_p95")
        assert found["verdict"] == "error"
        assert "100 to 300 tokens lie in several buckets" in found["reason"]


@pytest.mark.parametrize(
    "name", ["genai-perf", "inference-perf", "llmperf", "endpoints", "genai-bench", "llmperf rows"]
)
def test_what_is_no_itl_is_called_so(name: str, tmp_path: Path) -> None:
    """Means per request, and gaps of re-tokenised text, show no rule 2."""
    rows = {"genai-bench": VALUES["genai-bench"], "llmperf rows": VALUES["llmperf"]}
    path = rows[name](tmp_path, calls()) if name in rows else summary(tmp_path, name)
    found = checked(path, policy(tmp_path)).finding("short/itl_p95")
    assert found["verdict"] == "error"
    assert "rule 2" in found["reason"]
    assert found["observed"] is None


def test_sglang_s_gaps_are_observed(tmp_path: Path) -> None:
    """Its pooled gaps are judged by the percentile over all of them, stalls by their largest."""
    path = VALUES["sglang"](tmp_path, calls(gaps=(10,) * 6 + (200,)))
    got = checked(path, policy(tmp_path, itl=", stall_p95_ms: 500"))
    assert (got.verdicts["short/itl_p95"], got.verdicts["short/stall_p95"]) == (
        "fail",
        "inconclusive",
    )
    assert got.finding("short/stall_p95")["observed"] == pytest.approx(200.0)


def test_a_first_token_that_is_unknown_is_an_error(tmp_path: Path) -> None:
    """Chunks that may be no tokens are no failures: TTFT is an error, the error rate is not."""
    path = VALUES["sglang"](tmp_path, calls())
    doc = json.loads(path.read_text())
    doc["backend"], doc["output_lens"] = "sglang-oai-chat", [7] * 60
    write(path, {**doc, "total_output_tokens": 420})
    got = checked(path, policy(tmp_path))
    assert got.verdicts["short/ttft_p95"] == got.verdicts["short/itl_p95"] == "error"
    assert "8 chunks for 7 tokens" in got.finding("short/ttft_p95")["reason"]
    assert got.finding("short/error_rate")["exceeded"] == 0


def test_sglang_does_not_say_what_failed(tmp_path: Path) -> None:
    """A summary without a count of failures is an error, not zero failures."""
    path = VALUES["sglang"](tmp_path, calls())
    doc = json.loads(path.read_text())
    for name in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"):
        del doc[name]
    doc["p99_ttft_ms"] = 120.0
    write(path, doc)
    found = checked(path, policy(tmp_path)).finding("short/error_rate")
    assert found["verdict"] == "error"
    assert "does not say how many requests failed" in found["reason"]


@pytest.mark.parametrize(
    ("figures", "verdict", "words"),
    [
        ({"p99": 120.0}, "inconclusive", "P99 of 120.0 ms keeps the limit"),
        ({"p50": 310.0, "p99": 500.0}, "fail", "P50 is 310.0 ms already"),
        ({"p50": 100.0}, "error", "P95 is not in the file"),
        ({"p50": 100.0, "p99": 900.0}, "error", "P95 is not in the file"),
    ],
)
def test_percentiles_that_the_file_lacks(
    figures: dict[str, float], verdict: str, words: str, tmp_path: Path
) -> None:
    """A missing percentile is judged by its neighbours only where they settle it."""
    ttft = {"unit": "ms", "avg": 100.0, "count": 100, **figures}
    path = write(tmp_path / "a.json", aiperf_summary(time_to_first_token=ttft))
    found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
    assert found["verdict"] == verdict
    assert words in found["reason"]


@pytest.mark.parametrize(
    ("lost", "verdict"), [(0, "inconclusive"), (1, "fail"), (20, "fail"), (100, "fail")]
)
def test_failures_of_a_summary(lost: int, verdict: str, tmp_path: Path) -> None:
    """Failed requests are red, and more of them than a percentile leaves break it."""
    doc = aiperf_summary(
        error_summary=[{"count": lost}], request_count={"unit": "requests", "avg": 100.0 - lost}
    )
    got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
    assert got.verdicts["short/error_rate"] == verdict
    ttft = got.verdicts["short/ttft_p95"]
    assert ttft == {0: "inconclusive", 1: "inconclusive", 20: "fail", 100: "error"}[lost]


@pytest.mark.parametrize("name", VALUES)
def test_failures_of_requests(name: str, tmp_path: Path) -> None:
    """They count as over every limit: 6 of 100 break a P95."""
    rows = [*calls(94), *calls(6, error="refused")]
    got = checked(VALUES[name](tmp_path, rows), policy(tmp_path))
    assert got.verdicts["short/ttft_p95"] == "fail"
    found = got.finding("short/error_rate")
    assert (found["verdict"], found["exceeded"]) == ("fail", 6)


def test_genai_bench_s_own_error_rate_is_not_believed(tmp_path: Path) -> None:
    """It says 0.0 beside errors; they are counted from the requests."""
    path = VALUES["genai-bench"](tmp_path, [*calls(50), *calls(1, error="refused")])
    assert json.loads(path.read_text())["aggregated_metrics"]["error_rate"] == 0.0
    assert checked(path, policy(tmp_path)).finding("short/error_rate")["exceeded"] == 1


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (vllm_summary, "prompt_lengths, sampling, memory"),
        (aiperf_summary, "sampling, memory"),
        (llmperf_summary, "sampling, memory"),
        (endpoints_summary, "sampling, concurrency, memory"),
    ],
)
def test_what_rule_3_misses_is_named(
    make: Callable[..., dict[str, Any]], missing: str, tmp_path: Path
) -> None:
    """Each condition that the file lacks is named; the rate stands beside them."""
    got = checked(write(tmp_path / "a.json", make()), policy(tmp_path))
    found = got.finding("tgs/concurrency-1")
    assert found["verdict"] == "fail"
    assert found["reason"].startswith(f"undocumented: {missing} (")
    (entry,) = got.report["tgs"]
    assert (entry["kind"], entry["tokens_per_s"], entry["documented"]) == ("recorded", 40.0, False)


def test_summary_beside_its_requests_is_left_aside(tmp_path: Path) -> None:
    """A folder with both is judged by the requests."""
    folder = tmp_path / "results"
    aiperf(folder, calls())
    sla = policy(tmp_path)
    assert checked(folder, sla).verdicts["short/ttft_p95"] == "pass"
    inference_perf(tmp_path / "other", calls())
    assert checked(tmp_path / "other", sla).verdicts["short/ttft_p95"] == "pass"


def test_a_summary_of_another_run_is_not_left_aside(tmp_path: Path) -> None:
    """A folder whose summary is not that of the requests is refused."""
    folder = tmp_path / "results"
    aiperf(folder, calls())
    write(folder / "older_aiperf.json", aiperf_summary())
    with pytest.raises(UsageError, match="cannot be pooled"):
        checked(folder, policy(tmp_path))


def test_the_command_says_observed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remark, the label and the exit code all say that this is no release evidence."""
    path = summary(tmp_path, "aiperf")
    assert llmsla(["check", str(path), "--sla", str(policy(tmp_path, target=DECLARED))]) != 0
    out, err = capsys.readouterr()
    assert "observed, never a PASS" in err
    assert "not release evidence" in out
    assert "measured by AIPerf, not by this gate" in out

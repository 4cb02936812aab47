"""Files damaged, edited to look clean, or of another unit: refused in words, never PASS."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foreign_files import (
    DECLARED,
    RAW,
    VALUES,
    aiperf_summary,
    calls,
    checked,
    endpoints_summary,
    inference_perf_summary,
    llmperf_summary,
    policy,
    vllm_summary,
    write,
)

from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.errors import UsageError
from pytest_llmsla.importers import NAMES, read

Change = Callable[[Any], object]
MAKE: dict[str, Callable[..., Path]] = {**RAW, **VALUES}
"""Formats with requests, to be damaged."""


def _set(*path: object, to: object) -> Change:
    def change(doc: Any) -> None:
        for key in path[:-1]:
            doc = doc[key]
        doc[path[-1]] = to

    return change


def _without_slowest(doc: Any) -> None:
    for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"):
        del doc[name][5]


def _faster(doc: Any) -> None:
    doc["ttfts"] = [t / 4 for t in doc["ttfts"]]


def _steadier(doc: Any) -> None:
    doc["itls"] = [[g / 4 for g in gaps] for gaps in doc["itls"]]


def _request(*path: object, to: object) -> Change:
    return _set("levels", 0, "requests", 3, *path, to=to)


def _bench(*path: object, to: object) -> Change:
    return _set("benchmarks", 0, *path, to=to)


def _first(*path: object, to: object) -> Change:
    return _bench("requests", "successful", 0, *path, to=to)


CASES: dict[str, tuple[str, Change, str]] = {
    "negative latency": ("vllm", _set("ttfts", 3, to=-0.1), "no time or count is negative"),
    "not a number": ("vllm", _set("ttfts", 3, to=float("nan")), "valid: a finite number"),
    "text": ("vllm", _set("ttfts", 3, to="0.1"), "valid: a number"),
    "a boolean": ("vllm", _set("ttfts", 3, to=True), "valid: a number"),
    "no time to the first token": ("vllm", _set("ttfts", 3, to=0.0), "was not timed"),
    "one list is shorter": ("vllm", lambda d: d["ttfts"].pop(), "lists of different length"),
    "a list is gone": ("vllm", lambda d: d.pop("itls"), "has no itls"),
    "requests cut out": ("vllm", _without_slowest, "says num_prompts 60"),
    "failures taken out": ("vllm", _set("failed", to=2), "completed and failed together 62"),
    "faster than its mean": ("vllm", _faster, "says a mean TTFT of 100 ms"),
    "steadier than its mean": ("vllm", _steadier, "says a mean ITL of 20 ms"),
    "longer than its duration": ("vllm", _set("duration", to=3.0), "says a duration of 3 s"),
    "more output than it says": ("vllm", _set("total_output_tokens", to=9), "total_output_tokens"),
    "more at once than asked": ("vllm", _set("start_times", 4, to=5003.05), "show 2 at once"),
    "a rate by a trace": ("vllm", _set("request_rate", to="trace"), "request_rate is 'trace'"),
    "concurrency 0": ("vllm", _set("max_concurrency", to=0), "is 0"),
    "a later version": ("servebench", _set("schema_version", to=2), "schema_version 2"),
    "no version": ("servebench", lambda d: d.pop("schema_version"), "schema_version None"),
    "repeats": ("servebench", _set("levels", 0, "repeat_count", to=3), "holds repeats"),
    "no levels": ("servebench", _set("levels", to=[]), "is empty"),
    "chunks run backwards": ("servebench", _request("chunk_times", 4, to=0.11), "run backwards"),
    "no chunk, but ok": ("servebench", _request("chunk_times", to=[]), "no time of a first token"),
    "another TTFT": ("servebench", _request("ttft", to=0.01), "says a TTFT of 0.01 s"),
    "shorter than its chunks": ("servebench", _request("e2e", to=0.1), "before its last chunk"),
    "other counts": (
        "servebench", _set("levels", 0, "summary", "failed", to=1), "says failed 1",
    ),
    "GuideLLM of another version": (
        "guidellm", _set("metadata", "version", to=1), "metadata.version 1",
    ),
    "no benchmark": ("guidellm", _set("benchmarks", to=[]), "nothing was measured"),
    "a sweep": ("guidellm", _bench("config", "strategy", "type_", to="sweep"), "strategy 'sweep'"),
    "fewer than it holds": (
        "guidellm", _bench("metrics", "request_totals", "successful", to=1), "and holds 60",
    ),
    "a token before its request": (
        "guidellm", _first("info", "timings", "first_token_iteration", to=1.0), "run backwards",
    ),
    "no time of a token": (
        "guidellm", _first("info", "timings", "first_token_iteration", to=None), "without the",
    ),
    "another TTFT than its times": (
        "guidellm", _first("time_to_first_token_ms", to=9.0), "says a TTFT of 9 ms",
    ),
    "a unit nobody knows": (
        "aiperf", _set("metrics", "time_to_first_token", "unit", to="minutes"), "is 'minutes'",
    ),
    "seconds instead of ms": (
        "aiperf", _set("metrics", "time_to_first_token", "unit", to="sec"), "took less time",
    ),
    "no start": ("aiperf", lambda d: d["metadata"].pop("request_start_ns"), "request_start_ns"),
    "an answer shorter than its gaps": (
        "aiperf", _set("metrics", "request_latency", "value", to=120.0), "took less time",
    ),
    "tokens before the request": (
        "inference-perf", _set(0, "info", "output_token_times", 0, to=1.0), "not in order",
    ),
    "tokens after the end": (
        "inference-perf", _set(0, "end_time", to=700.0), "not in order",
    ),
    "a unit of neither kind": ("genai-bench", _set("_time_unit", to="us"), "is 'us'"),
    "first after last": (
        "genai-bench", _set("individual_request_metrics", 0, "ttft", to=9.0), "9000 ms of 240 ms",
    ),
    "lost requests hidden": (
        "genai-bench", _set("aggregated_metrics", "num_error_requests", to=3), "says num_error",
    ),
    "later than the whole": ("llmperf", _set(0, "ttft_s", to=9.0), "9000 ms of 240 ms"),
    "completed more than listed": ("sglang", _set("completed", to=99), "says 99 completed"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_contradicts_itself_is_refused(case: str, tmp_path: Path) -> None:
    """Each is a usage error that names the place and what it holds."""
    name, change, words = CASES[case]
    path = MAKE[name](tmp_path, calls())
    lines = path.read_text().splitlines()
    doc = json.loads(lines[0])
    change(doc)
    path.write_text("\n".join([json.dumps(doc), *lines[1:]]))
    with pytest.raises(UsageError) as caught:
        checked(path, policy(tmp_path, target=DECLARED))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_another_unit_never_passes(tmp_path: Path) -> None:
    """Milliseconds where seconds belong are slow; seconds where milliseconds belong are refused."""
    path = RAW["vllm"](tmp_path, calls())
    doc = json.loads(path.read_text())
    for factor in (1000, 1 / 1000):
        changed = {
            **doc,
            "ttfts": [t * factor for t in doc["ttfts"]],
            "itls": [[g * factor for g in gaps] for gaps in doc["itls"]],
            "start_times": [5000 + 500.0 * i for i in range(60)],
            "duration": 1e9,
        }
        for name in ("mean_ttft_ms", "mean_itl_ms"):
            del changed[name]
        write(path, changed)
        if factor > 1:
            got = checked(path, policy(tmp_path, target=DECLARED))
            assert got.verdicts["short/ttft_p95"] == got.verdicts["short/itl_p95"] == "fail"
        else:
            with pytest.raises(UsageError, match="are these seconds"):
                checked(path, policy(tmp_path))


BAD_SUMMARIES: dict[str, tuple[dict[str, Any], str]] = {
    "percentiles fall": (vllm_summary(p95_ttft_ms=90.0), "above P95 90 ms"),
    "a latency of 0": (vllm_summary(median_ttft_ms=0.0), "was not measured"),
    "a negative one": (vllm_summary(p99_itl_ms=-1.0), "negative"),
    "seconds": (
        vllm_summary(median_ttft_ms=0.1, p95_ttft_ms=0.11, p99_ttft_ms=0.12),
        "are these seconds",
    ),
    "more than asked": (vllm_summary(num_prompts=90), "of 90 requests"),
    "over its own maximum": (
        aiperf_summary(
            time_to_first_token={"unit": "ms", "avg": 1, "p50": 100.0, "p95": 110.0, "max": 105.0}
        ),
        "above its own maximum",
    ),
    "a later schema": (aiperf_summary(schema_version="2.0"), "schema_version '2.0'"),
    "no unit": (aiperf_summary(time_to_first_token={"avg": 1, "p95": 110.0}), "unit is None"),
    "sent and lost": (
        inference_perf_summary(failures={"count": 3}), "100 succeeded and 3 failed",
    ),
    "began and ended": (llmperf_summary(results_number_errors=5), "100 completed and 5 failed"),
    "issued and ended": (
        endpoints_summary(n_samples_completed=97, n_samples_failed=5), "97 completed and 5 failed",
    ),
    "more failed than ended": (endpoints_summary(n_samples_failed=101), "101 failed"),
    "more ended than issued": (endpoints_summary(n_samples_completed=101), "101 completed"),
    "a percentile by name": (
        endpoints_summary(ttft={"percentiles": {"ninety": 1e8}}), "percentile 'ninety'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SUMMARIES)
def test_a_summary_that_contradicts_itself_is_refused(case: str, tmp_path: Path) -> None:
    """Each is a usage error in words."""
    doc, words = BAD_SUMMARIES[case]
    with pytest.raises(UsageError) as caught:
        checked(write(tmp_path / "a.json", doc), policy(tmp_path))
    assert words in str(caught.value)


def test_percentiles_without_a_count_are_no_evidence(tmp_path: Path) -> None:
    """Nobody knows what they rest on: an error, not an observed keep."""
    stats = {"unit": "ms", "avg": 100.0, "p50": 100.0, "p95": 110.0}
    doc = aiperf_summary(time_to_first_token=stats)
    del doc["request_count"]
    found = checked(write(tmp_path / "a.json", doc), policy(tmp_path)).finding("short/ttft_p95")
    assert (found["verdict"], found["observed"]) == ("error", None)
    assert "without a count" in found["reason"]


GARBAGE = {
    "empty": b"",
    "blank": b" \n\n",
    "cut": b'{"backend":"openai","completed":1,"total_input_tokens":3,"ttfts":[0.1,',
    "binary": bytes(range(256)),
    "UTF-16": '{"completed": 1}'.encode("utf-16"),
    "a key twice": b'{"backend":"a","completed":1,"completed":2,"ttfts":[]}',
    "nested deeply": b"[" * 100_000,
    "another tool": b'{"tool":"mine","latency":[1,2,3]}',
    "a number": b"1",
    "an empty list": b"[]",
    "YAML by the name of JSON": b"benchmarks:\n- a: 1\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_result_is_a_usage_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty, cut, foreign and damaged files end with exit 4 and one message."""
    path = tmp_path / "result.json"
    path.write_bytes(GARBAGE[name])
    assert llmsla(["check", str(path), "--sla", str(policy(tmp_path))]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmsla: {path}: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("name", RAW)
def test_no_cut_of_a_file_passes(name: str, tmp_path: Path) -> None:
    """A file cut anywhere is refused, or red."""
    path = MAKE[name](tmp_path, calls())
    whole, sla = path.read_bytes(), policy(tmp_path, target=DECLARED)
    for part in (1, 7, 31, 50, 97, 99):
        path.write_bytes(whole[: len(whole) * part // 100])
        with contextlib.suppress(UsageError):
            assert checked(path, sla).code != 0


def test_unknown_files_are_told_what_is_known(tmp_path: Path) -> None:
    """The message lists every tool."""
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path / "a.json", {"some": "thing"}))
    assert NAMES in str(caught.value)


def test_no_key_of_a_request_may_be_anything(tmp_path: Path) -> None:
    """Whatever one request's field is changed to, the passing run is red, refused, or unchanged."""
    path = RAW["servebench"](tmp_path, calls(45))
    sla = policy(tmp_path, target=DECLARED)
    assert checked(path, sla).code == 0
    harmless = {"index", "e2e"}  # not judged by: the last chunk ends a request
    whole = path.read_text()
    names = json.loads(whole)["levels"][0]["requests"][7]
    for name in names.keys() - harmless:
        for value in (None, -1, "x", [], {}, 1e30, float("nan"), False):
            if value is names[name] or value == names[name]:
                continue
            doc = json.loads(whole)
            doc["levels"][0]["requests"][7][name] = value
            path.write_text(json.dumps(doc))
            try:
                got = checked(path, sla)
            except UsageError:
                continue
            assert got.code != 0 or name == "error", f"passed with {name} {value!r}"


class TestConditions:
    """Evidence of another model, load, length or sampling says nothing about this policy."""

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"target": ", model: other"}, "measured model 'm'"),
            ({"level": 4}, "measured at concurrency 1"),
            ({"tokens": 64}, "asked for 8 new tokens, but the policy judges 64"),
            ({"workload": ", sampling: {temperature: 0.2}"}, "was measured with temperature 0.8"),
            ({"workload": ", sampling: {greedy: true}"}, "was measured with temperature 0.8"),
        ],
    )
    def test_refused(self, changed: dict[str, object], words: str, tmp_path: Path) -> None:
        """The message names both sides."""
        with pytest.raises(UsageError) as caught:
            checked(RAW["servebench"](tmp_path, calls()), policy(tmp_path, **changed))
        assert words in str(caught.value)

    def test_the_same_in_other_words(self, tmp_path: Path) -> None:
        """Sampling and model that agree are no hindrance."""
        sla = policy(
            tmp_path, target=", model: m", workload=", sampling: {temperature: 0.8, top_p: 0.5}"
        )
        path = RAW["servebench"](tmp_path, calls())
        assert checked(path, sla).verdicts["short/ttft_p95"] == "pass"

    @pytest.mark.parametrize("tokens", [4, 64])
    def test_lengths_that_the_file_does_not_ask(self, tokens: int, tmp_path: Path) -> None:
        """Where the file does not say what was asked, the answers must have the judged length."""
        with pytest.raises(UsageError, match="longest answer has 8 tokens"):
            checked(RAW["vllm"](tmp_path, calls()), policy(tmp_path, tokens=tokens))

    def test_no_limits_without_a_policy(self, tmp_path: Path) -> None:
        """A result file names none."""
        from pytest_llmsla.cli.check import check

        with pytest.raises(UsageError, match="names no limits"):
            check([RAW["vllm"](tmp_path, calls())], None)


class TestTogether:
    """Which files may be judged as one."""

    def test_the_same_file_twice(self, tmp_path: Path) -> None:
        """Its evidence would count twice."""
        from pytest_llmsla.cli.check import check

        path = RAW["vllm"](tmp_path, calls())
        again = tmp_path / "again.json"
        again.write_bytes(path.read_bytes())
        with pytest.raises(UsageError, match="count twice"):
            check([path, again], policy(tmp_path))

    def test_appended_runs_are_pooled_in_order(self, tmp_path: Path) -> None:
        """--append-result: two runs of one model are judged together."""
        doc = json.loads(RAW["vllm"](tmp_path, calls(30)).read_text())
        later = [replace(c, start=c.start + 1e6) for c in calls(30, ttft=200)]
        slower = json.loads(RAW["vllm"](tmp_path, later).read_text())
        path = write(tmp_path / "two.json", doc, slower)
        assert checked(path, policy(tmp_path)).finding("short/ttft_p95")["requests"] == 60

    def test_one_run_in_two_forms(self, tmp_path: Path) -> None:
        """JSON and YAML of one run in a folder hold the same requests: refused, not doubled."""
        folder = tmp_path / "results"
        doc = json.loads(RAW["guidellm"](folder, calls(30)).read_text())
        (folder / "benchmarks.yaml").write_text(json.dumps(doc, indent=1))  # JSON is YAML
        with pytest.raises(UsageError, match="count twice"):
            checked(folder, policy(tmp_path))

    def test_a_request_twice_in_one_file(self, tmp_path: Path) -> None:
        """Rows doubled to reach the number that a PASS takes are refused."""
        path = RAW["servebench"](tmp_path, calls(30))
        doc = json.loads(path.read_text())
        doc["levels"][0]["requests"] *= 2
        doc["levels"][0]["summary"] = {}
        path.write_text(json.dumps(doc))
        with pytest.raises(UsageError, match="count twice"):
            checked(path, policy(tmp_path))

    def test_two_models_are_not_pooled(self, tmp_path: Path) -> None:
        """Mixed runs are refused with what differs."""
        doc = json.loads(RAW["vllm"](tmp_path, calls(30)).read_text())
        path = write(tmp_path / "two.json", doc, {**doc, "model_id": "other"})
        with pytest.raises(UsageError, match="mixed runs: model 'other'"):
            checked(path, policy(tmp_path))

    def test_two_kinds_in_one_file(self, tmp_path: Path) -> None:
        """A file of two tools is refused."""
        path = write(tmp_path / "two.json", vllm_summary(), aiperf_summary())
        with pytest.raises(UsageError, match="results of several kinds"):
            checked(path, policy(tmp_path))

    def test_summaries_are_not_pooled(self, tmp_path: Path) -> None:
        """Percentiles of two runs have no common one."""
        path = write(tmp_path / "two.json", vllm_summary(), vllm_summary(p95_ttft_ms=105.0))
        with pytest.raises(UsageError, match="cannot be pooled"):
            checked(path, policy(tmp_path))

    def test_a_folder_with_a_damaged_file(self, tmp_path: Path) -> None:
        """Nobody knows what it held: refused."""
        folder = tmp_path / "results"
        RAW["vllm"](folder, calls())
        (folder / "broken.json").write_text('{"completed": 1, ')
        with pytest.raises(UsageError, match="nobody knows"):
            checked(folder, policy(tmp_path))

    def test_stages_of_inference_perf(self, tmp_path: Path) -> None:
        """Requests of several stages are not told apart in the file: refused."""
        path = RAW["inference-perf"](tmp_path, calls())
        (tmp_path / "stage_1_lifecycle_metrics.json").write_bytes(
            (tmp_path / "stage_0_lifecycle_metrics.json").read_bytes()
        )
        with pytest.raises(UsageError, match="there are 2 of them"):
            read(path)
        for stage in tmp_path.glob("stage_*"):
            stage.unlink()
        with pytest.raises(UsageError, match="there are 0 of them"):
            read(path)

    def test_aiperf_without_its_summary(self, tmp_path: Path) -> None:
        """The requests alone do not say how many were in flight."""
        path = RAW["aiperf"](tmp_path, calls())
        (tmp_path / "profile_export_aiperf.json").unlink()
        with pytest.raises(UsageError, match="keep profile_export_aiperf"):
            read(path)

    @pytest.mark.parametrize(
        ("doc", "words"),
        [
            ({"service_kind": "openai", "experiments": []}, "Perf Analyzer's raw export"),
            ({"metadata": {"aggregation_type": "confidence"}, "metrics": {}}, "of several runs"),
            ({"combined": {}, "per_run": []}, "of several runs"),
        ],
    )
    def test_other_files_of_aiperf(self, doc: dict[str, Any], words: str, tmp_path: Path) -> None:
        """What is no single run's result says what to give instead."""
        with pytest.raises(UsageError, match=words):
            read(write(tmp_path / "a.json", doc))

    def test_aiperf_with_another_summary(self, tmp_path: Path) -> None:
        """A summary that counts other requests is of another run."""
        path = RAW["aiperf"](tmp_path, calls(), request_count={"unit": "requests", "avg": 9.0})
        with pytest.raises(UsageError, match="says request_count 9"):
            read(path)

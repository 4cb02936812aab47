"""Files of the same tools, of other versions, options and services: each is what it says it is."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_files import (
    DECLARED,
    RAW,
    SUMMARIES,
    VALUES,
    aiperf_summary,
    calls,
    checked,
    policy,
    vllm_summary,
    write,
)

from pytest_llmsla.errors import UsageError
from pytest_llmsla.importers import read
from pytest_llmsla.importers.judge import judge
from pytest_llmsla.policy import load_policy

Change = Callable[[Any], object]
SUMMARY = "profile_export_aiperf.json"
REQUESTS = "per_request_lifecycle_metrics.json"


def edited(path: Path, change: Change, *, every: bool = False) -> Path:
    """The file with its first document, or each of them, changed."""
    docs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for doc in docs if every else docs[:1]:
        change(doc)
    return write(path, *docs)


def _put(*path: object, to: object) -> Change:
    def change(doc: Any) -> None:
        for key in path[:-1]:
            doc = doc[key]
        doc[path[-1]] = to

    return change


def _no_times_aiperf(row: Any) -> None:
    for name in ("time_to_first_token", "inter_chunk_latency"):
        del row["metrics"][name]


def _no_times_guidellm(doc: Any) -> None:
    for row in doc["benchmarks"][0]["requests"]["successful"]:
        row["time_to_first_token_ms"] = None
        row["info"]["timings"] |= {"first_token_iteration": None, "last_token_iteration": None}


def _no_times_inference_perf(rows: Any) -> None:
    for row in rows:
        del row["info"]["output_token_times"]
        row["info"]["output_tokens"] = 8


@pytest.mark.parametrize(
    ("name", "change", "every"),
    [
        ("aiperf", _no_times_aiperf, True),
        ("guidellm", _no_times_guidellm, False),
        ("inference-perf", _no_times_inference_perf, False),
    ],
)
def test_answers_that_were_not_streamed(
    name: str, change: Change, every: bool, tmp_path: Path
) -> None:
    """Without the time of any token TTFT and ITL are errors in words, and nothing failed."""
    path = edited(RAW[name](tmp_path, calls()), change, every=every)
    got = checked(path, policy(tmp_path, target=DECLARED))
    for limit in ("short/ttft_p95", "short/itl_p95"):
        found = got.finding(limit)
        assert (found["verdict"], found["observed"]) == ("error", None)
        assert found["reason"].startswith("not streamed: ")
    assert got.finding("short/error_rate")["exceeded"] == 0
    assert got.code != 0


def test_a_summary_that_was_not_streamed(tmp_path: Path) -> None:
    """AIPerf without --streaming: rule 2 says so."""
    doc = aiperf_summary(input_config={"endpoint": {"streaming": False}})
    found = checked(write(tmp_path / "a.json", doc), policy(tmp_path)).finding("short/itl_p95")
    assert (found["verdict"], found["reason"][:12]) == ("error", "not streamed")


def _no_lengths_servebench(doc: Any) -> None:
    for row in doc["levels"][0]["requests"]:
        row["prompt_tokens"] = None


def _no_lengths_guidellm(doc: Any) -> None:
    for row in doc["benchmarks"][0]["requests"]["successful"]:
        row["prompt_tokens"] = 0


def _no_lengths_llmperf(rows: Any) -> None:
    for row in rows:
        del row["number_input_tokens"]


NO_LENGTHS: dict[str, tuple[str, Change, bool]] = {
    "none in the list": ("vllm", _put("input_lens", to=[None] * 60), False),
    "no list": ("vllm", lambda d: d.pop("input_lens"), False),
    "null in each": ("servebench", _no_lengths_servebench, False),
    "0 in each": ("guidellm", _no_lengths_guidellm, False),
    "no such metric": ("aiperf", lambda d: d["metrics"].pop("input_sequence_length"), True),
    "without a place": ("llmperf", _no_lengths_llmperf, False),
    "in one missing": ("genai-bench", _put(
        "individual_request_metrics", 5, "num_input_tokens", to=None), False),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_LENGTHS)
def test_prompts_whose_length_nobody_knows(case: str, tmp_path: Path) -> None:
    """Rule 1 is an error that says why; the requests are no failures."""
    name, change, every = NO_LENGTHS[case]
    path = edited({**RAW, **VALUES}[name](tmp_path, calls()), change, every=every)
    got = checked(path, policy(tmp_path, target=DECLARED))
    found = got.finding("short/ttft_p95")
    assert (found["verdict"], found["observed"]) == ("error", None)
    assert found["reason"].startswith("no prompt length: ")
    failed = got.finding("short/error_rate")
    assert (failed["requests"], failed["exceeded"]) == (60, 0)
    assert got.code != 0


def test_failures_of_unknown_length_count_once(tmp_path: Path) -> None:
    """One of sixty without a length failed: 1 of 60, not 1 of 1."""
    rows = [*calls(59), *calls(1, start=60_000.0, error="refused")]
    path = edited(RAW["vllm"](tmp_path, rows), lambda d: d.pop("input_lens"))
    found = checked(path, policy(tmp_path)).finding("short/error_rate")
    assert (found["verdict"], found["exceeded"], found["requests"]) == ("fail", 1, 60)


def test_a_prompt_of_no_tokens_is_not_left_unjudged(tmp_path: Path) -> None:
    """Slow requests that claim a prompt of 0 tokens are in no bucket, and still no PASS."""
    path = RAW["vllm"](tmp_path, [*calls(60), *calls(1, start=60_000.0, ttft=999, prompt=0)])
    assert "pass" not in checked(path, policy(tmp_path)).verdicts["short/error_rate"]


class TestSeveral:
    """Models, levels and runs in one file."""

    @pytest.mark.parametrize(
        ("name", "file", "place", "value"),
        [
            ("aiperf", SUMMARY, ("input_config", "models", "items"), [{"name": x} for x in "mn"]),
            ("aiperf", SUMMARY, ("input_config",),
             {"endpoint": {"model_names": ["m", "n"]}, "loadgen": {"concurrency": 1}}),
            ("guidellm", "benchmarks.json", ("benchmarks", 0, "config", "backend", "model"), "n"),
            ("inference-perf", REQUESTS, (3, "request"), '{"model": "n"}'),
        ],
    )  # fmt: skip
    def test_two_models_are_refused(
        self, name: str, file: str, place: tuple[Any, ...], value: Any, tmp_path: Path
    ) -> None:
        """Requests to several models have no common latency."""
        path = RAW[name](tmp_path, calls())
        doc = json.loads((tmp_path / file).read_text())
        if name == "guidellm":
            row = doc["benchmarks"][0]["requests"]["successful"][3]
            row["request_args"] = json.dumps({"body": {"model": "m", "max_tokens": 8}})
        _put(*place, to=value)(doc)
        write(tmp_path / file, doc)
        with pytest.raises(UsageError, match=r"went to 2 models \((m, n|n, m)\)"):
            read(path)

    @pytest.mark.parametrize("name", ["sglang", "vllm"])
    def test_levels_of_one_file_are_observed_apart(self, name: str, tmp_path: Path) -> None:
        """Runs that a tool appended, one a level: findings of each level, none a PASS."""
        one = vllm_summary()
        if name == "sglang":
            one = json.loads(VALUES[name](tmp_path, calls()).read_text())
        path = write(tmp_path / "all.jsonl", one, {**one, "max_concurrency": 4})
        got = checked(path, policy(tmp_path, level="1, 4", target=DECLARED))
        assert {f["concurrency"] for f in got.report["findings"]} == {1, 4}
        assert len(got.report["tgs"]) == 2
        assert "pass" not in got.verdicts.values()
        again = write(tmp_path / "twice.jsonl", one, {**one, "duration": 7.0})
        with pytest.raises(UsageError, match="one line"):
            checked(again, policy(tmp_path))

    def test_a_rate_that_rises_is_no_load(self, tmp_path: Path) -> None:
        """vllm bench --ramp-up-strategy writes inf as its rate: refused, not a closed loop."""
        path = RAW["vllm"](tmp_path, calls(), ramp_up_strategy="linear", max_concurrency=None)
        with pytest.raises(UsageError, match="its rate rose"):
            read(path)

    def test_a_stage_of_unknown_load_is_refused(self, tmp_path: Path) -> None:
        """inference-perf's stage says neither how many were in flight nor at which rate."""
        path = RAW["inference-perf"](tmp_path, calls(), load_summary={"count": 60})
        with pytest.raises(UsageError, match="which load was measured is unknown"):
            read(path)

    @pytest.mark.parametrize(
        "config",
        [
            {"input": {"fixed_schedule": True}},
            {"phases": [{"kind": "profiling", "type": "fixed_schedule"}]},
        ],
    )
    def test_a_schedule_is_no_number_in_flight(
        self, config: dict[str, Any], tmp_path: Path
    ) -> None:
        """AIPerf's replay of a schedule is refused."""
        with pytest.raises(UsageError, match="by a schedule"):
            read(RAW["aiperf"](tmp_path, calls(), input_config=config))


class TestGuideLlm:
    """Other options of GuideLLM."""

    @staticmethod
    def warmed(folder: Path, slow: float, said: int = 50) -> Path:
        """Five requests before the measured window, fifty inside, five after it."""
        rows = [*calls(60)]
        rows[:5] = calls(5, ttft=slow)
        rows[:5] = [type(c)(1000.0 * i, c.prompt, c.ttft, c.gaps) for i, c in enumerate(rows[:5])]

        def change(doc: Any) -> None:
            one = doc["benchmarks"][0]
            one |= {"start_time": 1.7e9 + 4.9, "end_time": 1.7e9 + 54.9}
            one["metrics"]["request_totals"]["successful"] = said
            for row in one["requests"]["successful"]:
                times = row["info"]["timings"]
                times["request_end"] = times["last_token_iteration"]

        return edited(RAW["guidellm"](folder, rows), change)

    def test_its_warm_up_is_not_judged(self, tmp_path: Path) -> None:
        """Its lists hold warm-up and cool-down, its totals do not: left out, and told."""
        got = checked(self.warmed(tmp_path, 700), policy(tmp_path))
        found = got.finding("short/ttft_p95")
        assert (found["verdict"], found["requests"]) == ("pass", 50)
        told = " ".join(got.report["target"]["warnings"])
        assert "10 requests of the tool's own warm-up" in told

    def test_a_window_that_its_totals_do_not_give_is_refused(self, tmp_path: Path) -> None:
        """A window that was narrowed until the slow requests lie outside contradicts the totals."""
        with pytest.raises(UsageError, match="says 45 successful requests and holds 50"):
            read(self.warmed(tmp_path, 700, said=45))

    def test_thinned_lists_are_no_whole_run(self, tmp_path: Path) -> None:
        """Fewer requests kept than were made: observed only."""
        made = {"requests_made": {"successful": 90, "errored": 0, "incomplete": 0}}
        path = RAW["guidellm"](tmp_path, calls(), scheduler_metrics=made)
        got = checked(path, policy(tmp_path))
        assert got.verdicts["short/ttft_p95"] != "pass"
        assert (
            "30 of 90 requests were thinned out (sample_size)" in got.report["target"]["warnings"]
        )

    @pytest.mark.parametrize("metadata", [None, {}, {"version": 1, "guidellm_version": "0.4.0"}])
    def test_older_versions_are_named(self, metadata: object, tmp_path: Path) -> None:
        """A file that this version does not read says which ones it does."""
        path = edited(RAW["guidellm"](tmp_path, calls()), _put("metadata", to=metadata))
        path = edited(path, lambda d: d.pop("config"))
        with pytest.raises(UsageError, match=r"reads 2 \(GuideLLM 0\.5 and later\)"):
            read(path)

    def test_tokens_that_nobody_counted(self, tmp_path: Path) -> None:
        """Without usage the tool takes its events for tokens: no TGS rests on that."""

        def change(doc: Any) -> None:
            for row in doc["benchmarks"][0]["requests"]["successful"]:
                row["output_metrics"] = {"total_tokens": None}

        path = edited(RAW["guidellm"](tmp_path, calls()), change)
        found = checked(path, policy(tmp_path, target=DECLARED)).finding("tgs/concurrency-1")
        assert (found["verdict"], found["reason"][:31]) == (
            "error",
            "tokens were counted as events, ",
        )


class TestAiPerf:
    """Other versions and options of AIPerf."""

    def test_only_a_mean_per_request(self, tmp_path: Path) -> None:
        """Without inter_chunk_latency rule 2 is not shown, and rule 3 has the whole answer."""

        def change(row: Any) -> None:
            del row["metrics"]["inter_chunk_latency"]
            row["metrics"]["inter_token_latency"] = {"value": 20.0, "unit": "ms"}

        path = edited(RAW["aiperf"](tmp_path, calls()), change, every=True)
        got = checked(path, policy(tmp_path, target=DECLARED, itl=", estimated: allow"))
        assert got.verdicts["short/ttft_p95"] == "pass"
        assert "rule 2 is not shown by this file" in got.finding("short/itl_p95")["reason"]
        assert got.finding("tgs/concurrency-1")["observed"] == pytest.approx(8 / 0.24, rel=1e-6)

    def test_seconds_that_are_called_ms(self, tmp_path: Path) -> None:
        """700 ms written as 0.7 would keep every limit; the clock times beside it say otherwise."""

        def change(row: Any) -> None:
            for name in ("time_to_first_token", "request_latency"):
                row["metrics"][name]["value"] /= 1000
            gaps = row["metrics"]["inter_chunk_latency"]
            gaps["value"] = [g / 1000 for g in gaps["value"]]

        path = RAW["aiperf"](tmp_path, calls(ttft=700, gaps=(80,) * 7))
        with pytest.raises(UsageError, match="are these seconds"):
            read(edited(path, change, every=True))

    def test_the_configuration_of_older_versions(self, tmp_path: Path) -> None:
        """Model, level, sampling and length stood elsewhere."""
        config = {
            "endpoint": {"model_names": ["m"], "streaming": True},
            "input": {
                "extra": [["temperature", "0.8"]],
                "prompt": {"output_tokens": {"mean": 8, "stddev": 0}},
            },
            "loadgen": {"concurrency": 1},
        }
        (run,) = read(RAW["aiperf"](tmp_path, calls(), input_config=config))
        assert (run.model, run.concurrency, dict(run.sampling)) == ("m", 1, {"temperature": 0.8})
        assert {t.max_new_tokens for t in run.timelines} == {8}

    def test_no_configuration_no_level(self, tmp_path: Path) -> None:
        """Requests whose load nobody recorded are refused, as without the summary."""
        path = RAW["aiperf"](tmp_path, calls())
        edited(tmp_path / SUMMARY, lambda d: d.pop("input_config"))
        with pytest.raises(UsageError, match="not on record"):
            read(path)

    def test_an_answer_ends_with_its_last_byte(self, tmp_path: Path) -> None:
        """What came after the last chunk of tokens was still the request's: it is in flight."""
        change = _put("metrics", "request_latency", "value", to=240.9)
        (run,) = read(edited(RAW["aiperf"](tmp_path, calls()), change))
        assert run.timelines[0].end_ns - run.timelines[0].start_ns == 240_900_000


def test_prompts_from_a_prefix_cache_show_no_rule_1(tmp_path: Path) -> None:
    """inference-perf keeps the server's usage: cached tokens, and its count of the prompt."""

    def change(rows: Any) -> None:
        for row in rows:
            usage = {
                "prompt_tokens": 121,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 112},
            }
            times = row["info"].pop("output_token_times")
            row["info"]["response_metrics"] = {"output_token_times": times, "server_usage": usage}

    path = edited(RAW["inference-perf"](tmp_path, calls()), change)
    found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
    assert found["verdict"] == "error"
    assert "up to 112 of 121 tokens" in found["reason"]


@pytest.mark.parametrize(("first", "verdict"), [(600, "error"), (55, "pass")])
def test_a_role_that_is_sent_early_may_hide_behind_equal_counts(
    first: float, verdict: str, tmp_path: Path
) -> None:
    """Role at 17 ms, then a chunk of two tokens: counts agree, and the first gap tells."""
    gaps = (first, *(20,) * 6)
    path = RAW["vllm"](tmp_path, calls(ttft=17, gaps=gaps), endpoint_type="openai-chat")
    assert checked(path, policy(tmp_path)).verdicts["short/ttft_p95"] == verdict


def test_a_tool_that_saw_nothing_answered(tmp_path: Path) -> None:
    """vllm bench writes zeros then: all failed, which is what the verdict says."""
    zero = dict.fromkeys(("mean_ttft_ms", "median_ttft_ms", "p95_ttft_ms", "p99_ttft_ms"), 0.0)
    doc = vllm_summary(completed=0, failed=100, total_output_tokens=0, **zero)
    got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
    assert got.verdicts["short/error_rate"] == "fail"
    assert "no request was answered (100 failed)" in got.finding("short/ttft_p95")["reason"]


@pytest.mark.parametrize(("name", "figure"), [("median_ttft_ms", 90.0), ("p99_itl_ms", 15.0)])
def test_percentiles_that_its_requests_do_not_give(
    name: str, figure: float, tmp_path: Path
) -> None:
    """The tool's own percentiles, interpolated as it does, must be those of the requests."""
    path = RAW["vllm"](tmp_path, calls(), median_ttft_ms=100.0, p99_itl_ms=20.0)
    (run,) = read(path)
    assert len(run.timelines) == 60
    with pytest.raises(UsageError, match="but its requests give"):
        read(edited(path, _put(name, to=figure)))


def test_the_method_of_the_tool_s_own_percentiles_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nearest rank here, interpolated there: who compares the two knows why they differ."""
    from pytest_llmsla.cli import run as llmsla

    path = RAW["servebench"](tmp_path, calls())
    assert llmsla(["check", str(path), "--sla", str(policy(tmp_path, target=DECLARED))]) == 0
    err = capsys.readouterr().err
    assert "percentiles are nearest rank, the tool's own are by linear interpolation (numpy)" in err


class TestFiles:
    """How a file is written does not matter, or is told."""

    @pytest.mark.parametrize("name", RAW)
    def test_windows_line_ends_and_a_byte_order_mark(self, name: str, tmp_path: Path) -> None:
        """As an editor on Windows leaves them."""
        path = RAW[name](tmp_path, calls())
        before = read(path)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        assert read(path) == before

    def test_compressed(self, tmp_path: Path) -> None:
        """Says that it is, and what to do."""
        path = tmp_path / "result.json.gz"
        path.write_bytes(gzip.compress(json.dumps(vllm_summary()).encode()))
        with pytest.raises(UsageError, match="is compressed \\(gzip\\); unpack it"):
            read(path)

    @pytest.mark.parametrize("text", ["Benchmark,TTFT\n1,2\n", "<html></html>", "benchmarks:\n"])
    def test_another_form_of_the_same_results(self, text: str, tmp_path: Path) -> None:
        """A table or a page of a tool is no JSON, and says what is read instead."""
        path = tmp_path / "result.csv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match="is no JSON: it begins with"):
            read(path)

    @pytest.mark.parametrize("name", ["vllm", "servebench", "guidellm"])
    def test_no_request_at_all(self, name: str, tmp_path: Path) -> None:
        """Nothing was measured, which is told as such."""
        changes: dict[str, dict[str, Any]] = {
            "servebench": {"requests": [], "summary": {}},
            "guidellm": {
                "requests": {"successful": []},
                "metrics": {"request_totals": {"successful": 0, "errored": 0, "incomplete": 0}},
            },
        }
        path = RAW[name](tmp_path, [], **changes.get(name, {}))
        with pytest.raises(UsageError, match="holds no request: nothing was measured"):
            read(path)


def test_results_in_folders_below_are_named(tmp_path: Path) -> None:
    """A folder of artifact folders says which of them to give, and an empty one nothing of them."""
    RAW["aiperf"](tmp_path / "artifacts" / "m-concurrency1", calls())
    (tmp_path / "artifacts" / "logs").mkdir()
    with pytest.raises(UsageError, match=r"folders below it \(m-concurrency1\)"):
        checked(tmp_path / "artifacts", policy(tmp_path))
    with pytest.raises(UsageError, match="no latest run"):
        checked(tmp_path / "artifacts" / "logs", policy(tmp_path))


def test_sglang_s_gaps_are_told_for_what_they_are(tmp_path: Path) -> None:
    """It shares the gap before a chunk among its tokens, which hides stalls."""
    got = checked(VALUES["sglang"](tmp_path, calls()), policy(tmp_path))
    assert "shared among a chunk's tokens" in " ".join(got.report["target"]["warnings"])


@pytest.mark.parametrize(
    "sent",
    [
        {"additional_sampling_params": {"temperature": 0.7}},
        {"additional_sampling_params_temperature": 0.7},
    ],
)
def test_llmperf_s_sampling(sent: dict[str, Any], tmp_path: Path) -> None:
    """Its summary flattens what it was given; either form is rule 3's second condition."""
    path = write(tmp_path / "a.json", SUMMARIES["llmperf"](**sent))
    (run,) = read(path)
    assert dict(run.sampling) == {"temperature": 0.7}
    found = checked(path, policy(tmp_path)).finding("tgs/concurrency-1")
    assert found["reason"].startswith("undocumented: memory (")


class TestDiagnosis:
    """What such a file can say of a cause is said, and that the rest is not known."""

    @pytest.mark.parametrize("name", [*RAW, *VALUES])
    def test_a_fail_says_what_cannot_be_told(self, name: str, tmp_path: Path) -> None:
        """An ordinary request is slow; no file of another tool has its stages."""
        path = {**RAW, **VALUES}[name](tmp_path, calls(ttft=400))
        found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
        assert "an ordinary request is over the limit (median 400.0 ms)" in found["diagnosis"][0]
        assert any(n.startswith("not attributable beyond that: ") for n in found["notes"])

    @pytest.mark.parametrize("name", sorted(set(SUMMARIES) - {"vllm"}))
    def test_a_summary_tells_slow_ones_from_slow(self, name: str, tmp_path: Path) -> None:
        """By its median and the percentile of the limit."""
        path = write(tmp_path / "a.json", SUMMARIES[name]())
        sla = policy(tmp_path, buckets="  - {name: short, prompt_max: 128, ttft_ms: 105}")
        found = checked(path, sla).finding("short/ttft_p95")
        assert found["verdict"] == "fail"
        assert "median 100.0 ms) and P95 (110.0 ms) does not" in found["diagnosis"][0]

    def test_what_is_not_slow_has_no_cause_to_look_for(self, tmp_path: Path) -> None:
        """A rate that lacks a condition, and a percentile that failures broke, say their reason."""
        rows = [*calls(50), *calls(10, error="refused")]
        path = VALUES["sglang"](tmp_path, rows)
        got = checked(path, policy(tmp_path, tgs=", min_tokens_per_s: 1"))
        for limit in ("tgs/concurrency-1", "short/ttft_p95"):
            found = got.finding(limit)
            assert found["verdict"] == "fail"
            assert not [n for n in found["notes"] if "not attributable" in n]

    def test_nothing_rests_on_an_order_that_nobody_knows(self, tmp_path: Path) -> None:
        """Rows without times of day may stand in any order: no first request, no drift."""
        rows = [c for i in range(60) for c in calls(1, ttft=1900 if i == 0 else 310 + 5 * i)]
        path = VALUES["genai-bench"](tmp_path, rows)
        found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
        assert not [d for d in found["diagnosis"] if "cold" in d or "over the run" in d]

    def test_failures_are_told_by_kind(self, tmp_path: Path) -> None:
        """Also where only their texts are on record."""
        path = VALUES["llmperf"](tmp_path, [*calls(50), *calls(10, error="timed out after 30 s")])
        found = checked(path, policy(tmp_path)).finding("short/error_rate")
        assert "10 of 60 requests failed with: N timed out after N s" in found["diagnosis"][0]


def _places(doc: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a document; of long lists one entry."""
    keys = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    for key, value in keys:
        if not isinstance(doc, list) or len(doc) <= 8 or key == 3:
            yield (*path, key)
            yield from _places(value, (*path, key))


_GONE = object()


@pytest.mark.parametrize("name", [*SUMMARIES, *VALUES, *RAW])
def test_whatever_stands_anywhere_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """A value of any other kind in any place is told in words; what is no requests never passes."""
    loaded = load_policy(policy(tmp_path, target=DECLARED), to_run=False)
    path = tmp_path / "a.json"
    if name in RAW or name in VALUES:
        path = {**RAW, **VALUES}[name](tmp_path, calls(5))
    else:
        write(path, SUMMARIES[name]())
    docs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][:4]
    for place in _places(docs):
        for value in (_GONE, None, -1, "x", {}, 1e30, float("nan")):
            changed = copy.deepcopy(docs)
            at = changed
            for key in place[:-1]:
                at = at[key]
            if value is _GONE:
                del at[place[-1]]
            else:
                at[place[-1]] = value
            write(path, *changed)
            try:
                runs = read(path)
            except UsageError:
                continue
            if all(not run.timelines for run in runs):
                with contextlib.suppress(UsageError):
                    assert judge([path], loaded)[0]["verdict"] != "pass"

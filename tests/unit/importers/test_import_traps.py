"""What real versions of the tools write beside the ordinary: each right, or told in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from foreign_files import (
    DECLARED,
    RAW,
    TOKENS,
    VALUES,
    Call,
    aiperf_summary,
    calls,
    checked,
    endpoints_summary,
    inference_perf_summary,
    llmperf_summary,
    policy,
    write,
)

from pytest_llmsla.errors import UsageError
from pytest_llmsla.importers import read
from pytest_llmsla.importers.chunks import place, usual
from pytest_llmsla.timeline import FIRST_UNSURE, NS_PER_MS

SUMMARY = "profile_export_aiperf.json"
Change = Callable[[Any], object]


def edited(path: Path, change: Change, *, every: bool = False) -> Path:
    """The file with its first document, or each of them, changed."""
    docs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for doc in docs if every else docs[:1]:
        change(doc)
    return write(path, *docs)


class TestTwoChunks:
    """An answer of two chunks has one gap, and no later one to compare it with."""

    @staticmethod
    def chat(folder: Path, gap: float, longer: int) -> Path:
        """``longer`` answers of 8 tokens every 20 ms, and one of two tokens, ``gap`` ms apart."""
        rows = [*calls(longer), Call(start=1000.0 * longer, gaps=(gap,))]
        return RAW["vllm"](folder, rows, endpoint_type="openai-chat", mean_itl_ms=None)

    @pytest.mark.parametrize(
        ("gap", "longer", "sure"),
        [
            (20, 60, True),  # like the gaps of the other answers
            (59, 60, True),
            (61, 60, False),  # a role that was sent early, and a chunk of two tokens
            (20, 0, False),  # nothing to compare it with
        ],
    )
    def test_its_gap_is_compared_with_those_of_the_others(
        self, gap: float, longer: int, sure: bool, tmp_path: Path
    ) -> None:
        """The first token is where it seems only if other answers have such gaps too."""
        (run,) = read(self.chat(tmp_path, gap, longer))
        told = run.timelines[-1].estimated
        assert (told is None) == sure
        assert sure or (told is not None and FIRST_UNSURE in told)

    @pytest.mark.parametrize(("gap", "verdict"), [(20, "pass"), (600, "error")])
    def test_one_of_them_among_others(self, gap: float, verdict: str, tmp_path: Path) -> None:
        """A short answer of an honest server costs no verdict; one that may hide a role does."""
        path = self.chat(tmp_path, gap, 60)
        got = checked(path, policy(tmp_path, workload=", force_length: false"))
        assert got.verdicts["short/ttft_p95"] == verdict

    def test_one_stall_does_not_make_it_usual(self) -> None:
        """The comparison is with an ordinary answer, not with the slowest."""
        assert usual([[9, 20, 20], [9, 21, 19], [9, 900, 20], [5], []]) == 21
        assert usual([[5], []]) == 0

    @pytest.mark.parametrize(("tokens", "gap"), [(2, 0.5), (1, 30.0), (3, 30.0)])
    def test_other_counts_stay_what_they_are(self, tokens: int, gap: float) -> None:
        """Two chunks of one or three tokens, and two sent together, are estimates as before."""
        gaps = [round(gap * NS_PER_MS)]
        placed = place(0, NS_PER_MS, gaps, tokens, opens_with_role=True, usual_ns=NS_PER_MS * 20)
        assert placed.estimated is not None


class TestVllm:
    """vllm bench and SGLang."""

    @pytest.mark.parametrize("name", ["vllm", "sglang"])
    def test_a_backend_without_streaming(self, name: str, tmp_path: Path) -> None:
        """It writes 0 for every TTFT: not streamed, and no failure."""

        def change(doc: Any) -> None:
            doc |= {"ttfts": [0.0] * 60, "itls": [[] for _ in range(60)]}
            for key in ("mean_ttft_ms", "mean_itl_ms"):
                doc.pop(key)

        path = edited({**RAW, **VALUES}[name](tmp_path, calls()), change)
        got = checked(path, policy(tmp_path))
        for limit in ("short/ttft_p95", "short/itl_p95"):
            found = got.finding(limit)
            assert (found["verdict"], found["reason"][:12]) == ("error", "not streamed")
        assert got.finding("short/error_rate")["exceeded"] == 0

    @pytest.mark.parametrize("name", ["vllm", "sglang"])
    def test_an_answer_in_which_nothing_came(self, name: str, tmp_path: Path) -> None:
        """SGLang reports the length that was asked for: one such answer is a failure."""

        def change(doc: Any) -> None:
            doc["ttfts"][7], doc["itls"][7] = 0.0, []

        path = edited({**RAW, **VALUES}[name](tmp_path, calls()), change)
        found = checked(path, policy(tmp_path)).finding("short/error_rate")
        assert (found["verdict"], found["exceeded"]) == ("fail", 1)

    @pytest.mark.parametrize(
        ("latency", "words"), [(0.2, "took less time than its tokens"), (0.9, "are these seconds")]
    )
    def test_gaps_of_another_unit_than_the_answer(
        self, latency: float, words: str, tmp_path: Path
    ) -> None:
        """``latencies`` stay in the file whatever is saved: an answer is as long as its gaps."""
        gaps = (100.0, 20.0) if latency == 0.2 else (0.5, 0.5)
        rows = calls(gaps=gaps)
        path = RAW["vllm"](tmp_path, rows, latencies=[0.1 + sum(gaps) / 1000] * 60)
        assert len(read(path)[0].timelines) == 60
        path = RAW["vllm"](tmp_path, rows, latencies=[latency] * 60)
        with pytest.raises(UsageError, match=words):
            read(path)

    def test_sglang_stamps_no_role(self, tmp_path: Path) -> None:
        """It takes chunks with content only: a long first gap is a gap on its chat route too."""
        rows = calls(gaps=(90, *(20,) * 6))
        for backend in ("sglang-oai", "sglang-oai-chat"):
            path = VALUES["sglang"](tmp_path, rows, backend=backend)
            found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
            assert (found["verdict"], found["observed"]) == ("inconclusive", 100.0)

    def test_sglang_with_several_tokens_at_first(self, tmp_path: Path) -> None:
        """Of eight tokens three came in the first chunk: TTFT is shown, gaps are not."""
        rows = calls(gaps=(20,) * 5)
        path = edited(
            VALUES["sglang"](tmp_path, rows), lambda d: d.update(output_lens=[TOKENS] * 60)
        )
        got = checked(path, policy(tmp_path))
        assert got.verdicts["short/ttft_p95"] == "inconclusive"
        assert "6 chunks brought 8 tokens" in got.finding("short/itl_p95")["reason"]

    def test_sglang_tells_of_its_prefix_cache(self, tmp_path: Path) -> None:
        """``--cache-report``: TTFT of cached prompts is told to be that."""
        path = VALUES["sglang"](tmp_path, calls(), cache_report={"total_cached_tokens": 700})
        told = " ".join(checked(path, policy(tmp_path)).report["target"]["warnings"])
        assert "700 prompt tokens came from a prefix cache" in told

    def test_sglang_by_a_trace(self, tmp_path: Path) -> None:
        """Its own word for a schedule is no rate."""
        with pytest.raises(UsageError, match="request_rate is 'trace'"):
            read(VALUES["sglang"](tmp_path, calls(), request_rate="trace"))

    def test_keys_of_speculative_decoding(self, tmp_path: Path) -> None:
        """Newer versions add them; several tokens a chunk have no gaps of their own."""
        rows = calls(gaps=(45,) * 3)
        spec = {"spec_decode_acceptance_rate": 61.0, "spec_decode_acceptance_length": 2.0}
        more = {"output_lens": [TOKENS] * 60, "total_output_tokens": TOKENS * 60}
        got = checked(RAW["vllm"](tmp_path, rows, **spec, **more), policy(tmp_path))
        assert got.verdicts["short/ttft_p95"] == "pass"
        found = got.finding("short/itl_p95")
        assert found["verdict"] == "error"
        assert found["reason"].startswith("4 tokens arrived but 8 were counted by usage_final")


class TestAiperf:
    """AIPerf's requests and what stands beside them."""

    @staticmethod
    def slow_to_close(folder: Path, ending: float) -> Path:
        """Answers of 30 ms whose connection is closed ``ending`` ms after their last token."""
        path = RAW["aiperf"](folder, calls(ttft=16, gaps=(2,) * 7))

        def change(row: Any) -> None:
            start = row["metadata"]["request_start_ns"]
            row["metadata"]["request_end_ns"] = start + round((30 + ending) * 1e6)

        return edited(path, change, every=True)

    @pytest.mark.parametrize("ending", [1, 190, 600])
    def test_a_server_that_is_slow_to_close(self, ending: float, tmp_path: Path) -> None:
        """What follows the last token is no latency, and no sign of another unit."""
        (run,) = read(self.slow_to_close(tmp_path, ending))
        assert {t.ttft_ms for t in run.timelines} == {16.0}

    def test_a_server_that_is_slow_to_close_the_shortest_answer(self, tmp_path: Path) -> None:
        """A millisecond of tokens, and a quarter of a second until the connection is closed."""
        path = RAW["aiperf"](tmp_path, calls(ttft=0.6, gaps=(0.06,) * 7))

        def change(row: Any) -> None:
            row["metadata"]["request_end_ns"] += 250_000_000

        assert len(read(edited(path, change, every=True))[0].timelines) == 60

    @pytest.mark.parametrize("ttft", [500, 700, 20_000])
    @pytest.mark.parametrize("factor", [1e-3, 1e-6])
    def test_another_unit_by_the_name_of_ms(
        self, ttft: float, factor: float, tmp_path: Path
    ) -> None:
        """From 0.5 ms on a TTFT is believed: seconds that are called ms are found by the clock."""
        rows = [Call(start=60_000.0 * i, ttft=ttft, gaps=()) for i in range(60)]

        def change(row: Any) -> None:
            for name in ("time_to_first_token", "request_latency"):
                row["metrics"][name]["value"] *= factor
            gaps = row["metrics"]["inter_chunk_latency"]
            gaps["value"] = [g * factor for g in gaps["value"]]

        with pytest.raises(UsageError, match="are these seconds"):
            read(edited(RAW["aiperf"](tmp_path, rows), change, every=True))

    @pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "sec"])
    def test_each_unit_is_read_as_it_is_named(self, unit: str, tmp_path: Path) -> None:
        """``unit`` beside a figure is authoritative."""
        factor = {"ns": 1e6, "us": 1e3, "ms": 1, "s": 1e-3, "sec": 1e-3}[unit]

        def change(row: Any) -> None:
            for name in ("time_to_first_token", "request_latency"):
                found = row["metrics"][name]
                found |= {"value": found["value"] * factor, "unit": unit}

        (run,) = read(edited(RAW["aiperf"](tmp_path, calls()), change, every=True))
        assert {t.ttft_ms for t in run.timelines} == {100.0}

    def test_a_request_in_two_lines(self, tmp_path: Path) -> None:
        """The same id twice is one request, whatever its times say."""
        path = RAW["aiperf"](tmp_path, calls())
        docs = [json.loads(line) for line in path.read_text().splitlines()]
        for n, doc in enumerate(docs):
            doc["metadata"]["x_request_id"] = f"id-{min(n, 58)}"
        with pytest.raises(UsageError, match=r"line 60 is of the request of line 59 .*'id-58'"):
            read(write(path, *docs))

    def test_a_line_is_missing(self, tmp_path: Path) -> None:
        """A file that was cut at the end of a line contradicts its summary."""
        path = RAW["aiperf"](tmp_path, calls())
        path.write_text("\n".join(path.read_text().splitlines()[:50]))
        with pytest.raises(UsageError, match="says request_count 60, but its requests give 50"):
            read(path)

    @pytest.mark.parametrize("key", ["benchmark_phase", "phase_kind"])
    def test_its_warm_up_is_left_out(self, key: str, tmp_path: Path) -> None:
        """By the name of the phase, or by its kind where phases have names of their own."""
        path = RAW["aiperf"](tmp_path, calls(), request_count={"unit": "requests", "avg": 50.0})
        docs = [json.loads(line) for line in path.read_text().splitlines()]
        for doc in docs[:10]:
            doc["metadata"] |= {"benchmark_phase": "first", key: "warmup"}
            doc["metrics"]["time_to_first_token"]["value"] = 150.0
            doc["metrics"]["request_latency"]["value"] = 290.0
            doc["metadata"]["request_end_ns"] += 50_000_000
        got = checked(write(path, *docs), policy(tmp_path))
        found = got.finding("short/ttft_p95")
        assert (found["requests"], found["percentiles"]["p99"]) == (50, 100.0)

    @pytest.mark.parametrize("listed", [True, False])
    def test_requests_that_it_cancelled_are_failures(self, listed: bool, tmp_path: Path) -> None:
        """Newer versions count them apart from errors; the file stays one that agrees."""
        rows = [*calls(58), *calls(2, start=70_000.0, error="x")]
        errors = {"error_summary": [{"count": 2}]}
        if listed:
            one = {"unit": "requests", "avg": 2.0}
            errors = {"error_summary": [], "cancelled_request_count": one}
        path = RAW["aiperf"](tmp_path, rows, **errors)

        def change(row: Any) -> None:
            if row.pop("error", None) is not None:
                row["metadata"]["was_cancelled"] = True

        found = checked(edited(path, change, every=True), policy(tmp_path))
        assert found.finding("short/error_rate")["exceeded"] == 2

    def test_failures_that_nobody_counted(self, tmp_path: Path) -> None:
        """More failed lines than errors and cancelled ones: refused."""
        rows = [*calls(57), *calls(3, start=70_000.0, error="x")]
        one = {"unit": "requests", "avg": 1.0}
        path = RAW["aiperf"](
            tmp_path, rows, error_summary=[{"count": 1}], cancelled_request_count=one
        )
        with pytest.raises(UsageError, match="says failed requests 1, but its requests give 3"):
            read(path)

    def test_prompts_from_a_prefix_cache(self, tmp_path: Path) -> None:
        """The server's usage may tell: rule 1 is not shown by cached prompts."""

        def change(row: Any) -> None:
            row["metrics"]["usage_prompt_cache_read_tokens"] = {"value": 96, "unit": "tokens"}

        path = edited(RAW["aiperf"](tmp_path, calls()), change, every=True)
        found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
        assert found["verdict"] == "error"
        assert "up to 96 of 120 tokens" in found["reason"]

    PHASES: ClassVar[dict[str, tuple[list[dict[str, Any]], str]]] = {
        "two loads": (
            [{"kind": "profiling", "concurrency": 1}, {"kind": "profiling", "concurrency": 8}],
            "holds 2 measured phases",
        ),
        "a rate that rises": (
            [{"kind": "profiling", "type": "poisson", "rate": 4.0, "rate_ramp": 30.0}],
            "its load changed during the run .input_config rate_ramp.",
        ),
        "a series of rates": (
            [{"kind": "profiling", "type": "poisson", "rate_series": {"initial_qps": 1.0}}],
            "rate_series",
        ),
        "a number that rises": (
            [{"kind": "profiling", "type": "concurrency", "concurrency": 4,
              "concurrency_ramp": {"duration": 9}}],
            "concurrency_ramp",
        ),
        "users": (
            [{"kind": "profiling", "type": "user_centric", "rate": 4.0, "users": 3}],
            "by a schedule of their own",
        ),
        "no rate": ([{"kind": "profiling", "type": "gamma"}], "is of type gamma and has no rate"),
    }  # fmt: skip

    @pytest.mark.parametrize("case", PHASES)
    def test_loads_that_are_no_one_load(self, case: str, tmp_path: Path) -> None:
        """Requests and summary alike are refused, and say by which key."""
        phases, words = self.PHASES[case]
        with pytest.raises(UsageError, match=words):
            read(RAW["aiperf"](tmp_path, calls(), input_config={"phases": phases}))
        with pytest.raises(UsageError, match=words):
            read(write(tmp_path / "a.json", aiperf_summary(input_config={"phases": phases})))

    def test_a_warm_up_phase_is_no_second_load(self, tmp_path: Path) -> None:
        """Older versions know it by its name, newer ones by its kind."""
        for warm in ({"name": "warmup"}, {"kind": "warmup"}, {"exclude_from_results": True}):
            phases = [{**warm, "concurrency": 9}, {"name": "profiling", "concurrency": 1}]
            (run,) = read(RAW["aiperf"](tmp_path, calls(), input_config={"phases": phases}))
            assert run.concurrency == 1

    @pytest.mark.parametrize(("cap", "refused"), [(1, True), (2, False), (None, False)])
    def test_waiting_for_a_place_is_part_of_ttft(
        self, cap: int | None, refused: bool, tmp_path: Path
    ) -> None:
        """With a rate and a bound that was reached, how long requests waited is not on record."""
        phase = {"kind": "profiling", "type": "constant", "rate": 1.0, "concurrency": cap}
        path = RAW["aiperf"](tmp_path, calls(), input_config={"phases": [phase]})
        if refused:
            with pytest.raises(UsageError, match="at most 1 at once, and 1 were"):
                read(path)
        else:
            assert read(path)[0].rate == 1.0

    @pytest.mark.parametrize("load", [{"request_rate": 5}, {"concurrency": 8}])
    def test_requests_held_back_for_the_first_token_of_others(
        self, load: dict[str, int], tmp_path: Path
    ) -> None:
        """That wait is part of TTFT and on no record, in requests and in a summary."""
        config = {"loadgen": {**load, "prefill_concurrency": 1}}
        words = "waited for their first token .input_config prefill_concurrency"
        with pytest.raises(UsageError, match=words):
            read(RAW["aiperf"](tmp_path, calls(), input_config=config))
        with pytest.raises(UsageError, match=words):
            read(write(tmp_path / "a.json", aiperf_summary(input_config=config)))
        config["loadgen"]["prefill_concurrency"] = None
        assert read(RAW["aiperf"](tmp_path, calls(), input_config=config))

    def test_a_warm_up_that_rises_is_no_load_that_rises(self, tmp_path: Path) -> None:
        """Its keys stand beside those of the load."""
        load = {
            "concurrency": 8,
            "warmup_concurrency_ramp_duration": 5,
            "warmup_prefill_concurrency": 2,
        }
        (run,) = read(RAW["aiperf"](tmp_path, calls(), input_config={"loadgen": load}))
        assert run.concurrency == 8

    @staticmethod
    def with_a_cap(folder: Path, first: dict[str, Any], spans: list[tuple[int, int]]) -> Path:
        """A rate with at most 2 at once; ``first`` is of the requests with ``spans``, s."""
        rows = calls(20)
        phase = {"kind": "profiling", "type": "constant", "rate": 1.0, "concurrency": 2}
        path = RAW["aiperf"](folder, rows, input_config={"phases": [phase]})
        docs = [json.loads(line) for line in path.read_text().splitlines()]
        for doc, (start, end) in zip(docs, spans, strict=False):
            origin = docs[2]["metadata"]["request_start_ns"]
            doc["metadata"] |= {
                "request_start_ns": origin + start * 10**9,
                "request_end_ns": origin + end * 10**9,
                **first.get("metadata", {}),
            }
            doc |= {k: v for k, v in first.items() if k != "metadata"}
        lost = len(spans)
        summary = json.loads((folder / SUMMARY).read_text())
        summary["request_count"]["avg"] -= lost
        summary["error_summary"] = [{"count": lost}] if "error" in first else []
        write(folder / SUMMARY, summary)
        return write(path, *docs)

    def test_failed_requests_hold_their_places(self, tmp_path: Path) -> None:
        """Two that hung for a minute left no place to any other."""
        failed = {"error": {"message": "timeout"}, "metrics": {}}
        path = self.with_a_cap(tmp_path, failed, [(100, 160), (101, 161)])
        with pytest.raises(UsageError, match="at most 2 at once, and 2 were"):
            read(path)
        assert read(self.with_a_cap(tmp_path, failed, [(100, 160), (160, 161)]))
        with pytest.raises(UsageError, match="backwards"):
            read(self.with_a_cap(tmp_path, failed, [(100, 99)]))

    @pytest.mark.parametrize(("end", "refused"), [(-1, False), (1, True)])
    def test_a_warm_up_at_the_cap(self, end: int, refused: bool, tmp_path: Path) -> None:
        """It took no place from the measured ones, unless it was still there when they came."""
        warm = {"metadata": {"benchmark_phase": "warmup"}}
        path = self.with_a_cap(tmp_path, warm, [(-3, end), (-3, end)])
        if refused:
            with pytest.raises(UsageError, match="at most 2 at once, and 3 were"):
                read(path)
        else:
            assert sum(not t.warmup for t in read(path)[0].timelines) == 18

    @pytest.mark.parametrize("said", [{"was_cancelled": True}, {"is_complete": False}])
    def test_a_run_that_was_cancelled_passes_nothing(
        self, said: dict[str, Any], tmp_path: Path
    ) -> None:
        """What was in flight then is in no line; a limit that is broken stays broken."""
        got = checked(RAW["aiperf"](tmp_path, calls(), **said), policy(tmp_path))
        found = got.finding("short/ttft_p95")
        assert (found["verdict"], found["reason"][:21]) == ("inconclusive", "the run was cancelled")
        assert "pass" not in got.verdicts.values()
        got = checked(RAW["aiperf"](tmp_path, calls(ttft=400), **said), policy(tmp_path))
        assert got.verdicts["short/ttft_p95"] == "fail"

    def test_gaps_of_another_unit_than_the_answer(self, tmp_path: Path) -> None:
        """Gaps of 100 ms written as 0.1: the answer's own length says otherwise."""

        def change(row: Any) -> None:
            row["metrics"]["inter_chunk_latency"]["value"] = [0.1] * 7

        path = RAW["aiperf"](tmp_path, calls(gaps=(100,) * 7))
        with pytest.raises(UsageError, match=r"its gaps are 0\.7 ms together"):
            read(edited(path, change, every=True))

    def test_gaps_that_its_summary_does_not_give(self, tmp_path: Path) -> None:
        """Percentiles of the summary are made of the gaps of its lines."""
        path = RAW["aiperf"](
            tmp_path, calls(), inter_chunk_latency={"unit": "ms", "avg": 20.0, "p95": 35.0}
        )
        with pytest.raises(UsageError, match="says ITL P95 35 ms, but its requests give 20 ms"):
            read(path)

    def test_a_summary_of_failures_alone(self, tmp_path: Path) -> None:
        """Nothing answered: no latency is in the file, and the verdict says what failed."""
        doc = aiperf_summary(error_request_count={"unit": "requests", "avg": 40.0})
        for name in [k for k, v in doc.items() if isinstance(v, dict) and "unit" in v]:
            if name != "error_request_count":
                del doc[name]
        doc["request_count"] = {"unit": "requests", "avg": 0.0}
        got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
        assert got.verdicts["short/error_rate"] == "fail"
        assert "40 failed" in got.finding("short/ttft_p95")["reason"]


class TestGuidellm:
    """GuideLLM's lists, with warm-up, cool-down and thinning together."""

    @staticmethod
    def windowed(folder: Path, said: dict[str, int], **more: Any) -> Path:
        """60 requests a second apart, the 10th errored; the window holds requests 5 to 54."""
        rows = [*calls(60)]
        rows[9] = replace(rows[9], error="reset")

        def change(doc: Any) -> None:
            one = doc["benchmarks"][0]
            one |= {"start_time": 1.7e9 + 4.9, "end_time": 1.7e9 + 54.9, **more}
            one["metrics"]["request_totals"] |= said
            for kind in ("successful", "errored"):
                for row in one["requests"][kind]:
                    times = row["info"]["timings"]
                    times["resolve_end"] = times["request_start"] + 0.5

        return edited(RAW["guidellm"](folder, rows), change)

    def test_a_failure_inside_the_window_counts(self, tmp_path: Path) -> None:
        """49 answered and one failed inside; ten of warm-up and cool-down are left out."""
        path = self.windowed(tmp_path, {"successful": 49, "errored": 1})
        got = checked(path, policy(tmp_path))
        found = got.finding("short/error_rate")
        assert (found["requests"], found["exceeded"], found["verdict"]) == (50, 1, "fail")

    def test_a_failure_of_its_warm_up_does_not(self, tmp_path: Path) -> None:
        """Totals without it, and a window that begins after it."""
        path = self.windowed(tmp_path, {"successful": 45, "errored": 0}, start_time=1.7e9 + 9.9)
        got = checked(path, policy(tmp_path))
        found = got.finding("short/error_rate")
        assert (found["requests"], found["exceeded"]) == (45, 0)
        assert "15 requests of the tool's own warm-up" in " ".join(got.report["target"]["warnings"])

    def test_a_failure_hidden_by_its_totals_is_refused(self, tmp_path: Path) -> None:
        """Inside the window, and not in the totals."""
        with pytest.raises(UsageError, match="says 0 errored requests and holds 1"):
            read(self.windowed(tmp_path, {"successful": 49, "errored": 0}))

    def test_thinned_and_warmed_up(self, tmp_path: Path) -> None:
        """Lists that were thinned hold any part of the window: a summary, and no contradiction."""
        made = {"requests_made": {"successful": 400, "errored": 1, "incomplete": 0}}
        path = self.windowed(tmp_path, {"successful": 47, "errored": 1}, scheduler_metrics=made)
        (run,) = read(path)
        assert run.timelines == ()
        assert "341 of 401 requests were thinned out (sample_size)" in run.notes
        assert "pass" not in checked(path, policy(tmp_path)).verdicts.values()

    def test_a_request_across_an_edge_is_measured(self, tmp_path: Path) -> None:
        """The tool counts what ended after the window began, and what began before it ended."""
        path = self.windowed(
            tmp_path, {"successful": 50, "errored": 1}, start_time=1.7e9 + 4.4, end_time=1.7e9 + 54
        )
        (run,) = read(path)
        assert sum(not t.warmup for t in run.timelines) == 51

    def test_an_end_that_nobody_knows_is_inside(self, tmp_path: Path) -> None:
        """No window on record: all are measured, and totals that say less are refused."""
        for name in ("start_time", "end_time"):
            with pytest.raises(UsageError, match="says 49 successful requests and holds 59"):
                read(self.windowed(tmp_path, {"successful": 49, "errored": 1}, **{name: None}))

    @pytest.mark.parametrize(("begun", "inside"), [(54.0, 1), (58.0, 0)])
    def test_a_failure_before_its_request_began(
        self, begun: float, inside: int, tmp_path: Path
    ) -> None:
        """Where only the worker's own begin is on record, it decides, as the tool decides."""
        path = self.windowed(tmp_path, {"successful": 49, "errored": inside})

        def change(doc: Any) -> None:
            errored = doc["benchmarks"][0]["requests"]["errored"]
            errored.append(json.loads(json.dumps(errored[0])))
            late = {"request_start": 1.7e9 + 58, "resolve_end": 1.7e9 + 59}
            errored[1]["info"]["timings"] |= late
            times = errored[0]["info"]["timings"]
            times |= {"request_start": None, "resolve_start": 1.7e9 + begun}
            times["resolve_end"] = 1.7e9 + 59

        (run,) = read(edited(path, change))
        assert [t.warmup for t in run.timelines if not t.ok] == [not inside, True]

    @pytest.mark.parametrize("status", ["errored", "cancelled"])
    def test_a_success_that_says_otherwise(self, status: str, tmp_path: Path) -> None:
        """One whose status contradicts its list is no success."""
        path = RAW["guidellm"](tmp_path, calls())

        def change(doc: Any) -> None:
            doc["benchmarks"][0]["requests"]["successful"][3]["info"]["status"] = status

        found = checked(edited(path, change), policy(tmp_path)).finding("short/error_rate")
        assert (found["verdict"], found["exceeded"]) == ("fail", 1)

    @pytest.mark.parametrize("usage", [{"total_tokens": 8}, None])
    def test_a_count_that_is_not_there(self, usage: dict[str, int] | None, tmp_path: Path) -> None:
        """It is taken from the usage, else unknown: an error of what rests on it, no failure."""

        def change(doc: Any) -> None:
            for row in doc["benchmarks"][0]["requests"]["successful"]:
                del row["output_tokens"]
                row["output_metrics"] = usage

        got = checked(
            edited(RAW["guidellm"](tmp_path, calls()), change), policy(tmp_path, target=DECLARED)
        )
        assert got.verdicts["short/ttft_p95"] == got.verdicts["short/error_rate"] == "pass"
        found = got.finding("tgs/concurrency-1")
        assert (found["verdict"] == "pass") == (usage is not None)
        assert usage is not None or found["reason"].startswith("token count unknown")

    def test_cached_prompts_beside_the_counts(self, tmp_path: Path) -> None:
        """Versions without a figure of their own tell it in the usage of the prompt."""

        def change(doc: Any) -> None:
            for row in doc["benchmarks"][0]["requests"]["successful"]:
                row["input_metrics"] = {"text_tokens": 120, "cached_tokens": 96}

        path = edited(RAW["guidellm"](tmp_path, calls()), change)
        found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
        assert found["verdict"] == "error"
        assert "up to 96 of 120 tokens" in found["reason"]

    @pytest.mark.parametrize(
        ("metadata", "words"),
        [
            ({"version": 1, "guidellm_version": "0.4.0"}, "GuideLLM 0.4.0, metadata.version 1;"),
            ({"guidellm_version": "0.3.1"}, "measure again with GuideLLM 0.5 or later"),
            ({"version": 3, "guidellm_version": "2.0.0"}, "Update pytest-llmsla"),
            ({"version": "2"}, "metadata.version '2'"),
        ],
    )
    def test_other_versions_say_what_to_do(
        self, metadata: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        """An older one is to be measured again, a later one needs a later reader."""
        path = edited(RAW["guidellm"](tmp_path, calls()), lambda d: d.update(metadata=metadata))
        with pytest.raises(UsageError) as caught:
            read(path)
        assert words in str(caught.value)

    def test_a_file_of_before_metadata(self, tmp_path: Path) -> None:
        """GuideLLM 0.1 to 0.3 wrote its arguments into each benchmark and no metadata."""

        def change(doc: Any) -> None:
            del doc["metadata"], doc["config"]
            doc["benchmarks"][0]["args"] = doc["benchmarks"][0].pop("config")

        with pytest.raises(UsageError, match=r"of before 0\.4.*measure again with GuideLLM 0\.5"):
            read(edited(RAW["guidellm"](tmp_path, calls()), change))

    def test_a_trace_cannot_be_judged(self, tmp_path: Path) -> None:
        """Its newest strategy replays a schedule."""
        strategy = {"strategy": {"type_": "trace", "time_scale": 1.0}}
        with pytest.raises(UsageError, match="strategy 'trace' cannot be judged"):
            read(RAW["guidellm"](tmp_path, calls(), config=strategy))


UNKNOWN: dict[str, tuple[str, str, Change, str]] = {
    "rate": ("vllm", "vllm.json", lambda d: d.pop("request_rate"), "has no request_rate"),
    "no rate": ("vllm", "vllm.json", lambda d: d.update(request_rate=None), "has no request_rate"),
    "phases": ("aiperf", SUMMARY, lambda d: d["input_config"].pop("phases"), "input_config does"),
    "no phase": ("aiperf", SUMMARY, lambda d: d["input_config"].update(phases=[]), "not say how"),
    "count": ("aiperf", SUMMARY, lambda d: d.pop("request_count"), "has no request_count"),
    "a summary": (
        "servebench", "run.json", lambda d: d["levels"][0].update(summary="none"), "an object",
    ),
    "a version": ("servebench", "run.json", lambda d: d.update(schema_version=True), "reads 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_must_be_known_for_a_verdict(case: str, tmp_path: Path) -> None:
    """How requests were sent, and whether any is missing: without it the file is refused."""
    name, file, change, words = UNKNOWN[case]
    path = RAW[name](tmp_path, calls())
    edited(tmp_path / file, change)
    with pytest.raises(UsageError, match=words):
        checked(path, policy(tmp_path, target=DECLARED))


@pytest.mark.parametrize("value", [-1, 1e999, float("nan"), "0.8", True])
def test_a_temperature_that_none_is(value: object, tmp_path: Path) -> None:
    """It documents no sampling: rule 3 is a FAIL that says so."""
    path = RAW["servebench"](tmp_path, calls())
    path = edited(path, lambda d: d["config"].update(temperature=value))
    found = checked(path, policy(tmp_path, target=DECLARED)).finding("tgs/concurrency-1")
    assert found["verdict"] == "fail"
    assert found["reason"].startswith("undocumented: sampling (")


@pytest.mark.parametrize(("name", "key"), [("vllm", "model_id"), ("servebench", "config")])
def test_a_model_that_nobody_named_is_told(name: str, key: str, tmp_path: Path) -> None:
    """The report says that it is not on record."""

    def change(doc: Any) -> None:
        doc.pop(key) if name == "vllm" else doc[key].pop("model")

    path = RAW[name](tmp_path, calls())
    words = "which model was measured is not on record"
    assert words not in checked(path, policy(tmp_path)).report["target"]["warnings"]
    got = checked(edited(path, change), policy(tmp_path))
    assert words in got.report["target"]["warnings"]


EMPTY: dict[str, Change] = {
    "servebench": lambda d: d["levels"][0]["requests"][7].update(output_tokens=0),
    "inference-perf": lambda d: d[7]["info"].update(output_tokens=0, output_token_times=[]),
    "guidellm": lambda d: d["benchmarks"][0]["requests"]["successful"][7].update(output_tokens=0),
    "vllm": lambda d: (
        d["output_lens"].__setitem__(7, 0), d["ttfts"].__setitem__(7, 0.0),
        d["itls"].__setitem__(7, []), d.update(total_output_tokens=TOKENS * 59),
    ),
    "genai-bench": lambda d: d["individual_request_metrics"][7].update(num_output_tokens=0),
    "llmperf": lambda d: d[7].update(number_output_tokens=0, ttft_s=0),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_answer_is_a_failure_and_no_damage(name: str, tmp_path: Path) -> None:
    """Its tool calls it completed, in the same file; here it is one failed request of sixty."""
    path = edited({**RAW, **VALUES}[name](tmp_path, calls()), EMPTY[name])
    got = checked(path, policy(tmp_path, target=DECLARED))
    found = got.finding("short/error_rate")
    assert (found["verdict"], found["exceeded"], found["requests"]) == ("fail", 1, 60)
    assert got.code == 1


def test_an_empty_answer_of_aiperf(tmp_path: Path) -> None:
    """One line of many has no token, in a file whose count holds it."""
    path = RAW["aiperf"](tmp_path, calls())
    docs = [json.loads(line) for line in path.read_text().splitlines()]
    docs[7]["metrics"]["usage_completion_tokens"]["value"] = 0
    found = checked(write(path, *docs), policy(tmp_path)).finding("short/error_rate")
    assert (found["verdict"], found["exceeded"], found["requests"]) == ("fail", 1, 60)


class TestOthers:
    """LLMPerf, genai-bench and MLCommons endpoints."""

    def test_llmperf_keeps_an_error_without_a_code(self, tmp_path: Path) -> None:
        """An error object in a stream may have no code: its text alone tells."""

        def change(rows: Any) -> None:
            rows[3] |= {"error_code": None, "error_msg": "overloaded", "end_to_end_latency_s": 0}

        path = edited(VALUES["llmperf"](tmp_path, calls()), change)
        found = checked(path, policy(tmp_path)).finding("short/error_rate")
        assert (found["verdict"], found["exceeded"]) == ("fail", 1)

    def test_llmperf_of_failures_alone(self, tmp_path: Path) -> None:
        """Of no answer it writes NaN everywhere: all failed, which is what is told."""
        doc = llmperf_summary(
            results_num_completed_requests=0, results_num_requests_started=9,
            results_number_errors=9,
        )  # fmt: skip
        for key in [k for k in doc if "ttft" in k or "input_tokens" in k]:
            doc[key] = float("nan") if "ttft" in key else "nan"
        got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
        assert got.verdicts["short/error_rate"] == "fail"
        assert "no request was answered (9 failed)" in got.finding("short/ttft_p95")["reason"]

    def test_llmperf_s_two_files_are_one_run(self, tmp_path: Path) -> None:
        """The requests take level, model and sampling from the summary beside them."""
        VALUES["llmperf"](tmp_path / "run", [*calls(99), *calls(1, error="refused")])
        said = llmperf_summary(
            num_concurrent_requests=4, results_num_completed_requests=99,
            results_number_errors=1, additional_sampling_params_temperature=0.7,
        )  # fmt: skip
        summary = write(tmp_path / "run" / "m_summary.json", said)
        got = checked(tmp_path / "run", policy(tmp_path, level=4))
        assert {f["concurrency"] for f in got.report["findings"]} == {4}
        assert got.finding("short/error_rate")["exceeded"] == 1
        assert got.finding("tgs/concurrency-4")["observed"] == 40.0
        assert got.finding("tgs/concurrency-4")["reason"].startswith("undocumented: memory (")
        write(summary, {**said, "results_num_completed_requests": 100, "results_number_errors": 0})
        with pytest.raises(UsageError, match="says completed requests 100, but its requests give"):
            checked(tmp_path / "run", policy(tmp_path, level=4))

    @pytest.mark.parametrize("same", [True, False])
    def test_inference_perf_s_only_stage_is_the_run(self, same: bool, tmp_path: Path) -> None:
        """A folder without requests: the stage has the load, the whole run's summary no more."""
        folder = tmp_path / "reports"
        write(folder / "stage_0_lifecycle_metrics.json", inference_perf_summary())
        whole = inference_perf_summary(load_summary={"count": 100 if same else 90})
        whole["successes"]["count"] = 100 if same else 90
        write(folder / "summary_lifecycle_metrics.json", whole)
        if same:
            got = checked(folder, policy(tmp_path))
            assert got.finding("short/ttft_p95")["reason"].startswith("observed, n=100")
        else:
            with pytest.raises(UsageError, match="cannot be pooled"):
                checked(folder, policy(tmp_path))

    @pytest.mark.parametrize(("level", "words"), [(1.5, "a whole number"), (0, "is 0")])
    def test_genai_bench_at_no_level(self, level: float, words: str, tmp_path: Path) -> None:
        """A number in flight is whole and above 0."""

        def change(doc: Any) -> None:
            doc["aggregated_metrics"]["num_concurrency"] = level

        with pytest.raises(UsageError, match=words):
            read(edited(VALUES["genai-bench"](tmp_path, calls()), change))

    @pytest.mark.parametrize("done", [95, 100])
    def test_endpoints_counts_failed_ones_as_completed(self, done: int, tmp_path: Path) -> None:
        """Five of a hundred failed, whether they are counted among the completed or beside."""
        doc = endpoints_summary(n_samples_completed=done, n_samples_failed=5)
        found = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
        failed = found.finding("short/error_rate")
        assert (failed["verdict"], failed["exceeded"], failed["requests"]) == ("fail", 5, 100)
        assert "5 failed requests are not in its percentiles" in found.finding(
            "short/ttft_p95"
        )["reason"]  # fmt: skip

    def test_endpoints_that_was_interrupted(self, tmp_path: Path) -> None:
        """Issued and never answered, and failed: neither is a success."""
        doc = endpoints_summary(
            n_samples_completed=90, n_samples_failed=5, state="interrupted", complete=False
        )
        got = checked(write(tmp_path / "a.json", doc), policy(tmp_path))
        assert got.finding("short/error_rate")["exceeded"] == 15

    @pytest.mark.parametrize("ttft", [{}, {"early_stopping_percentiles": {"99.0": None}}, None])
    def test_endpoints_without_streaming(self, ttft: object, tmp_path: Path) -> None:
        """A series of no sample has at most its empty estimates: rule 1 is not shown."""
        doc = endpoints_summary(ttft=ttft)
        found = checked(write(tmp_path / "a.json", doc), policy(tmp_path)).finding("short/ttft_p95")
        assert (found["verdict"], found["reason"]) == ("error", "ttft is not shown by this file")

    def test_endpoints_load(self, tmp_path: Path) -> None:
        """Newer versions tell it: another level, and a rate, are refused as everywhere."""
        path = tmp_path / "a.json"
        pattern: dict[str, Any] = {"type": "concurrency", "target_concurrency": 8}
        write(path, endpoints_summary(run_config={"load_pattern": pattern}))
        with pytest.raises(UsageError, match="measured at concurrency 8"):
            checked(path, policy(tmp_path))
        pattern = {"type": "poisson", "target_qps": 5.0}
        write(path, endpoints_summary(run_config={"load_pattern": pattern}))
        with pytest.raises(UsageError, match="came in at 5/s"):
            checked(path, policy(tmp_path))
        write(path, endpoints_summary(run_config={"load_pattern": {"type": "poisson"}}))
        with pytest.raises(UsageError, match=r"run_config\.load_pattern\.target_qps"):
            read(path)

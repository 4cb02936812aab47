"""Result files of other tools, made of bare integers: the same requests in every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TOKENS = 8


@dataclass(frozen=True)
class Call:
    """One request; times in ms, one token a chunk."""

    start: float
    prompt: int = 120
    ttft: float = 100
    gaps: tuple[float, ...] = (20,) * (TOKENS - 1)
    error: str | None = None

    @property
    def chunks(self) -> list[float]:
        """Times of its chunks, ms after its start."""
        out = [self.ttft]
        for gap in self.gaps:
            out.append(out[-1] + gap)
        return out


def calls(n: int = 60, **changed: Any) -> list[Call]:
    """``n`` requests, one after the other."""
    return [replace(Call(start=1000.0 * i), **changed) for i in range(n)]


def write(path: Path, *docs: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(d) for d in docs) + "\n", encoding="utf-8")
    return path


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def vllm(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """vllm bench serve --save-detailed, completions route."""
    ok = [c for c in given if c.error is None]
    doc = {
        "date": "20260101-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": len(given),
        "request_rate": "inf",
        "max_concurrency": 1,
        "duration": len(given),
        "completed": len(ok),
        "failed": len(given) - len(ok),
        "total_input_tokens": sum(c.prompt for c in given),
        "total_output_tokens": sum(len(c.chunks) for c in ok),
        "output_throughput": 7.0,
        "input_lens": [c.prompt for c in given],
        "output_lens": [0 if c.error else len(c.chunks) for c in given],
        "ttfts": [0.0 if c.error else c.ttft / 1e3 for c in given],
        "itls": [[] if c.error else [g / 1e3 for g in c.gaps] for c in given],
        "start_times": [5000 + c.start / 1e3 for c in given],
        "generated_texts": ["x"] * len(given),
        "errors": [c.error or "" for c in given],
        "mean_ttft_ms": _mean([c.ttft for c in ok]),
        "mean_itl_ms": _mean([g for c in ok for g in c.gaps]),
    }
    return write(folder / "vllm.json", {**doc, **changed})


def servebench(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """servebench run.json, one level."""
    rows = [
        {
            "index": n,
            "start": c.start / 1e3,
            "ok": c.error is None,
            "error": c.error,
            "ttft": None if c.error else c.ttft / 1e3,
            "e2e": None if c.error else c.chunks[-1] / 1e3,
            "chunk_times": [] if c.error else [t / 1e3 for t in c.chunks],
            "prompt_tokens": c.prompt,
            "output_tokens": None if c.error else len(c.chunks),
            "token_source": "usage",
        }
        for n, c in enumerate(given)
    ]
    level = {
        "mode": "concurrency",
        "value": 1.0,
        "client_lag_p99_ms": 0.1,
        "requests": rows,
        "summary": {
            "completed": sum(r["ok"] is True for r in rows),
            "failed": sum(r["ok"] is False for r in rows),
        },
    }
    doc = {
        "schema_version": 1,
        "config": {"model": "m", "output_len": TOKENS, "ignore_eos": True, "temperature": 0.8},
        "environment": {"servebench_version": "1.1.3", "timestamp": "2026-01-01T12:00:00Z"},
        "levels": [{**level, **changed}],
    }
    return write(folder / "run.json", doc)


def guidellm(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """GuideLLM benchmarks.json, one benchmark."""

    def request(n: int, c: Call) -> dict[str, Any]:
        begin = 1.7e9 + c.start / 1e3
        body = {"max_tokens": TOKENS, "temperature": 0.8, "messages": [{"content": f"p{n}"}]}
        times: dict[str, Any] = {"targeted_start": begin, "request_start": begin}
        if c.error is None:
            times["first_token_iteration"] = begin + c.chunks[0] / 1e3
            times["last_token_iteration"] = begin + c.chunks[-1] / 1e3
        return {
            "request_args": json.dumps({"body": body}),
            "info": {"timings": times, "error": c.error},
            "prompt_tokens": c.prompt,
            "output_tokens": None if c.error else len(c.chunks),
            "time_to_first_token_ms": None if c.error else c.ttft,
        }

    good = [request(n, c) for n, c in enumerate(given) if c.error is None]
    bad = [request(n, c) for n, c in enumerate(given) if c.error is not None]
    one = {
        "config": {"strategy": {"type_": "synchronous"}, "backend": {"model": "m"}},
        "metrics": {
            "request_totals": {"successful": len(good), "errored": len(bad), "incomplete": 0}
        },
        "requests": {"successful": good, "errored": bad, "incomplete": []},
        "start_time": 1.7e9,
    }
    metadata = {"version": 2, "guidellm_version": "0.8.1"}
    doc = {"metadata": metadata, "config": {}, "benchmarks": [{**one, **changed}]}
    return write(folder / "benchmarks.json", doc)


def aiperf(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """AIPerf profile_export.jsonl with its summary beside it."""
    ok = [c for c in given if c.error is None]
    summary = {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_latency": {"unit": "ms", "avg": 1.0},
        "request_count": {"unit": "requests", "avg": float(len(ok))},
        "error_summary": [{"count": len(given) - len(ok)}],
        "input_config": {
            "models": {"items": [{"name": "m"}]},
            "phases": [{"kind": "profiling", "concurrency": 1}],
            "datasets": [{"prompts": {"osl": {"mean": float(TOKENS), "stddev": 0.0}}}],
        },
    }
    write(folder / "profile_export_aiperf.json", {**summary, **changed})
    return write(folder / "profile_export.jsonl", *map(_aiperf_line, given))


def _aiperf_line(c: Call) -> dict[str, Any]:
    begin = round(1.7e18 + c.start * 1e6)
    end = begin + round((c.chunks[-1] + 1) * 1e6)
    metadata = {"request_start_ns": begin, "request_end_ns": end, "benchmark_phase": "profiling"}
    sent = {"input_sequence_length": {"value": c.prompt, "unit": "tokens"}}
    if c.error is not None:
        return {"metadata": metadata, "metrics": sent, "error": {"message": c.error}}
    metrics = {
        **sent,
        "request_latency": {"value": c.chunks[-1], "unit": "ms"},
        "time_to_first_token": {"value": c.ttft, "unit": "ms"},
        "inter_chunk_latency": {"value": list(c.gaps), "unit": "ms"},
        "usage_completion_tokens": {"value": len(c.chunks), "unit": "tokens"},
    }
    return {"metadata": metadata, "metrics": metrics}


def inference_perf(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """inference-perf's requests with the summary of their one stage beside it."""
    ok = sum(c.error is None for c in given)
    stage = {
        "load_summary": {"count": len(given), "concurrency": 1},
        "successes": {"count": ok},
        "failures": {"count": len(given) - ok},
    }
    write(folder / "stage_0_lifecycle_metrics.json", {**stage, **changed})
    rows = []
    for n, c in enumerate(given):
        begin = 700 + c.start / 1e3
        body = {"model": "m", "max_tokens": TOKENS, "temperature": 0.8, "prompt": f"p{n}"}
        times = [] if c.error else [begin + t / 1e3 for t in c.chunks]
        info = {"input_tokens": c.prompt, "output_tokens": len(times), "output_token_times": times}
        rows.append(
            {
                "start_time": begin,
                "end_time": (times[-1] if times else begin) + 0.001,
                "request": json.dumps(body),
                "response": "x",
                "info": info,
                "error": {"error_msg": c.error} if c.error else None,
            }
        )
    return write(folder / "per_request_lifecycle_metrics.json", rows)


RAW: dict[str, Callable[..., Path]] = {
    "vllm": vllm,
    "servebench": servebench,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "inference-perf": inference_perf,
}
"""Formats with requests and their times."""


def sglang(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """SGLang bench_serving --output-details: requests without a time of day."""
    path = vllm(folder, given)
    doc = json.loads(path.read_text(encoding="utf-8"))
    for name in ("start_times", "failed", "num_prompts", "endpoint_type", "model_id"):
        del doc[name]
    doc["total_output_tokens_retokenized"] = doc["total_output_tokens"]
    doc["backend"], doc["request_rate"] = "sglang", float("inf")
    path.unlink()
    return write(folder / "sglang.jsonl", {**doc, **changed})


def genai_bench(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """genai-bench, one level."""
    rows = [
        {
            "ttft": None if c.error else c.ttft / 1e3,
            "tpot": None if c.error else 0.02,
            "e2e_latency": None if c.error else c.chunks[-1] / 1e3,
            "num_input_tokens": c.prompt,
            "num_output_tokens": None if c.error else len(c.chunks),
            "error_code": 500 if c.error else None,
            "error_message": c.error,
        }
        for c in given
    ]
    lost = sum(c.error is not None for c in given)
    total = {
        "num_concurrency": 1,
        "num_error_requests": lost,
        "num_completed_requests": len(given) - lost,
        "error_rate": 0.0,
        "mean_output_throughput_tokens_per_s": 7.0,
    }
    doc = {"aggregated_metrics": total, "individual_request_metrics": rows, "_time_unit": "s"}
    return write(folder / "D_concurrency_1_time_60s.json", {**doc, **changed})


def llmperf(folder: Path, given: Sequence[Call], **changed: Any) -> Path:
    """LLMPerf individual responses."""
    rows = [
        {
            "error_code": 500 if c.error else None,
            "error_msg": c.error or "",
            "inter_token_latency_s": 0.02,
            "ttft_s": 0 if c.error else c.ttft / 1e3,
            "end_to_end_latency_s": c.chunks[-1] / 1e3,
            "number_input_tokens": c.prompt,
            "number_output_tokens": 0 if c.error else len(c.chunks),
            **changed,
        }
        for c in given
    ]
    return write(folder / "m_individual_responses.json", rows)


VALUES: dict[str, Callable[..., Path]] = {
    "sglang": sglang,
    "genai-bench": genai_bench,
    "llmperf": llmperf,
}
"""Formats with requests that have no place in time."""


def vllm_summary(**changed: Any) -> dict[str, Any]:
    doc = {
        "backend": "openai",
        "endpoint_type": "openai",
        "num_prompts": 100,
        "completed": 100,
        "failed": 0,
        "max_concurrency": 1,
        "total_input_tokens": 12000,
        "total_output_tokens": 800,
        "output_throughput": 40.0,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 100.0,
        "p95_ttft_ms": 110.0,
        "p99_ttft_ms": 120.0,
        "median_itl_ms": 20.0,
        "p95_itl_ms": 25.0,
        "p99_itl_ms": 30.0,
    }
    return {**doc, **changed}


def _stats(p50: float, p95: float, p99: float, **more: Any) -> dict[str, Any]:
    return {"avg": p50, "p50": p50, "p95": p95, "p99": p99, "count": 100, **more}


def aiperf_summary(**changed: Any) -> dict[str, Any]:
    doc = {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_latency": {"unit": "ms", "avg": 240.0},
        "request_count": {"unit": "requests", "avg": 100.0},
        "error_summary": [],
        "total_output_tokens": {"unit": "tokens", "avg": 800.0},
        "input_sequence_length": {"unit": "tokens", "avg": 110.0, "min": 100, "max": 120},
        "time_to_first_token": {"unit": "ms", **_stats(100.0, 110.0, 120.0)},
        "inter_chunk_latency": {"unit": "ms", **_stats(20.0, 25.0, 30.0, count=700)},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 40.0},
        "input_config": {"phases": [{"kind": "profiling", "concurrency": 1}]},
    }
    return {**doc, **changed}


def genai_perf_summary(**changed: Any) -> dict[str, Any]:
    doc = aiperf_summary()
    for name in ("schema_version", "aiperf_version", "inter_chunk_latency", "error_summary"):
        del doc[name]
    doc["inter_token_latency"] = {"unit": "ms", **_stats(20.0, 25.0, 30.0)}
    doc["input_config"] = {"perf_analyzer": {"stimulus": {"concurrency": 1}}}
    return {**doc, **changed}


def inference_perf_summary(**changed: Any) -> dict[str, Any]:
    ttft = {"mean": 0.1, "median": 0.1, "p95": 0.11, "p99": 0.12, "min": 0.09, "max": 0.13}
    doc = {
        "load_summary": {"count": 100, "concurrency": 1},
        "successes": {
            "count": 100,
            "latency": {"time_to_first_token": ttft, "inter_token_latency": ttft},
            "throughput": {"output_tokens_per_sec": 40.0},
            "prompt_len": {"min": 100, "max": 120, "mean": 110},
        },
        "failures": {"count": 0},
    }
    return {**doc, **changed}


def llmperf_summary(**changed: Any) -> dict[str, Any]:
    doc = {
        "version": "2023-08-31",
        "model": "m",
        "num_concurrent_requests": 1,
        "results_ttft_s_quantiles_p50": 0.1,
        "results_ttft_s_quantiles_p95": 0.11,
        "results_ttft_s_quantiles_p99": 0.12,
        "results_ttft_s_mean": 0.1,
        "results_number_input_tokens_min": "100",
        "results_number_input_tokens_max": "120",
        "results_num_requests_started": 100,
        "results_num_completed_requests": 100,
        "results_number_errors": 0,
        "results_mean_output_throughput_token_per_s": 40.0,
    }
    return {**doc, **changed}


def endpoints_summary(**changed: Any) -> dict[str, Any]:
    ttft = {"percentiles": {"50.0": 1e8, "95.0": 1.1e8, "99.0": 1.2e8}, "min": 9e7, "max": 1.3e8}
    doc = {
        "version": "0.1",
        "n_samples_issued": 100,
        "n_samples_completed": 100,
        "n_samples_failed": 0,
        "state": "complete",
        "complete": True,
        "ttft": ttft,
        "tpot": ttft,
        "input_sequence_lengths": {"min": 100, "max": 120},
        "tps": 40.0,
    }
    return {**doc, **changed}


SUMMARIES: dict[str, Callable[..., dict[str, Any]]] = {
    "vllm": vllm_summary,
    "aiperf": aiperf_summary,
    "genai-perf": genai_perf_summary,
    "inference-perf": inference_perf_summary,
    "llmperf": llmperf_summary,
    "endpoints": endpoints_summary,
}
"""Formats with figures only."""


POLICY = """
version: 1
service: service
target: {{kind: openai, base_url: "http://127.0.0.1:9/v1"{target}}}
workload: {{max_new_tokens: {tokens}{workload}}}
buckets:
{buckets}
itl: {{p95_ms: 50{itl}}}
tgs: {{concurrency: [{level}]{tgs}}}
evidence: {{preset: fast}}
"""
SHORT = "  - {name: short, prompt_max: 128, ttft_ms: 300}"
BOTH = f"{SHORT}\n  - {{name: long, prompt_max: 512, ttft_ms: 450}}"
DECLARED = ', memory_gib: 4, memory_source: "the deployment sheet"'


def policy(folder: Path, **changed: object) -> Path:
    """A sla.yaml of one bucket, 1 to 128 tokens, at one request at a time."""
    keys: dict[str, object] = {
        "target": "", "tokens": TOKENS, "workload": "", "buckets": SHORT, "itl": "", "level": 1,
        "tgs": "", **changed,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sla.yaml"
    path.write_text(POLICY.format(**keys), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Checked:
    """What ``llmsla check`` made of a file."""

    report: dict[str, Any]
    code: int

    @property
    def verdicts(self) -> dict[str, str]:
        return {f["id"]: f["verdict"] for f in self.report["findings"]}

    def finding(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(f for f in self.report["findings"] if f["id"] == name)
        return found


def checked(path: Path, sla: Path) -> Checked:
    """The verdict on a result file; UsageError where it is no evidence."""
    from pytest_llmsla.cli.check import check, exit_code

    report, _ = check([path], sla)
    return Checked(report, exit_code(report))

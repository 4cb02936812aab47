"""Whole runs as a model would give them, by seed: for pictures, pages and their sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_samples import MS, log_lines_of, policy, timeline, write_log
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline

HOSTILE = "<img src=x onerror=alert(1)></script>\u202e`|[x](javascript:alert(1))\x1b[31m"

BUCKETS: tuple[Mapping[str, Any], ...] = (
    {"name": "short", "prompt_max": 128, "ttft_ms": 300},
    {"name": "medium", "prompt_max": 512, "ttft_ms": 450},
    {"name": "long", "measured_to": 1024, "ttft_ms": 800},
)


@dataclass(frozen=True)
class Speed:
    """How a made-up model behaves; milliseconds."""

    ttft: float = 60.0
    per_token: float = 0.45
    itl: float = 21.0
    growth: float = 0.03
    """Added to each gap for every token before it."""
    spread: float = 0.06
    stall: float = 0.0
    """Share of requests with one gap of 900 ms."""


def release(*buckets: Mapping[str, Any], tokens: int = 64, **groups: Any) -> LoadedPolicy:
    """The published rules on a scripted target."""
    groups = {"service": "llama2-7b-chat-4bit", "evidence": {"preset": "fast"}, **groups}
    return policy(*(buckets or BUCKETS), workload={"max_new_tokens": tokens}, **groups)


def requests(
    loaded: LoadedPolicy, speed: Speed = Speed(), *, each: int = 90, seed: int = 1
) -> Iterator[Timeline]:
    """Per bucket two warm-up requests and ``each`` measured ones, one after the other."""
    rng, number, tokens = random.Random(seed), 0, loaded.policy.workload.max_new_tokens
    for bucket in loaded.policy.buckets:
        top = bucket.prompt_max or bucket.measured_to or bucket.prompt_min
        for n in range(-2, each):
            span = top - bucket.prompt_min
            prompt = top - int(span * (0.25 if n % 2 else 1.0) * rng.random())
            ttft = (speed.ttft + speed.per_token * prompt) * rng.lognormvariate(0, speed.spread)
            gaps = [
                (speed.itl + speed.growth * i) * rng.lognormvariate(0, speed.spread)
                for i in range(tokens - 1)
            ]
            if rng.random() < speed.stall:
                gaps[len(gaps) // 2] = 900.0
            yield timeline(
                number,
                ttft=ttft,
                gaps=gaps,
                prompt=prompt,
                bucket=bucket.name,
                unit=max(n, 0),
                warmup=n < 0,
                max_new_tokens=tokens,
                stages={
                    "tokenise": round(0.04 * ttft * MS),
                    "prefill": round(0.88 * ttft * MS),
                    "first_sample": round(0.06 * ttft * MS),
                },
            )
            number += 1


def samples(seconds: float = 90.0) -> Iterator[dict[str, Any]]:
    """``resources`` lines of phase ``sample``: a machine that warms up, 10 readings a second."""
    rng, count = random.Random(7), int(seconds * 10)
    at = [int(i * 1e8) for i in range(count)]
    for start in range(0, count, 50):
        part = range(start, min(start + 50, count))
        columns: dict[str, list[Any]] = {
            "t_ns": [at[i] for i in part],
            "process_cpu": [1.5 + 0.4 * rng.random() for _ in part],
            "system_cpu": [0.6 + 0.3 * rng.random() for _ in part],
            "process_rss_mib": [820 + i / 9 for i in part],
            "gpu_util": [0.9 + 0.1 * rng.random() if i % 90 > 4 else 0.0 for i in part],
            "gpu_memory_mib": [14200.0 + 6 * (i // 90) for i in part],
            "gpu_temp": [45 + 30 * (1 - 2.7 ** (-i / 250)) for i in part],
        }
        yield {
            "type": "resources",
            "gate": None,
            "bucket": None,
            "purpose": None,
            "phase": "sample",
            "t_ns": columns["t_ns"][-1],
            "memory": {},
            "columns": columns,
            "about": {"gpu_util": "GPU-0, made up"} if start == 0 else {},
        }


HOST = {
    "hostname": "gpu-box-3",
    "cpu": {"model": "a CPU", "logical": 16},
    "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
}


def write_run(
    path: Path,
    loaded: LoadedPolicy,
    timelines: Iterator[Timeline] | list[Timeline],
    *,
    target: Mapping[str, Any] | None = None,
    resources: bool = True,
) -> Path:
    """A timelines.jsonl of a finished run."""
    lines = log_lines_of(loaded, timelines)
    run = {"service": loaded.policy.service, "host": HOST, "started": "2026-11-29T10:00:00.000Z",
           "policy_path": "sla.yaml"}  # fmt: skip
    lines[0] = {**lines[0], **run}
    facts = {"kind": "transformers", "model": "llama2-7b-chat", "revision": "main"}
    lines[1] = {"type": "target", "gate": None, "start_point": "request accepted in-process",
                **facts, **(target or {})}  # fmt: skip
    lines[-1] = {**lines[-1], "utc": "2026-11-29T10:42:17.000Z"}
    return write_log(path, [*lines[:-1], *(samples() if resources else ()), lines[-1]])


def report_of(path: Path, **changes: Any) -> dict[str, Any]:
    """report.json's dict of a written run."""
    log = read_run(path)
    return {**build_report(log, judge_log(log)), **changes}

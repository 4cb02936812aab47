"""Many requests in one model on one GPU: continuous batching, threads and static batches.

    PYTHONPATH=src python benchmarks/gpu_load.py --json benchmarks/results/gpu_load.json

Makes the LLaMA-2-7B shape with random weights (or takes ``--model DIR``), and for bf16 and nf4
keeps 1, 2, 4 and 8 requests in flight in each way of sharing the model. Prompts of 90-128,
384-512 and 768-1024 tokens take turns, greedy, of forced length; those of the first wave get
shorter answers, so that their ends are spread. A level is warmed up until as many requests as it
holds have ended (or ``--warm`` seconds), then measured for ``--window`` seconds without draining,
then cut off. ``--rounds`` repeats all of it in turns, so that drift of the host falls on every way
alike, and ``launch_us`` beside each level says how fast the host was then: all of this is bound by
how fast it launches kernels.

Of a level, within its window: tokens per second in total and per request, TTFT by bucket, ITL
pooled over all requests, requests in flight on average, and memory; of its complete requests: the
forward of a decode step by the host's clock and by CUDA events, and what passes between two of
them. The file is rewritten after each level. Nothing is judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import machine, machine_line
from pytest_llmsla.errors import LlmslaError
from pytest_llmsla.load import crew_of
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.base import Ask, Crew, Job, Timeouts
from pytest_llmsla.targets.transformers import TransformersTarget
from pytest_llmsla.timeline import NS_PER_MS, NS_PER_S, Timeline
from pytest_llmsla.workload import PromptFactory

GREEDY = {"greedy": True}
LENGTHS = {"short": (90, 128), "medium": (384, 512), "long": (768, 1024)}
MODES = ("continuous", "threads", "batch")
MEMORY = ("allocated_peak", "reserved_peak", "device_used_peak")


class Level:
    """One way of sharing, one number in flight."""

    def __init__(self, target: TransformersTarget, crew: Crew, asks: Iterator[tuple[str, Ask]]):
        self._target = target
        self._crew = crew
        self._asks = asks
        self._number = itertools.count()
        self.seen: list[Timeline] = []

    def measure(self, warm_s: float, window_s: float) -> dict[str, Any]:
        """Warm up, measure, cut off, and say what was seen."""
        clock, crew = self._target.clock, self._crew
        ahead = deque(self._next() for _ in range(max(9, 3 * crew.size)))
        for i in range(crew.size):
            ahead[i] = shortened(ahead[i], (i + 1) / crew.size)
        for job in ahead:
            crew.prepare(job.ask)
        began = clock()
        opened: int | None = None
        ended = 0
        while opened is None or clock() < opened + window_s * NS_PER_S:
            while crew.in_flight < crew.size:
                crew.start(ahead.popleft() if ahead else self._next())
            until = opened + round(window_s * NS_PER_S) if opened is not None else None
            done = crew.wait(until or clock() + NS_PER_S // 10)
            self.seen += done
            ended += len(done)
            if crew.hung is not None:
                raise SystemExit(crew.hung)
            warm = ended >= crew.size or clock() > began + warm_s * NS_PER_S
            if opened is None and warm:
                self._target.reset_peaks()
                opened = clock()
        closed = clock()
        memory = self._target.memory()
        crew.cancel()
        while crew.in_flight:
            self.seen += crew.wait()
        return {**figures(self.seen, opened, closed, crew.size), "memory_gib": kept(memory)}

    def _next(self) -> Job:
        bucket, ask = next(self._asks)
        blank = Timeline(str(next(self._number)), bucket, 0, 0, max_new_tokens=ask.max_new_tokens)
        return Job(ask, blank)


def shortened(job: Job, share: float) -> Job:
    """The same request with a share of its answer."""
    new = max(2, round(job.ask.max_new_tokens * share))
    return Job(
        dataclasses.replace(job.ask, max_new_tokens=new),
        dataclasses.replace(job.blank, max_new_tokens=new),
    )


def figures(seen: list[Timeline], opened: int, closed: int, n: int) -> dict[str, Any]:
    """What a window held. Times in ms, rates in tokens per second."""
    seconds = (closed - opened) / NS_PER_S
    tokens = sum(k for t in seen for at, k in t.arrivals if opened <= at < closed)
    gaps = [
        (b - a) / NS_PER_MS
        for t in seen
        for (a, _), (b, _) in itertools.pairwise(t.arrivals)
        if opened <= a and b < closed
    ]
    flying = sum(max(0, min(t.end_ns, closed) - max(t.start_ns, opened)) for t in seen)
    first: dict[str, list[float]] = {b: [] for b in LENGTHS}
    for t in seen:
        if t.ttft_ms is not None and t.start_ns >= opened and t.arrivals[0][0] < closed:
            first[t.bucket].append(t.ttft_ms)
    errors = {t.error for t in seen if t.error is not None and "run was ended" not in t.error}
    return {
        "in_flight": n,
        "in_flight_mean": flying / (closed - opened),
        "window_s": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_per_request": tokens / seconds / n,
        "itl_ms": percentiles(gaps),
        "ttft_ms": {b: percentiles(v) for b, v in first.items()},
        "steps": steps([t for t in seen if t.ok]),
        "errors": sorted(errors),
    }


def steps(complete: list[Timeline]) -> dict[str, Any]:
    """Of a decode step, mean over requests: forward on both clocks, and all else."""
    out: dict[str, Any] = {"requests": len(complete)}
    for stage in ("decode", "decode_device", "sample"):
        means = [
            t.stages[stage] / NS_PER_MS / (t.tokens - 1)
            for t in complete
            if stage in t.stages and t.tokens > 1
        ]
        out[f"{stage}_ms"] = statistics.fmean(means) if means else None
    queues = [t.stages["queue"] / NS_PER_MS for t in complete if "queue" in t.stages]
    out["queue_ms"] = percentiles(queues) if queues else None
    return out


def percentiles(values: list[float]) -> dict[str, Any]:
    """P50, P95, P99 by nearest rank; None without a sample."""
    return {"n": len(values), **{f"p{q}": nearest_rank(values, q / 100) for q in (50, 95, 99)}}


def kept(memory: Any) -> dict[str, Any]:
    """The three figures of memory, with the reason of one that is missing."""
    out: dict[str, Any] = {}
    for name in MEMORY:
        out[name] = memory.get(name)
        if out[name] is None:
            out[f"{name}_reason"] = memory.get(f"{name}_reason")
    return out


def launch_us(device: str) -> float:
    """Microseconds from one small kernel to the next, launched one by one."""
    import torch

    x = torch.zeros(8, device=device)
    for count in (200, 2000):
        began = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        float(x[0])
        took = time.perf_counter() - began
    return took / count * 1e6


def asks_of(target: TransformersTarget, new: int, seed: int) -> Iterator[tuple[str, Ask]]:
    """Distinct prompts, the buckets taking turns."""
    factory = PromptFactory(target.count, target.encode, seed=seed)
    streams = {b: factory.stream(f"{b}-{seed}", lo, hi) for b, (lo, hi) in LENGTHS.items()}
    for bucket in itertools.cycle(reversed(LENGTHS)):
        yield bucket, Ask(next(streams[bucket]).text, new, GREEDY, force_length=True)


def loaded(model: Path, kind: str, device: str) -> TransformersTarget:
    """The model in bf16, or its layers in nf4."""
    spec: dict[str, Any] = {"model": str(model), "device": device, "dtype": "bfloat16"}
    if kind == "nf4":
        spec |= {"quantization": "nf4", "compute_dtype": "bfloat16"}
    return TransformersTarget.load(spec, say=lambda line: print(line, flush=True))


def shared(target: TransformersTarget, mode: str) -> TransformersTarget:
    """The same loaded model with another way of sharing it."""
    spec = dataclasses.replace(target._spec, batching=mode)
    return TransformersTarget(spec, target._open())


def line(row: dict[str, Any]) -> str:
    """One level as one line."""
    if "reason" in row:
        return f"{row['kind']} {row['mode']} {row['in_flight']}: {row['reason']}"
    itl, memory = row["itl_ms"], row["memory_gib"]["allocated_peak"]
    short = row["ttft_ms"]["short"]["p50"]

    def say(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    return (
        f"{row['kind']} {row['mode']:<10} {row['in_flight']}: {row['tokens_per_s']:6.1f} tok/s, "
        f"each {row['tokens_per_s_per_request']:5.1f} | TTFT short P50 {say(short)} | ITL "
        f"{say(itl['p50'])}/{say(itl['p95'])}/{say(itl['p99'])} | step host "
        f"{say(row['steps']['decode_ms'])} device {say(row['steps']['decode_device_ms'])} other "
        f"{say(row['steps']['sample_ms'])} | {say(memory)} GiB | flying "
        f"{row['in_flight_mean']:.2f} | launch {row['launch_us']:.1f} us "
        f"{len(row['errors'])} kinds of errors"
    )


def save(to: Path | None, result: dict[str, Any]) -> None:
    """Write the whole file, so that a run that is cut off leaves what it has."""
    if to is None:
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(to)


def main() -> int:
    """Run all levels there is time for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", type=Path, help="a folder; by default one is made")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="two small layers, to try it out")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--nf4-levels", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=3, help="of bf16; nf4 has one")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--warm", type=float, default=3.0)
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--minutes", type=float, default=9.0)
    args = parser.parse_args()
    until = time.monotonic() + args.minutes * 60
    found = machine()
    rows: list[dict[str, Any]] = []
    result = {
        "schema": "llmsla-benchmark/1",
        "benchmark": "gpu_load",
        "date": found["taken_utc"],
        "tokens": args.tokens,
        "prompts": {b: list(r) for b, r in LENGTHS.items()},
        "machine": found,
        "levels": rows,
        "targets": {},
    }
    with tempfile.TemporaryDirectory(dir=_roomy()) as scratch:
        model = args.model
        if model is None:
            from random_model import save as make

            model = Path(scratch)
            make(model, device=args.device, tiny=args.tiny)
        for kind, levels in (("bf16", args.levels), ("nf4", args.nf4_levels)):
            if levels:
                _kind(kind, levels, model, args, until, result)
                save(args.json, result)
    print(machine_line(found))
    for row in rows:
        print(line(row))
    return 0 if rows and all("reason" not in row for row in rows) else 1


def _kind(
    kind: str, levels: list[int], model: Path, args: Any, until: float, result: dict[str, Any]
) -> None:
    rows = result["levels"]
    try:
        plain = loaded(model, kind, args.device)
    except LlmslaError as e:
        rows += [{"kind": kind, "mode": "-", "in_flight": n, "reason": str(e)} for n in levels]
        return
    facts = plain.describe()
    kept_facts = ("parameters", "dtype", "quantization", "weight_bytes", "attn", "devices")
    result["targets"][kind] = {k: facts[k] for k in kept_facts}
    asks = asks_of(plain, args.tokens, seed=0)
    rounds = range(args.rounds if kind == "bf16" else 1)
    for turn, n, mode in itertools.product(rounds, levels, args.modes):
        row: dict[str, Any] = {"kind": kind, "mode": mode, "in_flight": n, "round": turn}
        if time.monotonic() + args.warm + args.window > until:
            row["reason"] = "no time left"
        else:
            row |= _level(plain, mode, n, asks, args)
        rows.append(row)
        print(line(row), flush=True)
        save(args.json, result)
    plain.close()


def _level(
    plain: TransformersTarget, mode: str, n: int, asks: Iterator[tuple[str, Ask]], args: Any
) -> dict[str, Any]:
    target = shared(plain, mode)
    try:
        speed = launch_us(args.device)
        crew = crew_of(target, n, Timeouts())
        found = Level(target, crew, asks).measure(args.warm, args.window)
        crew.close()
    except LlmslaError as e:
        return {"reason": str(e)}
    return {**found, "launch_us": speed}


def _roomy() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main())

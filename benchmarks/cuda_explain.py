"""Host time against device time of the same forward passes, and where the difference goes.

Each token is stamped on two clocks. Host: forward called, forward returned, token arrived. Device
(CUDA events): forward begun, forward ended, and an event at the token's arrival. Then, of a gap
between two tokens on the host,

    gap = device forward + host work before it + device time after it + unexplained

where "host work before it" runs on the host clock alone (streamer, stopping criteria, input
preparation) and "device time after it" on the device clock alone (sampling kernels, the copy of
the token, waiting for the host to ask for it). What is left compares the two clocks over the
same interval, forward begun to token arrived: it is explained when within 5 % of the gap or 2 ms.

Inside the forward the profiler counts the kernels and their time: what the device's forward takes
beyond its kernels is waiting for the host to launch them.

The event at the arrival is this benchmark's own; a gate records none there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_llmsla.probes import kv_cache
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.base import Ask, Recorder
from pytest_llmsla.targets.transformers import TransformersTarget
from pytest_llmsla.workload import PromptFactory

SHARE = 0.05
ALLOWED_MS = 2.0
GREEDY = {"greedy": True}
KEPT = (
    *("architecture", "parameters", "dtype", "quantization", "compute_dtypes", "quantised_layers"),
    *("bytes_by_dtype", "weight_bytes", "devices", "attn", "cache", "warnings"),
)
"""Facts of the target that go into the result."""
LENGTHS = ((90, 128), (384, 512), (768, 1024))
"""Prompt tokens: the upper part of each published bucket."""


class HostEvent:
    """Stands in for a CUDA event where there is no CUDA, to try the script out."""

    def record(self) -> None:
        """Note the host's clock."""
        self.at = time.perf_counter_ns()

    def elapsed_time(self, other: HostEvent) -> float:
        """Milliseconds to another event."""
        return (other.at - self.at) / 1e6


class Clocks:
    """Both clocks of every step of one request."""

    def __init__(self, model: Any, tokens: int, new_event: Callable[[], Any]) -> None:
        self._model = model
        self._events = [[new_event() for _ in range(3)] for _ in range(tokens + 2)]
        self.called: list[int] = []
        self.returned: list[int] = []
        self.arrived = 0

    def __enter__(self) -> Clocks:
        def before(*_: Any) -> None:
            self.called.append(time.perf_counter_ns())
            self._events[len(self.called) - 1][0].record()

        def after(*_: Any) -> None:
            self._events[len(self.returned)][1].record()
            self.returned.append(time.perf_counter_ns())

        self._handles = [
            self._model.register_forward_pre_hook(before),
            self._model.register_forward_hook(after),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def arrive(self) -> None:
        """A token was stamped."""
        self._events[self.arrived][2].record()
        self.arrived += 1

    def device_ms(self, step: int) -> tuple[float, float]:
        """Forward, and its end to the token's arrival. Call after the run."""
        begun, ended, arrived = self._events[step]
        return float(begun.elapsed_time(ended)), float(ended.elapsed_time(arrived))


class WatchedRecorder(Recorder):
    """A recorder that also marks each arrival in the device's stream, after stamping it."""

    __slots__ = ("_clocks",)

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks

    def arrive(self, tokens: int = 1) -> None:
        """Stamp as usual, then mark."""
        super().arrive(tokens)
        self._clocks.arrive()


def steps_of(
    target: TransformersTarget, prompt: str, tokens: int, new_event: Callable[[], Any]
) -> list[dict[str, float]]:
    """One request; a row of milliseconds for each token, the first token first."""
    clocks = Clocks(target.model, tokens, new_event)
    record = WatchedRecorder(clocks)
    ask = Ask(prompt=prompt, max_new_tokens=tokens, sampling=GREEDY, force_length=True)
    with clocks:
        record.start()
        target.generate(ask, record)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    rows = []
    last = record.start_ns or 0
    for i, (at, _) in enumerate(record.arrivals):
        forward, after = clocks.device_ms(i)
        gap = (at - last) / 1e6
        work = (clocks.called[i] - last) / 1e6
        rows.append(
            {
                "host_gap": gap,
                "device_forward": forward,
                "host_work_before": work,
                "device_after_forward": after,
                "host_forward_call": (clocks.returned[i] - clocks.called[i]) / 1e6,
                "unexplained": gap - forward - work - after,
            }
        )
        last = at
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Medians, and whether the difference of host and device is explained."""
    if not rows:
        return {"steps": 0, "explained": False, "reason": "no step was measured"}
    medians = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    sizes = [abs(r["unexplained"]) for r in rows]
    within = [s <= max(SHARE * r["host_gap"], ALLOWED_MS) for s, r in zip(sizes, rows, strict=True)]
    return {
        "steps": len(rows),
        "median_ms": medians,
        "host_minus_device_ms": statistics.median(
            r["host_gap"] - r["device_forward"] for r in rows
        ),
        "host_gap_p95_ms": nearest_rank([r["host_gap"] for r in rows], 0.95),
        "unexplained_p95_ms": nearest_rank(sizes, 0.95),
        "steps_within": sum(within),
        "explained": sum(within) >= 0.95 * len(rows),
        "limit": "5 % of the gap or 2 ms, whichever is more, in 95 % of the steps",
    }


def kernels(target: TransformersTarget, prompt: str, tokens: int) -> dict[str, Any]:
    """Kernels and launches of one decode step, by the profiler: of 1 + n tokens less those of 1."""
    if not torch.cuda.is_available():
        return {"reason": "no CUDA device"}

    def profiled(new: int) -> tuple[float, int, float, int]:
        from torch.profiler import ProfilerActivity, profile

        ask = Ask(prompt=prompt, max_new_tokens=new, sampling=GREEDY, force_length=True)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            record = Recorder()
            record.start()
            target.generate(ask, record)
            torch.cuda.synchronize()
        busy = launch = 0.0
        count = launches = 0
        for e in found.key_averages():
            if "CUDA" in str(e.device_type):
                busy += e.self_device_time_total
                count += e.count
            elif "LaunchKernel" in e.key:
                launch += e.self_cpu_time_total
                launches += e.count
        return busy, count, launch, launches

    profiled(2)  # the profiler's own start-up
    one, more = profiled(1), profiled(1 + tokens)
    busy, count, launch, launches = ((b - a) / tokens for a, b in zip(one, more, strict=True))
    if launches <= 0 or busy <= 0:
        return {"reason": "the profiler saw no kernels (no permission, or no CUPTI)"}
    return {
        "kernels_a_step": count,
        "launches_a_step": launches,
        "kernel_busy_ms": busy / 1e3,
        "launch_calls_ms": launch / 1e3,
        "note": "the profiler slows launches; kernel times hold, call times are upper bounds",
    }


def cache_report(target: TransformersTarget, tokens: int) -> dict[str, Any]:
    """Measured and expected bytes of the KV cache after one plain request."""
    model = target.model
    ids = torch.full((1, 100), 5, device=model.device)
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
    )
    cache = getattr(out, "past_key_values", None)
    if cache is None:
        cache = getattr(out, "cache", None)
    found = kv_cache.report(cache, model.config, tokens=100 + tokens - 1).to_json()
    found["layers"] = found["layers"][:1]
    return found


def explain(target: TransformersTarget, requests: int, tokens: int) -> dict[str, Any]:
    """Everything, as JSON-ready facts; a part that fails leaves its reason."""
    new_event: Callable[[], Any] = HostEvent
    if torch.cuda.is_available():
        new_event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    factory = PromptFactory(target.count, target.encode, seed=1)
    streams = {
        hi: factory.stream(f"to{hi}", lo, hi) for lo, hi in ((90, 128), (384, 512), (768, 1024))
    }
    first: list[dict[str, float]] = []
    later: list[dict[str, float]] = []
    lengths: list[int] = []
    for stream in streams.values():
        for i in range(requests + 1):
            prompt = next(stream)
            rows = steps_of(target, prompt.text, tokens, new_event)
            if i > 0:  # the first warms up
                first += rows[:1]
                later += rows[1:]
                lengths.append(prompt.tokens)
    out: dict[str, Any] = {
        "requests": len(lengths),
        "prompt_tokens": {"min": min(lengths), "max": max(lengths)},
        "first_token": summary(first),
        "decode": summary(later),
    }
    for name, part in (
        ("kernels", lambda: kernels(target, next(streams[128]).text, 8)),
        ("kv_cache", lambda: cache_report(target, 8)),
        ("memory", lambda: dict(target.memory())),
    ):
        try:
            out[name] = part()
        except Exception as e:
            out[name] = {"reason": f"{type(e).__name__}: {e}"}
    busy = out["kernels"].get("kernel_busy_ms")
    if busy is not None and out["decode"]["steps"]:
        forward = out["decode"]["median_ms"]["device_forward"]
        out["decode"]["waiting_for_launches_ms"] = max(0.0, forward - busy)
    return out


def main() -> int:
    """Load, explain, write JSON; exit 0 when host minus device is explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, help="the target mapping of sla.yaml, as JSON")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=3, help="of each of three lengths")
    parser.add_argument("--tokens", type=int, default=33)
    args = parser.parse_args()
    began = time.monotonic()
    target = TransformersTarget.load(json.loads(args.spec), say=print)
    loaded = time.monotonic()
    target.reset_peaks()
    out = explain(target, args.requests, args.tokens)
    described = dict(target.describe())
    out["target"] = {k: described.get(k) for k in KEPT}
    out["load_s"] = round(loaded - began, 1)
    out["measure_s"] = round(time.monotonic() - loaded, 1)
    args.json.write_text(json.dumps(out, indent=1, allow_nan=False), encoding="utf-8")
    return 0 if out["decode"]["explained"] and out["first_token"]["explained"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Logs of whole runs on disk, made of bare integers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gate_samples import LONG, SHORT, log_lines_of, policy, timeline, write_log
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.timeline import Timeline

HOST: Mapping[str, Any] = {
    "cpu": {"model": "CPU X", "physical_cores": 8},
    "machine": "x86_64",
    "python": {"version": "3.11.7"},
    "gpus": [{"name": "GPU A", "driver": "550.1", "memory_gib": 80.0}],
    "packages": {"torch": "2.9.0", "transformers": "5.1.0", "pytest": "9.0.0"},
}
Edit = Callable[[dict[str, Any]], object]


def stored(
    folder: Path,
    day: int,
    *,
    factor: float = 1.0,
    n: int = 60,
    loaded: LoadedPolicy | None = None,
    buckets: tuple[str, ...] = ("short",),
    run: Mapping[str, Any] | None = None,
    edit: Edit = lambda _: None,
    ended: bool = True,
) -> Path:
    """A run of ``n`` requests a bucket, TTFT 100 ms · ``factor`` and gaps of 20 ms · ``factor``."""
    ranges = {"short": (SHORT, 120), "long": (LONG, 500)}
    loaded = loaded or policy(*(ranges[b][0] for b in buckets), evidence={"preset": "fast"})
    rng, every = random.Random(day), list[Timeline]()
    for i in range(n * len(buckets)):
        bucket = buckets[i % len(buckets)]
        every.append(
            timeline(
                i,
                ttft=100 * factor * (1 + rng.uniform(-0.02, 0.02)),
                gaps=[20 * factor * (1 + rng.uniform(-0.02, 0.02)) for _ in range(7)],
                prompt=ranges[bucket][1],
                bucket=bucket,
                unit=i // len(buckets),
            )
        )
    lines = log_lines_of(loaded, every, ended=ended)
    lines[0] |= {
        "started": f"2026-01-{day:02}T12:00:00.000Z",
        "pid": day,
        "host": {k: dict(v) if isinstance(v, Mapping) else v for k, v in HOST.items()},
        **(run or {}),
    }
    edit(lines[0])
    return write_log(folder / f"run{day:02}" / "timelines.jsonl", lines)


def baseline(folder: Path, runs: int = 3, **changed: Any) -> Path:
    """A folder of ``runs`` runs."""
    for day in range(1, runs + 1):
        stored(folder, day, **changed)
    return folder

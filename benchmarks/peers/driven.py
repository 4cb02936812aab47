"""Our driver of load, as a gate uses it, in a process of its own.

    python driven.py LOAD.json OUT.json

LOAD holds ``url``, ``tokens``, ``asks`` (key, prompt), and either ``concurrency`` (closed loop) or
``rate`` (open loop, constant); ``workers``: so many of a Ray cluster on this machine send instead;
``processes``: so many processes share the asks.
"""

from __future__ import annotations

import itertools
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_llmsla.load import Driver, Due, LevelPlan
from pytest_llmsla.load.schedule import arrivals
from pytest_llmsla.runner import BucketPlan
from pytest_llmsla.targets.base import Crew, Timeouts
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.workload import Prompt

_OPEN_SIZE = 1024
_TIMEOUTS = Timeouts(first_token_s=60.0, idle_s=60.0, total_s=120.0)


class Sink:
    """Keeps the judged requests."""

    def __init__(self) -> None:
        self.measured: list[Timeline] = []
        self.cpu_s = 0.0

    def started(self, request: Mapping[str, Any]) -> None:
        """Nothing is written: what a log costs is measured with a gate."""
        if not request["warmup"] and not self.cpu_s:
            self.cpu_s = _cpu_s()

    def ended(self, t: Timeline) -> None:
        """As above."""

    def judge(self, t: Timeline) -> Timeline:
        """Keep what counts."""
        if not t.warmup:
            self.measured.append(t)
        return t

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Not looked at."""

    def problem(self, bucket: str | None, reason: str) -> None:
        """The run is worth nothing."""
        raise SystemExit(reason)

    def phase(self, bucket: str, name: str) -> None:
        """Not looked at."""

    def say(self, text: str) -> None:
        """Not looked at."""


def _cpu_s() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))


def _prompts(asks: list[tuple[str, str]]) -> Iterator[Prompt]:
    return (Prompt(text, None, 12, "all") for _, text in asks)


def _warmups() -> Iterator[Prompt]:
    return (
        Prompt(f"key=w{n} Say how the sea looked that morning.", None, 12, "all")
        for n in itertools.count()
    )


def run(load: Mapping[str, Any]) -> dict[str, Any]:
    """One load by this process."""
    spec = {"kind": "openai", "base_url": f"{load['url']}/v1", "model": "truth"}
    given = HttpSpec.from_mapping(spec)
    target: Any = HttpTarget(given, dialect_of(given))
    judged = [(k, p) for k, p in load["asks"] if k.startswith("m")]
    plan = BucketPlan(
        bucket="all",
        prompts=_prompts(judged),
        warmup_prompts=_warmups(),
        max_new_tokens=load["tokens"],
        sampling={"greedy": True},
        force_length=True,
        max_requests=len(judged),
        warmup_max=31,
    )
    rate = load.get("rate")
    level = LevelPlan(
        buckets=[plan],
        max_seconds=120.0,
        budget=lambda *_: len(judged),
        likely=lambda *_: len(judged),
        concurrency=None if rate else load["concurrency"],
        schedule=(Due(at) for at in arrivals("constant", rate, seed=0)) if rate else None,
    )
    sink, ids = Sink(), itertools.count()
    with _crew(target, spec, load) as crew:
        driver = Driver(target, crew, sink, lambda: f"r{next(ids)}")
        driver.run(level, lambda _: True)
        used, done = _cpu_s() - sink.cpu_s, time.perf_counter_ns()
    target.close()
    return {
        "cpu_s": used,
        "done_ns": done,
        "requests": [_row(t) for t in sink.measured],
    }


@contextmanager
def _crew(target: Any, spec: dict[str, Any], load: Mapping[str, Any]) -> Iterator[Crew]:
    size = _OPEN_SIZE if load.get("rate") else load["concurrency"]
    workers = load.get("workers")
    if not workers:
        crew: Crew = target.crew(size, _TIMEOUTS)
        try:
            yield crew
        finally:
            crew.close()
        return
    import ray
    from pytest_llmsla.load.ray_crew import RayCrew

    ray.init(
        num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    many = RayCrew(target, spec, size, _TIMEOUTS, workers=workers)
    try:
        yield many
    finally:
        many.close()
        ray.shutdown()


def _row(t: Timeline) -> dict[str, Any]:
    if not t.ok:
        raise SystemExit(f"{t.id}: {t.error}")
    return {
        "key": (t.prompt or "").split("key=", 1)[1].split(" ", 1)[0],
        "start_ns": t.start_ns,
        "end_ns": t.end_ns,
        "scheduled_ns": t.scheduled_ns,
        "late_ns": t.late_ns,
        "stamps_ns": [at for at, k in t.arrivals for _ in range(k)],
        "kernel": t.stamp == "kernel",
    }


def _divided(load: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The same load by several processes, each with its share of asks and streams."""
    n = load["processes"]
    running = []
    for part in range(n):
        mine = {
            **load,
            "processes": 0,
            "concurrency": load["concurrency"] // n,
            "asks": load["asks"][part::n],
        }
        given, found = out.with_suffix(f".{part}.in"), out.with_suffix(f".{part}.out")
        given.write_text(json.dumps(mine), encoding="utf-8")
        running.append((subprocess.Popen([sys.executable, __file__, given, found]), found))
    parts = []
    for process, found in running:
        if process.wait() != 0:
            raise SystemExit("a process of the load failed")
        parts.append(json.loads(found.read_text("utf-8")))
    return {
        "cpu_s": sum(p["cpu_s"] for p in parts),
        "done_ns": max(p["done_ns"] for p in parts),
        "requests": [r for p in parts for r in p["requests"]],
    }


def main() -> int:
    """Run one load."""
    given, out = map(Path, sys.argv[1:3])
    load = json.loads(given.read_text("utf-8"))
    found = _divided(load, out) if load.get("processes") else run(load)
    out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

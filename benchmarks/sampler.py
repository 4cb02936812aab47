"""What does sampling resources cost, and does it disturb what is timed?

    python benchmarks/sampler.py --json benchmarks/results/sampler.json

Cost: CPU time of a process that samples this machine, itself, a server's processes and its metrics
and does nothing else, over time; at most 1 % of one core is claimed at 10 and at 20 readings a
second. Disturbance, in pairs that take turns with the sampler on and off: errors of TTFT and of the
gaps between tokens over HTTP against the truth server at 1, 8 and 64 streams, and of stamps in this
process of an engine that notes its own clock. The P99 of neither may be larger by 0.1 ms.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from clock import Engine, errors_of
from harness import arguments, finish, interleave, judged, judged_median, median_interval
from peers.our_reader import Asker as Streams
from pytest_llmsla.asker import Asker, Timeouts
from pytest_llmsla.probes.listener import serving
from pytest_llmsla.probes.sampler import HZ, Sampler, Source
from pytest_llmsla.probes.usage import host_source, server_source
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.base import Ask
from pytest_llmsla.targets.http.samples import MetricsOverTime
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from truth import analysis
from truth.process import TruthServer
from truth.schedule import JUDGED, Plan

SHARE_LIMIT = 0.01
MORE_LIMIT_MS = 0.1
STREAMS = (1, 8, 64)
_TOKENS = 32
_CORES = frozenset(os.sched_getaffinity(0))
_SETTLE_S = 12.0
"""The first readings look for the server's processes, and the budget is kept from then on."""


def sources(server: TruthServer) -> list[Source]:
    """What a gate on a server of this host samples."""
    metrics = MetricsOverTime(Client(Address.parse(server.url), timed=False), "health", root=True)
    return [host_source(), server_source(lambda: serving(server.port)), metrics.source()]


@contextmanager
def sampling(on: bool, given: list[Source], hz: float = HZ) -> Iterator[list[int]]:
    """With the sampler, or without; gives the rows that were taken."""
    rows: list[int] = []
    if not on:
        yield rows
        return
    with Sampler(given, lambda said: rows.append(len(said["columns"]["t_ns"])), hz=hz):
        yield rows


def cost(server: TruthServer, hz: float, seconds: float) -> dict[str, float]:
    """Share of one core that sampling takes, by this process's CPU time."""
    with sampling(True, sources(server), hz) as rows:
        time.sleep(_SETTLE_S)
        began, spent = time.monotonic(), time.process_time()
        time.sleep(seconds)
        spent, wall = time.process_time() - spent, time.monotonic() - began
    return {"share": spent / wall, "rows_per_s": sum(rows) / (wall + _SETTLE_S), "seconds": wall}


def over_http(server: TruthServer, streams: int, requests: int, *, on: bool) -> dict[str, float]:
    """P99 of the absolute errors of one run, ms."""
    server.plan(Plan(tokens=_TOKENS, ttft_ms=100, spread_ms=20, gap_ms=20, jitter_ms=4))
    asks = [(key := f"{JUDGED}{i}", f"key={key} some words") for i in range(requests)]
    asker = Streams(server.url, _TOKENS, streams, bare=False)
    with sampling(on, sources(server)):
        said = asker.run(asks)
    asker.close()
    truth = analysis.truths(server.records())
    ttft, gaps = [], []
    for one in said:
        true = truth[one["key"]]
        stamps = one["stamps_ns"]
        if true.ttft_ms is not None:
            ttft.append(abs((stamps[0] - one["start_ns"]) / 1e6 - true.ttft_ms))
        pairs = zip(stamps, stamps[1:], true.gaps_ms, strict=False)
        gaps += [abs((b - a) / 1e6 - gap) for a, b, gap in pairs if gap is not None]
    return {"ttft": nearest_rank(ttft, 0.99) or 0.0, "gap": nearest_rank(gaps, 0.99) or 0.0}


def in_process(server: TruthServer, requests: int, *, on: bool) -> dict[str, float]:
    """P99 of the absolute errors of stamps in this process, ms."""
    os.sched_setaffinity(0, _CORES)  # the server is idle: a gate in one process has the machine
    engine = Engine(0)
    target, found = PythonTarget(engine), {"ttft": [], "itl": []}
    with sampling(on, [host_source()]), Asker(target, Timeouts()) as asker:
        for i in range(requests):
            engine.plan(16)
            blank = Timeline(id=str(i), bucket="sampler", start_ns=0, end_ns=0)
            t = asker.ask(Ask(prompt="a b c", max_new_tokens=16), blank)
            for kind, values in errors_of(engine, t.start_ns, [at for at, _ in t.arrivals]).items():
                if kind in found:
                    found[kind] += [abs(v) / 1e3 for v in values]
    return {kind: nearest_rank(values, 0.99) or 0.0 for kind, values in found.items()}


def main() -> int:
    """Measure, print, and exit 0 when the claims hold."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each look at the cost")
    parser.add_argument("--requests", type=int, default=16, help="of each run over HTTP, least")
    args = parser.parse_args()
    cores = sorted(_CORES)
    detail: dict[str, Any] = {"pairs": args.pairs, "unit": "ms", "cost": {}, "runs": {}}
    claims = []
    with TruthServer(core=cores[-1]) as server:
        os.sched_setaffinity(0, {cores[0]})
        for hz in (HZ, 2 * HZ):
            found = detail["cost"][f"{hz:g} Hz"] = cost(server, hz, args.seconds)
            print(f"{hz:g} Hz: {found['share']:.2%} of one core, {found['rows_per_s']:.1f} rows/s")
            claims.append(
                judged(100 * found["share"], 100 * SHARE_LIMIT, "%", f"of one core, {hz:g} Hz:")
            )
        arms = {
            f"HTTP, {n} streams": lambda on, n=n: over_http(
                server, n, max(args.requests, 4 * n), on=on
            )
            for n in STREAMS
        }
        arms["in this process"] = lambda on: in_process(server, 20, on=on)
        for name, arm in arms.items():
            runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}

            def one(on: bool, arm: Any = arm, runs: Any = runs) -> float:
                runs[on].append(arm(on))
                return 0.0

            interleave(args.pairs, lambda _, one=one: one(True), lambda _, one=one: one(False))
            detail["runs"][name] = {"on": runs[True], "off": runs[False]}
            for kind in runs[True][0]:
                more = [a[kind] - b[kind] for a, b in zip(runs[True], runs[False], strict=True)]
                usual = nearest_rank([b[kind] for b in runs[False]], 0.5)
                print(f"{name}, {kind}: off {usual:.3f} ms, on {median_interval(more)} ms more")
                what = f"more error of {kind}, P99, {name}:"
                claims.append(judged_median(median_interval(more), MORE_LIMIT_MS, "ms", what))
    detail["load_average"] = psutil.getloadavg()[0]
    return finish("sampler", claims, detail, args.json)


if __name__ == "__main__":
    sys.exit(main())

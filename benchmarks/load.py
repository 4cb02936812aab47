"""What the load side holds, beside other tools: streams, schedules, and workers of a cluster.

    python benchmarks/load.py --json benchmarks/results/load.json

Against the truth server (``truth/``), which notes when it sent and got what. Our client is the
driver that gates use (``peers/driven.py``), not a loop of its own.

Part 1: streams with a token every 20 ± 4 ms, doubled until the P95 of the error of gaps exceeds
1 ms or anything is lost: by one process on one core, by two processes, by other tools.
Part 2: an open loop at 50, 200 and 1,000 requests/s: how far from their schedule requests arrive.
The moments of arrival are the server's; of every client the constant offset that suits it best is
taken off, so that start-up and network count for nobody.
Part 3: the same streams sent by 1, 2 and 4 workers of a Ray cluster on this machine.

Other tools are found in ``.venv-aiperf`` and ``.venv-guidellm`` (README.md). Under 12 minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from harness import arguments, finish, judged
from http_accuracy import cores, line
from peers.base import (
    BENCHMARKS,
    Absent,
    Failed,
    Load,
    Peer,
    Records,
    Watched,
    environment,
    one_file,
    python,
    read_json,
    watch,
)
from peers.tools import AiPerf, GuideLlm, _jsonl, word_tokenizer
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.version import __version__
from truth import trial
from truth.analysis import Run, Said, merged
from truth.process import TruthServer
from truth.schedule import Plan
from truth.trial import Cores, Trial

STREAMS = Plan(tokens=32, warm_tokens=8, gap_ms=20.0, jitter_ms=4.0)
SHORT = Plan(tokens=4, ttft_ms=20.0, spread_ms=0.0, gap_ms=5.0)
RATES = (50.0, 200.0, 1000.0)
SECONDS = 6.0
GOAL_MS = 1.0
FIRST, MOST = 64, 4096
LATE_GOAL_MS = 5.0


class Driven:
    """Our driver of load."""

    quick = True

    def __init__(self, name: str, **how: int) -> None:
        self.name = name
        self._how = how

    def version(self) -> str:
        """Its version."""
        if "workers" in self._how:
            try:
                import ray
            except ImportError as e:
                raise Absent("the extra [ray] is not installed") from e
            return f"pytest-llmsla {__version__}, ray {ray.__version__}"
        return f"pytest-llmsla {__version__}"

    def found(self, load: Load, **more: float) -> tuple[dict[str, Any], Watched]:
        """Run one load; what the process wrote."""
        given, out = load.folder / "load.json", load.folder / "out.json"
        shape = {
            "url": load.url,
            "concurrency": load.concurrency,
            "tokens": load.tokens,
            "asks": load.asks,
            **self._how,
            **more,
        }
        given.write_text(json.dumps(shape), encoding="utf-8")
        if self._how:  # several processes are not held to one core
            load = replace(load, core=None)
        watched = watch([python(), BENCHMARKS / "peers" / "driven.py", given, out], load)
        return read_json(out), watched

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """A closed loop."""
        found, watched = self.found(load)
        said = [
            Said(
                key=r["key"],
                ttft_ms=(r["stamps_ns"][0] - r["start_ns"]) / 1e6,
                gaps_ms=tuple((b - a) / 1e6 for a, b in pairwise(r["stamps_ns"])),
                tokens=len(r["stamps_ns"]),
            )
            for r in found["requests"]
        ]
        count = merged(s.gaps_ms or () for s in said)
        return Run(said, found["cpu_s"], count, found["done_ns"]), watched


@dataclass(frozen=True)
class Held:
    """One try of part 1 or 3."""

    client: str
    streams: int
    events_per_s: float
    gap_error_p95_ms: float | None
    gap_error_p99_ms: float | None
    ttft_error_p99_ms: float | None
    cpu_s_per_1000_events: float | None
    behind_s: float | None
    lost: int
    failed: str | None
    quiet: bool

    @property
    def held(self) -> bool:
        """Every token seen, and stamped within a millisecond."""
        return (
            self.failed is None
            and not self.lost
            and self.gap_error_p95_ms is not None
            and self.gap_error_p95_ms <= GOAL_MS
        )


def held_of(done: Trial) -> Held:
    """A trial in figures."""
    pooled = trial.pooled([done])
    gap, ttft = pooled.get("gap_error") or {}, pooled.get("ttft_error") or {}
    return Held(
        client=done.client,
        streams=done.concurrency,
        events_per_s=done.rate,
        gap_error_p95_ms=gap.get("p95"),
        gap_error_p99_ms=gap.get("p99"),
        ttft_error_p99_ms=ttft.get("p99"),
        cpu_s_per_1000_events=pooled.get("cpu_s_per_1000_events"),
        behind_s=done.behind_s,
        lost=pooled.get("lost", 0),
        failed=done.failed,
        quiet=done.quiet,
    )


def most_streams(peer: Peer, at: Cores, most: int) -> list[Held]:
    """Double the streams until they are not held; the first failure is tried twice."""
    out = []
    streams = FIRST
    while streams <= most:
        for _ in range(2):
            done = trial.run(peer, STREAMS, streams, 3, at)
            print(f"  {line(done)}", flush=True)
            out.append(held_of(done))
            if out[-1].held:
                break
        if not out[-1].held:
            break
        streams *= 2
    return out


# -- part 2


def arrivals_of(records: Records) -> list[float]:
    """Moments of arrival of the judged requests, s, ascending."""
    return sorted(r["arrived_ns"] / 1e9 for r in records if r["key"].startswith("m"))


def schedule_errors(arrived: Sequence[float], rate: float) -> list[float]:
    """How far from a constant schedule each request arrived, ms, after the best offset."""
    off = [at - k / rate for k, at in enumerate(arrived)]
    middle = median(off)
    return [abs(x - middle) * 1e3 for x in off]


def _open_load(url: str, rate: float, core: int, folder: Path) -> Load:
    n = round(rate * SECONDS)
    asks = tuple((f"m{i}", f"key=m{i} Say how the sea looked that morning.") for i in range(n))
    return Load(url, n, asks, SHORT.tokens, core, folder)


def _aiperf(load: Load, rate: float) -> None:
    command = [
        environment("aiperf") / "bin" / "aiperf", "profile",
        "--model", "truth", "--url", load.url, "--endpoint-type", "chat", "--streaming",
        "--input-file", _jsonl(load, "prompts.jsonl", "text"),
        "--custom-dataset-type", "single_turn", "--dataset-sampling-strategy", "sequential",
        "--request-rate", str(rate), "--arrival-pattern", "constant",
        "--request-count", str(len(load.asks)),
        "--tokenizer", word_tokenizer(load), "--use-server-token-count",
        "--no-server-metrics", "--no-gpu-telemetry", "--ui-type", "none",
        "--artifact-dir", str(load.folder / "aiperf"),
    ]  # fmt: skip
    watch(command, load, {"HF_HUB_OFFLINE": ""})
    one_file(load.folder, "profile_export.jsonl")


def _guidellm(load: Load, rate: float) -> None:
    command = [
        environment("guidellm") / "bin" / "guidellm", "run",
        "--backend", f"kind=openai_http,target={load.url},model=truth,"
        "request_format=/v1/chat/completions,http2=false",
        "--profile", f"kind=constant,rate={rate:g}",
        "--constraint", f"kind=max_requests,count={len(load.asks)}",
        "--data", f"kind=json_file,path={_jsonl(load, 'prompts.jsonl', 'prompt')}",
        "--output", f"kind=json,path={load.folder / 'guidellm.json'}",
        "--disable-console",
    ]  # fmt: skip
    watch(command, load)


def _ours(load: Load, rate: float) -> dict[str, float | None]:
    found, _ = Driven("ours").found(load, rate=rate)
    late = [r["late_ns"] / 1e6 for r in found["requests"]]
    return {"late_p50_ms": nearest_rank(late, 0.5), "late_p99_ms": nearest_rank(late, 0.99)}


OPEN: dict[str, Callable[[Load, float], dict[str, float | None] | None]] = {
    "ours": _ours,
    "aiperf": _aiperf,
    "guidellm": _guidellm,
}


def schedules(names: Sequence[str], at: Cores, rates: Sequence[float]) -> list[dict[str, Any]]:
    """Part 2."""
    out = []
    for rate in rates:
        for name in names:
            row: dict[str, Any] = {"client": name, "rate": rate}
            with (
                tempfile.TemporaryDirectory(prefix="load-") as folder,
                TruthServer(at.server) as server,
            ):
                server.plan(SHORT)
                load = _open_load(server.url, rate, at.client, Path(folder))
                try:
                    row.update(OPEN[name](load, rate) or {})
                except Failed as e:
                    row["failed"] = str(e)
                arrived = arrivals_of(server.records())
            if len(arrived) >= 2:
                errors = schedule_errors(arrived, rate)
                row.update(
                    requests=len(arrived),
                    rate_reached=(len(arrived) - 1) / (arrived[-1] - arrived[0]),
                    error_p50_ms=nearest_rank(errors, 0.5),
                    error_p99_ms=nearest_rank(errors, 0.99),
                )
            out.append(row)
            print(f"  {row}", flush=True)
    return out


def present(peers: Sequence[Peer]) -> tuple[list[Peer], dict[str, str], dict[str, str]]:
    """Those that are installed, their versions, and why others are absent."""
    found, versions, absent = list[Peer](), dict[str, str](), dict[str, str]()
    for peer in peers:
        try:
            versions[peer.name] = peer.version()
            found.append(peer)
        except Absent as e:
            absent[peer.name] = str(e)
    return found, versions, absent


def main() -> int:
    """Run the parts that are asked for."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--parts", default="123", help="which parts to run; default 123")
    parser.add_argument("--most", type=int, default=MOST, help="most streams of part 1")
    given = parser.parse_args()
    at = cores()
    one, two = Driven("ours, one core"), Driven("ours, two processes", processes=2)
    tools, versions, absent = present([AiPerf(), GuideLlm()])
    versions[one.name] = one.version()
    detail: dict[str, Any] = {"versions": versions, "absent": absent}
    claims: list[dict[str, Any]] = []
    if "1" in given.parts:
        print("part 1: streams", flush=True)
        tried = [h for p in (one, two, *tools) for h in most_streams(p, at, given.most)]
        detail["streams"] = [asdict(h) for h in tried]
        best = {h.client: h for h in tried if h.held}
        detail["most_held"] = {n: [h.streams, h.events_per_s] for n, h in best.items()}
        ours = best.get(one.name)
        if ours is not None and ours.gap_error_p95_ms is not None:
            what = f"P95 of the error of gaps at {ours.streams} streams, one core"
            claims.append(judged(ours.gap_error_p95_ms, GOAL_MS, "ms", what))
    if "2" in given.parts:
        print("part 2: schedules", flush=True)
        names = ["ours", *(p.name for p in tools)]
        detail["schedules"] = rows = schedules(names, at, RATES)
        claims += [
            judged(
                r["late_p99_ms"], LATE_GOAL_MS, "ms",
                f"P99 of how late requests are sent at {r['rate']:g}/s",
            )
            for r in rows
            if r.get("late_p99_ms") is not None
        ]  # fmt: skip
    if "3" in given.parts:
        print("part 3: Ray", flush=True)
        workers, more, lacking = present([Driven(f"ray, {n}", workers=n) for n in (1, 2, 4)])
        versions |= more
        absent |= lacking
        done = [held_of(trial.run(p, STREAMS, n, 3, at)) for p in workers for n in (64, 256)]
        detail["ray"] = [asdict(h) for h in done]
        for h in done:
            print(f"  {h}", flush=True)
    return finish("load", claims, detail, given.json)


if __name__ == "__main__":
    sys.exit(main())

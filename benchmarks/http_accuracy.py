"""How exact is our HTTP client, beside other tools? A server that knows when it sent what.

    python benchmarks/http_accuracy.py --json benchmarks/results/http_accuracy.json

The truth server (``truth/``) streams chat completions on a schedule and notes its own send times on
the clock that the clients use. Every client runs as a process of its own on one core, the server on
another. Error = what the client reports minus what the server did, for the same request and gap.

Part 1: 1, 8, 32 and 64 streams with a token every 20 ± 4 ms, clients in turn, in changing order.
Part 2: 64 streams, rising rates: the highest at which the P95 of the error of gaps is at most 1 ms
(and half a gap), answers last as long as they did within 5 %, and nothing is lost. A rate may be
tried three times: what else runs on a machine can make a try fail, nothing can make one hold. Where
gaps are shorter than 2 ms, 1 ms alone says little (a client that merges tokens keeps it); the rates
that it gives are shown beside.

Other tools are found in environments of their own (``.venv-aiperf``, ``.venv-guidellm``,
``.venv-vllm``, ``.venv-servebench``, ``.venv-aiohttp``); README.md says how to make them. One that
is not there is reported as absent. About 14 minutes with all of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from harness import arguments, finish, judged
from peers.base import Absent, Peer
from peers.scripts import Script
from peers.tools import AiPerf, GuideLlm, ServeBench, VllmBench
from truth import search, trial
from truth.schedule import Plan
from truth.search import Step
from truth.table import ms, rate_table, table
from truth.trial import Cores, Trial

OURS, BARE, PLAIN = "ours", "ours-bare", "aiohttp"
RATE_GOAL = 3.0
STREAMS = (1, 8, 32, 64)
JITTER = 0.2
PACED = Plan(tokens=32, warm_tokens=8, gap_ms=20.0, jitter_ms=20.0 * JITTER)
FLOW_S = 1.2
LOWEST, HIGHEST = 1600.0, 410_000.0
FIGURES = {"ttft_error": "TTFT, P99", "gap_error": "gaps, P99", "itl_p95": "ITL P95"}

PEERS: tuple[Peer, ...] = (
    Script(OURS),
    Script(PLAIN),
    ServeBench(),
    VllmBench(),
    AiPerf(),
    GuideLlm(),
)


def cores() -> Cores:
    """The first usable core for clients, the last for the server."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("needs two cores: one for the server, one for the clients.")
    return Cores(client=usable[0], server=usable[-1])


def present(wanted: Sequence[str]) -> tuple[list[Peer], dict[str, str], dict[str, str]]:
    """The clients that are installed, their versions, and why the others are absent."""
    found: list[Peer] = []
    versions: dict[str, str] = {}
    absent: dict[str, str] = {}
    for peer in PEERS:
        if wanted and peer.name not in (*wanted, OURS):
            absent[peer.name] = "left out by --clients"
            continue
        try:
            versions[peer.name] = peer.version()
            found.append(peer)
        except Absent as e:
            absent[peer.name] = str(e)
    return found, versions, absent


def accuracy(
    peers: Sequence[Peer], streams: Sequence[int], repeats: int, tool_repeats: int, at: Cores
) -> list[Trial]:
    """Part 1. The order of clients turns by one each time; slow ones take fewer turns."""
    out = []
    turn = 0
    for repeat in range(repeats):
        for concurrency in streams:
            ready = [p for p in peers if p.quick or repeat < tool_repeats]
            first = turn % len(ready)
            turn += 1
            for peer in ready[first:] + ready[:first]:
                done = _quiet_run(peer, concurrency, at)
                out.append(done)
                print(f"  {repeat + 1}/{repeats}  {line(done)}", flush=True)
    return out


def _quiet_run(peer: Peer, concurrency: int, at: Cores) -> Trial:
    """One run; a second one, which counts then, where other work disturbed the first."""
    rounds = 4 if concurrency > 1 else 6
    done = trial.run(peer, PACED, concurrency, rounds, at)
    if peer.quick and not done.quiet:
        done = trial.run(peer, PACED, concurrency, rounds, at)
    return done


def line(done: Trial) -> str:
    """One run, for whoever watches."""
    head = f"{done.client:17} {done.concurrency:3} streams"
    if done.errors is None:
        return f"{head}  no result: {done.failed}"
    found = trial.pooled([done])
    gap = found["gap_error"] if found["gap_error"]["n"] else found["mean_itl_error"]
    busy = "" if done.quiet else f"  (disturbed: other work took {done.others:.2f} cores)"
    return f"{head}  TTFT P99 {ms(found['ttft_error']['p99'])}  gap P99 {ms(gap['p99'])} ms{busy}"


def rates(peers: Sequence[Peer], at: Cores, *, quick: bool) -> dict[str, list[Step]]:
    """Part 2, clients one after the other."""
    out = {}
    for peer in (*peers, Script(BARE)):
        print(f"  {peer.name}", end="", flush=True)
        attempt = _attempt(peer, at)
        factor = 2.0 if quick or not peer.quick else 2**0.5
        top = 12_800.0 if quick else HIGHEST
        tries = 3 if peer.quick and not quick else 1
        refine = 0 if quick else 2 if peer.quick else 1
        steps = out[peer.name] = search.search(
            attempt,
            start=12_800.0 if peer.name in (OURS, BARE) else 3200.0,
            factor=factor,
            top=top,
            floor=LOWEST,
            tries=tries,
            refine=refine,
        )
        search.rise(attempt, steps, factor=2**0.5, top=top, tries=tries, refine=refine)
        print(flush=True)
    return out


def _attempt(peer: Peer, at: Cores) -> Callable[[float], Step]:
    streams = STREAMS[-1]

    def attempt(offered: float) -> Step:
        gap_ms = streams / offered * 1e3
        plan = Plan(
            tokens=round(FLOW_S * 1e3 / gap_ms) + 1,
            warm_tokens=8,
            ttft_ms=250.0,
            spread_ms=max(20.0, gap_ms),
            gap_ms=gap_ms,
            jitter_ms=gap_ms * JITTER,
        )
        step = trial.step(trial.run(peer, plan, streams, 1, at), offered)
        print(f"  {offered / 1e3:.3g}k {'+' if step.held else '-' if step.sound else '?'}", end="")
        sys.stdout.flush()
        return step

    return attempt


def accuracy_claims(
    results: dict[str, dict[str, Any]], streams: Sequence[int]
) -> list[dict[str, Any]]:
    """Ours against the best of the others, at each number of streams."""
    claims = []
    for n in streams:
        ours = results[OURS][str(n)]
        others = {
            name: by[str(n)] for name, by in results.items() if name != OURS and by[str(n)]["runs"]
        }
        disturbed = [
            name for name, by in results.items() if by[str(n)]["runs"] and not by[str(n)]["quiet"]
        ]
        for figure, words in FIGURES.items():
            best = min(
                (
                    (v, name)
                    for name, row in others.items()
                    if (v := _figure(row, figure)) is not None
                ),
                default=None,
            )
            mine = _figure(ours, figure) if ours["runs"] else None
            if best is None or mine is None:
                claims.append(open_claim(f"|error| of {words}, {n} streams: nothing to compare:"))
                continue
            what = f"|error| of {words}, {n} streams, against the best other ({best[1]}):"
            claims.append(judged(mine, best[0], "ms", what))
            if disturbed:
                # Neither a loss nor a win is worth anything then.
                claims[-1]["holds"] = None
                claims[-1]["what"] = f"(disturbed: {', '.join(disturbed)}) {what}"
    return claims


def open_claim(what: str) -> dict[str, Any]:
    """A claim that nothing was measured for: neither kept nor broken."""
    return judged(1.0, 0.0, "", what, noise=1.0)


def _figure(row: dict[str, Any], figure: str) -> float | None:
    if figure == "itl_p95":
        value = row["reported_itl_p95_minus_truth"]
        return None if value is None else abs(value)
    found: float | None = row[figure]["p99"]
    return found


def rate_claims(best: dict[str, Step | None], by: str = "") -> list[dict[str, Any]]:
    """Ours at least three times the best tool's rate.

    The plain aiohttp client, which checks and counts nothing, is held against our wire room with
    as little on top. ``by`` says which rule the rates are by, where it is not the usual one.
    """
    found = {name: step.rate for name, step in best.items() if step is not None}
    tools = [name for name in found if name not in (OURS, BARE, PLAIN)]
    claims = []
    if OURS in found and tools:
        name = max(tools, key=lambda n: found[n])
        what = f"rate of the best tool ({name}) as a share of ours{by}:"
        claims.append(judged(found[name] / found[OURS], 1 / RATE_GOAL, "", what))
    else:
        claims.append(open_claim(f"rates{by}: ours and another tool's could not both be measured:"))
    if BARE in found and PLAIN in found:
        what = f"rate of a plain aiohttp client as a share of our wire room's{by}:"
        claims.append(judged(found[PLAIN] / found[BARE], 1 / RATE_GOAL, "", what))
    return claims


def main() -> int:
    """Measure, print, and exit 0 when the claims hold."""
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: short, says little")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tool-repeats", type=int, default=1, help="of clients that start slowly")
    parser.add_argument("--clients", nargs="*", default=[], help="only these beside ours")
    args = parser.parse_args()
    began = time.monotonic()
    at = cores()
    peers, versions, absent = present(args.clients)
    if args.quick:
        for peer in [p for p in peers if not p.quick]:
            absent[peer.name] = "left out by --quick"
        peers = [p for p in peers if p.quick]
    streams = (1, 8) if args.quick else STREAMS
    for name, why in absent.items():
        print(f"absent: {name}: {why}")
    print(
        f"clients on core {at.client}, server on core {at.server}: {', '.join(versions.values())}"
    )
    trials = accuracy(peers, streams, 1 if args.quick else args.repeats, args.tool_repeats, at)
    results = {
        p.name: {
            str(n): trial.pooled([t for t in trials if (t.client, t.concurrency) == (p.name, n)])
            for n in streams
        }
        for p in peers
    }
    print("rates: + held, - did not, ? the server was late or the machine busy", flush=True)
    found = rates(peers, at, quick=args.quick)
    table(results, streams)
    best = rate_table(found)
    alone = {name: search.within_goal(steps) for name, steps in found.items()}
    claims = accuracy_claims(results, streams) + rate_claims(best)
    claims += rate_claims(alone, " (1 ms alone)")
    detail = {
        "plan": PACED.as_json(),
        "cores": asdict(at),
        "clients": versions,
        "absent": absent,
        "unit": "ms",
        "accuracy": results,
        "rates": {
            name: {
                "highest": _as_json(best[name]),
                "within_1_ms_alone": _as_json(search.within_goal(steps)),
                "parsed_in_time_up_to": search.highest_in_time(steps),
                "ended_by": search.why([s for s in steps if s.offered > _offered(best[name])]),
                "tried": [asdict(s) for s in steps],
            }
            for name, steps in found.items()
        },
        "seconds": round(time.monotonic() - began),
    }
    return finish("http_accuracy", claims, detail, args.json)


def _as_json(step: Step | None) -> dict[str, Any] | None:
    return None if step is None else asdict(step)


def _offered(step: Step | None) -> float:
    return 0.0 if step is None else step.offered


if __name__ == "__main__":
    sys.exit(main())

"""How often does a gate decide, and how often wrongly? Simulated requests through the real gate.

    python benchmarks/error_rates.py --json benchmarks/results/error_rates.json

Part 1: the operating characteristic for independent requests, beside the exact probabilities.
Part 2: both error rates where requests depend on each other, which no such test can promise.
TTFT, P95, preset normal, at most 300 requests; latencies are lognormal (sigma 0.3) unless said.
Every series has its own seed, so a row can be repeated alone. About 5 minutes on one core.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, norm

from harness import arguments, finish
from pytest_llmsla.stats import GateSpec, SequentialGate, operating_characteristic

LIMIT = 100.0
SIGMA = 0.3
BUDGET = 300
VIOLATED = 0.055
KEPT = 0.05
Series = npt.NDArray[np.float64]
Source = Callable[[np.random.Generator], Series]


@dataclass(frozen=True)
class Ends:
    """Shares of gates, 0–1. ``first``: stopped at the first decision; ``final``: all measured."""

    runs: int
    first_pass: float
    first_fail: float
    final_pass: float
    final_fail: float
    median_units: float
    share_over: float


def latencies(z: Series, share: float) -> Series:
    """Lognormal times of which ``share`` exceed the limit, from standard normal noise."""
    return np.asarray(LIMIT * np.exp(SIGMA * (z - norm.isf(share))))


def autoregressive(rng: np.random.Generator, rho: float, n: int) -> Series:
    """Standard normal noise in which each value is ``rho`` times the last one, plus news."""
    z = rng.normal(size=n)
    for i in range(1, n):
        z[i] = rho * z[i - 1] + math.sqrt(1 - rho * rho) * z[i]
    return z


def independent(share: float) -> Source:
    """Requests that know nothing of each other."""
    return lambda rng: latencies(rng.normal(size=BUDGET), share)


def ar1(rho: float, share: float) -> Source:
    """A machine whose speed wanders."""
    return lambda rng: latencies(autoregressive(rng, rho, BUDGET), share)


def every_third(rho: float, share: float) -> Source:
    """The same machine seen by one of three interleaved buckets."""
    return lambda rng: latencies(autoregressive(rng, rho, 3 * BUDGET)[::3], share)


def slow_mode(rho: float, share: float) -> Source:
    """A second mode at six times the limit that comes and stays (correlation ``rho``)."""

    def draw(rng: np.random.Generator) -> Series:
        slow = np.empty(BUDGET, dtype=bool)
        slow[0] = rng.random() < share
        for i in range(1, BUDGET):
            slow[i] = rng.random() < share * (1 - rho) + (rho if slow[i - 1] else 0.0)
        fast = 0.5 * LIMIT * np.exp(0.1 * rng.normal(size=BUDGET))
        return np.where(slow, 6 * LIMIT, fast)

    return draw


def slow_mode_of_noise(rho: float, share: float) -> Source:
    """The slow mode comes when wandering noise is high, which the fast times show as well."""

    def draw(rng: np.random.Generator) -> Series:
        z = autoregressive(rng, rho, BUDGET)
        return np.where(z > norm.isf(share), 6 * LIMIT, 0.5 * LIMIT * np.exp(0.1 * z))

    return draw


def slow_windows(length: int, share: float, budget: int = BUDGET) -> Source:
    """Windows of ``length`` requests that are slow as a whole; everything else independent."""

    def draw(rng: np.random.Generator) -> Series:
        windows = -(-budget // length)
        slow = np.repeat(rng.random(windows) < share, length)[:budget]
        return np.where(slow, 2 * LIMIT, 0.5 * LIMIT * np.exp(0.1 * rng.normal(size=budget)))

    return draw


def drifting(total: float, share: float) -> Source:
    """A mean that rises by ``total`` standard deviations over the budget; ``share`` over all."""
    ramp = total * (np.arange(BUDGET) / (BUDGET - 1) - 0.5)
    low, high = -10.0, 10.0  # bisect the shift at which the share over the limit is right
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if np.mean(norm.sf(mid - ramp)) > share else (low, mid)
    return lambda rng: np.asarray(LIMIT * np.exp(SIGMA * (rng.normal(size=BUDGET) + ramp - low)))


def simulate(source: Source, runs: int, seed: int, *, guard: bool = True, block: int = 1) -> Ends:
    """Run ``runs`` gates over series of ``source``; ``block`` requests are one unit."""
    ends: list[tuple[str | None, str, int | None]] = []
    over = 0.0
    series = np.empty(0)
    for run in range(runs):
        series = source(np.random.default_rng([seed, run]))
        over += float(np.mean(series > LIMIT))
        gate = SequentialGate(GateSpec(limit=LIMIT, guard=guard))
        for at in range(0, len(series), block):
            gate.add_block([([float(v)], False) for v in series[at : at + block]], size=block)
        ends.append((gate.decision, gate.verdict(), gate.decided_at))
    decided = [n if n is not None else len(series) // block for _, _, n in ends]
    return Ends(
        runs=runs,
        first_pass=sum(e[0] == "pass" for e in ends) / runs,
        first_fail=sum(e[0] == "fail" for e in ends) / runs,
        final_pass=sum(e[1] == "pass" for e in ends) / runs,
        final_fail=sum(e[1] == "fail" for e in ends) / runs,
        median_units=float(np.median(decided)),
        share_over=over / runs,
    )


def characteristic(runs: int) -> list[dict[str, Any]]:
    """Part 1, one row a true share."""
    rows = []
    for share in (0.01, 0.02, 0.03, 0.05, VIOLATED, 0.07, 0.10, 0.15):
        point = operating_characteristic(share, max_units=BUDGET)
        ends = simulate(independent(share), runs, seed=round(share * 1000))
        rows.append({"share": share, "exact": vars(point), "gate": vars(ends)})
        print(
            f"{share:6.1%}   PASS {point.passes:6.1%} {ends.first_pass:6.1%}   "
            f"FAIL {point.fails:6.1%} {ends.first_fail:6.1%}   "
            f"mean {point.mean_units:4.0f}, median {ends.median_units:4.0f} requests",
            flush=True,
        )
    return rows


def violations() -> Iterable[tuple[str, Source, dict[str, Any]]]:
    """Services that break their limit: 5.5 % of requests over it."""
    yield "independent", independent(VIOLATED), {}
    for rho in (0.3, 0.5, 0.7, 0.9):
        yield f"AR(1), correlation {rho}", ar1(rho, VIOLATED), {}
    yield "AR(1), correlation 0.7, guard off", ar1(0.7, VIOLATED), {"guard": False}
    off = {"guard": False}
    yield "the same, every third request (interleaved)", every_third(0.7, VIOLATED), off
    yield "the same, interleaved, guard on", every_third(0.7, VIOLATED), {}
    yield "slow mode at 6 x limit, from AR(1) noise 0.7", slow_mode_of_noise(0.7, VIOLATED), {}
    yield "slow mode at 6 x limit, correlation 0.7", slow_mode(0.7, VIOLATED), {}
    yield "slow windows of 8, one unit a request", slow_windows(8, VIOLATED), {}
    yield (
        "slow windows of 8, blocks of 8, 8 x budget",
        slow_windows(8, VIOLATED, 8 * BUDGET),
        {"block": 8},
    )
    yield "slow windows of 20", slow_windows(20, VIOLATED), {}
    for total in (1.0, 2.0):
        yield f"mean rises by {total:g} sd", drifting(total, VIOLATED), {}


def keepers() -> Iterable[tuple[str, Source, dict[str, Any]]]:
    """Services that just keep it: 5 % of requests over it."""
    yield "independent", independent(KEPT), {}
    for rho in (0.3, 0.5, 0.7):
        yield f"AR(1), correlation {rho}", ar1(rho, KEPT), {}


def dependent(
    kind: str, cases: Iterable[tuple[str, Source, dict[str, Any]]], runs: int, seed: int
) -> list[dict[str, Any]]:
    """Part 2, one row a kind of dependence."""
    rows = []
    for i, (name, source, options) in enumerate(cases):
        ends = simulate(source, runs, seed + i, **options)
        rows.append({"kind": kind, "case": name, **options, "gate": vars(ends)})
        first, final = (
            (ends.first_pass, ends.final_pass)
            if kind == "false PASS"
            else (ends.first_fail, ends.final_fail)
        )
        print(
            f"{name:45} {kind} {first:6.1%} at the first decision, "
            f"{final:6.1%} when the whole budget is measured",
            flush=True,
        )
    return rows


def bounded(what: str, rate: float, runs: int, alpha: float) -> dict[str, Any]:
    """A claim: the rate is at most α, give or take what so many runs can show (1 in 1,000)."""
    return {
        "what": what,
        "value": rate,
        "limit": float(binom.isf(1e-3, runs, alpha)) / runs,
        "unit": "of gates",
        "beside": {},
        "holds": bool(rate * runs <= binom.isf(1e-3, runs, alpha)),
    }


def main() -> int:
    """Run both parts."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000, help="gates a row (default 2000)")
    args = parser.parse_args()
    begin = time.process_time()
    print(
        f"Independent requests, at most {BUDGET}; exact without the guard, then simulated with it"
    )
    table = characteristic(args.runs)
    print(f"\n{VIOLATED:.1%} of requests over the limit")
    broken = dependent("false PASS", violations(), args.runs, seed=1000)
    print(f"\n{KEPT:.0%} of requests over the limit, which is allowed")
    kept = dependent("false FAIL", keepers(), args.runs, seed=2000)
    claims = [
        bounded("false PASS, independent", broken[0]["gate"]["first_pass"], args.runs, 0.05),
        bounded("false FAIL, independent", kept[0]["gate"]["first_fail"], args.runs, 0.01),
    ]
    detail = {
        "quantile": 0.95,
        "alpha_pass": 0.05,
        "alpha_fail": 0.01,
        "max_requests": BUDGET,
        "runs_per_row": args.runs,
        "cpu_seconds": round(time.process_time() - begin, 1),
        "operating_characteristic": table,
        "dependence": broken + kept,
    }
    return finish("error_rates", claims, detail, args.json)


if __name__ == "__main__":
    raise SystemExit(main())

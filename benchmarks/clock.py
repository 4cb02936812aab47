"""How exact are our stamps? An engine with known delays, measured through the real path.

    python benchmarks/clock.py --json benchmarks/results/clock.json

The engine waits busily for each token's moment, notes its own clock just before handing the token
over, and the usual target and runner stamp it. Error = our figure − the engine's own figure, for
TTFT and each ITL; ≤ 100 µs at P99 is claimed. A control, interleaved, consumes the same engine with
a bare loop and none of our code: what it shows is the machine's own noise. The deviation from the
planned delays is printed, too: it holds whatever the operating system took from the engine.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

from harness import arguments, finish, judged
from pytest_llmsla.asker import Asker, Timeouts
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.base import Ask
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.timeline import Timeline

LIMIT_US = 100.0


class Engine:
    """Hands over tokens at planned moments; keeps the moments at which it really did."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.entered = 0
        self.planned: list[int] = []
        self.handed: list[int] = []

    def count(self, prompt: str, system: str | None = None) -> int:
        """Words stand for tokens."""
        return len(prompt.split())

    def plan(self, tokens: int) -> None:
        """Delays of the next answer, ns: first token 5–30 ms, then 1–12 ms each."""
        draw = self._random.uniform
        self.planned = [int(draw(5e6, 30e6)), *(int(draw(1e6, 12e6)) for _ in range(tokens - 1))]
        self.handed = []

    def _wait(self, delay: int) -> None:
        until = (self.handed[-1] if self.handed else self.entered) + delay
        while (now := time.perf_counter_ns()) < until:
            pass
        self.handed.append(now)

    def generate(self, prompt: str, **_: Any) -> Iterator[int]:
        """Token ids at their moments."""
        self.entered = time.perf_counter_ns()
        for i, delay in enumerate(self.planned):
            self._wait(delay)
            yield i


class AsyncEngine(Engine):
    """The same through an async iterator."""

    def generate(self, prompt: str, **_: Any) -> AsyncIterator[int]:  # type: ignore[override]
        """Token ids at their moments."""
        return self._agenerate()

    async def _agenerate(self) -> AsyncIterator[int]:
        self.entered = time.perf_counter_ns()
        for i, delay in enumerate(self.planned):
            self._wait(delay)
            yield i


def gaps(moments: list[int]) -> list[int]:
    """Differences of neighbours."""
    return [b - a for a, b in pairwise(moments)]


def bare(engine: Engine, loop: asyncio.AbstractEventLoop) -> tuple[int, list[int]]:
    """Start and stamps of one answer, ns, by a bare loop."""
    stamps: list[int] = []

    async def drain(made: AsyncIterator[int]) -> None:
        async for _ in made:
            stamps.append(time.perf_counter_ns())

    start = time.perf_counter_ns()
    made = engine.generate("a b c")
    if isinstance(made, AsyncIterator):
        loop.run_until_complete(drain(made))
        return start, stamps
    for _ in made:
        stamps.append(time.perf_counter_ns())
    return start, stamps


def errors_of(engine: Engine, start: int, stamps: list[int]) -> dict[str, list[float]]:
    """Errors of one answer in µs, against what the engine did and against its plan."""
    ttft, itl = stamps[0] - start, gaps(stamps)
    return {
        "ttft": [(ttft - (engine.handed[0] - engine.entered)) / 1e3],
        "itl": [(a - b) / 1e3 for a, b in zip(itl, gaps(engine.handed), strict=True)],
        "ttft_plan": [(ttft - engine.planned[0]) / 1e3],
        "itl_plan": [(a - b) / 1e3 for a, b in zip(itl, engine.planned[1:], strict=True)],
    }


def measure(engine: Engine, requests: int, tokens: int) -> dict[str, dict[str, list[float]]]:
    """Errors in µs, by kind: ours, and the control's."""
    kinds = ("ttft", "itl", "ttft_plan", "itl_plan")
    out: dict[str, dict[str, list[float]]] = {
        arm: {k: [] for k in kinds} for arm in ("ours", "control")
    }
    target = PythonTarget(engine, entry="benchmark")
    loop = asyncio.new_event_loop()
    with Asker(target, Timeouts()) as asker:
        for i in range(requests + 1):
            engine.plan(tokens)
            blank = Timeline(id=str(i), bucket="clock", start_ns=0, end_ns=0)
            t = asker.ask(Ask(prompt="a b c", max_new_tokens=tokens), blank)
            if not t.ok or t.tokens != tokens:
                raise SystemExit(f"request {i} failed: {t.error}")
            found = {"ours": errors_of(engine, t.start_ns, [at for at, _ in t.arrivals])}
            engine.plan(tokens)
            found["control"] = errors_of(engine, *bare(engine, loop))
            if i == 0:
                continue  # warm-up
            for arm, errors in found.items():
                for kind, values in errors.items():
                    out[arm][kind] += values
    loop.close()
    target.close()
    return out


def spread(values: list[float]) -> dict[str, float | int | None]:
    """Percentiles of the absolute error, nearest rank."""
    sizes = [abs(v) for v in values]
    out: dict[str, float | int | None] = {
        f"p{round(q * 100)}": nearest_rank(sizes, q) for q in (0.5, 0.95, 0.99)
    }
    return out | {"max": max(sizes), "n": len(sizes)}


def main() -> int:
    """Measure, print, and exit 0 when the claim holds."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    detail: dict[str, Any] = {"requests": args.requests, "tokens": args.tokens, "unit": "µs"}
    claims = []
    for name, engine in (("iterator", Engine(args.seed)), ("async", AsyncEngine(args.seed))):
        errors = measure(engine, args.requests, args.tokens)
        detail[name] = {
            arm: {kind: spread(values) for kind, values in kinds.items()}
            for arm, kinds in errors.items()
        }
        for arm, kinds in detail[name].items():
            for kind, found in kinds.items():
                line = "  ".join(f"{k} {v:.4g}" for k, v in found.items())
                print(f"{name:9} {arm:8} {kind:10} {line}")
        for kind in ("ttft", "itl"):
            ours, control = (detail[name][arm][kind]["p99"] for arm in ("ours", "control"))
            what = f"|error| of {kind}, P99, {name}:"
            claims.append(judged(ours, LIMIT_US, "µs", what, noise=control))
    return finish("clock", claims, detail, args.json)


if __name__ == "__main__":
    sys.exit(main())

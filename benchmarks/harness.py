"""What the benchmarks share: the machine's name, paired runs, and the result file."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_llmsla.probes.host import facts


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the option every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    return parser


def machine() -> dict[str, Any]:
    """The facts a figure needs beside it; the host's own name is left out."""
    return {k: v for k, v in facts().items() if k != "hostname"}


def machine_line(found: dict[str, Any]) -> str:
    """One line for a reader: processor, cores, load, versions."""
    cpu, packages = found["cpu"], found["packages"]
    parts = [f"{cpu['model']}, {cpu['usable_cores']:g} cores usable"]
    parts += [f"{g['name']} (driver {g['driver']})" for g in found["gpus"]]
    parts.append(f"load {found['load_average'][0] if found['load_average'] else '?'}")
    parts.append(f"Python {found['python']['version']}")
    wanted = ("pytest", "torch", "transformers", "bitsandbytes")
    parts += [f"{p} {packages[p]}" for p in wanted if packages[p]]
    return " · ".join(parts)


def interleave(
    pairs: int, first: Callable[[int], float], second: Callable[[int], float]
) -> list[tuple[float, float]]:
    """``(first, second)`` of each pair; the order alternates, so that drift falls on both."""
    out: list[tuple[float, float]] = []
    for i in range(pairs):
        if i % 2 == 0:
            a = first(i)
            b = second(i)
        else:
            b = second(i)
            a = first(i)
        out.append((a, b))
    return out


def median_interval(values: Sequence[float]) -> dict[str, float | int | None]:
    """Median with its 95 % interval by order statistics (sign test); no shape is assumed."""
    from scipy.stats import binom

    ordered = sorted(values)
    n = len(ordered)
    k = int(binom.ppf(0.025, n, 0.5))
    known = k >= 1
    return {
        "median": statistics.median(ordered),
        "low": ordered[k - 1] if known else None,
        "high": ordered[n - k] if known else None,
        "n": n,
    }


def judged(
    value: float, limit: float, unit: str, what: str, *, noise: float | None = None
) -> dict[str, Any]:
    """One claim: a value that may be at most its limit.

    ``noise`` is the same figure of a control that runs none of our code. Where the control alone
    is over half the limit, a value over the limit says nothing: ``holds`` is None.
    """
    holds: bool | None = value <= limit
    if not holds and noise is not None and noise > limit / 2:
        holds = None
    return _claim(what, value, limit, unit, holds, None if noise is None else {"control": noise})


def judged_median(
    found: dict[str, float | int | None], limit: float, unit: str, what: str
) -> dict[str, Any]:
    """A claim on a median: decided when the whole 95 % interval is on one side of the limit."""
    low, high = found["low"], found["high"]
    holds: bool | None = None
    if low is not None and high is not None:
        holds = True if high <= limit else False if low > limit else None
    interval = {"low": low, "high": high, "pairs": found["n"]}
    return _claim(what, float(found["median"] or 0.0), limit, unit, holds, interval)


def _claim(
    what: str, value: float, limit: float, unit: str, holds: bool | None, beside: Any
) -> dict[str, Any]:
    return {
        "what": what,
        "value": value,
        "limit": limit,
        "unit": unit,
        "beside": beside or {},
        "holds": holds,
    }


MARKS = {
    True: "holds",
    False: "DOES NOT HOLD",
    None: "not decided (repeat on a quieter machine, or with more pairs)",
}


def finish(name: str, claims: list[dict[str, Any]], detail: dict[str, Any], to: Path | None) -> int:
    """Print the claims and write the file.

    Returns the exit code: 0 every claim holds, 1 one does not, 2 one cannot be decided here.
    """
    found = machine()
    print(f"\n{machine_line(found)}")
    for claim in claims:
        beside = "".join(f", {k} {v:.4g}" for k, v in claim["beside"].items() if v is not None)
        print(
            f"{MARKS[claim['holds']]}: {claim['what']} {claim['value']:.4g} {claim['unit']} "
            f"(limit {claim['limit']:g}{beside})"
        )
    if to is not None:
        result = {
            "schema": "llmsla-benchmark/1",
            "benchmark": name,
            "date": found["taken_utc"],
            "claims": claims,
            "detail": detail,
            "machine": found,
        }
        to.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
        to.write_text(text + "\n", encoding="utf-8")
        print(f"written to {to}")
    if any(c["holds"] is False for c in claims):
        return 1
    return 2 if any(c["holds"] is None for c in claims) else 0

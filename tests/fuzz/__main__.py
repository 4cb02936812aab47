"""Damaged answers by the hundred thousand: ``python tests/fuzz --streams 100000 --json FILE``.

Exit status 1 when a property broke; each failing seed is printed and can be run alone with
``--first SEED --streams 1``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

BLOCK = 500


def run_block(first: int, n: int) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """(outcomes, failures) of ``n`` seeds."""
    from check import Fuzz

    fuzz, failures = Fuzz(), list[tuple[int, str]]()
    for seed in range(first, first + n):
        found = fuzz.run(seed)
        if found is not None:
            failures.append((seed, found))
    return dict(fuzz.outcomes), failures


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    outcomes: dict[str, int] = {}
    failures: list[tuple[int, str]] = []
    end = options.first + options.streams
    firsts = range(options.first, end, BLOCK)
    sizes = [min(BLOCK, end - first) for first in firsts]
    with ProcessPoolExecutor(options.jobs) as pool:
        for counted, failed in pool.map(run_block, firsts, sizes):
            failures += failed
            for name, n in counted.items():
                outcomes[name] = outcomes.get(name, 0) + n
    for seed, found in failures:
        print(f"seed {seed}: {found}")
    report = {
        "streams": options.streams,
        "first_seed": options.first,
        "failures": [{"seed": seed, "what": found} for seed, found in failures],
        "outcomes": outcomes,
        "seconds": round(time.monotonic() - began, 1),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "httptools": version("httptools"),
        "h11": version("h11"),
        "machine": platform.machine(),
    }
    print(json.dumps({**report, "failures": len(failures)}, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

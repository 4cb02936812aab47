"""What does the plugin cost a suite that does not use it? pytest with and without, interleaved.

    python benchmarks/inert.py --json benchmarks/results/inert.json

A suite of 1,000 empty tests is generated and run by fresh processes, with the plugin and with
``-p no:llmsla``, in alternating order; other installed plugins are switched off in both. The
median difference of a pair may be at most 15 ms. The heavy modules loaded in a run with the
plugin are listed: there must be none.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness import arguments, finish, interleave, judged, judged_median, median_interval

LIMIT_MS = 15.0
HEAVY = (
    *("torch", "transformers", "numpy", "scipy", "pandas", "pydantic", "yaml", "psutil", "rich"),
    *("typer", "safetensors", "bitsandbytes", "accelerate", "pynvml"),
)
WITHOUT = ("-p", "no:llmsla")

CONFTEST = """
import json, os, sys

def pytest_unconfigure():
    to = os.environ.get("INERT_MODULES")
    if to:
        with open(to, "w") as f:
            json.dump(sorted(m for m in sys.modules if "." not in m), f)
"""


def suite(folder: Path, tests: int, files: int = 20) -> None:
    """Write a suite of empty tests."""
    each = tests // files
    for f in range(files):
        body = "".join(f"def test_{i}():\n    assert True\n\n\n" for i in range(each))
        (folder / f"test_part_{f}.py").write_text(body)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")


def others_off() -> list[str]:
    """Switches for every other installed pytest plugin: their cost is not asked for."""
    names = sorted({e.name for e in entry_points(group="pytest11")} - {"llmsla"})
    return [part for name in names for part in ("-p", f"no:{name}")]


def run(folder: Path, extra: list[str], modules: Path | None = None) -> tuple[float, float]:
    """Milliseconds of wall time and of processor time of one pytest process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    if modules is not None:
        env["INERT_MODULES"] = str(modules)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *extra]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    wall = (time.perf_counter() - began) * 1e3
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"the suite itself failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used * 1e3


def compare(folder: Path, pairs: int, extra: list[str]) -> dict[str, Any]:
    """Median difference, with − without, of wall and processor time, ms."""
    used: dict[str, list[float]] = {"with": [], "without": []}

    def arm(name: str, more: list[str]) -> float:
        wall, cpu = run(folder, [*extra, *more])
        used[name].append(cpu)
        return wall

    walls = interleave(pairs, lambda _: arm("with", []), lambda _: arm("without", list(WITHOUT)))
    return {
        "with_ms": median_interval([a for a, _ in walls]),
        "without_ms": median_interval([b for _, b in walls]),
        "difference_ms": median_interval([a - b for a, b in walls]),
        "processor_difference_ms": median_interval(
            [a - b for a, b in zip(used["with"], used["without"], strict=True)]
        ),
    }


def heavy_modules(folder: Path, extra: list[str]) -> dict[str, list[str]]:
    """Heavy modules in a run with the plugin, and all modules that it adds to a run without."""
    found = {}
    for name, more in (("with", []), ("without", list(WITHOUT))):
        to = folder / f"modules-{name}.json"
        run(folder, [*extra, *more], to)
        found[name] = set(json.loads(to.read_text()))
    return {
        "heavy": sorted(found["with"] & set(HEAVY)),
        "added": sorted(found["with"] - found["without"]),
    }


def main() -> int:
    """Measure, print, and exit 0 when the claims hold."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=25)
    args = parser.parse_args()
    off = others_off()
    detail: dict[str, Any] = {"tests": args.tests, "pairs": args.pairs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite(folder, args.tests)
        detail["modules"] = heavy_modules(folder, off)
        detail["collect_only"] = compare(folder, args.pairs, [*off, "--collect-only"])
        detail["whole_run"] = compare(folder, args.pairs, off)
    for part in ("collect_only", "whole_run"):
        for kind, found in detail[part].items():
            line = "  ".join(f"{k} {v}" if v is None else f"{k} {v:.4g}" for k, v in found.items())
            print(f"{part:13} {kind:24} {line}")
    print(f"modules added: {', '.join(detail['modules']['added']) or 'none'}")
    heavy = detail["modules"]["heavy"]
    claims = [
        judged_median(detail[part]["difference_ms"], LIMIT_MS, "ms", f"median difference, {what}:")
        for part, what in (("collect_only", "start-up and collection"), ("whole_run", "whole run"))
    ]
    claims.append(
        judged(len(heavy), 0, "modules", f"heavy modules loaded ({', '.join(heavy) or 'none'}):")
    )
    return finish("inert", claims, detail, args.json)


if __name__ == "__main__":
    sys.exit(main())

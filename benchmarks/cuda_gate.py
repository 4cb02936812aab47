"""The release gate once, for real, on an NVIDIA GPU: a LLaMA-2-7B shape in bf16 and nf4.

    python benchmarks/cuda_gate.py --out cuda-out --tests

Makes the model (random weights, nothing downloaded), runs ``pytest sla.yaml`` with the published
limits for each type of weights, explains host time minus device time of the same steps
(cuda_explain.py), runs the GPU-marked tests, and writes everything into ``--out``:
``result.json`` (rewritten after each step, so that a run that is cut off leaves what it has) and
the report folders. Each step is a process of its own with the time that is left; a step that
cannot run is a row with its reason. ``--tiny`` tries the script out on a CPU.

Exit code 0: every step ran, both differences are explained and memory is in both reports. The
gates' own verdicts are results, not conditions: a slow host may well fail the limits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import machine, machine_line

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

POLICY = """\
version: 1
service: llama2-7b-shape-{name}
target:
{target}
workload: {{max_new_tokens: {tokens}, warmup: {{max_requests: 11}}}}
buckets:
  - {{name: short,  prompt_max: 128, ttft_ms: 300}}
  - {{name: medium, prompt_max: 512, ttft_ms: 450}}
  - {{name: long,   measured_to: 1024, ttft_ms: 800}}
itl: {{p95_ms: 50}}
tgs: {{concurrency: [1]}}
evidence: {{preset: {preset}, max_seconds: {seconds}}}
"""
KINDS = ("bf16", "nf4")
NEEDED = {"nf4": ("bitsandbytes", "accelerate"), "bf16": ("accelerate",)}


class Steps:
    """Runs steps while there is time, and keeps the result file current."""

    def __init__(self, out: Path, work: Path, minutes: float, result: dict[str, Any]) -> None:
        self.out = out
        self._work = work
        self.result = result
        self._until = time.monotonic() + minutes * 60

    def left(self) -> float:
        """Seconds left."""
        return self._until - time.monotonic()

    def clean(self, text: str) -> str:
        """Text without this machine's folders."""
        return text.replace(str(self._work), "WORK").replace(str(ROOT), "REPO")

    def save(self) -> None:
        """Write result.json whole."""
        temporary = self.out / "result.json.part"
        text = json.dumps(self.result, indent=1, allow_nan=False, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.out / "result.json")

    def run(
        self,
        name: str,
        command: list[str],
        *,
        cwd: Path,
        least_s: float,
        keep_s: float = 0,
        fine: tuple[int, ...] = (0,),
    ) -> dict[str, Any]:
        """Run one process with the time left, less ``keep_s`` for later steps.

        ``fine``: exit codes that say that the step itself worked.
        """
        budget = self.left() - keep_s
        if budget < least_s:
            row: dict[str, Any] = {
                "status": "error",
                "reason": f"no time: {budget:.0f} s left, {least_s:.0f} s needed",
            }
            return self._done(name, row)
        print(f"[{name}] up to {budget:.0f} s", flush=True)
        began = time.monotonic()
        log = cwd / f"{name.replace('/', '-')}.log"
        code = execute(command, cwd=cwd, log=log, timeout=budget)
        row = {
            "status": "ok" if code in fine else "error",
            "exit": code,
            "seconds": round(time.monotonic() - began, 1),
            "output": self.clean(log.read_text(encoding="utf-8", errors="replace")[-4000:]),
        }
        if code is None:
            row["reason"] = f"stopped after {budget:.0f} s"
        return self._done(name, row)

    def _done(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        self.result["steps"][name] = row
        self.save()
        print(
            f"[{name}] {row['status']} {row.get('reason', '')} {row.get('seconds', '')}", flush=True
        )
        return row


def execute(command: list[str], *, cwd: Path, log: Path, timeout: float) -> int | None:
    """Exit code of a process whose output goes to ``log``; None when its time ran out."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            # First as Ctrl-C: a gate then still writes what it has measured.
            for sign, patience in ((signal.SIGINT, 20), (signal.SIGKILL, 20)):
                os.killpg(process.pid, sign)
                try:
                    process.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return None


def target_of(kind: str, model: Path, *, tiny: bool) -> dict[str, Any]:
    """The target mapping of sla.yaml."""
    spec: dict[str, Any] = {
        "kind": "transformers",
        "model": str(model),
        "dtype": "bfloat16",
        "device": "cpu" if tiny else "cuda:0",
    }
    if kind == "nf4":
        spec |= {"quantization": "nf4", "compute_dtype": "bfloat16"}
    return spec


def gate(steps: Steps, kind: str, model: Path, work: Path, args: argparse.Namespace) -> None:
    """``pytest sla.yaml`` with the published limits; the report goes to ``out/<kind>``."""
    folder = work / kind
    folder.mkdir()
    keep = 0.0 if kind == KINDS[-1] else max(0.0, steps.left() / 2 - 20)
    seconds = int(max(30, min(steps.left() - keep - 45, args.gate_seconds)))
    target = target_of(kind, model, tiny=args.tiny)
    text = POLICY.format(
        name=kind,
        target="\n".join(f"  {k}: {json.dumps(v)}" for k, v in target.items()),
        tokens=args.tokens,
        preset=args.preset,
        seconds=seconds,
    )
    (folder / "sla.yaml").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "pytest_llmsla.plugin", "sla.yaml"]
    command += ["--sla-report", str(folder / "report"), "-rA"]
    # Exit 1 is a verdict that is not PASS: the gate itself ran.
    row = steps.run(f"gate/{kind}", command, cwd=folder, least_s=60, keep_s=keep, fine=(0, 1))
    runs = sorted((folder / "report" / "runs").glob("*/report.json"))
    if not runs:
        row["status"] = "error"
        row.setdefault("reason", "no report was written")
        steps.save()
        return
    kept = steps.out / kind
    kept.mkdir(exist_ok=True)
    for name in ("report.json", "report.md", "timelines.jsonl"):
        if (runs[-1].parent / name).exists():
            shutil.copy(runs[-1].parent / name, kept / name)
    report = json.loads(runs[-1].read_text(encoding="utf-8"))
    row["policy"] = steps.clean(text)
    row["report"] = json.loads(steps.clean(json.dumps(digest(report))))
    steps.save()


def digest(report: dict[str, Any]) -> dict[str, Any]:
    """What the result file keeps of a report."""
    kept = (
        *("id", "verdict", "limit", "observed", "lower", "upper", "requests", "exceeded"),
        *("reason", "percentiles", "prompt_tokens", "stages"),
    )
    return {
        "verdict": report["verdict"],
        "complete": report["complete"],
        "not_measured": report["not_measured"],
        "findings": [{k: f.get(k) for k in kept} for f in report["findings"]],
        "tgs": report["tgs"],
        "errors": report["errors"],
        "warmup": report["warmup"],
    }


def memory_of(row: dict[str, Any]) -> dict[str, Any]:
    """Memory conditions of every TGS line of a gate's report."""
    for entry in row.get("report", {}).get("tgs", []):
        memory = (entry.get("conditions") or {}).get("memory")
        if isinstance(memory, dict):
            return memory
    return {}


def scratch(given: Path | None, tiny: bool) -> Path:
    """Where 14 GB of weights go: as told, else memory where there is room, else the temp folder."""
    shared = Path("/dev/shm")
    if given is None and not tiny and shared.is_dir() and shutil.disk_usage(shared).free > 24 << 30:
        given = shared
    return Path(tempfile.mkdtemp(prefix="llmsla-cuda-", dir=given))


def claims_of(
    result: dict[str, Any], kinds: list[str], *, tiny: bool, tests: bool
) -> list[dict[str, Any]]:
    """What the run is to show, each true or false."""
    steps = result["steps"]
    out = []
    for kind in kinds:
        row = steps.get(f"gate/{kind}", {})
        out.append(
            {"what": f"{kind}: the gate ran to its report", "holds": row.get("status") == "ok"}
        )
        memory = memory_of(row)
        names = ("rss_peak_gib",) if tiny else ("allocated_peak_gib", "device_used_peak_gib")
        known = all(isinstance(memory.get(n), float) for n in names)
        out.append({"what": f"{kind}: memory in the report ({', '.join(names)})", "holds": known})
        found = result["explain"].get(kind, {})
        for part in ("first_token", "decode"):
            holds = bool(found.get(part, {}).get("explained"))
            what = f"{kind}: host minus device time of {part} explained within 5 % or 2 ms"
            out.append({"what": what, "holds": holds})
    if tests:
        row = steps.get("tests", {})
        # All skipped is no pass.
        ran = re.search(r"\b[1-9]\d* passed", row.get("output", "")) is not None
        out.append({"what": "tests/gpu pass", "holds": row.get("status") == "ok" and ran})
    return out


def environment(work: Path, *, tiny: bool) -> None:
    """Settings that every step inherits."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "LLMSLA_CACHE": str(work / "cache"),
        # Other plugins of the machine are no part of this.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONUNBUFFERED": "1",
        **({"OMP_NUM_THREADS": "1"} if tiny else {}),
    }


def run_all(steps: Steps, work: Path, args: argparse.Namespace) -> None:
    """All steps in order of worth."""
    result, model = steps.result, work / "model"
    device = "cpu" if args.tiny else "cuda:0"
    command = [
        sys.executable,
        str(HERE / "random_model.py"),
        "--to",
        str(model),
        "--device",
        device,
    ]
    made = steps.run("model", command + ["--tiny"] * args.tiny, cwd=work, least_s=60)
    if made["status"] != "ok":
        return
    if args.tests:
        tests = [sys.executable, "-m", "pytest", "-p", "pytest_llmsla.plugin", "-q", "-rs"]
        tests += [
            "-c",
            str(work / "pytest.ini"),
            "--rootdir",
            str(ROOT),
            str(ROOT / "tests" / "gpu"),
        ]
        marks = "    gpu: needs a CUDA device\n    model: loads the real model\n"
        (work / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{marks}", encoding="utf-8")
        steps.run("tests", tests, cwd=work, least_s=30, keep_s=steps.left() / 2)
    for kind in args.kinds:
        lacking = [p for p in NEEDED[kind] if importlib.util.find_spec(p) is None]
        if lacking:
            reason = f"not installed here: {', '.join(lacking)}"
            for name in (f"explain/{kind}", f"gate/{kind}"):
                result["steps"][name] = {"status": "error", "reason": reason}
            steps.save()
            print(f"[{kind}] error {reason}", flush=True)
            continue
        spec = json.dumps(target_of(kind, model, tiny=args.tiny))
        to = work / f"explain-{kind}.json"
        command = [sys.executable, str(HERE / "cuda_explain.py"), "--spec", spec, "--json", str(to)]
        share = steps.left() * (0.25 if kind == KINDS[0] else 0.5)
        steps.run(f"explain/{kind}", command, cwd=work, least_s=30, keep_s=steps.left() - share)
        if to.exists():
            result["explain"][kind] = json.loads(to.read_text(encoding="utf-8"))
        gate(steps, kind, model, work, args)


def main() -> int:
    """Run the steps, print the claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="result folder")
    parser.add_argument("--work", type=Path, help="where the model is kept meanwhile (24 GB)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything")
    parser.add_argument("--preset", default="fast", choices=("fast", "normal", "strict"))
    parser.add_argument("--tokens", type=int, default=16, help="new tokens a request")
    parser.add_argument("--gate-seconds", type=int, default=3600, help="most for one gate")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--tests", action="store_true", help="run tests/gpu as well")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model on the CPU, to try it out"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out.resolve()
    found = machine()
    print(machine_line(found), flush=True)
    result: dict[str, Any] = {
        "schema": "llmsla-benchmark/1",
        "benchmark": "cuda_gate",
        "date": found["taken_utc"],
        "tiny": args.tiny,
        "preset": args.preset,
        "claims": [],
        "steps": {},
        "explain": {},
        "machine": found,
    }
    work = scratch(args.work, args.tiny)
    steps = Steps(out, work, args.minutes, result)
    try:
        environment(work, tiny=args.tiny)
        run_all(steps, work, args)
    except Exception as e:
        result["problem"] = f"{type(e).__name__}: {e}"
        print(result["problem"], flush=True)
    finally:
        result["claims"] = claims_of(result, args.kinds, tiny=args.tiny, tests=args.tests)
        steps.save()
        shutil.rmtree(work, ignore_errors=True)
    for claim in result["claims"]:
        print(f"{'holds' if claim['holds'] else 'DOES NOT HOLD'}: {claim['what']}")
    return 0 if result["claims"] and all(c["holds"] for c in result["claims"]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How large report.html gets and how long it takes: ``python benchmarks/report_size.py [FILE]``.

Made-up runs of the sizes that docs/reports.md promises; seconds of one core, so that a busy machine
changes little. Writes benchmarks/results/report_size.json
(or FILE) and exits 1 when a promise is broken.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_llmsla import judging, series
from pytest_llmsla.log import RunLog
from pytest_llmsla.policy import policy_from_mapping
from pytest_llmsla.reports import folder, html
from pytest_llmsla.timeline import NS_PER_MS, Timeline

RESULT = Path(__file__).parent / "results" / "report_size.json"
CASES = {
    "300 requests x 256 tokens": (3, 100, 256, 2.0),
    "200 requests x 10,000 tokens": (1, 200, 10_000, 5.0),
    "200 gates of one request x 10,000 tokens": (200, 1, 10_000, 5.0),
}
"""Gates or buckets, requests each, tokens, MB allowed."""
MOST_SECONDS = 10.0


def policy(buckets: int, tokens: int) -> dict[str, Any]:
    """A policy with ``buckets`` buckets of 100 prompt tokens each."""
    return {
        "version": 1,
        "service": "made up",
        "target": {"kind": "scripted", "script": {"ttft_ms": 1, "itl_ms": 1}},
        "workload": {"max_new_tokens": tokens},
        "buckets": [
            {"name": f"b{n}", "prompt_max": (n + 1) * 100, "ttft_ms": 900} for n in range(buckets)
        ],
        "itl": {"p95_ms": 50},
        "evidence": {"preset": "fast"},
    }


def requests(gate: str | None, buckets: int, each: int, tokens: int) -> Iterator[Timeline]:
    """One request after the other, with growing gaps."""
    rng, start = random.Random(f"{gate} {tokens}"), 0
    for bucket in range(buckets):
        for n in range(each):
            at, arrivals = start + int(rng.lognormvariate(5, 0.3) * NS_PER_MS), []
            for i in range(tokens):
                arrivals.append((at, 1))
                at += int((20 + i * 10 / tokens) * rng.lognormvariate(0, 0.1) * NS_PER_MS)
            yield Timeline(
                id=f"{gate or 'r'}-{bucket}-{n}",
                bucket=f"b{bucket}",
                start_ns=start,
                end_ns=arrivals[-1][0],
                arrivals=tuple(arrivals),
                prompt_tokens=bucket * 100 + 80 + n % 20,
                output_tokens=tokens,
                max_new_tokens=tokens,
                token_source="model",
                finish_reason="length",
                unit=n,
                gate=gate,
            )
            start = at + NS_PER_MS


def run(buckets: int, each: int, tokens: int) -> RunLog:
    """A finished run; many buckets of one request are gates of their own."""
    gates = [f"test_it.py::test[{n}]" for n in range(buckets)] if each == 1 else [None]
    raw = policy(1 if each == 1 else buckets, tokens)
    dumped = policy_from_mapping(raw, "made up").policy.model_dump(mode="json")
    log = RunLog("made up", {"service": "made up"}, end={"reason": "ended", "utc": None})
    for gate in gates:
        log.timelines += requests(gate, 1 if each == 1 else buckets, each, tokens)
        if gate is not None:
            log.gates[gate] = {"gate": gate, "policy": dumped}
    if each != 1:
        log.run = {**log.run, "policy": dumped}
    return log


def measure(buckets: int, each: int, tokens: int, allowed: float) -> dict[str, Any]:
    """Size and seconds of one case."""
    log = run(buckets, each, tokens)
    gates = judging.judge_log(log)
    at = time.process_time()
    series.series_of(log, gates)
    series_s = time.process_time() - at
    report = judging.build_report(log, gates)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        folder.json_report.write(report, here)
        at = time.process_time()
        page = html.render(report, digests=folder.digests(here))
        seconds = time.process_time() - at
        json_bytes = (here / "report.json").stat().st_size
    megabytes = len(page.encode("utf-8")) / 1e6
    return {
        "html_mb": round(megabytes, 3),
        "html_mb_allowed": allowed,
        "json_mb": round(json_bytes / 1e6, 3),
        "render_cpu_s": round(seconds, 2),
        "series_cpu_s": round(series_s, 2),
        "kept": megabytes <= allowed and seconds + series_s < MOST_SECONDS,
    }


def main() -> int:
    """Run every case, write the result, and say whether all promises are kept."""
    out = {}
    for name, case in CASES.items():
        out[name] = measure(*case)
        print(f"{name}: {out[name]}", flush=True)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    target.write_text(json.dumps(out, indent=2) + "\n", encoding="utf-8")
    return 0 if all(each["kept"] for each in out.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

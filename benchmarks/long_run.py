"""Does a long gate hold its memory?

    python benchmarks/long_run.py --minutes 60 --json benchmarks/results/long_run.json

A real gate on the truth server: so many streams in flight (64 by default) for so many minutes, with
the log, the judges and the sampler as ever. The limit of ITL lies on what it is held to, so that
the test can say neither PASS nor FAIL and the gate goes on until its time is spent. Resident memory
of this process is read every ten seconds. Two claims: over the latter half it grows by at most
``--bytes`` a token (what is kept of a request is bounded), and the log of the run is read back at
a million arrivals a second or more.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from harness import arguments, finish, judged
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import policy_from_mapping
from pytest_llmsla.session import Session
from truth.process import TruthServer
from truth.schedule import Plan

_TOKENS = 128
_GAP_MS, _JITTER_MS = 20.0, 10.0
_TTFT_MS, _SPREAD_MS = 100.0, 100.0
_EVERY_S = 10.0
_MIB = float(1 << 20)


class Watch:
    """Resident memory every ten seconds, beside the tokens that came so far."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rows: list[dict[str, float]] = []

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._row()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._row()

    def _row(self) -> None:
        self.rows.append(
            {
                "s": round(time.monotonic() - self._began, 1),
                "rss_mib": round(self._process.memory_info().rss / _MIB, 2),
                "log_mib": round(self._log.stat().st_size / _MIB, 2) if self._log.exists() else 0.0,
            }
        )


def policy(url: str, streams: int, seconds: float) -> Any:
    """A limit of ITL at the very percentile of what the server does: no verdict is ever due."""
    # Of an even draw around the gap, one in twenty is over this.
    itl = _GAP_MS - _JITTER_MS + 0.95 * 2 * _JITTER_MS
    ttft = 10 * (_TTFT_MS + _SPREAD_MS)
    return policy_from_mapping(
        {
            "version": 1,
            "service": "truth",
            "target": {
                "kind": "openai",
                "base_url": f"{url}/v1",
                "model": "truth",
                "memory_gib": 1.0,
                "memory_source": "no model behind it",
            },
            "workload": {"max_new_tokens": _TOKENS},
            "buckets": [{"name": "only", "prompt_max": 128, "ttft_ms": ttft}],
            "itl": {"p95_ms": itl},
            "tgs": {"concurrency": [streams]},
            "evidence": {"preset": "strict", "max_seconds": seconds, "max_requests": 10**7},
        },
        "long run",
    )


def grown(rows: list[dict[str, float]], tokens_per_s: float) -> float:
    """Bytes a token over the latter half, from its first to its last reading."""
    half = rows[len(rows) // 2 :]
    bytes_more = (half[-1]["rss_mib"] - half[0]["rss_mib"]) * _MIB
    return max(0.0, bytes_more) / max((half[-1]["s"] - half[0]["s"]) * tokens_per_s, 1.0)


def main() -> int:
    """Measure, print, and exit 0 when the claims hold."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--bytes", type=float, default=25.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, TruthServer(resting=True) as server:
        server.plan(
            Plan(
                tokens=_TOKENS,
                ttft_ms=_TTFT_MS,
                spread_ms=_SPREAD_MS,
                gap_ms=_GAP_MS,
                jitter_ms=_JITTER_MS,
            )
        )
        loaded = policy(server.url, args.streams, args.minutes * 60)
        session = Session(Path(folder), release=loaded)
        log = session.run_dir / "timelines.jsonl"
        gate = session.gate(None, loaded)
        with Watch(log) as watch:
            gate.measure()
        found = gate.findings()
        session.close()
        began = time.perf_counter()
        read = read_run(log)
        took = time.perf_counter() - began
        tokens = sum(t.tokens for t in read.timelines)
        seconds = watch.rows[-1]["s"]
        detail = {
            "minutes": args.minutes,
            "streams": args.streams,
            "requests": len(read.timelines),
            "failed": sum(not t.ok for t in read.timelines),
            "tokens": tokens,
            "tokens_per_s": tokens / seconds,
            "log_bytes_per_token": log.stat().st_size / max(tokens, 1),
            "read_arrivals_per_s": sum(len(t.arrivals) for t in read.timelines) / took,
            "findings": {f.id: f"{f.verdict}: {f.reason}" for f in found},
            "rss": watch.rows,
        }
    each = grown(watch.rows, tokens / seconds)
    rate = detail["read_arrivals_per_s"]
    claims = [
        judged(each, args.bytes, "bytes", "memory kept a token:"),
        judged(1e6 / rate, 1.0, "µs", "reading the log, an arrival:"),
    ]
    print(f"{tokens} tokens in {seconds:.0f} s; {detail['failed']} requests failed")
    for name, words in detail["findings"].items():
        print(f"  {name}: {words}")
    return finish("long_run", claims, detail, args.json)


if __name__ == "__main__":
    sys.exit(main())

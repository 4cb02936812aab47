"""Our client and the plain aiohttp one."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from peers.base import (
    BENCHMARKS,
    Load,
    Records,
    Watched,
    environment,
    installed,
    python,
    read_json,
    watch,
)
from pytest_llmsla.version import __version__
from truth.analysis import Run, Said, merged


class Script:
    """One of the clients in ``closed_loop.py``."""

    quick = True

    def __init__(self, name: str) -> None:
        self.name = name

    def version(self) -> str:
        """Its version."""
        if self.name != "aiohttp":
            return f"pytest-llmsla {__version__}"
        return installed("aiohttp", "aiohttp")

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """One process, one load."""
        given, out = load.folder / "load.json", load.folder / "out.json"
        shape = {
            "url": load.url, "concurrency": load.concurrency, "tokens": load.tokens,
            "asks": load.asks,
        }  # fmt: skip
        given.write_text(json.dumps(shape), encoding="utf-8")
        interpreter = (
            python() if self.name != "aiohttp" else str(environment("aiohttp") / "bin" / "python")
        )
        script = BENCHMARKS / "peers" / "closed_loop.py"
        watched = watch([interpreter, script, self.name, given, out], load)
        found = read_json(out)
        said = [_said(r) for r in found["requests"]]
        user = sum(not r["kernel"] for r in found["requests"])
        notes = (
            (f"{user} requests stamped in user space",) if self.name != "aiohttp" and user else ()
        )
        return Run(
            said=said,
            cpu_s=found["cpu_s"],
            merged=merged(s.gaps_ms or () for s in said),
            done_ns=found["done_ns"],
            notes=notes,
        ), watched


def _said(request: dict[str, Any]) -> Said:
    stamps = request["stamps_ns"]
    gaps = tuple((b - a) / 1e6 for a, b in pairwise(stamps))
    return Said(
        key=request["key"],
        ttft_ms=(stamps[0] - request["start_ns"]) / 1e6 if stamps else None,
        gaps_ms=gaps,
        tokens=len(stamps),
    )

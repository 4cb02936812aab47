"""A server that dies while it is gated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real_server import RealServer
from server_gate import Gate, finish, policy, start

MEASURED = 3
"""Requests in the log before the server dies; a PASS takes some thirty."""


def gate_and_kill(
    server: RealServer,
    target: Mapping[str, Any],
    folder: Path,
    *,
    path: str = "/v1",
    env: Mapping[str, str] | None = None,
) -> Gate:
    """Begin a gate, kill the server after a few measured requests, wait for the gate's end."""
    timeouts = {"first_token_s": 20, "idle_s": 10, "total_s": 60}
    spec = {**target, "base_url": server.url + path, "timeouts": timeouts}
    process = start(folder, policy(spec), env=env)
    try:
        while process.poll() is None and _measured(folder) < MEASURED:
            time.sleep(0.05)
        family = server.family()
        server.kill()
        assert not [one for one in family if one.is_running()]
    except BaseException:
        process.kill()
        raise
    return finish(process, folder)


def _measured(folder: Path) -> int:
    """Requests that the log holds by now, warm-up left out."""
    found = 0
    for log in folder.glob(".llmsla/runs/*/timelines.jsonl"):
        lines = log.read_text("utf-8").splitlines()
        found = sum('"type":"request"' in x and '"warmup":true' not in x for x in lines)
    return found


def assert_no_pass(done: Gate) -> None:
    """Exit, verdict and every finding of the bucket: none of them is green."""
    assert done.exit != 0, done.said
    assert done.report["verdict"] != "pass"
    of_bucket = {k: v for k, v in done.verdicts().items() if k.startswith("short/")}
    assert len(of_bucket) == 3
    assert "pass" not in of_bucket.values()

"""What a person sees while a gate runs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmsla.gating.progress import GateProgress

if TYPE_CHECKING:
    from gated import Gated


class Screen:
    """Stands where the console does; remembers what is written."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.lines: list[str] = []
        self.frames: list[list[str]] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def rewrite(self, lines: Any) -> None:
        self.frames.append(list(lines))

    def settle(self) -> None:
        self.frames.append([])


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def state(requests: int, *still_open: str) -> dict[str, Any]:
    """What the session tells after a request."""
    return {
        "requests": requests,
        "budget": 300,
        "running": {"ttft p95": 112.04},
        "open": list(still_open),
        "warmups": 0,
    }


def measured(progress: GateProgress, clock: Clock, seconds: float, done: int) -> None:
    """One more request of bucket short, ``seconds`` later."""
    clock.now += seconds
    progress.request(None, "short", warmup=False, state=state(done, "short/ttft_p95"))


def test_plain_lines_come_every_ten_seconds() -> None:
    """Where lines cannot be rewritten, a bucket says something every ten seconds, not more."""
    screen, clock = Screen(live=False), Clock()
    progress = GateProgress(screen, clock)  # type: ignore[arg-type]
    progress.phase(None, "short", "measure")
    for done in range(1, 41):
        measured(progress, clock, 1.0, done)
    assert len(screen.lines) == 1 + 4
    assert screen.lines[1] == (
        "sla: short: 10/300 requests · ttft p95 112.0 ms · open: ttft_p95 · at most 4:50 left"
    )


def test_a_decided_limit_is_told_at_once() -> None:
    """The moment a limit is decided does not wait for the next line."""
    screen, clock = Screen(live=False), Clock()
    progress = GateProgress(screen, clock)  # type: ignore[arg-type]
    progress.phase(None, "short", "measure")
    measured(progress, clock, 1.0, 1)
    progress.request(None, "short", warmup=False, state=state(2))
    assert screen.lines[-1] == "sla: short: 2/300 requests · ttft p95 112.0 ms · decided"


def test_a_terminal_shows_one_line_per_bucket() -> None:
    """Where lines can be rewritten, each bucket under way has one, all shown together."""
    screen, clock = Screen(live=True), Clock()
    progress = GateProgress(screen, clock)  # type: ignore[arg-type]
    progress.phase(None, "short", "warm-up")
    progress.phase(None, "long", "warm-up")
    measured(progress, clock, 1.0, 7)
    assert screen.frames[-1] == [
        "sla: short: 7/300 requests · ttft p95 112.0 ms · open: ttft_p95 · at most 42 s left",
        "sla: long: warm-up",
    ]
    progress.phase(None, "short", "done")
    progress.phase(None, "long", "done")
    assert screen.frames[-1] == []


def test_a_terminal_is_not_flooded() -> None:
    """A thousand fast requests are a few redraws."""
    screen, clock = Screen(live=True), Clock()
    progress = GateProgress(screen, clock)  # type: ignore[arg-type]
    progress.phase(None, "short", "measure")
    for done in range(1, 1001):
        measured(progress, clock, 0.001, done)
    assert 2 <= len(screen.frames) <= 7


def test_plain_lines_in_a_run(gated: Gated) -> None:
    """Loading, warm-up and progress are seen although pytest captures output."""
    result = gated.run_apart("sla.yaml")
    result.stdout.fnmatch_lines(
        [
            "sla: loading scripted*",
            "sla: short: warm-up",
            "sla: short: measure",
            "sla: short: 38/300 requests*decided",
        ]
    )


def test_live_lines_in_a_run(gated: Gated) -> None:
    """On a real terminal the lines are rewritten in place, and the result lines stay whole."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", "sla.yaml", "-v"],
        cwd=gated.path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "PY_COLORS": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal whose child has gone ends on Linux
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    assert child.wait(timeout=60) == 0
    text = seen.decode("utf-8")
    assert "\x1b[2K" in text
    assert "\x1b[2A" in text  # two buckets, two lines, drawn over
    assert re.search(r"sla\.yaml::short::ttft_p95 \S*PASSED", text)


def test_quiet(gated: Gated) -> None:
    """``-qq`` shows no progress."""
    result = gated.run_apart("sla.yaml", "-q", "-q")
    assert result.ret == 0
    assert "sla: " not in result.stdout.str()

"""Progress of a run in words: one live line per bucket on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .console import Console

_LIVE_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0


@dataclass
class _Bucket:
    """What is known of one bucket's measurement."""

    title: str
    began: float
    phase: str = ""
    open: tuple[str, ...] = ()
    told: float = 0.0
    text: str = ""


class GateProgress:
    """A :class:`~pytest_llmsla.session.Progress` that writes to a :class:`Console`.

    ``now`` is a clock in seconds; only the rhythm of the lines depends on it.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._buckets: dict[tuple[str | None, str], _Bucket] = {}
        self._drawn = float("-inf")

    def say(self, text: str) -> None:
        """Something that takes time begins."""
        self._console.line(f"sla: {text}")

    def phase(self, gate: str | None, bucket: str, name: str) -> None:
        """``warm-up``, ``measure`` or ``done`` of a bucket."""
        key = (gate, bucket)
        shown = self._buckets.get(key)
        if shown is None or name == "warm-up":
            shown = self._buckets[key] = _Bucket(_title(gate, bucket), self._now())
        shown.phase = name
        if name == "measure":
            shown.began = self._now()
        if name == "done":
            del self._buckets[key]
            if not self._buckets:
                self._console.settle()
            return
        shown.text = f"sla: {shown.title}: {name}"
        self._show(shown, now=True)

    def request(
        self, gate: str | None, bucket: str, *, warmup: bool, state: Mapping[str, Any]
    ) -> None:
        """A request ended."""
        shown = self._buckets.get((gate, bucket))
        if shown is None:  # a single timed_generate(): the test itself says what it does
            return
        if warmup:
            shown.text = f"sla: {shown.title}: warm-up, {state.get('warmups', 0)} requests"
            self._show(shown, now=False)
            return
        still_open = tuple(map(str, state.get("open", ())))
        decided = bool(set(shown.open) - set(still_open))
        shown.open = still_open
        shown.text = self._line(shown, state)
        self._show(shown, now=decided)

    def _line(self, shown: _Bucket, state: Mapping[str, Any]) -> str:
        done, budget = int(state["requests"]), int(state["budget"])
        parts = [f"sla: {shown.title}: {done}/{budget} requests"]
        parts += [f"{name} {ms:.1f} ms" for name, ms in state.get("running", {}).items()]
        names = ", ".join(limit.rsplit("/", 1)[-1] for limit in shown.open)
        parts.append(f"open: {names}" if names else "decided")
        if names and done:
            left = (self._now() - shown.began) / done * max(budget - done, 0)
            parts.append(f"at most {_span(left)} left")
        return " · ".join(parts)

    def _show(self, shown: _Bucket, *, now: bool) -> None:
        at = self._now()
        if self._console.live:
            if now or at - self._drawn >= _LIVE_EVERY_S:
                self._drawn = at
                self._console.rewrite([b.text for b in self._buckets.values()])
        elif now or at - shown.told >= _PLAIN_EVERY_S:
            shown.told = at
            self._console.line(shown.text)


def _title(gate: str | None, bucket: str) -> str:
    return bucket if gate is None else gate.rsplit("::", 1)[-1]


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"

"""What happened and when: one :class:`Timeline` per request, the only currency between rooms.

Times are integer nanoseconds of the target's monotonic clock (``_ns``); milliseconds appear
only at the edges (``_ms``). Definitions: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "error"]
TokenSource = Literal["usage_continuous", "usage_final", "model", "tokenizer", "events"]
Stamp = Literal["kernel", "user", "host"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

PEAK = "tgs-peak"
"""Purpose of the requests that measure peak TGS; they are no bucket's evidence."""

NOT_FORCED = "length not forced"
"""Prefix of the note of a target that cannot force the output length."""

REPEATED = "prompt repeated"
"""Prefix of the note of a request whose prompt was sent before in the same gate."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request from acceptance to its last token.

    ``arrivals`` holds ``(t_ns, tokens)``: the moment token ids reached the host, and how many.
    ``status == "error"`` keeps whatever arrived before the failure, but no sample of it is used.
    """

    id: str
    bucket: str
    start_ns: int
    end_ns: int
    arrivals: tuple[tuple[int, int], ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_new_tokens: int = 0
    token_source: TokenSource | None = None
    finish_reason: str | None = None
    status: Status = "ok"
    error: str | None = None
    scheduled_ns: int | None = None
    warmup: bool = False
    unit: int = 0
    """Index of the statistical unit (a block of ``concurrency`` starts) inside its bucket."""
    concurrency: int = 1
    attempt: int = 1
    segment: int = 0
    stages: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds per stage: tokenise, queue, cache_init, prefill, first_sample, decode, sample…"""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cached_tokens: int | None = None
    stamp: Stamp = "host"
    gate: str | None = None
    """None for the gate of the sla.yaml; a test's node id for a gate of its own."""
    purpose: str | None = None
    """None for a bucket's evidence; :data:`PEAK` for requests that belong to TGS only."""
    notes: tuple[str, ...] = ()
    text: str | None = None
    """The answer's text. In memory for ordinary asserts; stored only under ``keep_text``."""
    prompt: str | None = None

    @property
    def ok(self) -> bool:
        """True when the request ended without error."""
        return self.status == "ok"

    @property
    def ttft_ns(self) -> int | None:
        """First arrival minus start (open loop: minus the scheduled time); None without a token."""
        if not self.arrivals:
            return None
        begin = self.start_ns if self.scheduled_ns is None else self.scheduled_ns
        return self.arrivals[0][0] - begin

    @property
    def ttft_ms(self) -> float | None:
        """TTFT in milliseconds, None when no token arrived."""
        ns = self.ttft_ns
        return None if ns is None else ns / NS_PER_MS

    def chunk_gaps_ns(self) -> list[int]:
        """Raw gaps between consecutive arrivals, ns; empty with fewer than two arrivals."""
        a = self.arrivals
        return [a[i][0] - a[i - 1][0] for i in range(1, len(a))]

    def itl_ns(self) -> list[float]:
        """Inter-token latencies, ns: an arrival of k tokens after a gap g gives k samples of g/k.

        Extra tokens of the first arrival give no sample.
        """
        out: list[float] = []
        a = self.arrivals
        for i in range(1, len(a)):
            gap, k = a[i][0] - a[i - 1][0], a[i][1]
            if k > 0:
                out.extend([gap / k] * k)
        return out

    def itl_ms(self) -> list[float]:
        """:meth:`itl_ns` in milliseconds."""
        return [g / NS_PER_MS for g in self.itl_ns()]

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first arrival, ms; None with no such token."""
        later = sum(k for _, k in self.arrivals[1:])
        if later <= 0:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later / NS_PER_MS

    @property
    def tokens(self) -> int:
        """Tokens counted at arrival."""
        return sum(k for _, k in self.arrivals)

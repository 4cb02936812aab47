"""When the truth server sends what: plain arithmetic."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

NS_PER_MS = 1_000_000
JUDGED = "m"
"""First letter of the keys of requests that are judged; other keys are warm-ups."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How every streamed answer is timed. Times in ms; moments count from the request's arrival.

    Args:
        tokens: token events of an answer.
        warm_tokens: those of an answer whose key does not begin with m (a warm-up); None: as many.
        ttft_ms: first token.
        spread_ms: added to ``ttft_ms``, drawn evenly from 0 to this for each request, so that
            streams asked for at once do not stay in phase.
        gap_ms: one token to the next.
        jitter_ms: each gap is ``gap_ms`` plus an even draw between ± this.
        step: tokens of all streams fall on one grid of ``gap_ms``, as those of an engine that
            decodes its batch in steps; ``spread_ms`` and ``jitter_ms`` say nothing then.
        role_lead_ms: how long before the first token the chunk with the role alone is sent.
        seed: of the draws; the n-th request has the same schedule in every run.
    """

    tokens: int = 32
    warm_tokens: int | None = None
    ttft_ms: float = 100.0
    spread_ms: float = 20.0
    gap_ms: float = 20.0
    jitter_ms: float = 0.0
    step: bool = False
    role_lead_ms: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or (self.warm_tokens is not None and self.warm_tokens < 1):
            raise ValueError(f"tokens is {self.tokens}, warm_tokens {self.warm_tokens}: at least 1")
        if not 0 <= self.jitter_ms <= self.gap_ms:
            raise ValueError(f"jitter_ms is {self.jitter_ms}: from 0 to gap_ms ({self.gap_ms})")
        if not 0 <= self.role_lead_ms <= self.ttft_ms:
            raise ValueError(
                f"role_lead_ms is {self.role_lead_ms}: from 0 to ttft_ms ({self.ttft_ms})"
            )
        if self.spread_ms < 0:
            raise ValueError(f"spread_ms is {self.spread_ms}: not below 0")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Plan:
        """The plan of a JSON object.

        Raises:
            ValueError: a key or value that is none of a plan's.
        """
        known = {f.name for f in fields(cls)}
        if unknown := set(given) - known:
            raise ValueError(f"unknown: {sorted(unknown)}; known are {sorted(known)}")
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def length(self, key: str) -> int:
        """Token events of the answer to the request with this key."""
        if self.warm_tokens is None or key.startswith(JUDGED):
            return self.tokens
        return self.warm_tokens

    def moments(self, number: int, arrived_ns: int, count: int | None = None) -> list[int]:
        """Moments of the first ``count`` tokens (all of them) of the ``number``-th request.

        In ns, on the clock of ``arrived_ns``.
        """
        count = self.tokens if count is None else count
        gap = self.gap_ms * NS_PER_MS
        if self.step:
            first = arrived_ns + round(self.ttft_ms * NS_PER_MS)
            slot = -(-first // round(gap))
            return [round((slot + k) * gap) for k in range(count)]
        draw = random.Random(f"{self.seed}/{number}").uniform
        at = arrived_ns + self.ttft_ms * NS_PER_MS + draw(0, self.spread_ms) * NS_PER_MS
        if not self.jitter_ms:
            return [round(at + k * gap) for k in range(count)]
        out = [round(at)]
        for _ in range(count - 1):
            at += gap + draw(-self.jitter_ms, self.jitter_ms) * NS_PER_MS
            out.append(round(at))
        return out

    def flow_s(self) -> float:
        """From the first token of an answer to its last, s, without jitter."""
        return (self.tokens - 1) * self.gap_ms / 1e3

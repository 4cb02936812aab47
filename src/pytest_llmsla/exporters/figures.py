"""Samples of a run by metric, bucket and level, in seconds: what both formats count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..replay import JudgedGate
from ..rules.checks import itl_samples_ms
from ..timeline import Timeline

MS_PER_S = 1000
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Seconds. Bounds of gen_ai.server.time_to_first_token, OpenTelemetry's conventions for GenAI."""
TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Seconds. Bounds of gen_ai.server.time_per_output_token, likewise."""


@dataclass(frozen=True)
class Series:
    """One gate's bucket at one level: its sound requests' samples, and how many failed."""

    gate: str | None
    bucket: str
    concurrency: int | None
    """None: open loop."""
    ttft_s: tuple[float, ...]
    """One a request: to the first token."""
    tpot_s: tuple[float, ...]
    """One a request: mean time per token after the first."""
    itl_s: tuple[float, ...]
    """Pooled gaps between tokens; empty where the tokens have no times of their own."""
    ok: int
    failed: int

    @property
    def labels(self) -> Mapping[str, str]:
        """Bucket and level as text; ``open`` is the open loop."""
        level = "open" if self.concurrency is None else str(self.concurrency)
        out = {"bucket": self.bucket, "concurrency": level}
        return out if self.gate is None else {**out, "test": self.gate}


def series_of(gates: Sequence[JudgedGate]) -> list[Series]:
    """Every bucket and level of ``gates`` that has a measured request, in order of the first."""
    out = []
    for gate in gates:
        spread = gate.loaded.policy.itl.bursts == "allow"
        shown = {
            (f.bucket, f.concurrency): f.verdict != "error"
            for f in gate.findings()
            if f.metric == "itl"
        }
        groups: dict[tuple[str, int | None], list[Timeline]] = {}
        for t in gate.requests:
            if not t.warmup and t.purpose is None and t.bucket in gate.keeper.ranges:
                groups.setdefault((t.bucket, t.level), []).append(t)
        for (bucket, level), requests in groups.items():
            ok = [t for t in requests if t.ok]
            timed = ok if shown.get((bucket, level), True) else []
            out.append(
                Series(
                    gate=gate.key,
                    bucket=bucket,
                    concurrency=level,
                    ttft_s=tuple(ms / MS_PER_S for t in ok if (ms := t.ttft_ms) is not None),
                    tpot_s=tuple(ms / MS_PER_S for t in ok if (ms := t.tpot_ms) is not None),
                    itl_s=tuple(
                        ms / MS_PER_S
                        for t in timed
                        for ms in itl_samples_ms(t, bursts_allowed=spread)
                    ),
                    ok=len(ok),
                    failed=len(requests) - len(ok),
                )
            )
    return out

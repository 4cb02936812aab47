"""``llmsla plan``: what a gate will cost, before any model is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ..policy import Bucket, LoadedPolicy
from ..reports import numbers
from ..rules.base import OBSERVED_REQUESTS
from ..stats import clean_units_to_pass
from ..verdict import limits_of
from ..workload import lengths

_FIRST_STEADY = 11
"""Warm-up requests after which a steady model can be seen as such: one dropped, two blocks of 5."""
_FAILS_BY = 6
"""Measured requests by which a service at twice its limit has failed."""
_BEST, _LIKELY = 0.25, 0.5
"""Share of its limits at which a service is taken to run where nothing was measured."""
_CLEAN_QUANTILE = 0.95


@dataclass(frozen=True)
class Speed:
    """How long one request of a bucket takes, in seconds, in three cases."""

    best: float
    likely: float
    worst: float


@dataclass(frozen=True)
class BucketCost:
    """Requests and tokens of one bucket."""

    bucket: str
    range_text: str
    to_pass: int
    """Clean requests until PASS."""
    most: int
    warmup: int
    warmup_most: int
    decides: str
    """Which limits need the most clean requests, in words."""
    prompt_tokens: int
    """Of the requests of a clean gate, warm-up included; about."""
    new_tokens: int
    speed: Speed


@dataclass(frozen=True)
class GateCost:
    """A whole gate. Seconds; the worst case is cut at ``max_seconds``."""

    buckets: Sequence[BucketCost]
    preset: str
    max_seconds: float
    measured: bool

    @property
    def requests(self) -> int:
        """Of a clean gate, warm-up included."""
        return sum(b.to_pass + b.warmup for b in self.buckets)

    @property
    def most_requests(self) -> int:
        """At most, warm-up included."""
        return sum(b.most + b.warmup_most for b in self.buckets)

    @property
    def best_s(self) -> float:
        """A clean gate on a fast service."""
        return sum((b.to_pass + b.warmup) * b.speed.best for b in self.buckets)

    @property
    def likely_s(self) -> float:
        """A clean gate on an ordinary service."""
        return sum((b.to_pass + b.warmup) * b.speed.likely for b in self.buckets)

    @property
    def worst_s(self) -> float:
        """Every request of the budget on a service at its limits; measuring ends at max_seconds."""
        warm = sum(b.warmup_most * b.speed.worst for b in self.buckets)
        return min(warm + sum(b.most * b.speed.worst for b in self.buckets), self.max_seconds)


def cost(loaded: LoadedPolicy, speeds: Mapping[str, Speed] | None = None) -> GateCost:
    """What a gate of ``loaded`` takes.

    Args:
        loaded: the policy.
        speeds: measured speeds by bucket; None assumes shares of the limits.
    """
    policy = loaded.policy
    given = speeds or {}
    rows = [_bucket(loaded, b, given.get(b.name) or _assumed(loaded, b)) for b in policy.buckets]
    return GateCost(rows, policy.evidence.preset, policy.evidence.max_seconds, speeds is not None)


def _bucket(loaded: LoadedPolicy, b: Bucket, speed: Speed) -> BucketCost:
    work = loaded.policy.workload
    to_pass, most, decides = _requests(loaded, b)
    warmup_most = work.warmup.max_requests
    warmup = min(_FIRST_STEADY, warmup_most)
    sizes = lengths(b.prompt_min, b.prompt_min, b.longest, Random(work.seed))
    measured = sum(next(sizes) for _ in range(to_pass))
    return BucketCost(
        bucket=b.name,
        range_text=b.range_text,
        to_pass=to_pass,
        most=most,
        warmup=warmup,
        warmup_most=warmup_most,
        decides=decides,
        prompt_tokens=measured + warmup * b.longest,
        new_tokens=(to_pass + warmup) * work.max_new_tokens,
        speed=speed,
    )


def _requests(loaded: LoadedPolicy, b: Bucket) -> tuple[int, int, str]:
    """Clean requests to PASS, budget, and which limits ask for the most."""
    policy = loaded.policy
    if policy.alpha_pass is None:
        return OBSERVED_REQUESTS, OBSERVED_REQUESTS, "observed: five looks decide nothing"
    mine = [limit for limit in limits_of(loaded) if limit.bucket == b.name]
    needs = {
        limit.id: clean_units_to_pass(
            _CLEAN_QUANTILE if limit.percentile is None else limit.percentile / 100,
            policy.alpha_pass,
        )
        for limit in mine
    }
    need = max(needs.values())
    last = [name for name, n in needs.items() if n == need]
    decides = f"{', '.join(last)} decide{'s' if len(last) == 1 else ''} last"
    if len(last) == len(needs):
        decides = "all its limits need as many"
    quantiles = [limit.percentile / 100 for limit in mine if limit.percentile is not None]
    most = policy.max_requests(max(quantiles, default=_CLEAN_QUANTILE))
    return min(need, most), most, decides


def _assumed(loaded: LoadedPolicy, b: Bucket) -> Speed:
    policy = loaded.policy
    ttft = b.ttft_ms or 0.0
    itl = policy.itl.p95_ms or 0.0
    at_limit = (ttft + (policy.workload.max_new_tokens - 1) * itl) / 1000
    return Speed(_BEST * at_limit, _LIKELY * at_limit, at_limit)


def describe(plan: GateCost) -> str:
    """The plan in words, one bucket a block."""
    lines = []
    for b in plan.buckets:
        lines += [
            f"bucket {b.bucket} ({b.range_text})",
            f"  warm-up    {b.warmup} to {b.warmup_most} requests, discarded",
            f"  measured   {b.to_pass} requests when clean, at most {b.most}; {b.decides}",
            f"  tokens     about {b.prompt_tokens} of prompts, {b.new_tokens} generated "
            "(when clean)",
            f"  a request  {_seconds(b.speed.best)} / {_seconds(b.speed.likely)} / "
            f"{_seconds(b.speed.worst)} (best / likely / worst)",
        ]
    basis = (
        "from a few requests measured just now"
        if plan.measured
        else "assumed, nothing was measured: a quarter of the limits / half of them / at the "
        "limits; --measure asks the model"
    )
    lines += [
        f"whole gate (preset {plan.preset})",
        f"  requests   {plan.requests} when clean, at most {plan.most_requests}",
        f"  time       best {numbers.duration(plan.best_s)}, likely "
        f"{numbers.duration(plan.likely_s)}, worst {numbers.duration(plan.worst_s)} "
        f"(measuring ends after evidence.max_seconds: {numbers.duration(plan.max_seconds)})",
        f"  basis      {basis}",
        f"  a service at twice a limit fails it within {_FAILS_BY} measured requests of its "
        "bucket; loading the model comes on top",
    ]
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 or math.isinf(value) else f"{value:.0f} s"

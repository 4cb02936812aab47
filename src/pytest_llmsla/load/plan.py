"""What one level of load is: who is asked, how often, when, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..runner import BucketPlan


@dataclass(frozen=True)
class Due:
    """One request of an open loop."""

    at_ns: int
    """From the start of the level."""
    bucket: str | None = None
    """Where a recorded trace says how long its prompt was; None: as the mix has it."""


@dataclass(frozen=True)
class LevelPlan:
    """One level: a number of requests in flight (closed loop), or a schedule (open loop)."""

    buckets: Sequence[BucketPlan]
    max_seconds: float
    budget: Callable[[str, int], int]
    """``(bucket, block)`` → measured requests, at most."""
    likely: Callable[[str, int], int]
    """``(bucket, block)`` → requests that a clean service takes; so many prompts are made ahead."""
    concurrency: int | None = None
    """Closed loop: requests in flight together; None: open loop."""
    schedule: Iterable[Due] | None = None
    """Open loop: what is due when, in ascending order."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Share of each bucket in the mix; those not named weigh 1."""
    ramp_s: float = 0.0
    bursty: bool = False
    """Open loop: requests come in bursts, which share their luck."""

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.schedule is None):
            raise ValueError("a level has a concurrency or a schedule")


def prompts_needed(
    weights: Mapping[str, float], budgets: Mapping[str, int], warmup_max: int, at_once: int
) -> dict[str, int]:
    """Prompts that a level may take of each bucket, its warm-up included.

    A level keeps its mix until no bucket needs a request, so a frequent bucket is asked as long as
    the rarest one needs: with weights 9 and 1, nine times as often.

    Args:
        weights: share of each bucket, greater than 0; they need not sum to anything.
        budgets: measured requests of each bucket, at most.
        warmup_max: warm-up requests of a bucket, at most; the first wave comes on top.
        at_once: requests in flight.
    """
    whole = sum(weights.values())
    shares = {name: weight / whole for name, weight in weights.items()}
    astray = len(shares) - 1  # they come in turns: no count is farther from its share

    def until(least: Mapping[str, float]) -> float:
        """Requests of all buckets until each has had so many, wherever in its turns it began."""
        return max((least[name] + 2 * astray) / share for name, share in shares.items())

    total = until(budgets)
    if warmup_max:
        most = {
            name: warmup_max + math.ceil(at_once * s) + astray - 1 for name, s in shares.items()
        }
        total += max(at_once, until(most))
    return {name: math.ceil(total * share) + astray for name, share in shares.items()}

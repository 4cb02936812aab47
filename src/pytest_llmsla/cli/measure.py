"""``llmsla plan --measure``: a few requests a bucket, kept nowhere, judged by nobody."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from .. import targets
from ..errors import TargetError
from ..policy import LoadedPolicy
from ..runner import BucketPlan, Runner, RunPlan, Timeouts
from ..session import prompts_for
from ..targets import entry
from ..timeline import NS_PER_S, Timeline
from .plan import Speed

REQUESTS = 3
"""Measured requests a bucket, after one that warms up."""


def measure(loaded: LoadedPolicy, say: Callable[[str], None]) -> dict[str, Speed]:
    """How long a request of each bucket takes on the policy's own target, seconds.

    Best, likely and worst are the shortest, the median and the longest of :data:`REQUESTS`.

    Raises:
        UsageError, TargetError: the model cannot be loaded, no prompt fits, or requests fail.
    """
    policy, work = loaded.policy, loaded.policy.workload
    if getattr(policy.target, "entry", None):
        entry.make_importable(loaded.base)
    target = targets.load(loaded.target_spec(), say=say)
    try:
        factory = prompts_for(loaded, target)
        seen = _Seen(say)
        ids = itertools.count()
        plans = [
            BucketPlan(
                bucket=b.name,
                prompts=factory.stream(b.name, b.prompt_min, b.longest),
                warmup_prompts=factory.stream(b.name, b.prompt_min, b.longest),
                max_new_tokens=work.max_new_tokens,
                sampling=work.sampling.model_dump(mode="json", exclude_none=True),
                force_length=work.force_length,
                max_requests=REQUESTS,
                warmup_max=1,
            )
            for b in policy.buckets
        ]
        t = policy.target.timeouts
        timeouts = Timeouts(t.first_token_s, t.idle_s, t.total_s)
        runner = Runner(target, seen, lambda: f"plan{next(ids)}")
        runner.run(RunPlan(plans, policy.evidence.max_seconds, timeouts), lambda _: True)
    finally:
        target.close()
    return {b.name: seen.speed(b.name) for b in policy.buckets}


class _Seen:
    """A sink that keeps request times and nothing else."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seconds: dict[str, list[float]] = {}
        self._errors: dict[str, str] = {}

    def started(self, request: Mapping[str, Any]) -> None:
        """Nothing is kept of it."""

    def finished(self, t: Timeline) -> Timeline:
        """Keep how long a sound measured request took."""
        if not t.ok:
            self._errors[t.bucket] = t.error or "failed"
        elif not t.warmup:
            self._seconds.setdefault(t.bucket, []).append((t.end_ns - t.start_ns) / NS_PER_S)
        return t

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        """Nothing is kept of it."""

    def problem(self, bucket: str | None, reason: str) -> None:
        """Keep why a bucket cannot be measured."""
        self._errors[bucket or ""] = reason

    def phase(self, bucket: str, name: str) -> None:
        """Say where it stands."""
        self._say(f"bucket {bucket}: {name}")

    def speed(self, bucket: str) -> Speed:
        """The three cases of one bucket.

        Raises:
            TargetError: no request of it succeeded.
        """
        found = self._seconds.get(bucket)
        if not found:
            cause = self._errors.get(bucket) or self._errors.get("") or "no request was made"
            raise TargetError(f"bucket {bucket}: nothing could be measured: {cause}")
        return Speed(min(found), median(found), max(found))

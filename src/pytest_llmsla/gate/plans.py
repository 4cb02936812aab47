"""What a policy asks for, as plans of a runner or of a driver of load."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..finding import Limit
from ..load import Due, LevelPlan
from ..load.plan import prompts_needed
from ..load.schedule import arrivals
from ..policy import LoadedPolicy, Policy
from ..rules.base import OBSERVED_REQUESTS
from ..runner import BucketPlan
from ..stats import clean_units_to_pass
from ..targets.base import Target, Timeouts
from ..timeline import PEAK
from ..verdict import limits_of
from ..workload import PromptFactory
from ..workload.trace import Trace, nearest_range, read_trace

PEAK_PROMPT_TOKENS = 64
"""Longest prompt of a peak-TGS request: short, as the rule's source has it."""
PEAK_REQUESTS = 3
_MOST_AHEAD = 10
"""Prompts made ahead of a frequent bucket, at most, in times of what its own evidence takes."""
_OPEN_SIZE_SERVER = 256
_OPEN_SIZE_HERE = 32
_WHOLE_MIX = " (the mix stays as it is until the rarest bucket has its evidence)"


def check_trace(loaded: LoadedPolicy) -> None:
    """Refuse a policy whose trace could not be replayed, while nothing is loaded or measured.

    Raises:
        UsageError: as :meth:`Plans.check_trace`; a policy without a trace has none.
    """
    Plans(loaded, None, limits_of(loaded)).check_trace()


class Plans:
    """Makes the plans of one gate; ``limits`` are those that it judges."""

    def __init__(self, loaded: LoadedPolicy, key: str | None, limits: Sequence[Limit]) -> None:
        self.loaded = loaded
        self._key = key
        self._limits = limits
        mix = loaded.policy.load.mix or {}
        self._shares = {b.name: float(mix.get(b.name, 1.0)) for b in loaded.policy.buckets}
        """Of what is asked under load, by bucket; they need not sum to anything."""
        self._trace: Trace | None = None

    @property
    def _policy(self) -> Policy:
        return self.loaded.policy

    @property
    def timeouts(self) -> Timeouts:
        """The deadlines of a request."""
        t = self._policy.target.timeouts
        return Timeouts(t.first_token_s, t.idle_s, t.total_s)

    def check_trace(self) -> None:
        """Read the trace, where there is one, before anything is loaded.

        Raises:
            UsageError: it cannot be used, or has no request for a bucket; names the policy's line
                and, where one line of the trace is wrong, that one.
        """
        if self._policy.workload.load.kind != "trace" or self._trace is not None:
            return
        try:
            self._trace = self._usable_trace()
        except UsageError as e:
            raise UsageError(f"{self.loaded.source('workload.load.trace')}: {e}") from None

    def _usable_trace(self) -> Trace:
        load = self._policy.workload.load
        path = Path(self.loaded.base) / str(load.trace)
        trace = read_trace(path, load.trace_unit, load.trace_sha256)
        if load.rate is not None:
            trace = trace.at_rate(load.rate)
        self._shares = trace.shares(self._ranges(), self._shares)
        self._check_pace(trace, path)
        return trace

    def _check_pace(self, trace: Trace, path: Path) -> None:
        """Refuse a trace that cannot bring each bucket the fewest requests that can PASS."""
        seconds = self._policy.evidence.max_seconds - self._policy.load.ramp_s
        for name, (low, high) in self._ranges().items():
            needed, comes = self.likely(name, 1), trace.within(seconds) * self._shares[name]
            if comes >= needed:
                continue
            words = f"about {comes:.2g} requests" if comes else "no request"
            raise UsageError(
                f"the trace {path} brings {words} for bucket {name} ({low}–{high} tokens) in the "
                f"{seconds:g} s that are measured, and a verdict needs {needed}. It has "
                f"{trace.words(self._ranges())}. Give a trace with more of them, set "
                "workload.load.rate, raise evidence.max_seconds, or leave the bucket out"
            )

    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {b.name: (b.prompt_min, b.longest) for b in self._policy.buckets}

    # -- how many requests

    def _quantile(self, bucket: str) -> float:
        """The highest quantile that is judged of a bucket: it takes the most requests."""
        found = [
            limit.percentile / 100
            for limit in self._limits
            if limit.bucket == bucket and limit.percentile is not None
        ]
        found += [x.limit for x in self._limits if x.rule == "goodput" and x.limit is not None]
        return max(found, default=0.95)

    def budget(self, bucket: str, block: int = 1) -> int:
        """Measured requests of a bucket, at most, where ``block`` are judged as one."""
        if self._policy.alpha_pass is None:
            return OBSERVED_REQUESTS * block
        return self._policy.max_requests(self._quantile(bucket), block)

    def likely(self, bucket: str, block: int) -> int:
        """Requests that a service without a fault takes."""
        alpha = self._policy.alpha_pass
        if alpha is None:
            return OBSERVED_REQUESTS * block
        clean = clean_units_to_pass(self._quantile(bucket), alpha) * block
        return min(clean, self.budget(bucket, block))

    def check_fits(
        self, target: Target, factory: PromptFactory, name: str, level: int | None
    ) -> None:
        """See whether a bucket can be measured on this target, from ``level`` on.

        Raises:
            UsageError: it is longer than the context, or a file has too few prompts for it.
        """
        b, context = self._policy.bucket(name), target.max_context()
        work = self._policy.workload
        if context is not None and b.longest + work.max_new_tokens > context:
            raise UsageError(
                f"bucket {name} is measured to {b.longest} tokens and {work.max_new_tokens} are "
                f"generated, but the model's context is {context}. Lower measured_to, prompt_max "
                "or max_new_tokens."
            )
        why = "" if len(set(self._shares.values())) == 1 else _WHOLE_MIX
        factory.check(name, b.prompt_min, b.longest, self._needed(name, level), why)
        if self._trace is not None:
            factory.note(f"trace {work.load.trace}: {self._trace.words(self._ranges())}")

    def _needed(self, name: str, first: int | None) -> int:
        """Prompts of a bucket that the gate may still take, from level ``first`` on, with warm-up:
        those of the levels before are used."""
        warmups, needed = self._policy.workload.warmup.max_requests, 0
        levels = self._policy.levels
        for level in levels[levels.index(first) :]:
            if level == 1:
                needed += self.budget(name) + warmups
                continue
            # How large a block of an open loop is shows while it warms up.
            block = level or 1
            budgets = {bucket: self.budget(bucket, block) for bucket in self._shares}
            needed += prompts_needed(self._shares, budgets, warmups, block)[name]
        return needed

    def _taken(self, bucket: str, block: int) -> int:
        """Requests of a bucket that a level takes on a service without a fault: as long as the
        rarest one needs."""
        each = {name: self.likely(name, block) for name in self._shares}
        needed = prompts_needed(self._shares, each, 0, block)[bucket]
        return min(needed, _MOST_AHEAD * each[bucket])

    # -- plans

    def bucket(
        self,
        name: str,
        factory: PromptFactory,
        overrides: Mapping[str, Any],
        *,
        attempt: int,
        already: int,
    ) -> BucketPlan:
        """One bucket's stream of requests."""
        b, work = self._policy.bucket(name), self._policy.workload
        sampling = work.sampling.model_dump(mode="json", exclude_none=True)
        sampling.update(overrides.get("sampling") or {})
        return BucketPlan(
            bucket=name,
            prompts=factory.stream(name, b.prompt_min, b.longest),
            warmup_prompts=factory.warmup(name, b.prompt_min, b.longest),
            max_new_tokens=int(overrides.get("max_new_tokens", work.max_new_tokens)),
            sampling=sampling,
            force_length=work.force_length,
            max_requests=self.budget(name),
            warmup_max=work.warmup.max_requests,
            gate=self._key,
            attempt=attempt,
            already=already,
        )

    def level(self, level: int | None, buckets: Sequence[BucketPlan], seconds: float) -> LevelPlan:
        """One level of load: ``level`` requests in flight, None for the open loop."""
        load = self._policy.workload.load
        return LevelPlan(
            buckets=buckets,
            max_seconds=seconds,
            budget=self.budget,
            likely=self._taken,
            concurrency=level,
            schedule=None if level is not None else self._schedule([b.bucket for b in buckets]),
            weights=dict(load.mix or {}),
            ramp_s=load.ramp_s,
            bursty=load.bursty,
        )

    def _schedule(self, names: Collection[str]) -> Iterator[Due]:
        """When requests are due."""
        work = self._policy.workload
        load = work.load
        if load.kind == "trace":
            return self._replayed(names)
        assert load.rate is not None  # policy.checks: an open loop has a rate
        due = arrivals(
            load.kind,
            load.rate,
            seed=work.seed,
            burstiness=load.burstiness,
            ramp_s=load.ramp_s,
        )
        return (Due(at) for at in due)

    def _replayed(self, names: Collection[str]) -> Iterator[Due]:
        """The trace, again and again; one whose requests all came at once, only once."""
        self.check_trace()
        assert self._trace is not None  # check_trace: of kind trace there is one
        ranges = {name: r for name, r in self._ranges().items() if name in names}
        shift = 0
        while True:
            for e in self._trace.entries:
                yield Due(shift + e.at_ns, nearest_range(e.prompt_tokens, ranges))
            if self._trace.cycle_ns == 0:
                return
            shift += self._trace.cycle_ns

    def size(self, level: int | None, target: Target) -> int:
        """Requests that may be in flight together."""
        if level is not None:
            return level
        given = self._policy.workload.load.max_in_flight
        if given is not None:
            return given
        return _OPEN_SIZE_SERVER if hasattr(target, "lengths") else _OPEN_SIZE_HERE

    def level_line(self, level: int | None, mode: str, t_ns: int) -> dict[str, Any]:
        """The ``level`` line that opens a level."""
        load = self._policy.workload.load
        return {
            "type": "level",
            "gate": self._key,
            "concurrency": level,
            "asked": {
                **load.model_dump(mode="json"),
                **({} if self._trace is None else self._trace.facts()),
            },
            "mode": mode,
            "t_ns": t_ns,
        }

    # -- peak TGS

    def peak_length(self) -> int:
        """Longest prompt of a peak request, tokens."""
        return min(self._policy.buckets[0].longest, PEAK_PROMPT_TOKENS)

    def with_own_prompts(self) -> LoadedPolicy:
        """This policy with the built-in prompts: a file's are for its buckets."""
        work = self._policy.workload.model_copy(update={"prompts": "builtin"})
        return replace(self.loaded, policy=self._policy.model_copy(update={"workload": work}))

    def peak(self, factory: PromptFactory) -> BucketPlan:
        """A few short greedy requests.

        Raises:
            LlmslaError: no prompt that short can be made.
        """
        stream = factory.stream(PEAK, 1, self.peak_length())
        left = iter([next(stream) for _ in range(PEAK_REQUESTS + 1)])
        work = self._policy.workload
        return BucketPlan(
            bucket=PEAK,
            prompts=left,
            warmup_prompts=left,
            max_new_tokens=work.max_new_tokens,
            sampling={"greedy": True},
            force_length=work.force_length,
            max_requests=PEAK_REQUESTS,
            warmup_max=1,
            gate=self._key,
            purpose=PEAK,
        )

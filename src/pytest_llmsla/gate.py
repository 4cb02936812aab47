"""One gate, a sla.yaml's or one test's own: asks through the runner, judges request by request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from .asker import Timeouts, say
from .errors import LlmslaError, TargetError, UsageError
from .finding import Finding, Limit
from .log import RunWriter
from .policy import LoadedPolicy, Policy
from .replay import kv_plan_state
from .rules.base import OBSERVED_REQUESTS
from .runner import BucketPlan, Runner, RunPlan
from .targets.base import Target
from .timeline import PEAK, REPEATED, Timeline
from .verdict import Gatekeeper, limits_of
from .workload import Prompt, PromptFactory

PEAK_PROMPT_TOKENS = 64
"""Longest prompt of a peak-TGS request: short, as the rule's source has it."""
PEAK_REQUESTS = 3
_OVERRIDES = ("max_new_tokens", "sampling")


class Progress(Protocol):
    """Told what happens; must not raise."""

    def say(self, text: str) -> None:
        """Something that takes time begins."""

    def phase(self, gate: str | None, bucket: str, name: str) -> None:
        """``warm-up``, ``measure`` or ``done`` of a bucket."""

    def request(
        self, gate: str | None, bucket: str, *, warmup: bool, state: Mapping[str, Any]
    ) -> None:
        """A request ended. ``state``: requests, budget, running (ms by limit), open (limit ids)."""


class Run(Protocol):
    """What a gate needs of the run it belongs to (:class:`session.Session`)."""

    progress: Progress

    @property
    def writer(self) -> RunWriter:
        """The log, open."""

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        """The loaded target of a policy; raises UsageError or TargetError."""

    def describe(self, target: Target, gate: str | None) -> Mapping[str, Any]:
        """Write the ``target`` line; what of it the judge needs."""

    def use_clock(self, target: Target) -> None:
        """Times from now on are this target's."""

    def factory(self, loaded: LoadedPolicy, target: Target) -> PromptFactory:
        """Where prompts come from."""

    def next_id(self) -> str:
        """A request id, unique in the run."""

    def problem(self, gate: str | None, bucket: str | None, reason: str) -> None:
        """Write why something could not be measured."""

    def retire(self, target: Target, reason: str) -> None:
        """Never use a target again."""

    def ended(self, gate: str | None, reason: str) -> None:
        """Keep why a gate stopped measuring."""


class Gate:
    """One gate: a sla.yaml's, or one test's own."""

    def __init__(self, session: Run, key: str | None, loaded: LoadedPolicy) -> None:
        self.session = session
        self.key = key
        self.loaded = loaded
        self.limits: tuple[Limit, ...] = limits_of(loaded, key)
        self.timelines: list[Timeline] = []
        self._keeper = self._new_keeper()
        self._attempt_keeper = self._keeper
        self._attempt = 1
        self._measured: set[str] = set()
        self._target: Target | None = None
        self._warm = False
        self._asked: set[tuple[int, str, str | None]] = set()

    def _new_keeper(self) -> Gatekeeper:
        return Gatekeeper(self.loaded, gate=self.key, kv_plan=kv_plan_state(self.loaded))

    @property
    def policy(self) -> Policy:
        """The policy of this gate."""
        return self.loaded.policy

    def begin_attempt(self, number: int) -> None:
        """A rerun plugin starts attempt ``number`` (from 1): it measures anew, judged pooled."""
        if number > 1:
            self._attempt = number
            self._attempt_keeper = self._new_keeper()
            self._warm = False

    def measure(self, buckets: Collection[str] | None = None) -> None:
        """Measure the buckets (default all) that were not yet, interleaved, until decided.

        What cannot be measured becomes a problem on record and ``error`` findings; nothing is
        raised for it.
        """
        wanted = [
            b.name
            for b in self.policy.buckets
            if (buckets is None or b.name in buckets) and b.name not in self._measured
        ]
        if not wanted:
            return
        self._measured.update(wanted)
        self._measure(wanted, {})
        for name in wanted:
            self.session.progress.phase(self.key, name, "done")

    def run(self, **overrides: Any) -> list[Timeline]:
        """Measure until every limit is decided; this attempt's measured requests.

        Raises:
            UsageError: an override that is not known, or more tokens than the policy judges.
            TargetError: the model cannot be loaded.
        """
        self._check(overrides, _OVERRIDES)
        self._ready()
        self._measure([b.name for b in self.policy.buckets], overrides)
        return [t for t in self.timelines if t.attempt == self._attempt and not t.warmup]

    def ask(self, prompt: str, **overrides: Any) -> Timeline:
        """One measured request with ``prompt``; the first call warms up before it.

        Raises:
            UsageError: an override that is not known, or a prompt that is not text.
            TargetError: the model cannot be loaded.
        """
        self._check(overrides, (*_OVERRIDES, "system"))
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageError(f"the prompt is {prompt!r:.80}; valid: text that is not empty.")
        target = self._ready()
        bucket = self.policy.buckets[0].name
        system = overrides.get("system", self.policy.workload.system_prompt)
        with _told("counting the prompt"):
            asked = Prompt(prompt, system, target.count(prompt, system), bucket)
            plan = self._plan(bucket, overrides)
        if not self._warm:
            self._warm = True
            self._runner(target).warm_once(plan, self._timeouts())
            target = self._ready()  # raises where the warm-up never returned
        before, this = self._asked, (self._attempt, prompt, system)
        note = f"{REPEATED}: sent before in this test" if this in before else None
        before.add(this)
        return self._runner(target, note).ask_once(plan, asked, self._timeouts())

    def prompts(self) -> Iterator[Prompt]:
        """Fresh prompts of the gate's first bucket, without end.

        Raises:
            UsageError, TargetError: the model cannot be loaded, or no prompt fits.
        """
        target = self._ready()
        b = self.policy.buckets[0]
        return self.session.factory(self.loaded, target).stream(b.name, b.prompt_min, b.longest)

    @property
    def target(self) -> Target:
        """The loaded target."""
        return self._ready()

    def findings(self) -> list[Finding]:
        """All findings on the requests so far, every attempt pooled."""
        return self._keeper.findings()

    def finding(self, limit_id: str) -> Finding | None:
        """One finding by limit id; None when nothing of it was measured."""
        return self._keeper.finding(limit_id)

    def _ready(self) -> Target:
        """Load the target and describe it, once per gate."""
        target = self.session.target_of(self.loaded, self.key)
        with _told("describing the target"):
            return self._described(target)

    def _described(self, target: Target) -> Target:
        if self._target is None:
            facts = self.session.describe(target, self.key)
            self._target = target
            for keeper in {id(k): k for k in (self._keeper, self._attempt_keeper)}.values():
                keeper.facts(facts)
        self.session.use_clock(target)
        return target

    def _measure(self, names: list[str], overrides: Mapping[str, Any]) -> None:
        try:
            target = self._ready()
        except LlmslaError as e:
            if self.key is not None:
                raise
            self._stop(None, str(e))
            return
        try:
            with _told("preparing the prompts"):
                self._say_outside(target)
        except LlmslaError as e:
            self._stop(None, str(e))
            return
        plans = []
        for name in names:
            try:
                with _told("preparing the prompts"):
                    self._check_fits(target, name)
                    plans.append(self._plan(name, overrides))
            except LlmslaError as e:
                self._stop(name, str(e))
        if not plans:
            return
        plan = RunPlan(plans, self.policy.evidence.max_seconds, self._timeouts())
        ended = self._runner(target).run(plan, self._attempt_keeper.undecided)
        self._keeper.end(ended)
        self.session.ended(self.key, ended)
        if ended != "problem" and self.key is None:
            self._measure_peak(target)

    def _say_outside(self, target: Target) -> None:
        """Name a file's prompts that no bucket takes."""
        ranges = {b.name: (b.prompt_min, b.longest) for b in self.policy.buckets}
        for line in self.session.factory(self.loaded, target).outside(ranges):
            self.session.progress.say(f"not used: {line}")

    def _measure_peak(self, target: Target) -> None:
        """Peak TGS: a few short greedy requests, outside every bucket's evidence."""
        b = self.policy.buckets[0]
        hi = min(b.longest, PEAK_PROMPT_TOKENS)
        try:
            with _told("preparing the prompts"):
                stream = self.session.factory(self._with_own_prompts(), target).stream(PEAK, 1, hi)
                left = iter([next(stream) for _ in range(PEAK_REQUESTS + 1)])
        except LlmslaError:
            return  # no prompt that short can be made: the report then has no peak figure
        work = self.policy.workload
        plan = BucketPlan(
            bucket=PEAK,
            prompts=left,
            warmup_prompts=left,
            max_new_tokens=work.max_new_tokens,
            sampling={"greedy": True},
            force_length=work.force_length,
            max_requests=PEAK_REQUESTS,
            warmup_max=1,
            gate=self.key,
            purpose=PEAK,
        )
        self._runner(target).run(
            RunPlan([plan], self.policy.evidence.max_seconds, self._timeouts()), lambda _: True
        )

    def _with_own_prompts(self) -> LoadedPolicy:
        """This policy with the built-in prompts: a file's are for its buckets."""
        work = self.policy.workload.model_copy(update={"prompts": "builtin"})
        return replace(self.loaded, policy=self.policy.model_copy(update={"workload": work}))

    def _stop(self, bucket: str | None, reason: str) -> None:
        self.session.problem(self.key, bucket, reason)
        for keeper in {id(k): k for k in (self._keeper, self._attempt_keeper)}.values():
            keeper.problem(bucket, reason)

    def _check_fits(self, target: Target, name: str) -> None:
        b, context = self.policy.bucket(name), target.max_context()
        work = self.policy.workload
        if context is not None and b.longest + work.max_new_tokens > context:
            raise UsageError(
                f"bucket {name} is measured to {b.longest} tokens and {work.max_new_tokens} are "
                f"generated, but the model's context is {context}. Lower measured_to, prompt_max "
                "or max_new_tokens."
            )
        needed = self._budget(name) + work.warmup.max_requests
        self.session.factory(self.loaded, target).check(name, b.prompt_min, b.longest, needed)

    def _budget(self, name: str) -> int:
        if self.policy.alpha_pass is None:
            return OBSERVED_REQUESTS
        quantiles = [
            limit.percentile / 100
            for limit in self.limits
            if limit.bucket == name and limit.percentile is not None
        ]
        return self.policy.max_requests(max(quantiles, default=0.95))

    def _plan(self, name: str, overrides: Mapping[str, Any]) -> BucketPlan:
        b, work = self.policy.bucket(name), self.policy.workload
        factory = self.session.factory(self.loaded, self.target)
        sampling = work.sampling.model_dump(mode="json", exclude_none=True)
        sampling.update(overrides.get("sampling") or {})
        prompts = factory.stream(name, b.prompt_min, b.longest)
        return BucketPlan(
            bucket=name,
            prompts=prompts,
            warmup_prompts=factory.warmup(name, b.prompt_min, b.longest),
            max_new_tokens=int(overrides.get("max_new_tokens", work.max_new_tokens)),
            sampling=sampling,
            force_length=work.force_length,
            max_requests=self._budget(name),
            warmup_max=work.warmup.max_requests,
            gate=self.key,
            attempt=self._attempt,
            already=self._attempt_keeper.count(name),
        )

    def _timeouts(self) -> Timeouts:
        t = self.policy.target.timeouts
        return Timeouts(t.first_token_s, t.idle_s, t.total_s)

    def _runner(self, target: Target, note: str | None = None) -> Runner:
        return Runner(target, _Sink(self, target, note), self.session.next_id)

    def _check(self, overrides: Mapping[str, Any], valid: tuple[str, ...]) -> None:
        for name in overrides:
            if name not in valid:
                raise UsageError(f"{name!r} cannot be overridden; valid: {', '.join(valid)}.")
        sampling = overrides.get("sampling")
        if not (sampling is None or isinstance(sampling, Mapping)):
            raise UsageError(f"sampling is {sampling!r:.80}; valid: a mapping, as in sla.yaml.")
        most, asked = self.policy.workload.max_new_tokens, overrides.get("max_new_tokens")
        if asked is not None and not (
            isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= most
        ):
            raise UsageError(
                f"max_new_tokens is {asked!r}; valid: a whole number from 1 to {most}, the number "
                "this gate's limits are judged for (set max_new_tokens in the mark or the policy)."
            )

    def take(self, t: Timeline) -> Timeline:
        """A request ended: judge it (pooled and for this attempt), keep it, write it."""
        judged = self._keeper.add(t)
        if self._attempt_keeper is not self._keeper:
            self._attempt_keeper.add(t)
        self.timelines.append(judged)
        self.session.writer.request(judged)
        if judged.purpose is None:
            self.session.progress.request(
                self.key, t.bucket, warmup=t.warmup, state=self._state(t.bucket)
            )
        return judged

    def _state(self, bucket: str) -> dict[str, Any]:
        keeper = self._attempt_keeper
        return {
            "requests": keeper.count(bucket),
            "budget": self._budget(bucket),
            "running": keeper.running(bucket),
            "open": keeper.open_limits(bucket),
            "warmups": len(keeper.warmups(bucket)),
        }

    def remember(self, bucket: str, phase: str, memory: Mapping[str, Any], t_ns: int) -> None:
        """Memory figures after a request."""
        line = {
            "type": "resources",
            "t_ns": t_ns,
            "gate": self.key,
            "bucket": bucket,
            "purpose": PEAK if bucket == PEAK else None,
            "phase": phase,
            "memory": dict(memory),
        }
        self._keeper.resources(line)
        self.session.writer.line(line)


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Whatever a target raises outside a generation becomes an error that every limit hears of."""
    try:
        yield
    except LlmslaError:
        raise
    except Exception as e:
        raise TargetError(f"{doing} raised {say(e)}") from e


class _Sink:
    """The runner's records, on their way into log, judge and progress."""

    def __init__(self, gate: Gate, target: Target, note: str | None = None) -> None:
        self._gate = gate
        self._target = target
        self._note = note

    def started(self, request: Mapping[str, Any]) -> None:
        writer = self._gate.session.writer
        writer.start({**request, "start_ns": request["start_ns"] - writer.origin_ns})

    def finished(self, t: Timeline) -> Timeline:
        if self._note is not None:
            t = replace(t, notes=(*t.notes, self._note))
        return self._gate.take(t)

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        origin = self._gate.session.writer.origin_ns
        self._gate.remember(bucket, phase, memory, self._target.clock() - origin)

    def problem(self, bucket: str | None, reason: str) -> None:
        if bucket is None:
            self._gate.session.retire(self._target, reason)
        self._gate._stop(bucket, reason)

    def phase(self, bucket: str, name: str) -> None:
        if bucket != PEAK:
            self._gate.session.progress.phase(self._gate.key, bucket, name)

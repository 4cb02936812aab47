"""One gate, a sla.yaml's or one test's own: asks through the runner, judges request by request."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import LlmslaError, UsageError
from ..finding import Finding, Limit
from ..policy import LoadedPolicy, Policy
from ..resume import Earlier
from ..runner import BucketPlan, Runner, RunPlan
from ..targets.base import Target
from ..timeline import PEAK, Timeline
from ..verdict import limits_of
from ..workload import Prompt, PromptFactory
from .level_run import run_level
from .overrides import OF_A_REQUEST, OF_A_RUN, check_overrides
from .plans import Plans
from .protocols import Run
from .record import ONE_AT_A_TIME, Record
from .sampling import sampled
from .sinks import RunSink
from .told import told


class Gate:
    """One gate: a sla.yaml's, or one test's own."""

    def __init__(
        self,
        session: Run,
        key: str | None,
        loaded: LoadedPolicy,
        earlier: Earlier | None = None,
    ) -> None:
        self.session = session
        self.key = key
        self.loaded = loaded
        self.limits: tuple[Limit, ...] = limits_of(loaded, key)
        self.plans = Plans(loaded, key, self.limits)
        self.record = Record(session, key, loaded, self.plans.budget)
        self._earlier = earlier
        self._measured: set[tuple[str, int | None]] = set()
        self._to_first_fail = False
        self._target: Target | None = None
        self._warm = False

    @property
    def policy(self) -> Policy:
        """The policy of this gate."""
        return self.loaded.policy

    @property
    def timelines(self) -> Sequence[Timeline]:
        """Judged requests in start order, warm-up included; those of a resumed run come first."""
        return self.record.timelines

    def begin_attempt(self, number: int) -> None:
        """A rerun plugin starts attempt ``number`` (from 1): it measures anew, judged pooled."""
        if number > 1:
            self.record.attempts.begin()
            self._warm = False

    def measure(
        self,
        wanted: Collection[tuple[str, int | None]] | None = None,
        *,
        to_first_fail: bool = False,
    ) -> None:
        """Measure buckets at levels (default all) that were not yet, until decided.

        ``to_first_fail``: a level ends as soon as one of its limits has failed.

        ``wanted``: pairs of a bucket and a level; a level is a number of requests in flight, None
        for the open loop. What cannot be measured becomes a problem on record and ``error``
        findings; nothing is raised for it.
        """
        todo = [
            (b.name, level)
            for level in self.policy.levels
            for b in self.policy.buckets
            if (wanted is None or (b.name, level) in wanted)
            and (b.name, level) not in self._measured
        ]
        # Under load the others are asked as well: without them it would be another load.
        loaded = {level for _, level in todo if level != ONE_AT_A_TIME}
        beside = [
            (b.name, level)
            for level in self.policy.levels
            for b in self.policy.buckets
            if level in loaded and (b.name, level) not in todo
        ]
        if not todo:
            return
        self._to_first_fail = to_first_fail
        self._measured.update(todo)
        self._measure(todo, {}, beside)
        for name, level in todo:
            self.session.progress.phase(self.key, self.record.title(name, level), "done")

    def run(self, **overrides: Any) -> list[Timeline]:
        """Measure until every limit is decided; this attempt's measured requests.

        Raises:
            UsageError: an override that is not known, or more tokens than the policy judges.
            TargetError: the model cannot be loaded.
        """
        check_overrides(overrides, OF_A_RUN, self.policy.workload.max_new_tokens)
        self._ready()
        every = [(b.name, level) for level in self.policy.levels for b in self.policy.buckets]
        self._measure(every, overrides)
        attempts = self.record.attempts
        mine = [t for t in self.timelines if t.attempt == attempts.number and not t.warmup]
        return mine or [t for t in attempts.before if not t.warmup]

    def ask(self, prompt: str, **overrides: Any) -> Timeline:
        """One measured request with ``prompt``; the first call warms up before it.

        Raises:
            UsageError: an override that is not known, or a prompt that is not text.
            TargetError: the model cannot be loaded.
        """
        check_overrides(overrides, OF_A_REQUEST, self.policy.workload.max_new_tokens)
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageError(f"the prompt is {prompt!r:.80}; valid: text that is not empty.")
        if self.policy.levels != (ONE_AT_A_TIME,):
            raise UsageError(
                "timed_generate() asks one request at a time, and this gate's limits hold under "
                "load (concurrency, workload.load): call sla_run() instead."
            )
        target = self._ready()
        bucket = self.policy.buckets[0].name
        system = overrides.get("system", self.policy.workload.system_prompt)
        with told("counting the prompt"):
            asked = Prompt(prompt, system, target.count(prompt, system), bucket)
            plan = self._bucket_plan(bucket, ONE_AT_A_TIME, overrides)
        if not self._warm:
            self._warm = True
            self._runner(target).warm_once(plan, self.plans.timeouts)
            target = self._ready()  # raises where the warm-up never returned
        notes = self.session.own_prompts(self.loaded).asked(
            self.key,
            self.record.attempts.number,
            prompt,
            system,
            remembered=hasattr(target, "lengths"),
        )
        t = self._runner(target, notes).ask_once(plan, asked, self.plans.timeouts)
        self.record.ask_server(target)
        if t.ok:
            self.record.say_untold(last=True)  # the others are like it
        return t

    def prompts(self) -> Iterator[Prompt]:
        """Fresh prompts of the gate's first bucket, without end.

        Raises:
            UsageError, TargetError: the model cannot be loaded, or no prompt fits.
        """
        target = self._ready()
        b = self.policy.buckets[0]
        stream = self.session.factory(self.loaded, target).stream(b.name, b.prompt_min, b.longest)
        fresh = self.policy.workload.prompts == "builtin"
        return map(self.session.own_prompts(self.loaded).made, stream) if fresh else stream

    @property
    def target(self) -> Target:
        """The loaded target."""
        return self._ready()

    def findings(self) -> list[Finding]:
        """All findings on the requests so far, every attempt pooled."""
        return self.record.attempts.pooled.findings()

    def finding(self, limit_id: str) -> Finding | None:
        """One finding by limit id; None when nothing of it was measured."""
        return self.record.attempts.pooled.finding(limit_id)

    def tgs_entries(self) -> list[dict[str, Any]]:
        """TGS of every level so far, with its conditions."""
        return self.record.attempts.pooled.tgs_entries()

    def _ready(self) -> Target:
        """Load the target and describe it, once per gate."""
        self.plans.check_trace()
        target = self.session.target_of(self.loaded, self.key)
        with told("describing the target"):
            return self._described(target)

    def _described(self, target: Target) -> Target:
        if self._target is None:
            facts = self.session.describe(target, self.key, self.loaded)
            self._target = target
            if self._earlier is not None:
                self.record.go_on_from(self._earlier)
            self.record.attempts.learn(facts)
        self.session.use_clock(target)
        return target

    def _measure(
        self,
        todo: Sequence[tuple[str, int | None]],
        overrides: Mapping[str, Any],
        beside: Sequence[tuple[str, int | None]] = (),
    ) -> None:
        """``beside``: sent with the others of their level, and not waited for."""
        try:
            target = self._ready()
        except LlmslaError as e:
            if self.key is not None:
                raise
            self.record.stop(None, str(e))
            return
        try:
            with told("preparing the prompts"):
                self._say_outside(target)
        except LlmslaError as e:
            self.record.stop(None, str(e))
            return
        until = time.monotonic() + self.policy.evidence.max_seconds
        ended = None
        with sampled(target, self.session.writer, self.key, self.session.progress.say):
            for level in dict.fromkeys(level for _, level in todo):
                names = [name for name, at in todo if at == level]
                left = until - time.monotonic()
                others = [name for name, at in beside if at == level]
                ended = self._measure_level(target, level, names, overrides, left, others)
                if ended == "problem":
                    break
        if ended not in (None, "problem") and self.key is None:
            self._measure_peak(target)
        self.record.say_untold()

    def _measure_level(
        self,
        target: Target,
        level: int | None,
        names: Sequence[str],
        overrides: Mapping[str, Any],
        seconds: float,
        beside: Sequence[str] = (),
    ) -> str | None:
        """Measure buckets at one level; why it ended, None when nothing could be asked."""
        plans = []
        if self.record.attempts.before and not self._wanted(names, level):
            self.session.ended(self.key, "decided", level)
            return "decided"
        for name in (*names, *beside):
            try:
                with told("preparing the prompts"):
                    self.plans.check_fits(target, self._factory(target), name, level)
                    plans.append(self._bucket_plan(name, level, overrides))
            except LlmslaError as e:
                if level == ONE_AT_A_TIME:
                    self.record.stop(name, str(e), level)
                    continue
                # Under load a bucket is part of what the others are measured under.
                self.record.stop(None, str(e), level)
                return None
        if not plans:
            return None
        if level == ONE_AT_A_TIME:
            plan = RunPlan(plans, seconds, self.plans.timeouts)
            ended = self._runner(target).run(plan, lambda name: self._open(name, level))
        else:
            try:
                ended = run_level(
                    self.record,
                    self.plans,
                    target,
                    level,
                    plans,
                    seconds,
                    lambda name: name in names and self._open(name, level),
                )
            except LlmslaError as e:
                self.record.stop(None, str(e), level)
                ended = "problem"
        self.record.attempts.pooled.end(ended, level)
        self.session.ended(self.key, ended, level)
        self.record.ask_server(target)  # each level's window is its own: the next one begins anew
        return ended

    def _open(self, name: str, level: int | None) -> bool:
        """Whether a bucket needs more requests at a level."""
        keeper = self.record.attempts.current
        if self._to_first_fail and keeper.failed(level):
            return False
        return keeper.undecided(name, level)

    def _wanted(self, names: Sequence[str], level: int | None) -> bool:
        return any(self.record.attempts.current.undecided(name, level) for name in names)

    def _say_outside(self, target: Target) -> None:
        """Name a file's prompts that no bucket takes."""
        ranges = {b.name: (b.prompt_min, b.longest) for b in self.policy.buckets}
        for line in self.session.factory(self.loaded, target).outside(ranges):
            self.session.progress.say(f"not used: {line}")

    def _measure_peak(self, target: Target) -> None:
        """Peak TGS: a few short greedy requests, outside every bucket's evidence."""
        if any(t.purpose == PEAK and not t.warmup for t in self.record.attempts.before):
            return  # measured before this run went on
        try:
            with told("preparing the prompts"):
                factory = self.session.factory(self.plans.with_own_prompts(), target)
                plan = self.plans.peak(factory)
        except LlmslaError:
            return  # no prompt that short can be made: the report then has no peak figure
        plan = replace(plan, attempt=self.record.attempts.number)
        seconds = self.policy.evidence.max_seconds
        self._runner(target).run(RunPlan([plan], seconds, self.plans.timeouts), lambda _: True)

    def _factory(self, target: Target) -> PromptFactory:
        return self.session.factory(self.loaded, target)

    def _bucket_plan(
        self, name: str, level: int | None, overrides: Mapping[str, Any]
    ) -> BucketPlan:
        return self.plans.bucket(
            name,
            self._factory(self.target),
            overrides,
            attempt=self.record.attempts.number,
            already=self.record.attempts.already(name, level),
        )

    def _runner(self, target: Target, notes: Sequence[str] = ()) -> Runner:
        return Runner(target, RunSink(self.record, target, notes), self.session.next_id)

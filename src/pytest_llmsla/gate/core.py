"""One gate, a sla.yaml's or one test's own: asks through the runner, judges request by request."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..asker import say
from ..errors import LlmslaError, UsageError
from ..finding import Finding, Limit
from ..policy import LoadedPolicy, Policy
from ..replay import kv_plan_state
from ..resume import Earlier
from ..rules.limits import SEARCH
from ..runner import BucketPlan, Runner, RunPlan
from ..targets.base import Target
from ..timeline import PEAK, Arrivals, Timeline
from ..verdict import EVERY, AllOrOne, Gatekeeper, limits_of
from ..workload import Prompt, PromptFactory
from .attempts import Attempts
from .level_run import run_level
from .overrides import OF_A_REQUEST, OF_A_RUN, check_overrides
from .plans import Plans
from .protocols import Run
from .sampling import sampled
from .sinks import RunSink
from .told import told

_ONE_AT_A_TIME = 1


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
        self.timelines: list[Timeline] = []
        self.attempts = Attempts(self._new_keeper)
        self.plans = Plans(loaded, key, self.limits)
        self._earlier = earlier
        self._measured: set[tuple[str, int | None]] = set()
        self._to_first_fail = False
        self._target: Target | None = None
        self._warm = False
        self._told_untold = False

    def _new_keeper(self) -> Gatekeeper:
        return Gatekeeper(
            self.loaded,
            gate=self.key,
            kv_plan=kv_plan_state(self.loaded),
            keep=self.session.shelf.keep,
        )

    @property
    def policy(self) -> Policy:
        """The policy of this gate."""
        return self.loaded.policy

    def begin_attempt(self, number: int) -> None:
        """A rerun plugin starts attempt ``number`` (from 1): it measures anew, judged pooled."""
        if number > 1:
            self.attempts.begin()
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
        loaded = {level for _, level in todo if level != _ONE_AT_A_TIME}
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
            self.session.progress.phase(self.key, self.title(name, level), "done")

    def title(self, bucket: str, level: int | None) -> str:
        """A bucket's name for people: with its level where that is not one at a time."""
        if level == _ONE_AT_A_TIME:
            return bucket
        return f"{bucket}, open loop" if level is None else f"{bucket}, {level} at once"

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
        mine = [t for t in self.timelines if t.attempt == self.attempts.number and not t.warmup]
        return mine or [t for t in self.attempts.before if not t.warmup]

    def ask(self, prompt: str, **overrides: Any) -> Timeline:
        """One measured request with ``prompt``; the first call warms up before it.

        Raises:
            UsageError: an override that is not known, or a prompt that is not text.
            TargetError: the model cannot be loaded.
        """
        check_overrides(overrides, OF_A_REQUEST, self.policy.workload.max_new_tokens)
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageError(f"the prompt is {prompt!r:.80}; valid: text that is not empty.")
        if self.policy.levels != (_ONE_AT_A_TIME,):
            raise UsageError(
                "timed_generate() asks one request at a time, and this gate's limits hold under "
                "load (concurrency, workload.load): call sla_run() instead."
            )
        target = self._ready()
        bucket = self.policy.buckets[0].name
        system = overrides.get("system", self.policy.workload.system_prompt)
        with told("counting the prompt"):
            asked = Prompt(prompt, system, target.count(prompt, system), bucket)
            plan = self._bucket_plan(bucket, _ONE_AT_A_TIME, overrides)
        if not self._warm:
            self._warm = True
            self._runner(target).warm_once(plan, self.plans.timeouts)
            target = self._ready()  # raises where the warm-up never returned
        notes = self.session.own_prompts(self.loaded).asked(
            self.key, self.attempts.number, prompt, system, remembered=hasattr(target, "lengths")
        )
        t = self._runner(target, notes).ask_once(plan, asked, self.plans.timeouts)
        self._write_server(target)
        if t.ok and not self._told_untold:
            self._say_untold()
            self._told_untold = True  # the others are like it, and each look is one at all
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
        return self.attempts.pooled.findings()

    def finding(self, limit_id: str) -> Finding | None:
        """One finding by limit id; None when nothing of it was measured."""
        return self.attempts.pooled.finding(limit_id)

    def tgs_entries(self) -> list[dict[str, Any]]:
        """TGS of every level so far, with its conditions."""
        return self.attempts.pooled.tgs_entries()

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
            self._take_earlier()
            self.attempts.learn(facts)
        self.session.use_clock(target)
        return target

    def _take_earlier(self) -> None:
        """Go on from what an earlier run has on record: its requests are an attempt of their own,
        pooled with those to come."""
        if self._earlier is None:
            return
        before = self._earlier.feed(self.key, self.attempts.pooled)
        self.attempts.continue_from(before)
        if before:
            self.timelines[:0] = before
            self._say_before()

    def _say_before(self) -> None:
        """What the evidence begins with; a run that can no longer pass says so at once."""
        measured = [t for t in self.attempts.before if not t.warmup and t.purpose is None]
        failed = sum(not t.ok for t in measured)
        self.session.progress.say(
            f"going on from {len(measured)} measured requests, {failed} of them failed"
        )
        if failed and self.policy.errors.max_error_rate == 0:
            self.session.progress.say(
                "errors.max_error_rate is 0, so this run cannot PASS any more (a request that was "
                "in flight when the run was ended counts as failed). A new run, without "
                "--sla-resume, can"
            )

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
            self.stop(None, str(e))
            return
        try:
            with told("preparing the prompts"):
                self._say_outside(target)
        except LlmslaError as e:
            self.stop(None, str(e))
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
        self._say_untold()

    def _say_untold(self) -> None:
        """Say once what the server does not tell of its cache; the report has it too."""
        for line in () if self._told_untold else self.attempts.pooled.untold():
            self._told_untold = True
            self.session.progress.say(line)

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
        if self.attempts.before and not self._wanted(names, level):
            self.session.ended(self.key, "decided", level)
            return "decided"
        for name in (*names, *beside):
            try:
                with told("preparing the prompts"):
                    self.plans.check_fits(target, self._factory(target), name, level)
                    plans.append(self._bucket_plan(name, level, overrides))
            except LlmslaError as e:
                if level == _ONE_AT_A_TIME:
                    self.stop(name, str(e), level)
                    continue
                # Under load a bucket is part of what the others are measured under.
                self.stop(None, str(e), level)
                return None
        if not plans:
            return None
        if level == _ONE_AT_A_TIME:
            plan = RunPlan(plans, seconds, self.plans.timeouts)
            ended = self._runner(target).run(plan, lambda name: self._open(name, level))
        else:
            try:
                ended = run_level(
                    self,
                    target,
                    level,
                    plans,
                    seconds,
                    lambda name: name in names and self._open(name, level),
                )
            except LlmslaError as e:
                self.stop(None, str(e), level)
                ended = "problem"
        self.attempts.pooled.end(ended, level)
        self.session.ended(self.key, ended, level)
        self._write_server(target)  # each level's window is its own: the next one begins anew
        return ended

    def _open(self, name: str, level: int | None) -> bool:
        """Whether a bucket needs more requests at a level."""
        keeper = self.attempts.current
        if self._to_first_fail and keeper.failed(level):
            return False
        return keeper.undecided(name, level)

    def _wanted(self, names: Sequence[str], level: int | None) -> bool:
        return any(self.attempts.current.undecided(name, level) for name in names)

    def _write_server(self, target: Target) -> None:
        """What a server measured of itself meanwhile, where the target can tell."""
        server_side = getattr(target, "server_side", None)
        if server_side is None:
            return
        try:
            said = server_side()
        except Exception as e:  # a server that is gone has been heard of by every limit already
            said = {"reason": say(e)}
        if said:
            self.session.writer.line({"type": "server", "gate": self.key, "server": dict(said)})
            for keeper in self.attempts.each():
                keeper.server(said)

    def _say_outside(self, target: Target) -> None:
        """Name a file's prompts that no bucket takes."""
        ranges = {b.name: (b.prompt_min, b.longest) for b in self.policy.buckets}
        for line in self.session.factory(self.loaded, target).outside(ranges):
            self.session.progress.say(f"not used: {line}")

    def _measure_peak(self, target: Target) -> None:
        """Peak TGS: a few short greedy requests, outside every bucket's evidence."""
        if any(t.purpose == PEAK and not t.warmup for t in self.attempts.before):
            return  # measured before this run went on
        try:
            with told("preparing the prompts"):
                factory = self.session.factory(self.plans.with_own_prompts(), target)
                plan = self.plans.peak(factory)
        except LlmslaError:
            return  # no prompt that short can be made: the report then has no peak figure
        plan = replace(plan, attempt=self.attempts.number)
        seconds = self.policy.evidence.max_seconds
        self._runner(target).run(RunPlan([plan], seconds, self.plans.timeouts), lambda _: True)

    def stop(self, bucket: str | None, reason: str, level: AllOrOne = EVERY) -> None:
        """A bucket (None: every one) cannot be measured, at one level or at all of them."""
        self.session.problem(self.key, bucket, reason, level)
        for keeper in self.attempts.each():
            keeper.problem(bucket, reason, level)

    def _factory(self, target: Target) -> PromptFactory:
        return self.session.factory(self.loaded, target)

    def _bucket_plan(
        self, name: str, level: int | None, overrides: Mapping[str, Any]
    ) -> BucketPlan:
        return self.plans.bucket(
            name,
            self._factory(self.target),
            overrides,
            attempt=self.attempts.number,
            already=self.attempts.already(name, level),
        )

    def _runner(self, target: Target, notes: Sequence[str] = ()) -> Runner:
        return Runner(target, RunSink(self, target, notes), self.session.next_id)

    def judge(self, t: Timeline) -> Timeline:
        """The next request in start order: judge it (pooled and for this attempt), keep it."""
        arrivals = t.arrivals
        if isinstance(arrivals, Arrivals):
            arrivals = arrivals.moved(self.session.shelf.keep)
        t = replace(t, segment=self.session.writer.current, arrivals=arrivals)
        text, prompt = t.text, t.prompt
        # No test looks at them there, and an hour of them is long.
        if self.key is None or self.key.startswith(SEARCH):
            t = replace(t, text=None, prompt=None)
        judged = self.attempts.add(t)
        self.timelines.append(judged)
        if judged.purpose is None:
            self.session.progress.request(
                self.key,
                self.title(t.bucket, t.level),
                warmup=t.warmup,
                state=self._state(t.bucket, t.level, t.block),
            )
        return replace(judged, text=text, prompt=prompt)

    def _state(self, bucket: str, level: int | None, block: int) -> dict[str, Any]:
        keeper = self.attempts.current
        return {
            "requests": keeper.count(bucket, level),
            "budget": self.plans.budget(bucket, block),
            "running": keeper.running(bucket, level),
            "open": keeper.open_limits(bucket, level),
            "warmups": len(keeper.warmups(bucket, level)),
        }

    def answered(self, level: int | None) -> int:
        """Sound requests of a level that this process measured: what its memory now covers."""
        return self.attempts.pooled.answered(level, segment=self.session.writer.current)

    def remember(
        self, bucket: str, phase: str, memory: Mapping[str, Any], t_ns: int, level: int | None
    ) -> None:
        """Memory figures after a request, or while a level of load runs."""
        line: dict[str, Any] = {
            "type": "resources",
            "t_ns": t_ns,
            "segment": self.session.writer.current,
            "gate": self.key,
            "bucket": bucket,
            "purpose": PEAK if bucket == PEAK else None,
            "phase": phase,
            "memory": dict(memory),
        }
        if bucket != PEAK:
            line["concurrency"] = level
        if level != _ONE_AT_A_TIME:
            line["answered"] = self.answered(level)
        self.attempts.pooled.resources(line)
        self.session.writer.line(line)

"""What a gate has measured: judged request by request, put into the log, told while it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..asker import say
from ..policy import LoadedPolicy
from ..replay import kv_plan_state
from ..resume import Earlier
from ..rules.limits import SEARCH
from ..targets.base import Target
from ..timeline import PEAK, Arrivals, Timeline
from ..verdict import EVERY, AllOrOne, Gatekeeper
from .attempts import Attempts
from .protocols import Run

ONE_AT_A_TIME = 1
"""The level of requests that are alone."""


class Record:
    """One gate's requests and readings; whoever asks them puts them here.

    Args:
        run: the run that the gate belongs to.
        key: the gate's name, None for the sla.yaml's.
        loaded: the policy that it judges by.
        budget: ``(bucket, block)`` → measured requests, at most; told with the progress.
    """

    def __init__(
        self, run: Run, key: str | None, loaded: LoadedPolicy, budget: Callable[[str, int], int]
    ) -> None:
        self.run = run
        self.key = key
        self.loaded = loaded
        self.attempts = Attempts(self._new_keeper)
        self.timelines: list[Timeline] = []
        """Judged requests in start order, warm-up included."""
        self._budget = budget
        self._told_untold = False

    def _new_keeper(self) -> Gatekeeper:
        return Gatekeeper(
            self.loaded,
            gate=self.key,
            kv_plan=kv_plan_state(self.loaded),
            keep=self.run.shelf.keep,
        )

    # -- what is put here

    def judge(self, t: Timeline) -> Timeline:
        """The next request in start order: judge it (pooled and for this attempt), keep it."""
        arrivals = t.arrivals
        if isinstance(arrivals, Arrivals):
            arrivals = arrivals.moved(self.run.shelf.keep)
        t = replace(t, segment=self.run.writer.current, arrivals=arrivals)
        text, prompt = t.text, t.prompt
        # No test looks at them there, and an hour of them is long.
        if self.key is None or self.key.startswith(SEARCH):
            t = replace(t, text=None, prompt=None)
        judged = self.attempts.add(t)
        self.timelines.append(judged)
        if judged.purpose is None:
            self.run.progress.request(
                self.key,
                self.title(t.bucket, t.level),
                warmup=t.warmup,
                state=self._state(t.bucket, t.level, t.block),
            )
        return replace(judged, text=text, prompt=prompt)

    def remember(
        self, bucket: str, phase: str, memory: Mapping[str, Any], t_ns: int, level: int | None
    ) -> None:
        """Memory figures after a request, or while a level of load runs."""
        line: dict[str, Any] = {
            "type": "resources",
            "t_ns": t_ns,
            "segment": self.run.writer.current,
            "gate": self.key,
            "bucket": bucket,
            "purpose": PEAK if bucket == PEAK else None,
            "phase": phase,
            "memory": dict(memory),
        }
        if bucket != PEAK:
            line["concurrency"] = level
        if level != ONE_AT_A_TIME:
            line["answered"] = self.answered(level)
        self.attempts.pooled.resources(line)
        self.run.writer.line(line)

    def ask_server(self, target: Target) -> None:
        """Put here what a server measured of itself meanwhile, where the target can tell."""
        server_side = getattr(target, "server_side", None)
        if server_side is None:
            return
        try:
            said = server_side()
        except Exception as e:  # a server that is gone has been heard of by every limit already
            said = {"reason": say(e)}
        if said:
            self.run.writer.line({"type": "server", "gate": self.key, "server": dict(said)})
            for keeper in self.attempts.each():
                keeper.server(said)

    def stop(self, bucket: str | None, reason: str, level: AllOrOne = EVERY) -> None:
        """A bucket (None: every one) cannot be measured, at one level or at all of them."""
        self.run.problem(self.key, bucket, reason, level)
        for keeper in self.attempts.each():
            keeper.problem(bucket, reason, level)

    def go_on_from(self, earlier: Earlier) -> None:
        """Take what an earlier run has on record: its requests are an attempt of their own, pooled
        with those to come."""
        before = earlier.feed(self.key, self.attempts.pooled)
        self.attempts.continue_from(before)
        if before:
            self.timelines[:0] = before
            self._say_before()

    # -- what it tells

    def answered(self, level: int | None) -> int:
        """Sound requests of a level that this process measured: what its memory now covers."""
        return self.attempts.pooled.answered(level, segment=self.run.writer.current)

    def title(self, bucket: str, level: int | None) -> str:
        """A bucket's name for people: with its level where that is not one at a time."""
        if level == ONE_AT_A_TIME:
            return bucket
        return f"{bucket}, open loop" if level is None else f"{bucket}, {level} at once"

    def say_untold(self, *, last: bool = False) -> None:
        """Say once what the server does not tell of its cache; the report has it too.

        ``last``: this look decides. Each goes over all requests.
        """
        for line in () if self._told_untold else self.attempts.pooled.untold():
            self._told_untold = True
            self.run.progress.say(line)
        self._told_untold = self._told_untold or last

    def _say_before(self) -> None:
        """What the evidence begins with; a run that can no longer pass says so at once."""
        measured = [t for t in self.attempts.before if not t.warmup and t.purpose is None]
        failed = sum(not t.ok for t in measured)
        self.run.progress.say(
            f"going on from {len(measured)} measured requests, {failed} of them failed"
        )
        if failed and self.loaded.policy.errors.max_error_rate == 0:
            self.run.progress.say(
                "errors.max_error_rate is 0, so this run cannot PASS any more (a request that was "
                "in flight when the run was ended counts as failed). A new run, without "
                "--sla-resume, can"
            )

    def _state(self, bucket: str, level: int | None, block: int) -> dict[str, Any]:
        keeper = self.attempts.current
        return {
            "requests": keeper.count(bucket, level),
            "budget": self._budget(bucket, block),
            "running": keeper.running(bucket, level),
            "open": keeper.open_limits(bucket, level),
            "warmups": len(keeper.warmups(bucket, level)),
        }

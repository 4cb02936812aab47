"""A run while it measures: its folder, its log, its loaded targets and its gates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import TargetError
from ..gate import Gate, OwnPrompts, Progress
from ..log import RunWriter, utc_now
from ..policy import LoadedPolicy
from ..probes import host
from ..reports import folder
from ..resume import Earlier, carry_over
from ..shelf import Shelf
from ..targets.base import Target
from ..verdict import EVERY, AllOrOne
from ..workload import PromptFactory
from .lines import gate_line, run_line, target_line
from .loaded import LoadedTargets
from .prompts import RunPrompts
from .run_dir import new_run_dir


class Silent:
    """A progress that says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def phase(self, gate: str | None, bucket: str, name: str) -> None:
        """Nothing."""

    def request(
        self, gate: str | None, bucket: str, *, warmup: bool, state: Mapping[str, Any]
    ) -> None:
        """Nothing."""


class Session:
    """Everything one process measures. Writes timelines.jsonl; :func:`~session.finish.finish`
    makes the report.

    Args:
        report_dir: folder of all runs (``--sla-report``).
        release: the policy of the sla.yaml that is gated, None when only tests are.
        run_dir: an existing folder to write into instead of a new one.
        keep_text: store prompt and answer texts, whatever the policy says.
        resume: an earlier run that this one continues.

    Raises:
        UsageError: that run was measured on another machine or under another policy.
    """

    def __init__(
        self,
        report_dir: Path,
        *,
        release: LoadedPolicy | None = None,
        progress: Progress | None = None,
        run_dir: Path | None = None,
        keep_text: bool | None = None,
        signoff: bool = False,
        resume: Earlier | None = None,
    ) -> None:
        self.progress: Progress = progress or Silent()
        self.release = release
        self.signoff = signoff
        self._report_dir = report_dir
        self._run_dir = run_dir
        keep = release.policy.report.keep_text if release is not None else False
        self._keep_text = keep if keep_text is None else keep_text
        self._writer: RunWriter | None = None
        self._shelf: Shelf | None = None
        self._gates: dict[str | None, Gate] = {}
        self._targets = LoadedTargets(self.progress.say)
        self._prompts = RunPrompts(1 if resume is None else resume.parts + 1)
        self._clock_of: Target | None = None
        self._endings: dict[tuple[str | None, int | None], str] = {}
        self._resume = resume
        self._ids = 0 if resume is None else resume.last_id

    @property
    def run_dir(self) -> Path:
        """The folder of this run, made on first use."""
        if self._run_dir is None:
            self._run_dir = new_run_dir(self._report_dir)
        return self._run_dir

    @property
    def writer(self) -> RunWriter:
        """The log, opened with its ``run`` line on first use."""
        if self._writer is None:
            path = self.run_dir / folder.TIMELINES_NAME
            if self._resume is None:
                self._writer = RunWriter(path, keep_text=self._keep_text)
                self._writer.line(run_line(self.release, signoff=self.signoff))
            else:
                self._writer = self._continued(self._resume, path)
        return self._writer

    @property
    def shelf(self) -> Shelf:
        """Where numbers go that are seldom looked at: beside the log, which is on a disk."""
        if self._shelf is None:
            self._shelf = Shelf(lambda: self.run_dir)
        return self._shelf

    def _continued(self, earlier: Earlier, path: Path) -> RunWriter:
        """The log of the earlier run, open for what follows."""
        facts = host.facts()
        earlier.refuse_other_machine(facts)
        if self.release is not None:
            earlier.refuse_other_policy(None, self.release)
        carry_over(earlier, path)
        writer = RunWriter(path, keep_text=self._keep_text, segments=earlier.segments)
        writer.line(earlier.line(facts))
        return writer

    def gate(self, key: str | None, loaded: LoadedPolicy) -> Gate:
        """The gate ``key`` (None: the sla.yaml's), declared on first use."""
        if key not in self._gates:
            if self._resume is not None:
                self._resume.refuse_other_policy(key, loaded)
            if key is not None and (self._resume is None or key not in self._resume.log.gates):
                self.writer.line(gate_line(key, loaded))
            self._gates[key] = Gate(self, key, loaded, self._resume)
        return self._gates[key]

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        """The loaded target of a policy, one per target mapping and process.

        Raises:
            UsageError, TargetError: it cannot be loaded; every later call raises the same.
        """
        return self._targets.of(loaded)

    def describe(self, target: Target, gate: str | None, loaded: LoadedPolicy) -> Mapping[str, Any]:
        """Write the ``target`` line of a gate; what of it the judge needs."""
        line, needed = target_line(target, gate, loaded)
        if self._resume is not None:
            self._resume.refuse_other_target(gate, line)
        self.writer.line(line)
        return needed

    def use_clock(self, target: Target) -> None:
        """Open a clock segment when another target's clock was in use.

        Raises:
            TargetError: the clock gives no whole nanoseconds.
        """
        if self._clock_of is not target:
            now: object = target.clock()
            if isinstance(now, bool) or not isinstance(now, int):
                raise TargetError(
                    f"the target's clock gave {now!r:.60}; valid: whole nanoseconds that only go up"
                )
            self.writer.segment(now, kind=target.kind)
            self._clock_of = target

    def factory(self, loaded: LoadedPolicy, target: Target) -> PromptFactory:
        """One factory per target and prompt source, so that no prompt repeats in a run."""
        return self._prompts.factory(loaded, target)

    def own_prompts(self, loaded: LoadedPolicy) -> OwnPrompts:
        """One per target, whatever test asks."""
        return self._prompts.own(loaded)

    def next_id(self) -> str:
        """A request id, unique in this run."""
        self._ids += 1
        return f"r{self._ids:06d}"

    def record_tgs(self, key: str, value: float, conditions: Mapping[str, Any]) -> None:
        """Put a TGS figure measured elsewhere on the record, with its conditions as given."""
        self.writer.line({"type": "tgs", "id": f"{key}/tgs", "value": value, **conditions})

    def problem(
        self, gate: str | None, bucket: str | None, reason: str, level: AllOrOne = EVERY
    ) -> None:
        """Write why something could not be measured, at one level or (default) at every one."""
        line = {"type": "problem", "gate": gate, "bucket": bucket, "reason": reason}
        self.writer.line(line if level == EVERY else {**line, "concurrency": level})

    def retire(self, target: Target, reason: str) -> None:
        """Never use a target again: a generation that does not stop still runs in it."""
        self._targets.retire(target, reason)

    def ended(self, gate: str | None, reason: str, level: int | None) -> None:
        """Keep why a gate stopped measuring a level; written with the ``end`` line."""
        self._endings[gate, level] = reason

    def close(self, reason: str = "ended", *, outcomes_follow: bool = False) -> None:
        """Write the ``end`` line, close the log and the targets. Idempotent.

        ``outcomes_follow``: what a test runner says of the limits is still to come, and without
        it the run is not whole.
        """
        if self._writer is not None:
            endings = [
                {"gate": key, "concurrency": level, "reason": why}
                for (key, level), why in self._endings.items()
            ]
            self._writer.line(
                {
                    "type": "end",
                    "reason": reason,
                    "utc": utc_now(),
                    "measuring": endings,
                    "prompt_notes": self._prompts.notes,
                    "outcomes_follow": outcomes_follow,
                }
            )
            self._writer.close()
            self._writer = None
        if self._shelf is not None:
            self._shelf.close()
        self._targets.close()

"""One run: its folder, its log, its loaded targets and its gates. Wires the runner to the judge."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import baselines, judging, targets
from .asker import say
from .errors import LlmslaError, TargetError
from .gate import Gate, OwnPrompts, Progress
from .log import SCHEMA, RunWriter, read_run, utc_now
from .policy import LoadedPolicy
from .probes import host
from .reports import folder, json_report
from .resume import Earlier, carry_over
from .shelf import Shelf
from .targets import entry
from .targets.base import Target
from .verdict import EVERY, AllOrOne, limits_of
from .workload import PromptFactory

__all__ = ["Gate", "Progress", "Session", "Silent", "finish", "new_run_dir"]


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


def new_run_dir(report_dir: Path) -> Path:
    """Make ``report_dir/runs/<UTC>``; a second run in the same second gets a suffix.

    ``latest`` points at it from now on, where that can be written.
    """
    runs = report_dir / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    stem = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for n in range(1000):
        path = runs / (stem if n == 0 else f"{stem}-{n:03d}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        # From its start, so that a run that is killed is the latest one, not the run before it.
        with contextlib.suppress(OSError):
            json_report.point_latest(path)
        return path
    raise TargetError(f"{runs}: no free folder name for this run.")


class Session:
    """Everything one process measures. Writes timelines.jsonl; :func:`finish` makes the report.

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
        self._targets: dict[str, Target | LlmslaError] = {}
        self._factories: dict[str, PromptFactory] = {}
        self._own_prompts: dict[str, OwnPrompts] = {}
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
                self._writer.line(self._run_line())
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

    def _run_line(self) -> dict[str, Any]:
        from .version import __version__

        line: dict[str, Any] = {
            "type": "run",
            "schema": SCHEMA,
            "version": __version__,
            "started": utc_now(),
            "signoff": self.signoff,
            "host": host.facts(),
            "pid": os.getpid(),
        }
        if self.release is not None:
            line.update(_recorded(self.release, None))
        return line

    def gate(self, key: str | None, loaded: LoadedPolicy) -> Gate:
        """The gate ``key`` (None: the sla.yaml's), declared on first use."""
        if key not in self._gates:
            if self._resume is not None:
                self._resume.refuse_other_policy(key, loaded)
            if key is not None and (self._resume is None or key not in self._resume.log.gates):
                self.writer.line({"type": "gate", "gate": key, **_recorded(loaded, key)})
            self._gates[key] = Gate(self, key, loaded, self._resume)
        return self._gates[key]

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        """The loaded target of a policy, one per target mapping and process.

        Raises:
            UsageError, TargetError: it cannot be loaded; every later call raises the same.
        """
        spec = loaded.target_spec()
        key = json.dumps(spec, sort_keys=True)
        found = self._targets.get(key)
        if found is None:
            if spec.get("base_url") is None:
                named = (spec.get(key) for key in ("model", "entry", "kind"))
                self.progress.say(f"loading {next(filter(None, named))} …")
            if spec.get("entry"):
                entry.make_importable(loaded.base)
            try:
                found = targets.load(spec, say=self.progress.say)
            except LlmslaError as e:
                found = e
            except Exception as e:  # a loader may raise anything; every limit must hear of it
                found = TargetError(f"loading the target raised {say(e)}")
            self._targets[key] = found
        if isinstance(found, LlmslaError):
            raise found.with_traceback(None)  # else each test adds its frames to those before
        return found

    def describe(self, target: Target, gate: str | None, loaded: LoadedPolicy) -> Mapping[str, Any]:
        """Write the ``target`` line of a gate; what of it the judge needs."""
        facts = dict(target.describe())
        system = loaded.policy.workload.system_prompt
        needed = _facts(target, facts)
        if system is not None:  # every prompt begins with it, as with the template's own words
            more = target.count("a", system) - target.count("a", None)
            needed["template_tokens"] = max(0, needed["template_tokens"] + more)
        line = {**facts, "type": "target", "gate": gate, **needed}
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
        work = loaded.policy.workload
        prompts = work.prompts
        # Not keyed by the seed: two gates on one target must not send the same prompts.
        spec = loaded.target_spec()
        key = json.dumps([spec, prompts, str(loaded.base), work.system_prompt], sort_keys=True)
        if key not in self._factories:
            part = 1 if self._resume is None else self._resume.parts + 1
            self._factories[key] = prompts_for(loaded, target, part)
        return self._factories[key]

    def own_prompts(self, loaded: LoadedPolicy) -> OwnPrompts:
        """One per target, whatever test asks."""
        key = json.dumps(loaded.target_spec(), sort_keys=True)
        return self._own_prompts.setdefault(key, OwnPrompts())

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
        for key, found in self._targets.items():
            if found is target:
                self._targets[key] = TargetError(reason)

    def ended(self, gate: str | None, reason: str, level: int | None) -> None:
        """Keep why a gate stopped measuring a level; written with the ``end`` line."""
        self._endings[gate, level] = reason

    def close(self, reason: str = "ended", *, outcomes_follow: bool = False) -> None:
        """Write the ``end`` line, close the log and the targets. Idempotent.

        ``outcomes_follow``: what a test runner says of the limits is still to come, and without
        it the run is not whole.
        """
        if self._writer is not None:
            notes = sorted({note for f in self._factories.values() for note in f.notes})
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
                    "prompt_notes": notes,
                    "outcomes_follow": outcomes_follow,
                }
            )
            self._writer.close()
            self._writer = None
        if self._shelf is not None:
            self._shelf.close()
        for target in self._targets.values():
            if not isinstance(target, LlmslaError):
                try:
                    target.close()
                except Exception as e:  # what was measured stands; there is nothing left to lose
                    self.progress.say(f"closing the target raised {say(e)}")
        self._targets.clear()


def prompts_for(loaded: LoadedPolicy, target: Target, part: int = 1) -> PromptFactory:
    """The prompts of a policy, counted by a target; another ``part`` of a run gets others.

    A target over HTTP has ``lengths``: how exact its counts are, and how to plan with few of them.
    Its server outlives the run, and with it what it remembers of prompts: they are new every time.
    """
    work, lengths = loaded.policy.workload, getattr(target, "lengths", None)
    seed, salted, notes = work.seed, False, list[str]()
    if part > 1:
        seed, salted = part << 64 | work.seed, True
    if lengths is not None and not work.warm_cache:
        if work.prompts == "builtin":
            own = secrets.randbits(32)
            seed, salted = own << 64 | work.seed, True
            notes.append(
                f"prompts are new in every run, because a server may remember those of an earlier "
                f"one: to seed {work.seed} came {own}"
            )
        else:
            notes.append(
                "prompts come from files and are the same in every run: a server that remembers "
                "them from an earlier one (prefix cache) answers sooner, and only some say so "
                "(cached_tokens). Restart it before a gate, or give new prompts"
            )
    return PromptFactory(
        target.count,
        target.encode,
        seed=seed,
        salted=salted,
        notes=notes,
        source=work.prompts,
        system=work.system_prompt,
        warm_cache=work.warm_cache,
        base=loaded.base,
        margin=0.0 if lengths is None else lengths.margin,
        languages=None if lengths is None else lengths.languages,
        size=lengths.size if lengths is not None and lengths.remote else None,
    )


def _facts(target: Target, facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts.get("template_prefix_tokens")
    known = isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 2**31
    warnings = facts.get("warnings") or []
    return {
        "warnings": list(warnings) if isinstance(warnings, (list, tuple)) else [warnings],
        "kind": str(target.kind),
        "start_point": str(target.start_point),
        "template_tokens": tokens if known else 0,
    }


def _recorded(loaded: LoadedPolicy, key: str | None) -> dict[str, Any]:
    policy = loaded.policy
    return {
        "service": policy.service,
        "policy": policy.model_dump(mode="json"),
        "policy_path": None if loaded.path is None else str(loaded.path),
        "policy_base": str(loaded.base.absolute()),
        "policy_sha256": loaded.sha256,
        "written_preset": loaded.written_preset,
        "target": {"kind": policy.target.kind, "model": getattr(policy.target, "model", None)},
        "sources": {limit.id: limit.source for limit in limits_of(loaded, key)},
        "evidence": {
            "alpha_pass": policy.alpha_pass,
            "alpha_fail": policy.alpha_fail,
            "M": {"ttft": 1, "itl": max(policy.workload.max_new_tokens - 1, 1)},
            "seed": policy.workload.seed,
        },
    }


_NOT_COMPARED = {
    "verdict": "inconclusive",
    "reason": "a comparison was asked for (--sla-baseline) and did not come to its end",
}
"""On record until the comparison is: whoever ends a run in between has not compared it."""


def _remember(
    path: Path,
    outcomes: Mapping[str, judging.Outcome],
    missing: Collection[tuple[str, str]],
    *,
    signoff: bool,
    compared: Mapping[str, Any] | None = None,
) -> None:
    """Put on record what the test runner and a baseline said, so that a later check cannot
    forget it."""
    writer = RunWriter(path)
    writer.line(
        {
            "type": "outcomes",
            "outcomes": {
                name: {"status": o.status, "reason": o.reason, "reruns": o.reruns}
                for name, o in outcomes.items()
            },
            "missing": [list(pair) for pair in missing],
            "signoff": signoff,
            "compared": None
            if compared is None
            else {"verdict": compared["verdict"], "reason": compared["reason"]},
        }
    )
    writer.close()


def finish(
    run_dir: Path,
    outcomes: Mapping[str, judging.Outcome] | None = None,
    *,
    signoff: bool = False,
    missing: Collection[tuple[str, str]] = (),
    formats: tuple[str, ...] = ("json", "markdown"),
    baseline: Path | None = None,
) -> dict[str, Any]:
    """Judge a run from its timelines.jsonl and write its reports; returns report.json's dict.

    ``baseline``: stored runs it is compared with, instead of those that its policy names.

    Raises:
        UsageError: the log cannot be read.
        OSError: a report cannot be written.
    """
    path = run_dir / folder.TIMELINES_NAME
    pending = None if baseline is None else _NOT_COMPARED
    if outcomes is not None or missing or pending:
        _remember(path, outcomes or {}, missing, signoff=signoff, compared=pending)
    log = read_run(path)
    gates = judging.judge_log(log)
    report = judging.build_report(log, gates, outcomes, signoff=signoff, missing=missing)
    report = baselines.apply(report, log, gates, path=baseline)
    if (compared := report.get("baseline")) is not None:
        _remember(path, outcomes or {}, missing, signoff=signoff, compared=compared)
    report["history"] = folder.history(run_dir)
    folder.write_reports(report, run_dir, formats=formats)
    return report

"""A run continued from its stored log: what was measured before counts, and nothing is forgotten.

The sequential tests hold however often one stops and looks, so a run that was ended may go on: by
the same policy, on the same machine, with the same model. Its log is copied, never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .errors import UsageError
from .log import RunLog, read_run, utc_now
from .log.strict_json import plain
from .log.values import brief
from .log.whole import kind_of
from .policy import LoadedPolicy
from .reports import json_report
from .reports.found import timelines_at
from .timeline import Timeline
from .verdict import Gatekeeper

_ID = re.compile(r"r(\d+)$")
_ENDS = ("end", "outcomes")
_NOT_FACTS = ("type", "gate", "warnings", "prompt_lengths", "refused_options")
"""Of a ``target`` line: what is no fact, or is learnt while measuring."""
_SHOWN = 12


@dataclass(frozen=True)
class Earlier:
    """The run that is continued."""

    path: Path
    """Its timelines.jsonl."""
    log: RunLog
    sha256: str

    @property
    def last_id(self) -> int:
        """The highest number among its requests' ids."""
        found = (_ID.match(t.id) for t in self.log.timelines)
        return max((int(m.group(1)) for m in found if m), default=0)

    @property
    def segments(self) -> int:
        """Clock segments it used."""
        numbered = (int(line.get("segment", n)) for n, line in enumerate(self.log.segments))
        return 1 + max((*numbered, *(t.segment for t in self.log.timelines)), default=-1)

    @property
    def parts(self) -> int:
        """Processes that have measured so far."""
        return 1 + len(self.log.resumes)

    def feed(self, gate: str | None, keeper: Gatekeeper) -> list[Timeline]:
        """Give a gate's judge what was measured; the requests as judged, in start order."""
        log = self.log
        for target in log.targets:
            if target.get("gate") == gate:
                keeper.facts(target)
        for line in log.levels:
            if line.get("gate") == gate:
                segment, mode = line["segment"], line.get("mode")
                keeper.opened(line["concurrency"], line["t_ns"], segment=segment, mode=mode)
        judged = [keeper.add(t) for t in log.timelines if t.gate == gate]
        for line in log.resources:
            if line.get("gate") == gate:
                keeper.resources(line)
        for line in log.servers:
            if line.get("gate") == gate:
                keeper.server(line.get("server") or {})
        return judged

    def line(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """The ``resume`` line."""
        return {
            "type": "resume",
            "utc": utc_now(),
            "from": str(self.path),
            "sha256": self.sha256,
            "requests": len(self.log.timelines),
            "in_flight": self.log.in_flight,
            "host": dict(host),
            "pid": os.getpid(),
        }

    @property
    def compared(self) -> str | None:
        """What a comparison with a baseline found that is no PASS, and is not to be forgotten."""
        for line in self.log.outcomes:
            said = line.get("compared") or {}
            if said.get("verdict", "pass") != "pass":
                return f"{said['verdict']}: {said['reason']}"
        return None

    def refuse_other_policy(self, key: str | None, loaded: LoadedPolicy) -> None:
        """Raise UsageError where a gate was measured under another policy, or none is known."""
        line = self.log.run if key is None else self.log.gates.get(key)
        if line is None:
            return  # the gate had not begun, so nothing of it is continued
        if key is None and line.get("policy") is None:
            raise UsageError(
                f"--sla-resume {self.path}: that run was of tests alone, and its log has no place "
                f"for {loaded.where}. Start a new run without --sla-resume."
            )
        was = line.get("policy_sha256")
        if was != loaded.sha256:
            what = "the policy" if key is None else f"the policy of {key}"
            raise UsageError(
                f"--sla-resume {self.path}: {what} has the sha256 {loaded.sha256}, and that run "
                f"was measured under {was}. Evidence is continued under one policy only: undo the "
                "change, or start a new run without --sla-resume."
            )
        self._refuse_other_inputs(line, loaded)

    def _refuse_other_inputs(self, line: Mapping[str, Any], loaded: LoadedPolicy) -> None:
        """The policy names files, and is the same whatever stands in them."""
        was, now = digests(line), inputs_of(loaded)
        for name in dict.fromkeys((*was, *now)):
            is_now = now.get(name, {"path": "its file", "sha256": None})
            if name not in was:
                why = "what was in it when that run began is not on record"
            elif was[name] != is_now["sha256"]:
                why = f"it was changed: its sha256 was {was[name]}, is {is_now['sha256']}"
            else:
                continue
            raise UsageError(
                f"--sla-resume {self.path}: {loaded.source(name)}: {is_now['path']}: {why}. "
                "Evidence is continued with the same content only: restore the file, or start a "
                "new run without --sla-resume."
            )

    def refuse_other_target(self, gate: str | None, facts: Mapping[str, Any]) -> None:
        """Raise UsageError with what differs where another target was measured before."""
        lines = [line for line in self.log.targets if line.get("gate") == gate]
        if not lines:
            if any(t.gate == gate for t in self.log.timelines):
                raise UsageError(
                    f"--sla-resume {self.path}: which target its requests asked is not on record. "
                    "Start a new run without --sla-resume."
                )
            return
        now = json.loads(json.dumps(plain(facts)))
        self._refuse("target", differences(_target(lines[-1]), _target(now)))

    def refuse_other_machine(self, host: Mapping[str, Any]) -> None:
        """Raise UsageError with what differs where another machine measured before."""
        was = self.log.run.get("host") or {}
        self._refuse("machine", differences(_machine(was), _machine(host)))

    def _refuse(self, what: str, found: Iterator[str]) -> None:
        listed = list(found)
        if listed:
            more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
            raise UsageError(
                f"--sla-resume {self.path}: the {what} is another one: "
                f"{'; '.join(listed[:_SHOWN])}{more}. Evidence of two is not one run's: start a "
                "new run without --sla-resume."
            )


def earlier_run(path: Path) -> Earlier:
    """Read the run to continue.

    Args:
        path: a run folder, a report folder (its latest run) or a timelines.jsonl.

    Raises:
        UsageError: there is none, it is damaged, or what it met cannot be continued.
    """
    try:
        file = timelines_at(path)
        log = read_run(file)
    except UsageError as e:
        raise UsageError(f"--sla-resume {e}") from None
    if log.problems:
        why = str(log.problems[0].get("reason"))
        raise UsageError(
            f"--sla-resume {file}: that run could not measure: {why[:200]} What stopped it stays "
            "on its record: start a new run without --sla-resume."
        )
    if log.end is not None and log.lacking:
        raise UsageError(
            f"--sla-resume {file}: it is not the file that its run wrote: {log.lacking[0]:.200}. "
            "What is missing may have failed: give the whole file, or start a new run without "
            "--sla-resume."
        )
    earlier = Earlier(file, log, json_report.sha256(file))
    pid = _writer_of(earlier)
    if pid is not None:
        raise UsageError(
            f"--sla-resume {file}: that run is still going on (process {pid}). Two at once would "
            "compete for the machine: wait for its end, or end it."
        )
    return earlier


def _writer_of(earlier: Earlier) -> int | None:
    """The process that has the log of a run open that has not ended."""
    log, path = earlier.log, str(earlier.path.resolve())
    pid = (log.resumes[-1] if log.resumes else log.run).get("pid")
    if log.end is not None or isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
        return None
    try:
        return pid if any(f.path == path for f in psutil.Process(pid).open_files()) else None
    except (psutil.Error, OSError, OverflowError):
        return None  # gone, or somebody else's by now


def moved_on(log: RunLog) -> Iterator[str]:
    """Where the parts of a resumed run were measured on another machine, or of another target.

    Such a run is refused when it is to go on; this is for a log that was put together otherwise.
    """
    if not log.resumes:
        return
    first = _machine(log.run.get("host") or {})
    for number, line in enumerate(log.resumes, 2):
        for what in differences(first, _machine(line.get("host") or {})):
            yield f"part {number} was measured on another machine: {what}"
    firsts: dict[str | None, Mapping[str, Any]] = {}
    for line in log.targets:
        was = firsts.setdefault(line.get("gate"), line)
        for what in differences(_target(was), _target(line)):
            yield f"it was continued with another target: {what}"


def inputs_of(loaded: LoadedPolicy) -> dict[str, dict[str, str | None]]:
    """Files that a policy names and its own sha256 does not cover, with theirs, by key.

    ``path`` as written; ``sha256`` None: it cannot be read. Prompts, and the code of a Python
    target where it stands beside the policy. (A trace is in the policy by its content.)
    """
    prompts, found = loaded.policy.workload.prompts, dict[str, str]()
    if isinstance(prompts, Mapping):
        found = {f"workload.prompts.{bucket}": path for bucket, path in prompts.items()}
    elif prompts != "builtin":
        found = {"workload.prompts": prompts}
    entry = getattr(loaded.policy.target, "entry", None)
    if isinstance(entry, str):
        module = f"{entry.partition(':')[0].replace('.', '/')}.py"
        if loaded.resolve(module).is_file():
            found["target.entry"] = module
    return {
        name: {"path": path, "sha256": _sha256(loaded.resolve(path))}
        for name, path in found.items()
    }


def digests(line: Mapping[str, Any]) -> dict[str, object]:
    """The sha256 of each file by key, of a ``run`` or ``gate`` line."""
    return {
        name: _mapping(said).get("sha256") for name, said in _mapping(line.get("inputs")).items()
    }


def _sha256(path: Path) -> str | None:
    try:
        return json_report.sha256(path)
    except OSError:
        return None


def refuse_repeating(loaded: LoadedPolicy) -> None:
    """Raise UsageError where prompts of the earlier part could be sent again."""
    work = loaded.policy.workload
    if work.prompts != "builtin" and not work.warm_cache:
        raise UsageError(
            f"--sla-resume: {loaded.source('workload.prompts')}: prompts come from files, and "
            "which of them were sent is not on record, so some would be sent twice (a prefix "
            "cache would answer). Use `prompts: builtin`, or start a new run without --sla-resume."
        )


def carry_over(earlier: Earlier, to: Path) -> None:
    """Begin a log with all the earlier one holds but its end.

    A last line that was cut is left out; the ``start`` before it stays, and with it the request
    that never had an answer.

    Raises:
        OSError: it cannot be read or written.
        UsageError: it is not the file any more that was read.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    seen = hashlib.sha256()
    with earlier.path.open("rb") as before, to.open("xb") as after:
        for line in before:
            seen.update(line)
            # Only the last line can lack its break: whole where it could be read, else cut.
            if not line.endswith(b"\n"):
                if earlier.log.truncated:
                    continue
                line += b"\n"
            if kind_of(line) not in _ENDS:
                after.write(line)
    if seen.hexdigest() != earlier.sha256:
        to.unlink()
        raise UsageError(
            f"--sla-resume {earlier.path}: it changed since it was read: another process writes "
            "it. Wait for the end of that run."
        )


def differences(was: object, now: object, key: str = "") -> Iterator[str]:
    """``cpu.model: was 'A', is 'B'`` for everything that differs."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*was, *now)):
            yield from differences(was.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif was != now:
        yield f"{key}: was {brief(was)}, is {brief(now)}"


def _target(line: Mapping[str, Any]) -> dict[str, Any]:
    """Of a ``target`` line, its facts."""
    return {k: v for k, v in line.items() if k not in _NOT_FACTS}


def _machine(host: Mapping[str, Any]) -> dict[str, Any]:
    """Of a host's facts, those that change a measurement."""
    cpu, gpus = _mapping(host.get("cpu")), host.get("gpus")
    return {
        "cpu": {k: cpu.get(k) for k in ("model", "logical_cores", "usable_cores")},
        "memory_gib": _tenths(host.get("memory_gib")),
        "memory_limit_gib": _tenths(host.get("memory_limit_gib")),
        "gpus": [
            {
                **{k: g.get(k) for k in ("name", "uuid", "driver")},
                "memory_gib": _tenths(g.get("memory_gib")),
            }
            for g in (gpus if isinstance(gpus, list) else ())
            if isinstance(g, Mapping)
        ],
        "python": _mapping(host.get("python")).get("version"),
        "packages": dict(_mapping(host.get("packages"))),
        "settings": dict(_mapping(host.get("settings"))),
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tenths(gib: object) -> object:
    """Without what a kernel keeps for itself, which is not the same after every start."""
    number = isinstance(gib, (int, float)) and not isinstance(gib, bool)
    return round(float(gib), 1) if number else gib  # type: ignore[arg-type]  # number checked it

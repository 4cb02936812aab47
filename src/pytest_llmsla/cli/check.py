"""``llmsla check``: judge stored timelines again, with the code that judged them live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import baselines, judging
from ..errors import UsageError
from ..finding import EXIT_CODES
from ..log import RunLog, read_run
from ..log.values import brief
from ..policy import LoadedPolicy, load_policy
from ..reports import json_report
from ..reports.found import timelines_at
from ..resume import digests
from . import imported

_SAME_TARGET = (
    "timeouts",
    "offline",
    "api_key_env",
    "api_key_file",
    "metrics_url",
    "proxy",
    "verify_tls",
)
"""Keys of ``target`` that do not change what was measured; all others must agree."""
_SAME_WORKLOAD = ("max_new_tokens", "force_length", "sampling", "system_prompt", "warm_cache")
"""Keys of ``workload`` that change what was measured."""
_SAME_SCHEDULE = ("kind", "burstiness", "trace", "trace_unit", "max_in_flight")
"""Keys of ``workload.load`` that change what came when."""


def check(paths: Sequence[Path], sla: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Judge the timelines at ``paths`` by the policy in ``sla``.

    Args:
        paths: timelines.jsonl files, run folders, report folders (their latest run), or result
            files of another tool and folders of them.
        sla: the policy; None judges by the policy the run recorded.

    Returns:
        The dict of report.json and remarks for the reader.

    Raises:
        UsageError: a file is missing, empty, damaged, of an unknown tool, or measured under
            conditions that are not those of the policy or of the other files.
    """
    foreign = [files for p in paths if (files := imported.foreign_files(p)) is not None]
    if foreign:
        return imported.check(paths, foreign, sla)
    files = [timelines_at(p) for p in paths]
    logs = [read_run(f) for f in files]
    _refuse_twice(files, logs)
    for log in logs[1:]:
        _refuse_mixture(logs[0], log)
    release = None if sla is None else load_policy(sla, to_run=False)
    if release is not None:
        _refuse_other_conditions(logs[0], release)
    log = pooled(logs)
    gates = judging.judge_log(log, release)
    report = baselines.apply(judging.build_report(log, gates), log, gates)
    return report, [*_remarks(log, release), *_pooling(files)]


def exit_code(report: Mapping[str, Any]) -> int:
    """0 only for a complete PASS that rests on findings; 1, 2 or 3 otherwise."""
    code = EXIT_CODES.get(report["verdict"], 3)
    if code == 0 and not (report["complete"] is True and report["findings"]):
        return 2
    return code


def pooled(logs: Sequence[RunLog]) -> RunLog:
    """Several logs as one, in order of their start: the later ones continue the first.

    Request ids and clock segments are renumbered so that nothing is overwritten.
    """
    if len(logs) == 1:
        return logs[0]
    ordered = sorted(logs, key=lambda log: str(log.run.get("started") or ""))
    out = replace(
        ordered[0],
        path=", ".join(log.path for log in ordered),
        **{name: [] for name in _LISTS},  # type: ignore[arg-type]  # the list fields of RunLog
        gates={},
        # One run cut short leaves the whole without its end: what it lost may have failed.
        end=ordered[-1].end if all(log.end is not None for log in ordered) else None,
        in_flight=sum(log.in_flight for log in ordered),
        truncated=any(log.truncated for log in ordered),
        unreported=any(log.unreported for log in ordered),
        lacking=[f"{log.path}: {words}" for log in ordered for words in log.lacking],
    )
    segment = attempt = 0
    for number, log in enumerate(ordered):
        # Units are counted anew in each run: attempts of their own, as of a run that is resumed.
        out.timelines += [
            replace(
                t,
                id=f"{number}:{t.id}",
                segment=t.segment + segment,
                attempt=t.attempt + attempt,
            )
            for t in log.timelines
        ]
        attempt += max((t.attempt for t in log.timelines), default=0)
        out.gates.update(log.gates)
        for name in _LISTS[1:]:
            getattr(out, name).extend(_moved(line, segment) for line in getattr(log, name))
        segment += 1 + max((t.segment for t in log.timelines), default=0)
    return out


def _moved(line: Mapping[str, Any], by: int) -> Mapping[str, Any]:
    """A line on the clock segment that its requests have in the whole."""
    return {**line, "segment": line["segment"] + by} if "segment" in line else line


_LISTS = (
    "timelines", "targets", "segments", "levels", "resources", "servers", "tgs", "problems",
    "outcomes", "resumes",
)  # fmt: skip


def _refuse_twice(files: Sequence[Path], logs: Sequence[RunLog]) -> None:
    """The same run given twice would count its evidence twice."""
    seen: dict[str, Path] = {}
    for path, log in zip(files, logs, strict=True):
        names = [f"content {json_report.sha256(path)}"]
        if log.run.get("started") is not None:
            host = (log.run.get("host") or {}).get("hostname")
            names.append(f"run {log.run['started']} {log.run.get('pid')} {host}")
        for name in names:
            if name in seen:
                raise UsageError(
                    f"{path}: is the same run as {seen[name]}; its evidence would count twice. "
                    "Give each run once"
                )
            seen[name] = path


def _refuse_mixture(first: RunLog, other: RunLog) -> None:
    pairs = {
        "policies": (first.run.get("policy"), other.run.get("policy")),
        "machines": (_machine(first), _machine(other)),
        "models": (_model(first), _model(other)),
        "files": (digests(first.run), digests(other.run)),
        **{
            f"files of {key}": (digests(first.gates[key]), digests(other.gates[key]))
            for key in first.gates.keys() & other.gates.keys()
        },
        **{
            f"policies of {key}": (first.gates[key].get("policy"), other.gates[key].get("policy"))
            for key in first.gates.keys() & other.gates.keys()
        },
    }
    for what, (one, two) in pairs.items():
        if one != two:
            raise UsageError(
                f"{other.path}: mixed {what}: {first.path} was run under another one "
                f"({_difference(one, two)}). Runs are pooled only when all of it is the same; "
                "check them one by one"
            )


def _machine(log: RunLog) -> object:
    host = log.run.get("host") or {}
    packages = host.get("packages") or {}
    return {
        "cpu": (host.get("cpu") or {}).get("model"),
        "gpus": [g.get("name") for g in host.get("gpus") or () if isinstance(g, Mapping)],
        **{name: packages.get(name) for name in ("torch", "transformers", "bitsandbytes")},
    }


def _model(log: RunLog) -> object:
    return [
        {k: v for k, v in target.items() if "sha256" in k or k in ("kind", "model", "revision")}
        for target in log.targets
    ]


def _difference(one: object, two: object) -> str:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in sorted({*one, *two}, key=str):
            if one.get(key) != two.get(key):
                return f"{key}: {brief(one.get(key))} and {brief(two.get(key))}"
    return f"{brief(one)} and {brief(two)}"


def _refuse_other_conditions(log: RunLog, release: LoadedPolicy) -> None:
    """Evidence of another model or workload says nothing about this policy."""
    recorded = log.run.get("policy")
    if not isinstance(recorded, Mapping):
        if any(t.gate is None for t in log.timelines):
            raise UsageError(
                f"{log.path}: the run line has no policy, so nobody knows which model and which "
                "sampling these requests had. Give the log of a run, or write the resolved "
                "policy into its first line"
            )
        return
    given = release.policy.model_dump(mode="json")
    pairs: list[tuple[str, object, object]] = []
    if any(k == "target" or k.startswith("target.") for k in release.lines):
        pairs += _pairs("target", recorded, given, skip=_SAME_TARGET)
    pairs += _pairs("workload", recorded, given, only=_SAME_WORKLOAD)
    pairs += _load_pairs(recorded, release)
    for key, was, now in pairs:
        found = [d for d in _differences(key, was, now) if "${" not in str(d[2])]
        if found:
            was_so = ", ".join(f"{name} {brief(one)}" for name, one, _ in found)
            is_so = ", ".join(f"{name} {brief(two)}" for name, _, two in found)
            raise UsageError(
                f"{log.path}: was measured with {was_so}, but {release.where} says "
                f"{is_so}. Measure again under this policy, or judge by the one of the run"
            )


def _load_pairs(recorded: Mapping[str, Any], release: LoadedPolicy) -> list[tuple[str, Any, Any]]:
    """Keys of an open loop that make another load; its rate is counted from the requests, but for
    that of a trace.

    Raises:
        UsageError: the trace of the policy is not known.
    """
    work = recorded.get("workload")
    was = work.get("load") if isinstance(work, Mapping) else None
    now = release.policy.load
    if not isinstance(was, Mapping) or not now.open or was.get("kind") == "closed":
        return []  # a closed loop has levels, and requests at others are no evidence
    keys = list(_SAME_SCHEDULE)
    if now.kind == "trace":
        keys += ["rate", "trace_sha256"]
        replayed = was.get("trace_sha256")
        if was.get("trace") == now.trace and replayed is not None and now.trace_sha256 is None:
            raise UsageError(
                f"{release.where}: workload.load.trace: the file {now.trace} is not here, so "
                "nobody knows whether it is the one that was replayed. Put it there, or write "
                f"trace_sha256: {replayed} if it is"
            )
    return [(f"workload.load.{k}", was.get(k), getattr(now, k)) for k in keys]


def _differences(key: str, one: object, two: object) -> Iterator[tuple[str, object, object]]:
    """The keys below ``key`` that differ, each with both values."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for name in dict.fromkeys((*one, *two)):
            yield from _differences(f"{key}.{name}", one.get(name), two.get(name))
    elif one != two:
        yield key, one, two


def _pairs(
    group: str,
    recorded: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    skip: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> list[tuple[str, object, object]]:
    was, now = recorded.get(group) or {}, given.get(group) or {}
    if not isinstance(was, Mapping):
        return []
    keys = [k for k in was if k in now] if only is None else list(only)
    return [(f"{group}.{k}", was.get(k), now.get(k)) for k in keys if k in was and k not in skip]


def _remarks(log: RunLog, release: LoadedPolicy | None) -> list[str]:
    out = []
    if release is None:
        out.append("judged by the policy on record in the run; for a release give --sla sla.yaml")
    elif log.run.get("policy_sha256") not in (None, release.sha256):
        out.append("the policy differs from the one the run recorded (other limits or evidence)")
    if log.truncated:
        out.append("the last line is cut: the run was killed while it wrote")
    if log.in_flight:
        out.append(f"{log.in_flight} requests never got an answer; they count as failed")
    return out


def _pooling(files: Sequence[Path]) -> list[str]:
    if len(files) < 2:
        return []
    return [f"{len(files)} runs are judged as one: later runs add evidence, they replace none"]

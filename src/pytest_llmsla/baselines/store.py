"""Runs on disk: what a path means, and each run judged by the policy it recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..log import RunLog, read_run
from ..replay import JudgedGate, judge_log
from ..reports import folder

_OURS = b'"llmsla-timelines/'


@dataclass(frozen=True)
class StoredRun:
    """One run as read back and judged."""

    path: Path
    log: RunLog
    gates: tuple[JudgedGate, ...]

    @property
    def started(self) -> str:
        """When it began, UTC; empty where it does not say."""
        return str(self.log.run.get("started") or "")


def logs_at(path: Path) -> list[Path]:
    """The timelines.jsonl files that ``path`` means, oldest first by name.

    Args:
        path: a timelines.jsonl, a run folder, a report folder (every run in it), or a folder of
            run folders or of timelines files.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise UsageError(
            f"{path}: no such file or folder. Give a run folder (.llmsla/runs/<UTC>), a folder of "
            "runs (.llmsla), or a timelines.jsonl"
        )
    own = path / folder.TIMELINES_NAME
    if own.is_file():
        return [own]
    runs = path / "runs" if (path / "runs").is_dir() else path
    found = [p for p in sorted(runs.glob(f"*/{folder.TIMELINES_NAME}")) if p.is_file()]
    found += [p for p in sorted(runs.glob("*.jsonl")) if p.is_file() and _is_ours(p)]
    if not found:
        raise UsageError(
            f"{path}: holds no stored run. Give a folder of runs such as .llmsla, or a run folder"
        )
    return found


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _OURS in file.read(65536)


def cut_short(log: RunLog) -> bool:
    """True for a run that did not come to its end, or of which something is missing."""
    ended = log.end is not None and log.end.get("reason") != "interrupted"
    return not ended or log.truncated or log.unreported or bool(log.lacking)


def load(path: Path) -> StoredRun:
    """A run read back and judged by the policy it recorded.

    Raises:
        UsageError: it cannot be read, or its policy is not on record.
    """
    log = read_run(path)
    return StoredRun(path, log, tuple(judge_log(log)))


def stored(path: Path) -> tuple[list[StoredRun], list[tuple[Path, str]]]:
    """Every run at ``path`` in order of start, and those that cannot be used, each with why.

    Raises:
        UsageError: there is no run at all.
    """
    runs, left_out = list[StoredRun](), list[tuple[Path, str]]()
    for file in logs_at(path):
        try:
            run = load(file)
        except UsageError as e:
            left_out.append((file, str(e)))
            continue
        if cut_short(run.log):
            words = "it was killed, interrupted or is cut short, so part of it is missing"
            if run.log.lacking:
                words = f"it is not all that its run wrote: {run.log.lacking[0]}"
            left_out.append((file, words))
        else:
            runs.append(run)
    return sorted(runs, key=lambda r: (r.started, str(r.path))), left_out

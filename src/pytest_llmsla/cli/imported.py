"""``llmsla check`` on other tools' result files: which paths are some, and their verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..policy import load_policy
from ..reports import folder, json_report

_OURS = b'"llmsla-timelines/'
_HEAD = 65536


def foreign_files(path: Path) -> list[Path] | None:
    """The result files of other tools that ``path`` means; None: it is one of our own logs.

    A file that nothing recognises is left to the reader of our own, which says what is wrong.
    """
    from .. import importers

    if path.is_dir():
        own = (path / folder.TIMELINES_NAME).is_file()
        if own or json_report.resolve_latest(path) is not None:
            return None
        found = importers.in_folder(path)
        if not found:
            _refuse_below(path)
        return found or None
    if not path.is_file() or _is_ours(path):
        return None
    try:
        docs = importers.documents(path)
    except UsageError:
        # Damaged: a name of our own is ours to explain, any other is told as it is.
        if path.name == folder.TIMELINES_NAME:
            return None
        raise
    if importers.recognised(docs) is None and path.name == folder.TIMELINES_NAME:
        return None
    return [path]


def _refuse_below(path: Path) -> None:
    """Refuse a folder whose results lie in folders of their own, as AIPerf writes them."""
    from .. import importers

    below = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.is_symlink()]
    if any((p / folder.TIMELINES_NAME).is_file() for p in below):
        return  # runs of our own: their reader says what to give
    found = [p.name for p in below if importers.in_folder(p)]
    if found:
        raise UsageError(
            f"{path}: holds results of other tools in folders below it ({', '.join(found)}). Give "
            f"one of them: llmsla check {path / found[0]} --sla sla.yaml"
        )


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _OURS in file.read(_HEAD)
    except OSError:
        return True  # the reader of our own says why


def check(
    paths: Sequence[Path], foreign: Sequence[Sequence[Path]], sla: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """Judge other tools' files by the policy in ``sla``.

    Raises:
        UsageError: no policy, files of our own beside them, a file twice, or no evidence.
    """
    if len(foreign) != len(paths):
        raise UsageError(
            "results of another tool and logs of our own cannot be judged together: their clocks "
            "begin at different moments. Check them one by one"
        )
    files = [path for each in foreign for path in each]
    if sla is None:
        raise UsageError(
            f"{files[0]}: is another tool's result and names no limits. Give the policy: "
            f"llmsla check {files[0]} --sla sla.yaml"
        )
    _refuse_twice(files)
    from ..importers.judge import judge

    return judge(files, load_policy(sla, to_run=False))


def _refuse_twice(files: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in files:
        digest = json_report.sha256(path)
        if digest in seen:
            raise UsageError(
                f"{path}: is the same as {seen[digest]}; its evidence would count twice. "
                "Give each run once"
            )
        seen[digest] = path

"""``llmsla init``: put the starter into a folder, overwriting nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ..errors import UsageError


def init(folder: Path) -> list[Path]:
    """Copy the starter files into ``folder`` (made when missing); returns what was written.

    All or nothing: when one of them is there already, none is written.

    Raises:
        UsageError: a file of that name exists, or the folder cannot be written.
    """
    starter = [f for f in (files("pytest_llmsla") / "starter").iterdir() if _belongs(f.name)]
    there = [folder / f.name for f in starter if (folder / f.name).exists()]
    if there:
        raise UsageError(
            f"{', '.join(map(str, there))}: exists already and is never overwritten. "
            "Give another folder, or move it away"
        )
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(starter, key=lambda f: f.name):
            path = folder / source.name
            # "x" refuses a file that appeared since the look above.
            with path.open("x", encoding="utf-8", newline="\n") as out:
                out.write(source.read_text(encoding="utf-8"))
            written.append(path)
    except OSError as e:
        raise UsageError(
            f"{folder}: cannot be written ({e.strerror or e}). Give a folder you may write"
        ) from e
    return written


def _belongs(name: str) -> bool:
    return not name.startswith(("__", ".")) and Path(name).suffix in (".yaml", ".py", ".md", ".txt")

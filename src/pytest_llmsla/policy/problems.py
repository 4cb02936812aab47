"""One thing that is wrong in a policy, and how checks read a mapping that may be wrong anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: at which key, and in words."""

    path: Path
    text: str


def dig(raw: object, *path: str | int, default: Any = None) -> Any:
    """The value at ``path``, ``default`` where any step is missing."""
    here: Any = raw
    for step in path:
        if isinstance(step, int):
            found = isinstance(here, (list, tuple)) and step < len(here)
        else:
            found = isinstance(here, Mapping) and step in here
        if not found:
            return default
        here = here[step]
    return here


def listed(raw: object, *path: str | int, default: Any = None) -> list[Any]:
    """The list at ``path``; empty where there is none."""
    found = dig(raw, *path, default=default)
    return list(found) if isinstance(found, (list, tuple)) else []


def whole(value: object) -> int | None:
    """``value`` when it is a whole number (a boolean is not), else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """``value`` when it is a number (a boolean is not), else None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def by_bucket_problems(
    raw: Mapping[str, Any], path: Path, what: str, form: str
) -> Iterator[Problem]:
    """Where the mapping ``{bucket: …}`` at ``path`` names no bucket, or leaves one out.

    ``what`` a bucket then lacks, and the ``form`` of it to add.
    """
    given = dig(raw, *path)
    if not isinstance(given, Mapping):
        return
    names = [n for n in (dig(b, "name") for b in listed(raw, "buckets")) if n]
    for unknown in [name for name in given if name not in names]:
        yield Problem(
            (*path, unknown),
            f"there is no bucket {unknown!r}; buckets: {', '.join(map(str, names))}",
        )
    for missing in [name for name in names if name not in given]:
        yield Problem(path, f"the bucket {missing!r} has no {what}: add {missing}: {form}")

"""``pkg.mod:factory`` → the object, with messages a person can act on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import TargetError, UsageError


def make_importable(base: Path) -> None:
    """Put the policy's folder ``base`` on the import path, ahead of the working directory."""
    _add(Path.cwd())
    first, here = str(base.absolute()), str(Path.cwd())
    if first not in sys.path or sys.path.index(first) > sys.path.index(here):
        sys.path.insert(0, first)


def _add(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def resolve_entry(entry: str, where: str) -> Callable[..., Any]:
    """The callable named ``pkg.mod:attribute``; the working directory is importable.

    Raises:
        UsageError: malformed, or no such module or attribute.
        TargetError: importing the module raised.
    """
    module_name, colon, attribute = entry.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{where} is {entry!r}; valid: 'package.module:factory'.")
    _add(Path.cwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and module_name.split(".")[0] == e.name.split(".")[0]:
            raise UsageError(
                f"{where} is {entry!r}: no module {module_name!r} beside the policy, in the "
                "working directory or installed. Put it beside the policy, or install it."
            ) from e
        raise TargetError(f"{where} {entry!r}: importing it failed: {e}") from e
    except Exception as e:
        raise TargetError(f"{where} {entry!r}: importing it raised {type(e).__name__}: {e}") from e
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as e:
            raise UsageError(f"{where} is {entry!r}: {module_name} has no {attribute!r}.") from e
    if not callable(found):
        raise UsageError(f"{where} is {entry!r}: it is {type(found).__name__}, not callable.")
    return found  # type: ignore[no-any-return]

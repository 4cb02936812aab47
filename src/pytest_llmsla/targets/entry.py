"""``pkg.mod:factory`` → the object, with messages a person can act on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import TargetError, UsageError


def resolve_entry(entry: str, where: str) -> Callable[..., Any]:
    """The callable named ``pkg.mod:attribute``; the current folder is importable.

    Raises:
        UsageError: malformed, or no such module or attribute.
        TargetError: importing the module raised.
    """
    module_name, colon, attribute = entry.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{where} is {entry!r}; valid: 'package.module:factory'.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and module_name.split(".")[0] == e.name.split(".")[0]:
            raise UsageError(
                f"{where} is {entry!r}: no module {module_name!r} here or installed. "
                f"Run from the folder that holds it, or install it."
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

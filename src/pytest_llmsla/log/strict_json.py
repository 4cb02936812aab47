"""JSON as a line holds it: read strictly, and anything made to fit it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .values import LARGEST

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = b"0" * len(str(LARGEST))
"""With every digit a 0: what may not fit 64 bits."""


def parse(data: bytes) -> object:
    """One line of strict JSON: no NaN, no infinity, no number over 64 bits, no key twice.

    Raises:
        ValueError: it is not.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            # Asked for each number it would take most of the time of reading a long run.
            parse_int=_int64 if _LONG in data.translate(_DIGITS) else None,
            parse_float=_finite,
            object_pairs_hook=no_key_twice,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number here")


def _int64(text: str) -> int:
    if len(text) > len(str(-LARGEST)) or abs(value := int(text)) > LARGEST:
        raise ValueError(f"{text[:20]}… is over 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where a key stands twice in it."""
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r:.60} stands twice in one object")
    return out


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: what it cannot (an object, NaN, ∞) becomes its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= LARGEST else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value)

"""Values of a line, checked one by one: of another type or out of range they are refused.

Every function raises TypeError or ValueError with the value's name, what it is and what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BRIEF = 80
LARGEST = 2**63 - 1
"""Times and counts fit 64 bits with sign; larger ones are damage and overflow a float."""


def whole(value: object, name: str, *, least: int = -LARGEST) -> int:
    """``value`` as a whole number from ``least``, within 64 bits.

    Raises:
        TypeError: it is none (a boolean and 1.0 are none).
        ValueError: it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r:.80}; valid: a whole number")
    if not least <= value <= LARGEST:
        bound = "a whole number of at most 64 bits" if abs(value) > LARGEST else f"from {least}"
        raise ValueError(f"{name} is out of range; valid: {bound}")
    return value


def count_or_none(line: Mapping[str, Any], name: str) -> int | None:
    """A number of things, from 0."""
    value = line.get(name)
    return None if value is None else whole(value, name, least=0)


def whole_or_none(line: Mapping[str, Any], name: str) -> int | None:
    """A whole number of either sign."""
    value = line.get(name)
    return None if value is None else whole(value, name)


def times_ms(line: Mapping[str, Any], name: str) -> dict[str, float]:
    """A mapping of finite numbers from 0, ms."""
    out = {}
    for key, value in mapping(line, name).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < LARGEST:
            raise ValueError(f"{name}.{key} is {value!r:.40}; valid: a number of ms from 0")
        out[key] = float(value)
    return out


def flag(line: Mapping[str, Any], name: str) -> bool:
    """True or false; false where it is left out."""
    value = line.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.80}; valid: true, false")
    return value


def identifier(line: Mapping[str, Any]) -> str:
    """The ``id`` of a request."""
    found = text(line["id"], "id")
    if not found:
        raise ValueError("id is empty; valid: text, another for every request")
    return found


def text(value: object, name: str) -> str:
    """``value`` as text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.80}; valid: text")
    return value


def text_or_none(line: Mapping[str, Any], name: str) -> str | None:
    """Text, or nothing."""
    value = line.get(name)
    return None if value is None else text(value, name)


def one_of(value: object, valid: tuple[Any, ...], name: str) -> Any:
    """``value`` where it is one of ``valid``: texts and None."""
    if not (value is None or isinstance(value, str)) or value not in valid:
        words = ", ".join("null" if v is None else repr(v) for v in valid)
        raise ValueError(f"{name} is {value!r:.80}; valid: {words}")
    return value


def mapping(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object; an empty one where it is left out."""
    value = line.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.80}; valid: an object")
    return value


def listed(value: object, name: str) -> list[Any]:
    """``value`` as a list."""
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r:.80}; valid: a list")
    return value


def brief(value: object) -> str:
    """A value of a line in a message: as Python writes it, at most 80 characters."""
    said = repr(value)
    return said if len(said) <= _BRIEF else f"{said[: _BRIEF - 3]}..."

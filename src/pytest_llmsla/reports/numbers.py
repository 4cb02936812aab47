"""How every number is written. One place, so that all reports show the same digits."""

from __future__ import annotations

import math

NOTHING = "–"
"""Stands for a number that does not exist. Never 0."""

_PLACES = {"ms": 1, "s": 1, "tokens/s": 1, "GiB": 2, "MiB": 1, "min": 1}
_MOST_PLACES = 9


def measured(value: float | None, unit: str = "", *, against: float | None = None) -> str:
    """A measured figure with its unit: ``381.0 ms``, ``50 %`` for shares, ``–`` for None.

    Digits are added until the text stands on the same side of ``against`` (the limit) as the
    value, so that 300.04 beside a limit of 300 never reads ``300.0``.
    """
    if value is None:
        return NOTHING
    if unit in ("share", "ratio"):
        return percent(value, against=against, places=1 if 0 < value < 0.1 else 0)
    return _with_unit(_digits(value, _PLACES.get(unit, 2), against), unit)


def limit(value: float | None, unit: str = "") -> str:
    """A limit as its author wrote it: ``300 ms``, ``0 %``."""
    if value is None:
        return NOTHING
    if unit in ("share", "ratio"):
        return percent(value)
    return _with_unit(plain(value), unit)


def percent(value: float | None, *, against: float | None = None, places: int = 0) -> str:
    """A share of 0–1 as ``88 %``; never 0 % or 100 % unless it is exactly that.

    ``places`` decimals at least, more where the text would cross ``against``.
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        raise ValueError(f"a share must be finite, got {value!r}")
    scaled = round(value * 100, 12)
    edge = 0.0 if against is None else round(against * 100, 12)
    for more in range(places, _MOST_PLACES):
        text = f"{scaled:.{more}f}"
        shown = float(text)
        hidden = (shown == 0 and scaled != 0) or (shown == 100 and scaled != 100)
        crossed = against is not None and _side(shown, edge) != _side(scaled, edge)
        if not hidden and not crossed:
            return f"{text} %"
    return f"{plain(scaled)} %"


def percentile(value: float | None) -> str:
    """``P95``, ``P99.9``; empty for None."""
    return "" if value is None else f"P{plain(value)}"


def confidence_of(alpha: float | None) -> str:
    """The confidence that an error probability leaves: α = .05 gives ``95 %``."""
    return "" if alpha is None else percent(1 - alpha)


def plain(value: float) -> str:
    """The shortest text that gives the number back, without a trailing ``.0``."""
    if not math.isfinite(value):
        raise ValueError(f"reports hold finite numbers only, got {value!r}")
    if isinstance(value, int) or value == int(value):
        return str(int(value))
    return repr(float(value))


def fact(value: float) -> str:
    """A recorded fact for reading: six significant digits; report.json has all of them."""
    if isinstance(value, int) or not math.isfinite(value) or value == int(value):
        return plain(value)
    return f"{value:.6g}"


def significant(value: float | None, unit: str = "") -> str:
    """Four significant digits, so that two figures and their ratio add up: ``0.006871 s/token``."""
    if value is None:
        return NOTHING
    whole = 1 if value == 0 else math.floor(math.log10(abs(value))) + 1
    return _with_unit(_digits(value, min(max(4 - whole, 0), _MOST_PLACES - 1), None), unit)


def times(ratio: float | None, tolerance: float) -> str:
    """A ratio with two decimals, more where the text would cross 1 + ``tolerance``: ``2.96``."""
    return NOTHING if ratio is None else _digits(ratio, 2, 1 + tolerance)


def duration(seconds: float | None) -> str:
    """Seconds as people say them: ``42 s``, ``6 min``, ``1 h 20 min``."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s" if whole >= 1 or seconds == 0 else f"{plain(round(seconds, 2))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def counted(n: int, one: str, many: str | None = None) -> str:
    """``1 request``, ``5 requests``."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def _digits(value: float, places: int, against: float | None) -> str:
    if not math.isfinite(value):
        raise ValueError(f"reports hold finite numbers only, got {value!r}")
    for more in range(places, _MOST_PLACES):
        text = f"{value:.{more}f}"
        if float(text) == 0 and value != 0:
            continue
        if against is None or _side(float(text), against) == _side(value, against):
            return text
    return plain(value)


def _side(value: float, against: float) -> int:
    return (value > against) - (value < against)


def _with_unit(text: str, unit: str) -> str:
    return f"{text} {unit}" if unit else text

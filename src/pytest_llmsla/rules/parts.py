"""Parts of a run: what one process measured on one clock. A run that was resumed has several.

The tests of a limit may go on over parts; a figure that needs its conditions may not, where these
are not the same in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..timeline import Timeline

DIFFER = "parts_reason"
"""Key of a condition that is not the same in every part: which part had what."""


@dataclass(frozen=True)
class Part:
    """What was answered in one clock segment, and the ``resources`` lines of that time."""

    ok: Sequence[Timeline]
    resources: Sequence[Mapping[str, Any]]


def parts_of(ok: Sequence[Timeline], resources: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The parts that answered something, in order of time.

    A line without a segment is of the only part; where there are several it is of none, because
    what one process read says nothing of another.
    """
    segments = sorted({t.segment for t in ok})
    default = segments[0] if len(segments) == 1 else None
    return [
        Part(
            [t for t in ok if t.segment == segment],
            [line for line in resources if line.get("segment", default) == segment],
        )
        for segment in segments
    ]


def in_words(told: Sequence[object]) -> str:
    """``part 1: …; part 2: …``, each told once."""
    return "; ".join(f"part {n}: {value}" for n, value in enumerate(told, 1))

"""Timelines as NumPy blocks: what workers on other machines send back.

Times of all requests stand in one array, so that a block crosses the network once and is not
copied, whatever number of tokens it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..timeline import Arrivals, Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TIMES = ("start_ns", "end_ns")
_APART = (*_TIMES, "arrivals", "scheduled_ns", "first_visible_ns")
_REST = tuple(f.name for f in fields(Timeline) if f.name not in _APART)


@dataclass(frozen=True)
class Block:
    """Some timelines, their times on the clock of the worker that stamped them."""

    times: NDArray[np.int64]
    """Shape (n, 3): start, end and first visible output, ns; the last −1 where there is none."""
    arrivals: NDArray[np.int64]
    """Shape (all arrivals, 2): time in ns, tokens."""
    ends: NDArray[np.int64]
    """Shape (n,): where the arrivals of each end in ``arrivals``."""
    rest: Sequence[tuple[Any, ...]]
    """Every other field of each, as it is."""


def pack(timelines: Sequence[Timeline]) -> Block:
    """Timelines as a block. Their ``scheduled_ns`` stays at home, where the schedule is."""
    import numpy as np

    pairs = [pair for t in timelines for pair in t.arrivals]
    sizes = [len(t.arrivals) for t in timelines]
    return Block(
        times=np.array(
            [
                (t.start_ns, t.end_ns, -1 if t.first_visible_ns is None else t.first_visible_ns)
                for t in timelines
            ],
            dtype=np.int64,
        ).reshape(-1, 3),
        arrivals=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        ends=np.cumsum(np.array(sizes, dtype=np.int64)),
        rest=[tuple(getattr(t, name) for name in _REST) for t in timelines],
    )


def unpack(block: Block, shift_ns: int) -> list[Timeline]:
    """The timelines of a block, ``shift_ns`` added to every time."""
    out, begin = [], 0
    for times, end, rest in zip(block.times.tolist(), block.ends.tolist(), block.rest, strict=True):
        start, stop, visible = times
        arrivals = block.arrivals[begin:end].copy()
        arrivals[:, 0] += shift_ns
        begin = end
        given = dict(zip(_REST, rest, strict=True))
        out.append(
            replace(
                Timeline(
                    id=given.pop("id"),
                    bucket=given.pop("bucket"),
                    start_ns=start + shift_ns,
                    end_ns=stop + shift_ns,
                    arrivals=Arrivals((at, k) for at, k in arrivals.tolist()),
                    first_visible_ns=None if visible < 0 else visible + shift_ns,
                ),
                **given,
            )
        )
    return out

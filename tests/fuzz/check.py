"""One damaged answer against everything that must hold for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

import ours
import whole
from mutate import mutated, reads

from pytest_llmsla.targets.http.target import HttpTarget

_BYTEWISE = 12  # every so many-th answer is also read byte by byte


class Fuzz:
    """Runs seeds; counts what came out."""

    def __init__(self) -> None:
        self._targets: Mapping[str, HttpTarget] = ours.targets()
        self.outcomes: Counter[str] = Counter()

    def run(self, seed: int) -> str | None:
        """None, or what went wrong with the answer of this seed."""
        rng = Random(seed)
        dialect, raw = mutated(rng)
        try:
            return self.check(dialect, raw, rng, bytewise=seed % _BYTEWISE == 0)
        except Exception as e:  # anything that is not a result is a crash
            return f"{type(e).__name__}: {e}"

    def check(self, dialect: str, raw: bytes, rng: Random, *, bytewise: bool = False) -> str | None:
        """None, or which property these bytes break."""
        target = self._targets[dialect]
        one = ours.read(target, [raw])
        found = _wrong(one, whole.read(dialect, raw), raw)
        self.outcomes["answers"] += 1
        self.outcomes["sound" if one.error is None else "errors"] += 1
        self.outcomes["estimated"] += one.estimated
        if found is not None:
            return found
        cut = reads(rng, raw)
        found = _differ(one, ours.read(target, cut, Random(rng.random())), [raw], cut)
        if found is None and bytewise:
            single = [raw[i : i + 1] for i in range(len(raw))]
            found = _differ(ours.read(target, single), one, single, [raw])
        return found


def _wrong(result: ours.Result, reading: whole.Reading, raw: bytes) -> str | None:
    """What an answer that is taken for sound has to be."""
    if result.error is not None:
        return None
    if reading.broken is not None:
        return f"taken for sound, but {reading.broken}"
    if result.text != reading.text:
        return f"text {result.text!r}, but the server said {reading.text!r}"
    if not result.arrivals or any(k < 1 for _, k in result.arrivals):
        return f"arrivals {result.arrivals}"
    stamps = [at for at, _ in result.arrivals]
    if stamps != sorted(stamps) or stamps[-1] > len(raw) + 1:
        return f"stamps {stamps}"
    placed = sum(k for _, k in result.arrivals)
    if placed != result.output_tokens:
        return f"{placed} tokens placed, {result.output_tokens} counted"
    if result.estimated or result.source == "events":
        return None  # the rules give no ITL verdict on these
    if len(result.arrivals) > reading.carriers:
        return f"{len(result.arrivals)} arrivals of {reading.carriers} events"
    if result.output_tokens != reading.total:
        return f"{result.output_tokens} tokens, but the server counted {reading.total}"
    return None


def _differ(
    a: ours.Result, b: ours.Result, a_reads: Sequence[bytes], b_reads: Sequence[bytes]
) -> str | None:
    """Two readings of the same bytes: equal, and stamped at the end of the read that completed."""
    if replace(a, arrivals=(), error=None) != replace(b, arrivals=(), error=None):
        return f"{a} in {len(a_reads)} reads, {b} in {len(b_reads)}"
    if (a.error is None) != (b.error is None):
        return f"{a.error!r} in {len(a_reads)} reads, {b.error!r} in {len(b_reads)}"
    if [k for _, k in a.arrivals] != [k for _, k in b.arrivals]:
        return f"arrivals {a.arrivals} and {b.arrivals}"
    if len(a_reads) > len(b_reads):
        a, b, a_reads, b_reads = b, a, b_reads, a_reads
    # b was read in smaller steps; where a's cuts are among b's, its stamps follow from b's.
    ends = list(accumulate(map(len, a_reads)))
    if set(ends) <= set(accumulate(map(len, b_reads))):
        for (at, _), (exact, _) in zip(a.arrivals, b.arrivals, strict=True):
            if at not in _read_ends(ends, exact):
                return f"stamps {a.arrivals}, though {b.arrivals} were read a byte at a time"
    return None


def _read_ends(ends: Sequence[int], exact: int) -> set[int]:
    """When an event whose last byte is at ``exact`` may be stamped: at the end of its read, or a
    nanosecond later where it follows another event of the same read by order."""
    found = {ends[min(bisect_left(ends, at), len(ends) - 1)] for at in (exact - 1, exact)}
    return found | {end + 1 for end in found}

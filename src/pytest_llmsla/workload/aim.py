"""Which lengths to make prompts for, when counts are exact and when they are estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UsageError

_SLACK = 2  # tokens: what an opening word may take more or less than estimated


@dataclass(frozen=True, slots=True)
class Aim:
    """Lengths of a bucket's prompts by our own count, tokens, both ends included."""

    lo: int
    top: int
    """The top quarter of the bucket begins here."""
    hi: int

    def upper(self) -> Aim:
        """The part in the top quarter, as a range of its own."""
        return Aim(self.top, top_quarter(self.top, self.hi), self.hi)


def top_quarter(lo: int, hi: int) -> int:
    """Shortest length, tokens, that lies in the top quarter of ``lo`` … ``hi``, both included."""
    return min(hi, lo + math.ceil(0.75 * (hi - lo + 1)))


def aim_at(bucket: str, lo: int, hi: int, margin: float) -> Aim:
    """Where prompts of ``lo`` … ``hi`` tokens are aimed at.

    Args:
        bucket: its name, for the message.
        lo: shortest length of the bucket, tokens.
        hi: longest.
        margin: relative error of the counts. Prompts keep away from both edges by as much, so
            that the server's own count stays inside. The top quarter begins half a margin above
            its edge: every second prompt is aimed there, and a third has to be.

    Raises:
        UsageError: with this margin no prompt is sure to lie inside, or in the top quarter.
    """
    if not margin:
        return Aim(lo, top_quarter(lo, hi), hi)
    inside = Aim(
        lo if lo <= 1 else math.ceil(lo * (1 + margin)) + _SLACK,
        math.ceil((hi - (hi - lo) / 4) * (1 + margin / 2)),
        math.floor(hi * (1 - margin)) - _SLACK,
    )
    if inside.lo > inside.hi or inside.top > inside.hi:
        raise UsageError(
            f"bucket {bucket} ({lo}–{hi} tokens) is too narrow for prompt lengths that are "
            f"estimated within {margin:.1%}: too few prompts would be sure to lie in its upper "
            "quarter. Set target.tokenizer to the served model's folder (then lengths are exact), "
            "or widen the bucket"
        )
    return inside

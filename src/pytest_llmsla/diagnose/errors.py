"""Why requests failed: equal errors together, the commonest first, with what usually helps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..finding import Finding
from ..timeline import Timeline
from . import series

MOST_KINDS = 3

_HELP: tuple[tuple[str, str], ...] = (
    (r"out of memory|can't allocate|cannot allocate", "fewer tokens, a smaller dtype, more memory"),
    (r"context|max_position|too long|longer than", "shorter prompts or a smaller max_new_tokens"),
    (r"deadline|timed? ?out", "a longer time limit, or find what hangs"),
    (r"\bnan\b|non-finite|\binf\b", "another dtype: half precision overflows on some models"),
    (r"in flight", "the run was ended from outside while it waited for an answer"),
    (r"refused|reset|unreachable", "is the service up and reachable"),
    (r"outside (of )?(its|the) bucket|not in bucket", "count prompts with the model's tokenizer"),
)


def explain(finding: Finding, timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """One line for each of the commonest kinds of error; empty when no request failed.

    Args:
        finding: a finding of rule ``error``.
        timelines: requests of the run; those of other buckets and gates are ignored.
    """
    mine = series.evidence_of(finding, timelines)
    kinds = Counter(kind_of(t.error) for t in mine if not t.ok)
    return tuple(_line(kind, n, len(mine)) for kind, n in kinds.most_common(MOST_KINDS))


def kind_of(error: str | None) -> str:
    """The first line of an error with its figures and addresses taken out.

    Errors that differ in nothing else are of one kind.
    """
    first = (error or "no cause given").strip().split("\n", 1)[0]
    return re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "N", first)[:200]


def _line(kind: str, n: int, total: int) -> str:
    text = f"{n} of {total} requests failed with: {kind}"
    for pattern, help_text in _HELP:
        if re.search(pattern, kind, re.IGNORECASE):
            return f"{text} → {help_text}"
    return text

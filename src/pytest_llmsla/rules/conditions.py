"""The four conditions of a TGS figure: as the run recorded them, and whether one is unknown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..finding import CONDITIONS
from ..stats import nearest_rank
from ..timeline import Timeline
from . import memory
from .base import length_summary
from .parts import DIFFER, Part, in_words, parts_of

_HOW = {
    "prompt_lengths": "the target must tell the prompt's token count",
    "sampling": "give the sampling parameters as sent, by name or in words",
    "concurrency": "give the number of requests in flight",
    "memory": "make a figure readable (process RSS, framework peak, NVML), or for a server "
    "declare it with target.memory_gib and target.memory_source",
}


ALONE: Mapping[str, Any] = {"asked": 1, "actual": 1.0}
"""The concurrency of requests that were sent one at a time."""


def conditions(
    ok: Sequence[Timeline],
    resources: Sequence[Mapping[str, Any]],
    concurrency: Mapping[str, Any] = ALONE,
) -> dict[str, Any]:
    """The four conditions as the run recorded them; a value is None where it is unknown.

    ``concurrency``: ``asked`` and ``actual``; without ``actual`` it is unknown, for the reasons
    that it holds. A condition that differs between the parts of a resumed run is one that no
    pooled figure has: it holds :data:`parts.DIFFER` alone.
    """
    parts = parts_of(ok, resources)
    known = ok and concurrency.get("actual") is not None
    why = {key: text for key, text in concurrency.items() if key.endswith("_reason")}
    return {
        "prompt_lengths": _prompt_lengths(ok),
        "sampling": _other_sampling(parts) or _sampling(ok),
        "concurrency": dict(concurrency) if known else why or None,
        "memory": memory.condition(parts),
    }


def differ(given: Mapping[str, Any]) -> bool:
    """True where a condition is not the same in every part of the run."""
    return any(isinstance(value, Mapping) and DIFFER in value for value in given.values())


def _other_sampling(parts: Sequence[Part]) -> dict[str, Any] | None:
    """What each part sent, where that is not the same; None where it is."""
    told = [sorted({_as_sent(t) for t in part.ok}) for part in parts]
    if all(sent == told[0] for sent in told):
        return None
    return {DIFFER: in_words([" and ".join(sent) for sent in told])}


def _as_sent(t: Timeline) -> str:
    sampling = json.dumps(dict(t.sampling), sort_keys=True, default=str)
    return f"{sampling} for {t.max_new_tokens} tokens"


def _sampling(ok: Sequence[Timeline]) -> dict[str, Any] | None:
    """As sent with every request; several ways are all named, one unknown makes it unknown."""
    seen: list[dict[str, Any]] = []
    for t in ok:
        if not t.sampling:
            return None
        if dict(t.sampling) not in seen:
            seen.append(dict(t.sampling))
    if len(seen) > 1:
        return {"mixed": seen}
    return seen[0] if seen else None


def _prompt_lengths(ok: Sequence[Timeline]) -> dict[str, Any] | None:
    lengths = sorted(t.prompt_tokens for t in ok if t.prompt_tokens is not None)
    if not lengths or len(lengths) != len(ok):
        return None
    return {
        **length_summary(ok),
        "p95": nearest_rank(lengths, 0.95),
        "requests": len(lengths),
        "histogram": histogram(lengths),
        "by_bucket": dict(Counter(t.bucket for t in ok)),
        "source": sorted({t.token_source or "unknown" for t in ok}),
    }


def histogram(lengths: Sequence[int]) -> dict[str, int]:
    """Requests by prompt length, tokens, in ranges that double: ``{"65–128": 40, …}``."""
    counts: Counter[int] = Counter(max(1, n - 1).bit_length() if n > 1 else 0 for n in lengths)
    return {
        f"{2 ** (k - 1) + 1}–{2**k}" if k > 1 else str(k + 1): counts[k] for k in sorted(counts)
    }


def undocumented(given: Mapping[str, Any]) -> str:
    """``undocumented: memory …`` with how to document it, or an empty string."""
    missing = [name for name in CONDITIONS if not _documents(name, given.get(name))]
    if not missing:
        return ""
    how = "; ".join(f"{name}: {_how(name, given.get(name))}" for name in missing)
    return f"undocumented: {', '.join(missing)} ({how})"


def _how(name: str, value: object) -> str:
    """How to document a condition, and the reasons on record why it is not, each once."""
    if not isinstance(value, Mapping):
        return _HOW[name]
    if DIFFER in value:
        return (
            f"not the same in every part of this run ({value[DIFFER]}), so there is no one figure: "
            "judge each part by itself, or start a new run without --sla-resume"
        )
    said = dict.fromkeys(str(reason) for reason in value.values())
    return f"{_HOW[name]}; now: {'; '.join(said)}" if said else _HOW[name]


_FIGURES = ("prompt_lengths", "concurrency", "memory")
"""Conditions that are numbers, above 0, or words."""
_NO_NUMBERS = frozenset(("nan", "inf", "-inf", "infinity", "-infinity"))
_NO_WORDS = _NO_NUMBERS | {
    "unknown", "unspecified", "undefined", "undocumented", "missing", "unavailable", "n/a", "na",
    "none", "null", "nil", "tbd", "tba", "todo", "fixme",
}  # fmt: skip


def _documents(name: str, value: object) -> bool:
    """Whether a condition, as recorded or given by hand, tells what it was.

    Nothing in it may be no number (NaN, infinite), and something has to be told: 0 of what is
    counted is nothing.
    """
    if isinstance(value, bool) or (name == "sampling" and isinstance(value, (int, float))):
        return False  # a bare number names no parameter
    leaves = list(_leaves(value))
    if any(str(leaf).strip().lower() in _NO_NUMBERS for leaf in leaves):
        return False
    if name not in _FIGURES:
        return any(map(_tells, leaves))
    # Among names and values a text may be a device or a source; a figure begins with its number.
    named = name == "memory" and isinstance(value, Mapping)
    return any(_tells(leaf) and _figure(leaf, first=named) for leaf in leaves)


def _leaves(value: object) -> Iterator[object]:
    """What a condition holds, however nested; reasons why something is unknown are left out."""
    left = [value]
    while left:  # no recursion: a line of a log may nest deeper than the stack
        one = left.pop()
        if isinstance(one, Mapping):
            left += [inner for key, inner in one.items() if not str(key).endswith("_reason")]
        elif isinstance(one, (list, tuple)):
            left += one
        else:
            yield one


def _tells(leaf: object) -> bool:
    """Whether a value says anything."""
    text = str(leaf).strip().lower()
    return text not in _NO_WORDS and not text.startswith("<") and any(map(str.isalnum, text))


def _figure(leaf: object, *, first: bool) -> bool:
    """Whether a value is, or names, more than 0. ``first``: its number comes first."""
    if isinstance(leaf, bool):
        return False
    if isinstance(leaf, (int, float)):
        return leaf > 0
    text = str(leaf).lstrip("~<≤≈ ")
    digits = set(filter(str.isdigit, text))
    return digits != {"0"} and (not first or text[:1].isdigit())

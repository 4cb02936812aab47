"""What every reader of another tool's result file gives, and how it reads a value.

A reader trusts nothing: a value of another type, a time that runs backwards, counts that
contradict each other are usage errors with the place in the file, because evidence that cannot be
understood cannot pass.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from ..log.values import LARGEST
from ..timeline import NS_PER_MS, NS_PER_S, Timeline

UNPLACED = "the tool keeps no time of each token"
"""Beginning of an estimate's reason where only the first and the last token have a time."""

NOT_STREAMED = (
    "not streamed: the answers came whole, so no time of a token is on record. Measure with "
    "streaming on"
)
"""Why answers without the time of any token show no TTFT and no ITL."""

NO_TOKEN = "no output token"
"""Why a request failed that its tool calls answered: nothing came."""

NO_FIRST = "no time of a first token"
"""Why a request failed that its tool calls answered: nobody knows when it began to answer."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
"""Sampling parameters that are looked for in what was sent."""

_SAME = 0.02  # summaries are made of the same numbers; they differ by rounding only
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UNIT = 100  # between units lies 1000, and what a slow ending adds is no multiple of the gaps
_ENDING_NS = 200 * NS_PER_MS
_LATEST_S = 10**8  # three years: a latency beyond it is damage


@dataclass(frozen=True)
class Series:
    """A metric as a summary gives it, ms."""

    percentiles: Mapping[float, float]
    """Percentile (0–100) → ms."""
    count: int | None
    """Samples it rests on; None: the file does not say."""
    mean: float | None = None
    per_request_mean: bool = False
    """True where each sample is a request's mean: no inter-token latency."""


@dataclass(frozen=True)
class Value:
    """One request of a file that has no times of day: its figures, not its place in the run."""

    prompt_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    gaps_ms: tuple[float, ...] = ()
    error: str | None = None
    unsure: str | None = None
    """Why it has no TTFT although it was answered."""
    unplaced: str | None = None
    """Why its gaps are not those between tokens; None: they are, or it has none."""


@dataclass(frozen=True)
class Summary:
    """What a file without usable requests still says."""

    completed: int | None
    failed: int | None
    """None: the file does not say how many failed."""
    ttft: Series | None = None
    itl: Series | None = None
    shortest: int | None = None
    longest: int | None = None
    """Shortest and longest prompt, tokens; None: not on record."""
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class Run:
    """One load that another tool put on a service.

    Either ``timelines`` (requests with their times: full verdicts), or ``values`` (requests
    without their place in time) or ``summary``: both observed only.
    """

    tool: str
    path: Path
    percentile_method: str
    """How the tool itself takes percentiles; shown with observed figures."""
    version: str | None = None
    model: str | None = None
    started: str | None = None
    concurrency: int | None = None
    """Requests in flight as asked for; None with a rate: open loop; None: not on record."""
    rate: float | None = None
    """Requests/s of an open loop."""
    timelines: tuple[Timeline, ...] = ()
    values: tuple[Value, ...] = ()
    summary: Summary | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters as sent; empty: not on record."""
    no_itl: str | None = None
    """Why this file shows no inter-token latency; None: it does."""
    partial: str | None = None
    """Why requests may be missing of which nothing is on record; None: the run ended as planned."""
    unplaced: bool = False
    """True where only the first and last token of an answer have a time."""
    start_point: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beside: tuple[Path, ...] = ()
    """Files of the same run that were read and agree."""


class Place:
    """A place in a file, for messages: ``run.json: requests[3].ttft``."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name

    def at(self, key: object) -> Place:
        """A place below this one."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.name else str(key)
        return Place(self.path, f"{self.name}{step}")

    def refuse(self, text: str) -> NoReturn:
        """Raise the usage error for this place."""
        where = f"{self.path}: {self.name}" if self.name else f"{self.path}"
        stop = "" if text.endswith("?") else "."
        raise UsageError(
            f"{where} {text}{stop} The file is damaged, edited or of another version: give the "
            "file as the tool wrote it"
        )


def mapping(value: object, place: Place) -> Mapping[str, Any]:
    """``value`` as an object; refuses anything else."""
    if not isinstance(value, Mapping):
        place.refuse(f"is {value!r:.60}; valid: an object")
    return value


def rows(value: object, place: Place) -> list[Any]:
    """``value`` as a list; refuses anything else."""
    if not isinstance(value, list):
        place.refuse(f"is {value!r:.60}; valid: a list")
    return value


def number(value: object, place: Place) -> float:
    """A number from 0 to :data:`LARGEST`; text, booleans, NaN, ∞ and others are refused.

    What is let through can be scaled to any unit of time and rounded.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        place.refuse(f"is {value!r:.60}; valid: a number")
    if isinstance(value, float) and not math.isfinite(value):
        place.refuse(f"is {value!r}; valid: a finite number")
    if value < 0:
        place.refuse(f"is {value!r:.60}; no time or count is negative")
    if value > LARGEST:  # no float holds an int of 400 digits
        place.refuse(f"is {value!r:.60}; no time or count is that large")
    return float(value)


def number_or_none(value: object, place: Place) -> float | None:
    """:func:`number`, or None where there is none."""
    return None if value is None else number(value, place)


def count(value: object, place: Place) -> int:
    """A whole number from 0, of 64 bits; 16.0 is one, 16.5 is none."""
    given = number(value, place)
    if given != int(given):
        place.refuse(f"is {value!r:.60}; valid: a whole number")
    return value if isinstance(value, int) else int(given)


def count_or_none(value: object, place: Place) -> int | None:
    """:func:`count`, or None where there is none."""
    return None if value is None else count(value, place)


def prompt_tokens(value: object, place: Place) -> int | None:
    """:func:`count_or_none`; 0 is no length, whatever a tool means by it."""
    return count_or_none(value, place) or None


def text_or_none(value: object) -> str | None:
    """Non-empty text, else None: names are for reading only."""
    return value if isinstance(value, str) and value.strip() else None


def utc_or_none(value: object) -> str | None:
    """A moment in ISO 8601 with its offset, else None: one without says nothing."""
    return value if isinstance(value, str) and _MOMENT.fullmatch(value) else None


def ns(seconds: float, place: Place) -> int:
    """Seconds as whole nanoseconds."""
    if seconds > 100 * _LATEST_S:
        place.refuse(f"is {seconds!r} s; valid: a time in seconds")
    return round(seconds * NS_PER_S)


def span_ns(seconds: float, place: Place) -> int:
    """A duration in seconds as whole nanoseconds."""
    if seconds > _LATEST_S:
        place.refuse(f"is {seconds!r} s; valid: a duration in seconds")
    return round(seconds * NS_PER_S)


def spans_ns(values: object, place: Place, factor: float = NS_PER_S) -> list[int]:
    """A list of durations as whole nanoseconds; ``factor``: nanoseconds of their unit.

    A run may have millions of them, so that a place is only made for one that is refused.
    """
    out = []
    for n, value in enumerate(rows(values, place)):
        if type(value) is float and 0 <= value <= _LATEST_S:
            out.append(round(value * factor))
        else:
            at = place.at(n)
            out.append(span_ns(number(value, at) * factor / NS_PER_S, at))
    return out


def same_length(place: Place, **lists: Sequence[object]) -> int:
    """The one length of parallel lists; refuses two."""
    sizes = {name: len(values) for name, values in lists.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {n}" for name, n in sizes.items())
        place.refuse(f"holds lists of different length ({told}), one entry a request")
    return next(iter(sizes.values()))


def agree(place: Place, what: str, said: float | None, made: float | None, unit: str = "") -> None:
    """Refuse a summary that its own requests contradict; None says nothing."""
    if said is None or made is None:
        return
    if abs(said - made) > _SAME * max(abs(said), abs(made)) + 1e-9:
        place.refuse(f"says {what} {said:g}{unit}, but its requests give {made:g}{unit}")


def agree_percentiles(
    place: Place, what: str, said: Series | None, values_ms: Sequence[float]
) -> None:
    """Refuse a summary whose percentiles, interpolated linearly, its own requests contradict."""
    ordered = sorted(values_ms)
    for level, ms in (said.percentiles if said is not None and ordered else {}).items():
        at = min(level, 100.0) / 100 * (len(ordered) - 1)
        low, high = ordered[int(at)], ordered[min(int(at) + 1, len(ordered) - 1)]
        agree(place, f"{what} P{level:g}", ms, low + (high - low) * (at - int(at)), " ms")


def same_count(place: Place, what: str, said: int | None, made: int) -> None:
    """Refuse a count that the requests contradict; None says nothing."""
    if said is not None and said != made:
        place.refuse(f"says {what} {said}, but its requests give {made}")


def series(
    percentiles: Mapping[float, float],
    place: Place,
    *,
    samples: int | None,
    mean: float | None = None,
    least: float | None = None,
    most: float | None = None,
    per_request_mean: bool = False,
) -> Series | None:
    """A summary's metric in ms, None without a percentile; refuses one that contradicts itself.

    Percentiles must rise, lie within least and most, and be above 0.
    """
    if not percentiles:
        return None
    ordered = sorted(percentiles.items())
    for (low, a), (high, b) in itertools.pairwise(ordered):
        if a > b * (1 + 1e-9):
            place.refuse(f"has P{low:g} {a:g} ms above P{high:g} {b:g} ms")
    if ordered[0][1] <= 0:
        place.refuse(
            f"has P{ordered[0][0]:g} of {ordered[0][1]:g} ms: a latency of 0 was not measured"
        )
    slack = 1 + 1e-9
    if most is not None and ordered[-1][1] > most * slack:
        place.refuse(f"has P{ordered[-1][0]:g} above its own maximum {most:g} ms")
    if least is not None and ordered[0][1] * slack < least:
        place.refuse(f"has P{ordered[0][0]:g} below its own minimum {least:g} ms")
    return Series(dict(percentiles), samples, mean, per_request_mean)


def failed(
    n: int, error: str, *, start_ns: int, prompt_tokens: int | None, warmup: bool = False
) -> Timeline:
    """Request ``n`` that the tool recorded as failed."""
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start_ns,
        end_ns=start_ns,
        prompt_tokens=prompt_tokens,
        status="error",
        error=error,
        stamp="user",
        warmup=warmup,
    )


def answered(made: Iterable[Timeline]) -> int:
    """How many of these requests their tool calls answered: empty answers are, there."""
    return sum(t.ok or t.error in (NO_TOKEN, NO_FIRST) for t in made)


def asked_of(body: Mapping[str, Any], place: Place) -> int:
    """Output tokens that a request's body asks for; 0: it does not say."""
    names = ("max_completion_tokens", "max_tokens")
    found = next((body[name] for name in names if body.get(name) is not None), None)
    return count_or_none(found, place.at("max_tokens")) or 0


def spaced(place: Place, ttft_ns: int, gaps_ns: Sequence[int], whole_ns: int) -> None:
    """Refuse gaps that leave an answer shorter or far longer than they say: another unit.

    A server that is slow to close an answer does not leave that much.
    """
    spread = sum(gaps_ns)
    if whole_ns < ttft_ns + spread - NS_PER_MS:
        place.refuse("took less time than its tokens took to arrive")
    if gaps_ns and whole_ns - ttft_ns > _UNIT * spread + _ENDING_NS:
        place.refuse(
            f"took {(whole_ns - ttft_ns) / NS_PER_MS:.0f} ms from its first token to its last, but "
            f"its gaps are {spread / NS_PER_MS:g} ms together: are these seconds?"
        )


def one_model(names: Iterable[object], place: Place) -> str | None:
    """The one model that requests name, None where none does; refuses several."""
    found = {name: None for n in names if (name := text_or_none(n)) is not None}
    if len(found) > 1:
        listed = ", ".join(found)
        raise UsageError(
            f"{place.path}: its requests went to {len(found)} models ({listed[:200]}), and a "
            "policy is about one. Measure them one by one"
        )
    return next(iter(found), None)


def sampling_of(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What every request said of its sampling; nothing where they differ or say nothing."""
    found = [{k: b[k] for k in SAMPLING if b.get(k) is not None} for b in bodies]
    return known(found[0]) if found and all(f == found[0] for f in found) else {}


def known(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """``sampling``, or nothing where a number in it was never sent: NaN, ∞, over 64 bits."""
    numbers = [v for v in sampling.values() if isinstance(v, (int, float))]
    sane = all(-LARGEST <= v <= LARGEST for v in numbers)  # False for NaN
    return dict(sampling) if sane else {}

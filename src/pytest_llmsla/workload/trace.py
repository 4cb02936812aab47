"""A recorded trace: when requests came, and how long their prompts were where it says so."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..timeline import NS_PER_S

_UNITS = {"s": NS_PER_S, "ms": NS_PER_S // 1000}
_NAMED = {"at_s": "s", "timestamp_s": "s", "at_ms": "ms", "timestamp_ms": "ms"}
_PLAIN = ("timestamp", "at", "arrival", "arrival_time")
_LENGTHS = ("input_length", "prompt_tokens", "prompt_length", "input_tokens", "contexttokens")
_LONGEST_NS = 366 * 86_400 * NS_PER_S
_TOO_LARGE = 1e13
_SHAPES = (
    "one object a line (.jsonl) or a table with a header (.csv), each with at_s, at_ms or "
    "timestamp, and, if known, input_length in tokens"
)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request of a trace."""

    at_ns: int
    """From the trace's first request."""
    prompt_tokens: int | None
    """None where the trace does not say."""


@dataclass(frozen=True)
class Trace:
    """A recorded trace, in the order of its times."""

    entries: tuple[TraceEntry, ...]
    sha256: str
    """Of the file."""

    @property
    def span_ns(self) -> int:
        """From the first request to the last."""
        return self.entries[-1].at_ns

    @property
    def cycle_ns(self) -> int:
        """From one replay to the next: the span and one mean gap, so that the last request and the
        first do not come together. 0 where all come at once."""
        n = len(self.entries)
        return self.span_ns + (self.span_ns // (n - 1) if n > 1 else 0)

    @property
    def rate(self) -> float | None:
        """Mean requests/s; None where all come at once."""
        return len(self.entries) / self.cycle_ns * NS_PER_S if self.cycle_ns else None

    def within(self, seconds: float) -> float:
        """How often it is replayed in that time: 1 where all come at once, as it is then over."""
        return seconds * NS_PER_S / self.cycle_ns if self.cycle_ns else 1.0

    def at_rate(self, rate: float) -> Trace:
        """The same requests at another mean rate, requests/s: every time times one factor, so that
        bursts and pauses keep their proportions.

        Raises:
            UsageError: it has no rate, as all its requests come at once.
        """
        own = self.rate
        if own is None:
            raise UsageError(
                f"the requests of the trace ({len(self.entries)}) all come at one moment, so there "
                f"is no rate that could be made {rate:g} requests/s; remove workload.load.rate, or "
                "give a trace with at least two times"
            )
        return replace(
            self,
            entries=tuple(replace(e, at_ns=round(e.at_ns * own / rate)) for e in self.entries),
        )

    def shares(
        self, ranges: Mapping[str, tuple[int, int]], weights: Mapping[str, float]
    ) -> dict[str, float]:
        """Requests of each bucket of ``{name: (lo, hi)}`` in one replay; those without a length are
        mixed by ``weights``."""
        counts = Counter(nearest_range(e.prompt_tokens, ranges) for e in self.entries)
        mixed, whole = counts.pop(None, 0), sum(weights.values())
        return {name: counts[name] + mixed * weights[name] / whole for name in ranges}

    def words(self, ranges: Mapping[str, tuple[int, int]]) -> str:
        """``1200 requests in 600 s (2 requests/s), sha256 …``, and how many are of lengths that no
        bucket has."""
        rate = "at one moment" if self.rate is None else f"{self.rate:.3g} requests/s"
        n, span = len(self.entries), self.span_ns / NS_PER_S
        out = f"{n} requests in {span:g} s ({rate}), sha256 {self.sha256}"
        lengths = [e.prompt_tokens for e in self.entries if e.prompt_tokens is not None]
        outside = sum(all(not lo <= k <= hi for lo, hi in ranges.values()) for k in lengths)
        if outside:
            out += (
                f"; {outside} of them are of lengths that no bucket has ({min(lengths)}–"
                f"{max(lengths)} tokens in the trace) and are sent as prompts of the nearest one"
            )
        return out

    def facts(self) -> dict[str, Any]:
        """What was replayed, for the log."""
        return {
            "trace_sha256": self.sha256,
            "trace_requests": len(self.entries),
            "trace_span_s": self.span_ns / NS_PER_S,
        }


def nearest_range(tokens: int | None, ranges: Mapping[str, tuple[int, int]]) -> str | None:
    """The bucket of ``{name: (lo, hi)}`` that a recorded length belongs to, or is nearest to; None
    where no length is known."""
    if tokens is None or not ranges:
        return None
    n = tokens
    return min(ranges, key=lambda name: max(ranges[name][0] - n, n - ranges[name][1], 0))


def read_trace(path: Path, unit: str | None = None, sha256: str | None = None) -> Trace:
    """Read a trace.

    ``.jsonl`` and ``.csv``: a time under ``at_s``, ``at_ms``, ``timestamp_s``, ``timestamp_ms``,
    or under ``timestamp`` as a number in ``unit`` or as an ISO 8601 date (without a zone: UTC);
    the prompt's length under ``input_length``, ``prompt_tokens`` or ``ContextTokens`` (any case).

    Args:
        path: the file.
        unit: ``s`` or ``ms``, of a plain number under ``timestamp``; None where no such number is.
        sha256: what the file must have; None: anything.

    Raises:
        UsageError: the file cannot be read, is another one, is empty, or a line has no time that
            is one.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as e:
        raise UsageError(
            f"cannot read the trace {path}: {getattr(e, 'strerror', None) or e}; give the path of "
            "a .jsonl or .csv file (workload.load.trace)"
        ) from e
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and sha256 != found:
        raise UsageError(
            f"the trace {path} has the sha256 {found}, and the policy is of {sha256} "
            "(workload.load.trace_sha256): it was changed. Restore it, or start again with this one"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise UsageError(f"the trace {path} is not UTF-8; save it as UTF-8") from e
    rows = _table(path, text) if path.suffix.lower() == ".csv" else _lines(path, text)
    entries = [_entry(f"{path}:{number}", row, unit) for number, row in rows]
    if not entries:
        raise UsageError(f"the trace {path} holds no request; it is {_SHAPES}")
    entries.sort(key=lambda e: e.at_ns)
    first, last = entries[0].at_ns, entries[-1].at_ns
    if last - first > _LONGEST_NS:
        raise UsageError(
            f"the trace {path} spans {(last - first) / NS_PER_S / 86_400:.0f} days, more than a "
            "year: its times are not all of one kind or unit (workload.load.trace_unit), or its "
            "first or last line is wrong"
        )
    return Trace(tuple(replace(e, at_ns=e.at_ns - first) for e in entries), found)


def _table(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as e:
        raise UsageError(f"{path}:{reader.line_num} is no table ({e}); a trace is {_SHAPES}") from e


def _lines(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"{path}:{number} is not JSON ({e}); a trace is {_SHAPES}") from e
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number} is no object; a trace is {_SHAPES}")
        yield number, row


def _entry(where: str, row: Mapping[str, Any], unit: str | None) -> TraceEntry:
    # A row that is longer than the table's header has a key None.
    keys = {str(k).strip().lower(): v for k, v in row.items() if k is not None}
    at = _time(where, keys, unit)
    for name in _LENGTHS:
        if keys.get(name) not in (None, ""):
            return TraceEntry(at, _length(where, name, keys[name]))
    return TraceEntry(at, None)


def _time(where: str, row: Mapping[str, Any], unit: str | None) -> int:
    for name, named in _NAMED.items():
        if name in row:
            return _scaled(where, name, row[name], named)
    for name in _PLAIN:
        if name not in row:
            continue
        value = row[name]
        if isinstance(value, str) and _number(value) is None and (at := _date(value)) is not None:
            return at
        if unit is None:
            raise UsageError(
                f"{where}: {name} is {value!r:.40}, and nothing says in which unit; set "
                "workload.load.trace_unit to s or ms"
            )
        return _scaled(where, name, value, unit)
    raise UsageError(f"{where} has no time; a trace is {_SHAPES}. It has: {', '.join(row)[:200]}")


def _scaled(where: str, name: str, value: Any, unit: str) -> int:
    number = _number(value)
    if number is None or not 0 <= number < _TOO_LARGE:
        raise UsageError(
            f"{where}: {name} is {value!r:.40}; valid: a number from 0, under {_TOO_LARGE:.0f}, "
            f"in {unit}"
        )
    return round(number * _UNITS[unit])


def _number(value: Any) -> float | None:
    """A number or the text of one (it may be infinite or NaN), else None."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _date(value: str) -> int | None:
    """An ISO 8601 date as ns; any zone, as only differences count."""
    text = value.strip().replace("Z", "+00:00")
    head, dot, rest = text.partition(".")
    if dot:  # fractions of more than six digits are not taken by every Python
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{head}.{digits[:6].ljust(6, '0')}{rest[len(digits) :]}"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    zone = None if moment.tzinfo is None else timezone.utc
    since = moment - datetime(1970, 1, 1, tzinfo=zone)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1000


def _length(where: str, name: str, value: Any) -> int:
    number = _number(value)
    if number is None or not number.is_integer() or not 1 <= number < 2**31:
        raise UsageError(
            f"{where}: {name} is {value!r:.40}; valid: a whole number of tokens from 1"
        )
    return int(number)

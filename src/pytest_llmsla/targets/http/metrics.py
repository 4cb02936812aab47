"""A server's ``/metrics`` read twice, and what was added between: count, mean, bucket of a rank.

Text of a server is trusted in nothing: only samples with a known name are read, only finite
numbers count, and whatever does not fit together is absent with its reason. A percentile is the
bucket that holds it, never a number inside the bucket.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ...errors import TargetError
from .fetching import Fetches
from .metric_names import PROCESS_START, Histogram, wanted

Labels = tuple[tuple[str, str], ...]
Series = Mapping[Labels, float]

PERCENTILES = (50, 95, 99)
RESET = (
    "the server's counters went back between the two readings: it was restarted, or the readings "
    "came from different replicas"
)

_PATHS = ("metrics", "prometheus/metrics")
_MOST_BYTES = 16 * 1024 * 1024
_MOST_SAMPLES = 50_000
_LONGEST_LINE = 20_000
_LARGEST = 2.0**53
"""Counters are doubles: from here on they count no longer by one."""
_WANTED = wanted()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the metrics: samples by name, each by its labels."""

    source: str
    samples: Mapping[str, Series] = field(default_factory=dict)
    problem: str | None = None
    """Why nothing could be read; None when it could."""
    answered: bool = True
    """False where no answer came at all."""
    hung: bool = False
    """It was waited for in vain: no other path is tried, which would take as long again."""

    @classmethod
    def take(cls, client: Fetches, metrics_url: str | None = None) -> Snapshot:
        """Read the metrics now; never raises for what a server does.

        Args:
            client: of the server, or of ``metrics_url`` where that is given.
            metrics_url: the URL for the report; None looks below the server's root, at
                ``/metrics`` and (TensorRT-LLM) ``/prometheus/metrics``.
        """
        if metrics_url is not None:
            return cls._fetch(client, "", metrics_url, root=False)
        first: Snapshot | None = None
        for path in _PATHS:
            found = cls._fetch(client, path, f"/{path}", root=True)
            if found.problem is None or found.hung:
                return found
            first = first or found
        assert first is not None
        return first

    @classmethod
    def _fetch(cls, client: Fetches, path: str, source: str, *, root: bool) -> Snapshot:
        try:
            reply = client.fetch("GET", path, timeout_s=10.0, root=root)
        except TargetError as e:
            hung = "timed out" in str(e)
            return cls(source, problem=f"{source}: {e}", answered=False, hung=hung)
        if reply.status != 200:
            return cls(source, problem=f"{source}: the server answered {reply.status}")
        if len(reply.body) > _MOST_BYTES:
            return cls(source, problem=f"{source}: over {_MOST_BYTES >> 20} MiB, not read")
        return cls.parse(reply.body.decode("utf-8", "replace"), source)

    @classmethod
    def parse(
        cls, text: str, source: str = "/metrics", names: Collection[str] = _WANTED
    ) -> Snapshot:
        """The known samples of a Prometheus text; a line that cannot be read is left out."""
        samples: dict[str, dict[Labels, float]] = {}
        count = 0
        for line in text.split("\n"):
            name = line.partition("{")[0].strip().partition(" ")[0]
            if name not in names or len(line) > _LONGEST_LINE:
                continue
            count += 1
            if count > _MOST_SAMPLES:
                return cls(source, problem=f"{source}: over {_MOST_SAMPLES} samples, not read")
            for labels, value in _parsed(line):
                samples.setdefault(name, {})[labels] = value
        if not samples:
            return cls(source, problem=f"{source}: no figure with a name that is known here")
        return cls(source, samples)

    def series(self, name: str) -> Series:
        """The samples of one name; empty when there is none."""
        return self.samples.get(name, {})

    def values(self, names: Iterable[str]) -> dict[str, list[float]]:
        """Finite values of gauges by name; names without one are left out."""
        found = {n: [v for v in self.series(n).values() if math.isfinite(v)] for n in names}
        return {n: values for n, values in found.items() if values}


def _parsed(line: str) -> list[tuple[Labels, float]]:
    try:
        # One line at a time and without its TYPE, so that names stay as the server wrote them
        # and one broken line costs no other.
        return [
            (tuple(sorted(s.labels.items())), float(s.value))
            for family in text_string_to_metric_families(line + "\n")
            for s in family.samples
        ]
    except (ValueError, IndexError, KeyError, TypeError):
        return []


class UnreadableError(Exception):
    """A figure cannot be had; the text is its reason."""


def added(before: Snapshot, after: Snapshot, name: str, model: str | None = None) -> float:
    """What a counter gained between two snapshots, over its series of ``model``.

    Raises:
        UnreadableError: it is not there, no finite number, or went back.
    """
    gained = _gained(before, after, name, (), model)
    if not gained:
        raise UnreadableError(f"{name} is not there")
    return sum(gained.values())


def restarted(before: Snapshot, after: Snapshot) -> bool:
    """True when the process that publishes the metrics is another one."""
    was, now = before.series(PROCESS_START), after.series(PROCESS_START)
    return len(was) == 1 and len(now) == 1 and list(was.values()) != list(now.values())


def histogram(
    before: Snapshot, after: Snapshot, wanted: Histogram, model: str | None = None
) -> dict[str, Any]:
    """What a histogram gained: ``name``, ``count``, ``mean_ms``, ``percentiles``, ``reason``.

    ``percentiles`` maps p50, p95 and p99 to ``over_ms`` and ``to_ms``: the edges of the bucket
    (over, to] that holds the nearest rank; ``to_ms`` is None in the last bucket. What is absent
    is None (empty), with ``reason``.
    """
    name = next((n for n in wanted.names if after.series(f"{n}_count")), None)
    out: dict[str, Any] = {"name": name, "count": None, "mean_ms": None, "percentiles": {}}
    out["what"] = wanted.what
    try:
        if name is None:
            said = " or ".join(wanted.names)
            raise UnreadableError(f"{said} is not there" if said else "this server publishes none")
        part = (before, after)
        count = sum(_gained(*part, f"{name}_count", wanted.labels, model).values())
        seconds = sum(_gained(*part, f"{name}_sum", wanted.labels, model).values())
        if count <= 0:
            raise UnreadableError("nothing was added between the two readings")
        out["count"] = _whole(count)
        out["mean_ms"] = _ms(seconds / count)
        buckets = _buckets(_gained(*part, f"{name}_bucket", wanted.labels, model), count)
        out["percentiles"] = {f"p{p}": _holding(buckets, count, p) for p in PERCENTILES}
        out["reason"] = None
    except UnreadableError as e:
        out["reason"] = str(e)
    return out


def _gained(
    before: Snapshot, after: Snapshot, name: str, labels: Labels, model: str | None
) -> dict[Labels, float]:
    was, now = _of(before.series(name), labels, model), _of(after.series(name), labels, model)
    if not all(abs(v) <= _LARGEST for v in (*was.values(), *now.values())):
        raise UnreadableError(f"a sample of {name} is no finite number")
    if any(key not in now or now[key] < value for key, value in was.items()):
        raise UnreadableError(RESET)
    return {key: value - was.get(key, 0.0) for key, value in now.items()}


def _of(series: Series, labels: Labels, model: str | None) -> Series:
    """The series that carry ``labels``; those of ``model`` where the server tells models apart."""
    carrying = {k: v for k, v in series.items() if set(labels) <= set(k)}
    named = {k: v for k, v in carrying.items() if dict(k).get("model_name") == model}
    return named if model is not None and named else carrying


def _buckets(gained: Mapping[Labels, float], count: float) -> list[tuple[float, float]]:
    """Cumulated counts by upper edge, seconds, ascending; the last edge is infinite."""
    total: dict[float, float] = {}
    edges: dict[Labels, set[float]] = {}
    for key, value in gained.items():
        try:
            edge = float(dict(key)["le"])
        except (KeyError, ValueError):
            raise UnreadableError("a bucket has no edge") from None
        rest = tuple(pair for pair in key if pair[0] != "le")
        total[edge] = total.get(edge, 0.0) + value
        edges.setdefault(rest, set()).add(edge)
    if not total:
        raise UnreadableError("it has no buckets")
    out = sorted(total.items())
    steps = [value for _, value in out]
    if any(each != set(total) for each in edges.values()) or not all(e >= 0 for e in total):
        raise UnreadableError("its buckets are odd or differ between its series")
    if out[-1][0] != math.inf or steps[-1] != count or steps != sorted(steps):
        raise UnreadableError("its buckets do not add up to its count")
    return out


def _holding(buckets: list[tuple[float, float]], count: float, percent: int) -> dict[str, Any]:
    """The bucket of the smallest value with at least ``percent`` of all at or below it."""
    below = 0.0
    for edge, cumulated in buckets:
        if cumulated * 100 >= percent * count:
            return {"over_ms": _ms(below), "to_ms": None if edge == math.inf else _ms(edge)}
        below = edge
    raise UnreadableError("its buckets do not add up to its count")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 9)


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value

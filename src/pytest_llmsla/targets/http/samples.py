"""A server's own figures over time: requests running and waiting, KV cache, preemptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from ...errors import TargetError
from ...probes.sampler import Source, Value
from .fetching import Fetches
from .metric_names import OVER_TIME, Gauge
from .metrics import Snapshot

METRICS_HZ = 1.0
_TIMEOUT_S = 2.0
_MOST_BYTES = 16 * 1024 * 1024
_NAMES = frozenset(name for gauge in OVER_TIME for name in gauge.names)


class Closes(Fetches, Protocol):
    """A client that is this sampling's own: the one that is timed is left alone."""

    def close(self) -> None:
        """Close its connection."""
        ...


class MetricsOverTime:
    """Reads the metrics on a connection of its own.

    Args:
        client: of the server, or of the metrics' own address.
        path: where they are, as an earlier reading found it.
        root: ``path`` is below the server's root.
    """

    columns = tuple(gauge.column for gauge in OVER_TIME)

    def __init__(self, client: Closes, path: str, *, root: bool) -> None:
        self._client, self._path, self._root = client, path, root
        self._first: dict[str, float] = {}

    def read(self) -> Sequence[Value]:
        """The figures now.

        Raises:
            TargetError: the server did not answer with metrics.
        """
        reply = self._client.fetch("GET", self._path, timeout_s=_TIMEOUT_S, root=self._root)
        if reply.status != 200:
            raise TargetError(f"the server answered {reply.status}")
        if len(reply.body) > _MOST_BYTES:
            raise TargetError(f"over {_MOST_BYTES >> 20} MiB, not read")
        found = Snapshot.parse(reply.body.decode("utf-8", "replace"), names=_NAMES)
        return [self._value(gauge, found) for gauge in OVER_TIME]

    def _value(self, gauge: Gauge, found: Snapshot) -> Value:
        """By the newest of its names that the server has.

        Engines are added up; of a share the largest counts.
        """
        for name in gauge.names:
            values = [v for v in found.series(name).values() if math.isfinite(v) and v >= 0]
            if not values:
                continue
            if gauge.unit != 1.0:
                return max(values) * gauge.unit
            total = sum(values)
            if gauge.total:
                total -= self._first.setdefault(name, total)
                return total if total >= 0 else "the counter went back: the server was restarted"
            return total
        return "the server publishes none"

    def source(self) -> Source:
        """For a sampler."""
        return Source(self.columns, self.read, METRICS_HZ, slow=True, close=self._client.close)

"""Memory of a server: measured where it runs on this host, else scraped, declared or unknown.

Named figures that are never mixed, all in GiB: ``rss_peak`` (host memory of its processes),
``device_used_peak`` (NVML, the whole cards it is on) and ``device_used_own`` (its own processes)
for a server on this host or, scraped, for one elsewhere; ``declared`` as its owner wrote it.
What the engine takes and gives back inside a request cannot be seen from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .listener import ListenerError, Tree, again, local_addresses, serving, serving_socket
from .processes import Processes
from .sampler import Source
from .server_cards import Cards
from .usage import server_source

GIB = float(1 << 30)
FIGURES = ("allocated_peak", "reserved_peak", "device_used_peak", "device_used_own", "rss_peak")

HOW = "declare it with target.memory_gib and target.memory_source"
"""What to do about memory that is unknown."""

Scrape = Callable[[], Mapping[str, Sequence[float]]]
"""Values by metric name, of those in :data:`SCRAPED`; empty when nothing could be read."""

SCRAPED = {
    "nv_gpu_memory_used_bytes": 1.0,
    "DCGM_FI_DEV_FB_USED": float(1 << 20),
}
"""Gauges of memory in use on whole cards, and their unit in bytes."""

ONE_PROCESS = "process_resident_memory_bytes"
"""Resident memory of the one process that publishes the metrics; the engine may be another."""

_LARGEST_GIB = 2.0**30
_SAMPLED = "largest sample between requests since {since}"


class ServerMemory:
    """Readings of one server's memory, in the form of :class:`probes.memory.MemoryProbe`.

    Args:
        host: as in ``base_url``, or the path of a Unix socket, which begins with ``/``.
        port: its TCP port; for a socket of no meaning.
        declared_gib: what its owner says it uses, with ``declared_source``; both or neither.
        scrape: reads the server's metrics; None when it has none.
        nvml: stands in for the NVML binding in tests.
    """

    def __init__(
        self,
        host: str,
        port: int,
        declared_gib: float | None = None,
        declared_source: str | None = None,
        scrape: Scrape | None = None,
        *,
        nvml: Any = None,
    ) -> None:
        self._host, self._port = host, port
        self._declared, self._source = declared_gib, declared_source
        self._scrape = scrape
        self._cards = Cards(nvml)
        self._since = "the first reading"
        self._restart()

    def reset(self) -> None:
        """Start the measured window; a server that was restarted before counts as new."""
        self._restart()
        self._since = "the start of the measured window"
        self.sample()

    def _restart(self) -> None:
        self._processes: Processes | None = None
        self._tree: Tree | None = None
        self._find: Callable[[], Tree] | None = None
        self._problem: str | None = None
        self._scraped: dict[str, list[float]] = {}
        self._scrapes = 0
        self._cards.restart()

    def sample(self) -> None:
        """Take one sample; call it after every request."""
        if not self._sample_processes():
            self._sample_metrics()

    def read(self) -> dict[str, Any]:
        """All figures so far, JSON-ready.

        Every figure in GiB or None with ``<name>_reason``; ``device`` (``cpu``, ``cuda``,
        ``remote``), ``methods``, ``since``, ``processes``; ``declared`` with ``declared_source``
        where it is declared; ``problem`` where nothing is known.
        """
        self.sample()
        out: dict[str, Any] = {"since": self._since, "methods": {}, "device": "remote"}
        for name in FIGURES:
            out[name], out[f"{name}_reason"] = None, "a server does not tell it"
        if self._processes is not None and self._problem is None:
            self._put_measured(out, self._processes)
        else:
            self._put_scraped(out)
        if self._declared is not None and self._source:
            out["declared"] = self._declared
            out["declared_source"] = self._source
            out["methods"]["declared"] = f"declared: {self._source}"
        for name in FIGURES:
            if out[name] is not None:
                del out[f"{name}_reason"]
        return out

    def sources(self) -> list[Source]:
        """Its processes and cards over time, for a sampler; none for a server elsewhere.

        Another thread reads them: they have a view of the processes of their own.
        """
        if self._tree is None:
            self.sample()
        if self._tree is None or self._find is None:
            return []
        seen, look = [self._tree], self._find

        def find() -> Tree:
            seen[0] = again(seen[0], look)
            return seen[0]

        return [server_source(find), *self._cards.sources()]

    # -- a server on this host

    def _sample_processes(self) -> bool:
        """True when its processes were read (or ought to have been: the problem says why not)."""
        if self._problem is not None:
            return self._processes is not None
        try:
            tree = self._found()
            if self._processes is None:
                self._processes = Processes(tree)
            self._processes.sample(tree)
        except ListenerError as e:
            self._problem = str(e)
            return self._processes is not None
        self._cards.sample({m.pid for m in tree.members})
        return True

    def _found(self) -> Tree:
        if self._find is None:
            self._find = self._finder()
        self._tree = self._find() if self._tree is None else again(self._tree, self._find)
        return self._tree

    def _finder(self) -> Callable[[], Tree]:
        """How its processes are looked for.

        Raises:
            ListenerError: it is not on this host.
        """
        host, port = self._host, self._port
        if host.startswith("/"):
            return lambda: serving_socket(host)
        addresses = local_addresses(host)
        if not addresses:
            raise ListenerError(f"{host} is not this host")
        return lambda: serving(port, addresses)

    def _put_measured(self, out: dict[str, Any], processes: Processes) -> None:
        sampled = _SAMPLED.format(since=self._since)
        out["processes"] = processes.describe()
        out["rss_peak"] = _gib(processes.peak)
        out["rss_peak_reason"] = processes.peak_reason
        out["rss_sampled_peak"] = _gib(processes.sampled_peak)
        out["rss_now"] = _gib(processes.now)
        out["methods"] |= {
            "rss_peak": processes.peak_method,
            "rss_sampled_peak": f"sum over {processes.count} process(es), shared pages once in "
            f"each, {sampled}",
        }
        if processes.pss is not None:
            out["pss"] = _gib(processes.pss)
            out["methods"]["pss"] = "sum with shared pages divided among those that share them"
        out["device"] = self._cards.device
        for name, value, method in (
            ("device_used_peak", self._cards.used, "NVML, whole cards with other processes"),
            ("device_used_own", self._cards.own, "NVML, the server's processes alone"),
        ):
            out[name], out[f"{name}_reason"] = _gib(value), self._cards.reason
            if value is not None:
                out["methods"][name] = f"{method}, {self._cards.count} card(s), {sampled}"

    # -- a server elsewhere, or one whose processes cannot be told

    def _sample_metrics(self) -> None:
        if self._scrapes and not self._scraped.keys() & SCRAPED.keys():
            return  # it published none at first: no further request for it
        self._scrapes += 1
        values = {} if self._scrape is None else self._scrape()
        for name, unit in (*SCRAPED.items(), (ONE_PROCESS, 1.0)):
            total = sum(values.get(name, ())) * unit / GIB
            if math.isfinite(total) and 0 < total < _LARGEST_GIB:
                self._scraped.setdefault(name, []).append(total)

    def _put_scraped(self, out: dict[str, Any]) -> None:
        """A peak over some of the readings would be too small, so all of them must hold it."""
        whole = {n: max(v) for n, v in self._scraped.items() if len(v) == self._scrapes}
        name = next((n for n in SCRAPED if n in whole), None)
        problem = self._problem or "it was not read yet"
        if self._processes is None:
            some = self._scraped.keys() & SCRAPED.keys()
            problem += (
                ", and its metrics hold memory in some of the readings only"
                if some
                else (", and no memory is in its metrics")
            )
        if name is not None and self._processes is None:
            out["device_used_peak"] = whole[name]
            out["methods"]["device_used_peak"] = (
                f"{name} of the server's metrics, all its cards with other processes, "
                + _SAMPLED.format(since=self._since)
            )
            problem = f"{self._problem}, and its metrics do not hold it"
        elif self._declared is None:
            problem = f"{problem}: {HOW}"
            out["problem"] = problem
        for figure in FIGURES:
            out[f"{figure}_reason"] = problem
        if ONE_PROCESS in whole and self._processes is None:
            out["rss_one_process"] = whole[ONE_PROCESS]
            out["methods"]["rss_one_process"] = (
                f"{ONE_PROCESS}: the process that publishes the metrics, and no engine beside it, "
                "at the first reading; it documents nothing"
            )


def _gib(n: int | None) -> float | None:
    return None if not n else n / GIB

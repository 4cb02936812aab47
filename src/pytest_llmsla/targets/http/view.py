"""What a loaded target knows of its server: facts, its metrics over the window, its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...probes.sampler import Source
from ...probes.server_memory import ONE_PROCESS, SCRAPED, ServerMemory
from ...wire.client import Client
from .facts import ServerFacts, unlisted
from .metrics import Snapshot
from .samples import MetricsOverTime
from .server_side import Sent, server_side
from .spec import HttpSpec

if TYPE_CHECKING:
    from .target import HttpTarget

_TRIES = 2


class View:
    """A :class:`~pytest_llmsla.targets.http.server_view.ServerView` of one server."""

    def __init__(self, target: HttpTarget, facts: ServerFacts) -> None:
        self._target = target
        self._facts = facts
        self._metrics = _metrics_client(target.spec, target.client)
        metrics = target.spec.metrics
        self._source = None if metrics is None else metrics.url
        self._before: Snapshot | None = None
        self._unanswered: list[Snapshot] = []
        """Readings in a row that got no answer. After a few nobody waits for another in the same
        window, or ever where none was answered yet."""
        self._heard = False
        self._sent = Sent(0, 0)
        spec = target.spec
        self._memory = ServerMemory(
            spec.address.host,
            spec.address.port,
            declared_gib=spec.memory_gib,
            declared_source=spec.memory_source,
            scrape=self._gauges,
        )

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report, scrubbed of anything secret that the server echoed."""
        scrub = self._target.spec.scrubber.scrub
        told: dict[str, Any] = {"server": _scrubbed(self._facts.describe(), scrub)}
        odd = unlisted(self._facts, self._target.spec.model)
        if odd is not None:
            told["warnings"] = [{"code": "model-not-listed", "message": scrub(odd)}]
        return told

    def reset(self) -> None:
        """The measured window begins: read the server's metrics, forget memory peaks."""
        if self._heard:  # it has metrics, and may have been too busy to tell them
            self._unanswered.clear()
        self._before = self._snapshot()
        self._sent = self._so_far()
        self._memory.reset()

    def memory(self) -> Mapping[str, Any]:
        """The largest of the readings since the window began, GiB by name."""
        return self._memory.read()

    def samples(self) -> Sequence[Source]:
        """Its figures over time: those it publishes now, its processes and cards."""
        found = self._memory.sources()
        before = self._before or self._snapshot()
        if before.problem is not None:
            return found
        spec = self._target.spec
        own = spec.metrics is not None
        client = Client(
            spec.metrics or spec.address,
            headers=None if own else spec.headers,
            verify=spec.verify,
            proxy=spec.proxy,
            connect_s=spec.connect_s,
            timed=False,
        )
        path = "" if own else before.source.removeprefix("/")
        return [*found, MetricsOverTime(client, path, root=not own).source()]

    def window(self) -> Mapping[str, Any]:
        """The server's own figures since :meth:`reset`."""
        if self._before is None:
            return {}
        # Where nothing was found at first, a second look costs a request or two for nothing.
        after = self._before if self._before.problem else self._snapshot()
        sent = self._so_far() - self._sent
        line = server_side(self._before, after, sent, self._target.spec.model)
        found: Mapping[str, Any] = _scrubbed(
            {k: v for k, v in line.items() if k != "type"}, self._target.spec.scrubber.scrub
        )
        return found

    def _so_far(self) -> Sent:
        target = self._target
        return Sent(
            target.sent_requests, target.sent_tokens, target.told_cached, target.silent_requests
        )

    def _snapshot(self) -> Snapshot:
        if len(self._unanswered) < _TRIES:
            found = Snapshot.take(self._metrics, self._source)
            if found.answered:
                self._unanswered.clear()
                self._heard = True
                return found
            self._unanswered.append(found)
        return self._unanswered[-1]

    def _gauges(self) -> Mapping[str, Sequence[float]]:
        return self._snapshot().values([*SCRAPED, ONE_PROCESS])

    def close(self) -> None:
        """Close the connection to a metrics address of its own."""
        if self._metrics is not self._target.client:
            self._metrics.close()


def _metrics_client(spec: HttpSpec, client: Client) -> Client:
    if spec.metrics is None:
        return client
    # Another server: it gets no key of this one.
    return Client(
        spec.metrics,
        verify=spec.verify,
        proxy=spec.proxy,
        connect_s=spec.connect_s,
    )


def _scrubbed(value: Any, scrub: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {scrub(str(k)): _scrubbed(v, scrub) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(v, scrub) for v in value]
    return value

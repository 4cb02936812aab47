"""One request through all its attempts: what is sent, whether again, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...stats import nearest_rank
from ...timeline import NS_PER_S
from ...wire.connection import Connection
from ...wire.errors import RefusedError, WireError
from ...wire.exchange import Deadlines, Exchange
from ...wire.said import short
from ..base import Answer, Ask, Recorder
from .answering import (
    EmptyError,
    counted_of,
    disputed,
    notes_of,
    read_whole,
)
from .dialect import Options
from .not_ours import refuse_echo, refuse_stored
from .reader import StreamReader

if TYPE_CHECKING:
    from .target import HttpTarget

_RETRIED = (429, 503)
_PAUSE_S = 1.0
"""Before a retry, where the server does not say how long."""
_LAG_QUANTILE = 0.95
_NO_WAIT_NS = 50_000  # it would be told as 0.0 ms
_NAMED = {"include_usage": "stream_options"}
"""How a refusal names an option, where not by its own name."""


class Call:
    """One request. It makes exchanges and reads what became of them; others run them.

    Its clock begins with the first attempt, and runs on through all others.

    Args:
        target: who asks.
        ask: as it is sent, rendered.
        record: what is filled in.
        deadlines: of the request, whatever attempts it takes.
        own_count: tokens of the prompt as counted before sending; None: not known.
    """

    def __init__(
        self,
        target: HttpTarget,
        ask: Ask,
        record: Recorder,
        deadlines: Deadlines,
        own_count: Callable[[], int | None],
    ) -> None:
        self.record = record
        self.deadlines = deadlines
        self.since_ns: int | None = None
        """When it was or should have been sent first. Set it where that was before a connection."""
        self.waited_ns: int | None = None
        """How long it waited for a connection, within its own clock."""
        self._target = target
        self._ask = ask
        self._own_count = own_count
        self._options = target.options
        """As sent last; others may have learnt since what the server refuses."""
        self._retries = 0
        self._again: list[str] = []
        self._headers: Mapping[str, str] = {}
        self._reader = StreamReader(target.dialect, record, ask.max_new_tokens)

    def attempt(self, connection: Connection) -> Exchange:
        """The next attempt, ready to be started.

        Raises:
            UsageError: the dialect cannot say what is asked.
        """
        target, record, dialect = self._target, self.record, self._target.dialect
        self._options = target.options
        payload = target.client.payload(
            "POST",
            dialect.path,
            dialect.body(self._ask, self._options),
            root=dialect.at_root,
            accept="text/event-stream",
        )
        record.arrivals.clear()
        record.merged = 0
        if not connection.used:
            record.stages["connect"] = connection.connect_ns
        self._reader = StreamReader(dialect, record, self._ask.max_new_tokens)
        target.sent_requests += 1
        return Exchange(
            connection,
            payload,
            self.deadlines,
            reader=self._reader if dialect.streams else None,
            since_ns=self.since_ns,
            max_event_bytes=target.max_event_bytes,
            cancelled=lambda: record.cancelled,
        )

    def ended(self, exchange: Exchange) -> int | None:
        """Take the end of an attempt. None: answered; else when to send it again, ns.

        Raises:
            WireError: it has failed.
        """
        outcome, record = exchange.outcome, self.record
        if outcome.error is None and not self._target.dialect.streams:
            read_whole(exchange, self._reader)
        if self.since_ns is None:
            self.since_ns = outcome.start_ns
        record.start_ns = self.since_ns
        record.end_ns = outcome.end_ns
        self._headers = outcome.headers
        record.retries = self._retries
        record.stamp = outcome.stamp
        late = nearest_rank(outcome.lag_ns, _LAG_QUANTILE)
        record.lag_ns = None if late is None else round(late)
        self._target.silent_requests += outcome.error is not None
        return None if outcome.error is None else self._sent_again(outcome.error)

    def _sent_again(self, error: WireError) -> int:
        target, since = self._target, self.since_ns or 0
        refused = self._refused_options(error)
        if refused:
            self._again += refused
            target.options = Options(target.options.refused | set(refused))
            return since
        until = self._retried(error, since)
        if until is None:
            if self._again:
                raise WireError(f"{error} (asked again without {', '.join(self._again)})")
            raise error
        self._retries += 1
        return until

    def _refused_options(self, error: WireError) -> list[str]:
        """Optional keys that a refusal names and that were sent."""
        if not isinstance(error, RefusedError) or error.status not in (400, 422):
            return []
        named = [
            name
            for name in self._target.dialect.optional
            if self._options.takes(name) and _NAMED.get(name, name) in error.said
        ]
        # A refusal of one key inside stream_options names both.
        inner = [name for name in named if name not in _NAMED]
        return inner or named

    def _retried(self, error: WireError, since: int) -> int | None:
        """When the server may be asked again, as it says; None: it may not."""
        if not isinstance(error, RefusedError) or error.status not in _RETRIED:
            return None
        if self._retries >= self._target.spec.retries:
            return None
        pause = _PAUSE_S if error.retry_after_s is None else error.retry_after_s
        until = self._target.clock() + round(pause * NS_PER_S)
        total_s = self.deadlines.total_s
        late = total_s is not None and until - since > total_s * NS_PER_S
        return None if late else until

    def answer(self) -> Answer:
        """What was said, once :meth:`ended` gave None.

        Raises:
            WireError: it holds nothing that could be timed.
        """
        target, said = self._target, self._reader.said
        target.silent_requests += said.cached_tokens is None
        target.told_cached += said.cached_tokens or 0
        refuse_stored(self._headers)
        refuse_echo(said.events, self._ask.prompt)
        counted = counted_of(said, target.lengths)
        self.record.arrivals[:] = counted.arrivals
        own = self._own_count()
        exact = target.lengths is not None and not target.lengths.margin
        known = said.prompt_tokens if said.prompt_tokens is not None or not exact else own
        scrub = target.spec.scrubber.scrub
        target.sent_tokens += counted.output_tokens or 0
        return Answer(
            text=scrub("".join(said.texts)),
            prompt_tokens=known,
            output_tokens=counted.output_tokens,
            token_source=counted.source,
            finish_reason=None if said.finish is None else short(scrub(said.finish[1])),
            cached_tokens=said.cached_tokens,
            notes=(
                *target.dialect.notes(self._ask, self._options),
                *disputed(own, said.prompt_tokens, 0.0 if exact else target.margin),
                *notes_of(
                    said,
                    forced=not self._ask.force_length or target.dialect.can_force(self._options),
                    asked_again=tuple(self._again),
                ),
                *self._waited(),
            ),
            estimated=counted.estimated,
            first_visible_ns=said.first_visible_ns,
            server_ms=said.server_ms,
        )

    def _waited(self) -> tuple[str, ...]:
        if self.waited_ns is None or self.waited_ns < _NO_WAIT_NS:
            return ()
        return (f"{WAITED} for {self.waited_ns / 1e6:.1f} ms, which is in TTFT",)


WAITED = "no connection was open: it was waited"
"""Begins the note of a request that had to wait for a connection."""


def scrubbed(e: WireError, scrub: Callable[[str], str]) -> WireError:
    """The same failure without any secret that the server echoed."""
    text = scrub(str(e))
    if isinstance(e, EmptyError):
        return e
    if isinstance(e, RefusedError):
        return RefusedError(
            text, status=e.status, said=scrub(e.said), retry_after_s=e.retry_after_s
        )
    return WireError(text)

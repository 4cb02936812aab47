"""Our client in a closed loop of many streams: one thread, one poller.

``ours`` reads with everything that a gate on an HTTP server uses: the dialect's request (running
counts asked for), its reading of every event, and the reconciliation of tokens. ``ours-bare`` does
with the same wire room what the plain aiohttp client does: JSON, and a look at the content.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Protocol

from peers.closed_loop import body
from pytest_llmsla.targets.base import Ask, Recorder
from pytest_llmsla.targets.http.counting import reconcile
from pytest_llmsla.targets.http.dialect import Options
from pytest_llmsla.targets.http.openai import OpenAIChat
from pytest_llmsla.targets.http.reader import StreamReader
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.wire.exchange import Deadlines, Exchange
from pytest_llmsla.wire.exchange import Reader as WireReader
from pytest_llmsla.wire.sse import Event

_DEADLINES = Deadlines(total_s=120.0)


class Reader(WireReader, Protocol):
    """A reader that gives its stamps at the end."""

    def stamps(self) -> list[int]:
        """Moments of the tokens, ns."""
        ...


class BareReader:
    """Stamps of the events that carry text."""

    def __init__(self) -> None:
        self._stamps: list[int] = []
        self.complete = False

    @property
    def begun(self) -> bool:
        """True once a token has arrived."""
        return bool(self._stamps)

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        """Every event is parsed."""
        return False

    def event(self, event: Event) -> bool:
        """Take one event; True at the end marker."""
        if event.data == b"[DONE]":
            self.complete = True
            return True
        choices = json.loads(event.data)["choices"]
        if choices and choices[0]["delta"].get("content"):
            self._stamps.append(event.t_ns)
        return False

    def ended(self, left_over: bytes) -> None:
        """The body ended."""

    def stamps(self) -> list[int]:
        """Moments of the tokens, ns."""
        return self._stamps


class TargetReader(StreamReader):
    """The reader of HTTP targets."""

    def stamps(self) -> list[int]:
        """Moments of the tokens, ns, as a gate would have them."""
        said = self.said
        counted = reconcile(
            said.events,
            totals=said.totals,
            final=said.totals[-1][1] if said.totals else None,
            finish=said.finish,
            tokenize=None,
        )
        if counted.estimated is not None:
            raise SystemExit(f"tokens could not be placed: {counted.estimated}")
        return [t for t, tokens in counted.arrivals for _ in range(tokens)]


class Asker:
    """Asks in a closed loop."""

    def __init__(self, url: str, tokens: int, concurrency: int, *, bare: bool) -> None:
        self._client = Client(Address.parse(f"{url}/v1"))
        self._dialect = OpenAIChat(model="truth")
        self._tokens = tokens
        self._concurrency = concurrency
        self._bare = bare

    def _begin(self, key: str, prompt: str) -> tuple[Exchange, Reader]:
        asked, reader = self._asked(prompt)
        payload = self._client.payload(
            "POST", self._dialect.path, asked, accept="text/event-stream"
        )
        exchange = Exchange(self._client.take(), payload, _DEADLINES, reader=reader)
        self._client.loop.add(exchange)
        if exchange.done:
            raise SystemExit(f"{key}: {exchange.outcome.error}")
        return exchange, reader

    def _asked(self, prompt: str) -> tuple[dict[str, Any], Reader]:
        if self._bare:
            return body(prompt, self._tokens), BareReader()
        ask = Ask(prompt=prompt, max_new_tokens=self._tokens, force_length=True)
        reader = TargetReader(self._dialect, Recorder(), self._tokens)
        return self._dialect.body(ask, Options()), reader

    def run(self, asks: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """All asks, so many at a time."""
        left = deque(asks)
        open_now: dict[int, tuple[str, Exchange, Reader]] = {}
        out: list[dict[str, Any]] = []

        def begin() -> None:
            key, prompt = left.popleft()
            exchange, reader = self._begin(key, prompt)
            open_now[id(exchange)] = (key, exchange, reader)

        for _ in range(min(self._concurrency, len(left))):
            begin()
        while open_now:
            for ended in self._client.loop.step():
                key, exchange, reader = open_now.pop(id(ended))
                outcome = exchange.outcome
                if outcome.error is not None:
                    raise SystemExit(f"{key}: {outcome.error}")
                self._client.give_back(exchange)
                if left:
                    begin()
                out.append(
                    {
                        "key": key,
                        "start_ns": outcome.start_ns,
                        "stamps_ns": reader.stamps(),
                        "kernel": outcome.stamp == "kernel",
                    }
                )
        return out

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

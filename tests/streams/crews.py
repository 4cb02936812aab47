"""Many requests at once in lock-step with a scripted server: every moment is exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pytest_llmsla.targets.base import Ask, Job, Timeouts
from pytest_llmsla.targets.http.crew import HttpCrew
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.timeline import NS_PER_MS, Timeline
from pytest_llmsla.wire.connection import Connection
from pytest_llmsla.wire.errors import WireError

from .heard import Request
from .runner import target_of, url_of
from .script import Answer, Wire, answer
from .server import Clock, Server

CASE: dict[str, Any] = {"id": "crew", "api": "chat", "request": {"prompt_tokens": 100}}
TIMEOUTS = Timeouts(first_token_s=60, idle_s=60, total_s=120)
Choose = Callable[[Request], Answer]


def name_of(request: Request) -> str:
    """The prompt of a request."""
    body = json.loads(request.body)
    text: str = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    return text


def streamed(
    ttft_ms: float, *gaps_ms: float, wire: Wire | None = None, end: str | None = None
) -> Answer:
    """A token at ``ttft_ms`` and after each gap; its end comes with the last, or is ``end``."""
    at, events = ttft_ms, [[ttft_ms, {"delta": {"content": "a"}}]]
    for gap in gaps_ms:
        at += gap
        events.append([at, {"delta": {"content": "b"}}])
    usage = {"prompt_tokens": 100, "completion_tokens": len(events)}
    if end is None:
        events += [
            [at, {"delta": {}, "finish": "stop"}],
            [at, {"json": {"choices": [], "usage": usage}}],
            [at, {"done": True}],
        ]
    else:
        events.append([at, {"close": end}])
    return answer({"status": 200, "events": events}, wire or Wire("chunked"))


@dataclass
class Crewed:
    """A crew, its server, and what came back."""

    target: HttpTarget
    crew: HttpCrew
    server: Server
    clock: Clock
    opener: SlowOpener | None = None
    ended: list[Timeline] = field(default_factory=list)

    def start(self, name: str, **more: Any) -> None:
        """Send a request whose prompt is its name."""
        ask = self.crew.prepare(Ask(name, 64, more.pop("sampling", {"greedy": True})))
        self.crew.start(Job(ask, blank(name, **more)))

    def at_ms(self, ms: float) -> None:
        """Wait until so long after the beginning, keeping what ends meanwhile."""
        until = self.began + round(ms * NS_PER_MS)
        while self.clock.now < until:
            self.ended += self.crew.wait(until)

    def rest(self) -> dict[str, Timeline]:
        """Wait for all that are in flight; every one that ended, by name."""
        while self.crew.in_flight:
            self.ended += self.crew.wait()
        assert self.crew.wait() == []
        return {t.id: t for t in self.ended}

    @property
    def began(self) -> int:
        """The beginning, ns."""
        return Clock().now


def blank(name: str, **more: Any) -> Timeline:
    """A request's record before it is sent."""
    return Timeline(
        id=name, bucket="all", start_ns=0, end_ns=0, prompt_tokens=100, max_new_tokens=64, **more
    )


class SlowOpener:
    """Opens at once and hands over ``ms`` later, as a server does that is slow to shake hands."""

    def __init__(self, target: HttpTarget, clock: Clock, ms: float) -> None:
        self._open, self._clock, self.ms = target.client.open, clock, ms
        self._coming: list[tuple[int, Connection | WireError]] = []

    @property
    def pending(self) -> int:
        return len(self._coming)

    def next_ns(self) -> int | None:
        """When the next one will be there."""
        return min((at for at, _ in self._coming), default=None)

    def fileno(self) -> int:
        return -1

    def ask(self, count: int = 1) -> None:
        ns = round(self.ms * NS_PER_MS)
        for _ in range(count):
            made: Connection | WireError
            try:
                made = self._open()
                made.connect_ns = ns
            except WireError as e:
                made = e
            self._coming.append((self._clock.now + ns, made))

    def take(self) -> list[Connection | WireError]:
        ready = [one for at, one in self._coming if at <= self._clock.now]
        self._coming = [(at, one) for at, one in self._coming if at > self._clock.now]
        return ready

    def close(self) -> None:
        for _, one in self._coming:
            if isinstance(one, Connection):
                one.close()


@contextmanager
def crewed(
    answers: Mapping[str, Answer] | Choose,
    size: int,
    *,
    timeouts: Timeouts = TIMEOUTS,
    connect_ms: float | None = None,
    server: Server | None = None,
    case: Mapping[str, Any] = CASE,
    url: str | None = None,
    **more: Any,
) -> Iterator[Crewed]:
    """A crew of ``size``; each request gets the answer of its prompt.

    ``connect_ms``: connections take so long to open.
    """
    clock = Clock() if server is None else server.clock
    assert clock is not None
    choose = answers if callable(answers) else (lambda r: answers[name_of(r)])
    with (
        nullcontext(server) if server else Server(clock) as running,
        target_of(case, running, url or url_of(case, running), **more) as target,
    ):
        running.answer_by(choose)
        opener = None
        if connect_ms is not None:
            opener = SlowOpener(target, clock, connect_ms)
            running.also = opener.next_ns
        crew = HttpCrew(target, size, timeouts, opener)
        try:
            yield Crewed(target, crew, running, clock, opener)
        finally:
            crew.close()

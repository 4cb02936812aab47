"""Threads as a crew, on engines that really run at the same time."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pytest_llmsla.errors import InternalError
from pytest_llmsla.load import ThreadCrew, crew_of
from pytest_llmsla.targets.base import Ask, Job, Timeouts
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.timeline import Timeline

WHOLE = 5


def job(number: int) -> Job:
    """One request."""
    blank = Timeline(id=f"r{number}", bucket="short", start_ns=0, end_ns=0, max_new_tokens=WHOLE)
    return Job(Ask(prompt=f"p {number}", max_new_tokens=WHOLE), blank)


def collect(crew: ThreadCrew, n: int) -> list[Timeline]:
    """Wait for so many."""
    out: list[Timeline] = []
    while len(out) < n:
        out += crew.wait()
    return out


class Meeting:
    """A plain engine whose requests wait for each other: it ends only if all run at once."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties, timeout=20)

    def count(self, prompt: str, system: str | None = None) -> int:
        return 2

    def generate(self, prompt: str, **_: Any) -> Iterator[int]:
        for k in range(WHOLE):
            self.barrier.wait()
            yield k


class AsyncMeeting:
    """An async engine whose requests wait for each other, and that may live on one loop only."""

    def __init__(self, parties: int) -> None:
        self.parties, self.here = parties, 0
        self.event: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def count(self, prompt: str, system: str | None = None) -> int:
        return 2

    async def generate(self, prompt: str, **_: Any) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        assert self.loop in (None, loop), "an engine lives on one loop"
        self.loop = loop
        if self.event is None:
            self.event = asyncio.Event()
        self.here += 1
        if self.here >= self.parties:
            self.event.set()
        await self.event.wait()
        for k in range(WHOLE):
            await asyncio.sleep(0)
            yield k


@pytest.mark.parametrize("engine", [Meeting, AsyncMeeting])
def test_requests_run_at_the_same_time_each_with_its_own_times(
    engine: Callable[[int], Any],
) -> None:
    """Engines that wait for four requests get four."""
    target = PythonTarget(engine(4))
    crew = crew_of(target, 4, Timeouts())
    assert isinstance(crew, ThreadCrew)
    try:
        for n in range(4):
            crew.start(job(n))
        assert crew.in_flight == 4
        done = collect(crew, 4)
    finally:
        crew.close()
        target.close()
    assert sorted(t.id for t in done) == ["r0", "r1", "r2", "r3"]
    assert all(t.ok and t.tokens == WHOLE for t in done), done
    assert max(t.start_ns for t in done) < min(t.arrivals[-1][0] for t in done)


def test_an_async_engine_is_asked_alone_many_at_once_and_alone_again() -> None:
    """All on one event loop, whichever thread runs it."""
    engine = AsyncMeeting(1)
    target = PythonTarget(engine)
    try:
        for size in (1, 3, 1):
            crew = ThreadCrew(target, size, Timeouts())
            for n in range(size):
                crew.start(job(n))
            assert all(t.ok for t in collect(crew, size))
            crew.close()
    finally:
        target.close()


def test_an_engine_that_raises_fails_its_request_and_no_other() -> None:
    """The rest of the crew goes on."""
    numbers = itertools.count()

    class Raises:
        def count(self, prompt: str, system: str | None = None) -> int:
            return 2

        def generate(self, prompt: str, **_: Any) -> Iterator[int]:
            if next(numbers) == 1:
                raise RuntimeError("out of memory")
            yield from range(WHOLE)

    target = PythonTarget(Raises())
    crew = ThreadCrew(target, 2, Timeouts())
    try:
        for n in range(2):
            crew.start(job(n))
        done = collect(crew, 2)
    finally:
        crew.close()
        target.close()
    assert [t.ok for t in done].count(False) == 1
    assert "out of memory" in next(t.error or "" for t in done if not t.ok)


def test_more_than_its_size_is_refused() -> None:
    """A waiting request would have no clock."""
    target = PythonTarget(Meeting(2))
    crew = ThreadCrew(target, 1, Timeouts())
    try:
        crew.start(job(0))
        with pytest.raises(InternalError, match="in flight"):
            crew.start(job(1))
        crew.cancel()
    finally:
        target.engine.barrier.abort()
        crew.close()
        target.close()


class Endless:
    """Gives tokens until it is told to stop."""

    def count(self, prompt: str, system: str | None = None) -> int:
        return 2

    def generate(self, prompt: str, **_: Any) -> Iterator[int]:
        while True:
            time.sleep(0.001)
            yield 1


def test_what_is_cancelled_ends_as_an_error_with_the_reason() -> None:
    """Every request in flight is on record."""
    target = PythonTarget(Endless())
    crew = ThreadCrew(target, 3, Timeouts())
    long = Job(
        Ask(prompt="p", max_new_tokens=10**6),
        Timeline(id="long", bucket="short", start_ns=0, end_ns=0, max_new_tokens=10**6),
    )
    try:
        crew.start(long)
        assert crew.wait(target.clock() + 5_000_000) == []
        crew.cancel()
        (t,) = collect(crew, 1)
    finally:
        crew.close()
        target.close()
    assert t.error == "the run was ended while it was in flight"


def test_one_that_does_not_stop_makes_the_crew_useless_and_hangs_nobody() -> None:
    """The deadline is told, and later requests are errors at once."""
    release = threading.Event()

    class Stuck:
        def count(self, prompt: str, system: str | None = None) -> int:
            return 2

        def generate(self, prompt: str, **_: Any) -> Iterator[int]:
            release.wait(30)
            yield 1

    target = PythonTarget(Stuck())
    crew = ThreadCrew(target, 1, Timeouts(first_token_s=0.05, idle_s=1, total_s=5, grace_s=0.05))
    try:
        crew.start(job(0))
        (t,) = collect(crew, 1)
        assert "no first token" in (t.error or "")
        assert crew.hung is not None
        crew.start(job(1))
        (after,) = collect(crew, 1)
        assert not after.ok
    finally:
        release.set()
        crew.close()
        target.close()

"""Step events are paired, reused and read only after the run."""

from __future__ import annotations

import pytest

from pytest_llmsla.probes.cuda import StepEvents


class Stream:
    """A device clock that moves only when told; events read it when recorded."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.made = 0
        self.waits = 0

    def event(self) -> StubEvent:
        self.made += 1
        return StubEvent(self)


class StubEvent:
    """Refuses what a real event refuses: the time of an event that was never recorded."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at: float | None = None

    def record(self) -> None:
        self.at = self.stream.now_ms

    def synchronize(self) -> None:
        self.stream.waits += 1

    def elapsed_time(self, other: StubEvent) -> float:
        if self.at is None or other.at is None:
            raise RuntimeError("event was not recorded")
        return other.at - self.at


def steps(events: StepEvents, stream: Stream, durations: list[float], gap: float = 1.0) -> None:
    for d in durations:
        events.before()
        stream.now_ms += d
        events.after()
        stream.now_ms += gap


def test_each_step_has_its_own_time() -> None:
    """The first step (prefill) and each decode step come back in order, without the gaps."""
    stream = Stream()
    events = StepEvents(stream.event)
    steps(events, stream, [50.0, 3.0, 4.0], gap=2.0)
    assert stream.waits == 0
    assert events.read() == [50.0, 3.0, 4.0]


def test_no_wait_while_running() -> None:
    """Nothing synchronises until the result is read, and then once."""
    stream = Stream()
    events = StepEvents(stream.event)
    steps(events, stream, [1.0] * 20)
    assert stream.waits == 0
    events.read()
    assert stream.waits == 1


def test_events_are_reused_by_the_next_request() -> None:
    """A second request of the same length makes no new events and sees none of the old times."""
    stream = Stream()
    events = StepEvents(stream.event)
    steps(events, stream, [9.0, 9.0])
    made = stream.made
    events.reset()
    steps(events, stream, [1.0, 2.0])
    assert stream.made == made
    assert events.read() == [1.0, 2.0]


@pytest.mark.parametrize("ending", ["aborted", "restarted"])
def test_a_step_that_never_ended_has_no_time(ending: str) -> None:
    """A forward that raised leaves no number behind; a following step is not mixed with it."""
    stream = Stream()
    events = StepEvents(stream.event)
    steps(events, stream, [5.0])
    events.before()
    if ending == "restarted":
        steps(events, stream, [7.0])
        assert events.read() == [5.0, 7.0]
        assert events.incomplete == 1
    else:
        assert events.read() == [5.0]


def test_end_without_start_and_nothing_at_all() -> None:
    """A stray end is ignored, and no steps give no numbers."""
    stream = Stream()
    events = StepEvents(stream.event)
    events.after()
    assert events.read() == []
    assert events.steps == 0

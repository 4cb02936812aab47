"""A worker's answers to its head, without a cluster."""

from __future__ import annotations

import queue
import time

import pytest

from pytest_llmsla.errors import InternalError
from pytest_llmsla.load.ray_worker import Worker
from pytest_llmsla.timeline import NS_PER_S, Timeline


def worker(*ended: Timeline, at_work_s: float = 0.0, ended_by: Exception | None = None) -> Worker:
    """One whose thread was at work so long ago."""
    made = object.__new__(Worker)
    made._given, made._ended = queue.SimpleQueue(), queue.SimpleQueue()
    made._ended_by = ended_by
    made._at_work = time.perf_counter_ns() - round(at_work_s * NS_PER_S)
    for t in ended:
        made._ended.put(t)
    return made


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        ({"at_work_s": 31.0}, "has stood still for 30 s"),
        ({"ended_by": KeyError("x")}, "has ended: KeyError: 'x'"),
    ],
)
def test_a_thread_that_sends_nothing_any_more_is_told(sick: dict[str, object], words: str) -> None:
    """The calls of a worker go on being answered; nobody waits for requests that will not come."""
    with pytest.raises(InternalError, match=words):
        worker(**sick).take(0.0)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=words):
        worker(**sick).submit([])  # type: ignore[arg-type]
    # What it measured before is measured.
    t = Timeline(id="r1", bucket="b", start_ns=1, end_ns=2)
    assert worker(t, **sick).take(0.0) is not None  # type: ignore[arg-type]


def test_one_at_work_is_let_work() -> None:
    """Nothing ended: an empty block."""
    healthy = worker(at_work_s=1.0)
    healthy.submit([])
    assert healthy.take(0.0) is not None

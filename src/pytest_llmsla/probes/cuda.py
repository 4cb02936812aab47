"""Device time of forward passes by CUDA events, without a synchronise per token.

An event is put into the stream before and after each forward; the host goes on at once. Times
are read after the run only: ``elapsed_time`` on an event that has not been recorded, or not been
reached yet, is an error, and waiting for it inside the loop would change what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _torch_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)


class StepEvents:
    """A reusable pool of event pairs around the steps of one request, on one card.

    ``before()`` and ``after()`` cost one ``record`` each (a few microseconds). The current stream
    of the current device is used; a model spread over several cards has no single device time,
    so use it for one card only. ``new_event`` replaces torch's event in tests.
    """

    def __init__(self, new_event: Callable[[], Any] = _torch_event, reserve: int = 0) -> None:
        self._new_event = new_event
        self._pool: list[tuple[Any, Any]] = [(new_event(), new_event()) for _ in range(reserve)]
        self._used = 0
        self._open = False
        self.incomplete = 0
        """Steps that began and never ended (the forward raised); they have no time."""

    def reset(self) -> None:
        """Start a new request; the events are used again."""
        self._used = 0
        self._open = False
        self.incomplete = 0

    def before(self) -> None:
        """Mark the start of a step in the stream."""
        if self._open:
            self.incomplete += 1
        if self._used == len(self._pool):
            self._pool.append((self._new_event(), self._new_event()))
        self._pool[self._used][0].record()
        self._open = True

    def after(self) -> None:
        """Mark the end of the step. Ignored when no step is open."""
        if not self._open:
            return
        self._pool[self._used][1].record()
        self._used += 1
        self._open = False

    @property
    def steps(self) -> int:
        """Completed steps since the last reset."""
        return self._used

    def read(self) -> list[float]:
        """Device milliseconds of each completed step, in order; the first is the prefill.

        Waits once, for the last event. Call it after the run.
        """
        if self._used == 0:
            return []
        self._pool[self._used - 1][1].synchronize()
        return [float(a.elapsed_time(b)) for a, b in self._pool[: self._used]]

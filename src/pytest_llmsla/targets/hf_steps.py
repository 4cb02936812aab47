"""What watches the continuous-batching manager: its forwards, and what it hands out."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Step:
    """One forward for all live requests, ns of the host's clock; ``device_ms`` on one CUDA card."""

    begin_ns: int
    end_ns: int
    device_ms: float | None
    finite: bool
    """Whether all logits were numbers."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the manager handed out for one request after a step."""

    key: str
    fresh: tuple[tuple[int, int], ...]
    """(time in ns, token id) of each id that is new since the last delivery."""
    finished: bool
    error: str | None
    scheduled_ns: int
    """When it left the manager's queue."""


class Receiver(Protocol):
    """Gets everything, in the manager's thread."""

    def received(self, step: Step | None, deliveries: list[Delivery]) -> None:
        """After a step (None: outside of one, failures only)."""
        ...


class Steps:
    """Times every forward of the manager's thread, and looks whether its logits are numbers."""

    def __init__(self, model: Any, *, sampling: bool) -> None:
        self._model = model
        self._sampling = sampling
        self._events = _event_pair(model.device)
        self._before: Any = None
        self._watching = False
        self._begin = self._end = 0
        self._peak: Any = None

    def watch(self) -> None:
        """Put the wrapper in place: every forward from now on is the manager's."""
        self._before = vars(self._model).get("forward")
        forward, clock, events = self._model.forward, time.perf_counter_ns, self._events

        @functools.wraps(forward)  # the manager reads the signature
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._begin = clock()
            if events is not None:
                events[0].record()
            output = forward(*args, **kwargs)
            if events is not None:
                events[1].record()
            self._end = clock()
            self._peak = output.logits.max()  # keeps a NaN
            if self._sampling and events is not None:
                # A NaN in the sampler would end the CUDA context, and every later request.
                output.logits.nan_to_num_()
            return output

        self._model.forward = timed
        self._watching = True

    def unwatch(self) -> None:
        """Put the model's own forward back."""
        if not self._watching:
            return
        self._watching = False
        if self._before is None:
            del self._model.forward
        else:
            self._model.forward = self._before

    def take(self) -> Step:
        """The last forward; its ids are on the host, so the device has finished it."""
        ms = None if self._events is None else float(self._events[0].elapsed_time(self._events[1]))
        return Step(self._begin, self._end, ms, math.isfinite(self._peak.item()))


def _event_pair(device: Any) -> tuple[Any, Any] | None:
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def router(steps: Steps, receiver: Receiver, release: Callable[[str], None]) -> Any:
    """A router that hands outputs over where the manager gives them, instead of queueing them."""
    from transformers.generation.continuous_batching.continuous_api import OutputRouter

    class Router(OutputRouter):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._seen: dict[str, int] = {}

        def deliver(self, output: Any) -> None:
            receiver.received(None, [self._taken(output)])

        def deliver_batch(self, outputs: list[Any]) -> None:
            receiver.received(steps.take(), [self._taken(o) for o in outputs])

        def _taken(self, output: Any) -> Delivery:
            key = output.request_id
            new = output.generated_tokens[self._seen.get(key, 0) :]
            times = (output.timestamps or [])[-len(new) :] if new else []
            if len(times) != len(new):  # a failure hands out ids that were never stamped
                new = []
            finished = output.is_finished()
            if finished:
                self._seen.pop(key, None)
                release(key)
            else:
                self._seen[key] = len(output.generated_tokens)
            fresh = tuple((round(t * 1e9), int(i)) for t, i in zip(times, new, strict=True))
            return Delivery(key, fresh, finished, output.error, round(output.lifespan[0] * 1e9))

    return Router()


class Quiet:
    """Keeps the manager's own log off the terminal: what it says is in the requests' errors."""

    _NAME = "ContinuousBatchingLogger"

    def __init__(self) -> None:
        self._log = logging.getLogger(self._NAME)
        self._level: int | None = self._log.level
        self._log.setLevel(logging.CRITICAL + 1)

    def end(self) -> None:
        """Let it speak again."""
        if self._level is not None:
            self._log.setLevel(self._level)
            self._level = None

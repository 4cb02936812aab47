"""Whether the model's logits are numbers, checked at every step without waiting for a device."""

from __future__ import annotations

import math
from typing import Any, Protocol


class LogitWatch(Protocol):
    """Sees the logits of every step and the token chosen from them."""

    def step(self, logits: Any) -> None:
        """Logits of one forward, shape (1, k, vocabulary); the last position is sampled."""
        ...

    def token(self, value: Any) -> None:
        """The one token id chosen from them, on the host."""
        ...

    def first_bad_step(self) -> int | None:
        """Index of the first step that was not finite; None when fine. Call after the run."""
        ...


class HostWatch:
    """For logits in host memory: looks at the logit of the chosen token.

    That is enough. Greedy search takes a NaN for the maximum, so it chooses the NaN itself; with
    sampling, torch refuses a distribution that holds a NaN or an infinity. A look costs 13 µs
    between two forwards (caches cold), so it is taken at steps 0, 1, 2, 4, 8, … and at the last
    one: a NaN that reached the KV cache is in every later step.
    """

    def __init__(self) -> None:
        self._logits: Any = None
        self._chosen: Any = None
        self._steps = 0
        self._bad: int | None = None

    def step(self, logits: Any) -> None:
        """Keep the logits until their token is there."""
        self._logits = logits

    def token(self, value: Any) -> None:
        """Note the chosen token; look at its logit at every power of two."""
        self._chosen = value
        n = self._steps
        self._steps = n + 1
        if not n & (n - 1):
            self._look(n)

    def first_bad_step(self) -> int | None:
        """See :class:`LogitWatch`; the first one that was looked at."""
        if self._chosen is not None:
            self._look(self._steps - 1)
        self._logits = self._chosen = None
        return self._bad

    def _look(self, step: int) -> None:
        logits = self._logits
        if self._bad is None and logits is not None:
            chosen = logits[0, -1, self._chosen.item()].item()
            if not math.isfinite(chosen):
                self._bad = step


class DeviceWatch:
    """For logits on a device: keeps the largest of every step there, and reads them after the run.

    ``max()`` keeps a NaN. With sampling, the logits are then made finite in place: a NaN that
    reached the sampler would end the CUDA context of this process, and with it every later
    request. A finite step is not changed by it, as softmax takes the lowest number for -inf.
    """

    def __init__(self, *, sampling: bool) -> None:
        self._sampling = sampling
        self._peaks: list[Any] = []

    def step(self, logits: Any) -> None:
        """Queue the maximum (and the repair); nothing is copied or waited for."""
        last = self._last(logits)
        self._peaks.append(last.max())
        if self._sampling:
            # In place: otherwise the sampler fails on a device and ends this process's context.
            last.nan_to_num_()

    def _last(self, logits: Any) -> Any:
        """The logits that the next token is drawn from, as a view."""
        return logits[0, -1]

    def token(self, value: Any) -> None:
        """Not needed here."""

    def first_bad_step(self) -> int | None:
        """See :class:`LogitWatch`."""
        if not self._peaks:
            return None
        import torch

        finite = torch.isfinite(torch.stack(self._peaks)).tolist()
        return next((i for i, ok in enumerate(finite) if not ok), None)


def logit_watch(device_type: str, *, sampling: bool) -> LogitWatch:
    """The watch for logits on ``device_type`` (``cpu``, ``cuda``, ``mps``)."""
    return HostWatch() if device_type == "cpu" else DeviceWatch(sampling=sampling)


class BatchWatch(DeviceWatch):
    """For several rows at once, on any device: the largest logit of every step, kept there.

    A row that is not finite spoils the step for all: which rows it touched is not asked.
    """

    def _last(self, logits: Any) -> Any:
        return logits[:, -1]

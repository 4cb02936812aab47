"""What watches a ``generate()`` call: the token streamer and the stage marks.

Nothing here decodes text, copies from a device or synchronises: a token is stamped when
``generate()`` hands over its id, which it does after copying the id to the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from ..errors import TargetError
from .base import Recorder
from .hf_logits import LogitWatch


class TokenStreamer:
    """The streamer of one single-row ``generate()`` call.

    The first ``put`` is the prompt, whatever its shape, and is dropped; every later one is stamped
    as it comes. ``put`` raises what :meth:`Recorder.arrive` raises, which ends the generation.
    """

    __slots__ = ("_arrive", "_prompt_seen", "_watch", "ids")

    def __init__(self, record: Recorder, watch: LogitWatch | None = None) -> None:
        self._arrive = record.arrive
        self._watch = watch
        self._prompt_seen = False
        self.ids: list[Any] = []
        """Tensors of generated ids as they were put, for counting after the run."""

    def put(self, value: Any) -> None:
        """Take ids of shape (1,) or (1, k): k tokens that are on the host now.

        Raises:
            TargetError: several rows, which this streamer cannot tell apart.
        """
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        if not value.is_cpu:
            value = value.cpu()
        count = value.numel()
        if count == 1:
            self._arrive(1)
            if self._watch is not None:
                self._watch.token(value)
        elif value.ndim == 2 and value.shape[0] == 1:
            self._arrive(count)
        else:
            raise TargetError(
                f"generate() streamed ids of shape {tuple(value.shape)}; one row is supported here."
            )
        self.ids.append(value)

    def end(self) -> None:
        """Nothing to flush: no text is held back."""

    def token_ids(self) -> list[int]:
        """The generated ids, in order. Call after the run."""
        if not self.ids:
            return []
        import torch

        whole = torch.cat([v if v.ndim == 1 else v.flatten() for v in self.ids])
        return [int(i) for i in whole.tolist()]


class StageMarks:
    """Host times of every forward, by a wrapper around the top module's ``forward``.

    A wrapper, not a pair of module hooks: with hooks, torch leaves its fast path, which costs
    several microseconds a token on a small model.

    Use as a context manager around ``generate()``. On CUDA a forward only queues its work, so its
    host time is launching, and the waiting shows in the sampling after it; ``events`` (an object
    with ``before()``, ``after()``, ``read()``) records the device's own times; ``watch`` sees the
    logits.
    """

    def __init__(
        self,
        model: Any,
        clock: Callable[[], int],
        *,
        events: Any | None = None,
        watch: LogitWatch | None = None,
    ) -> None:
        self._model = model
        self._clock = clock
        self._events = events
        self._watch = watch
        self._own: Any = None
        self.begins: list[int] = []
        self.ends: list[int] = []

    def __enter__(self) -> StageMarks:
        clock, events, watch = self._clock, self._events, self._watch
        begin, end = self.begins.append, self.ends.append
        forward = self._model.forward

        @functools.wraps(forward)  # generate() reads the signature
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin(clock())
            if events is not None:
                events.before()
            output = forward(*args, **kwargs)
            if events is not None:
                events.after()
            end(clock())
            if watch is not None:
                watch.step(output.logits)
            return output

        # Set on the instance, where a compiled or dispatched model has a forward of its own.
        self._own = vars(self._model).get("forward")
        self._model.forward = timed
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._own is None:
            del self._model.forward
        else:
            self._model.forward = self._own

    def device_ms(self) -> list[float]:
        """Device milliseconds of every forward; empty without device events. Call after the run."""
        return [] if self._events is None else [float(ms) for ms in self._events.read()]


def stages(
    begins: Sequence[int], ends: Sequence[int], arrivals: Sequence[tuple[int, int]], ready_ns: int
) -> dict[str, int]:
    """Nanoseconds per stage, from the marks of one request.

    ``cache_init`` is from the ids being ready to the first forward (generate's preparation),
    ``prefill`` the first forward, ``first_sample`` from its end to the first arrival, ``decode``
    the sum of the other forwards, ``sample`` all other time up to the last arrival. So
    ``prefill + first_sample`` ends at the first token, and ``decode + sample`` is the sum of the
    gaps between tokens, exactly.
    """
    if not begins or not ends:
        return {}
    out = {"cache_init": begins[0] - ready_ns, "prefill": ends[0] - begins[0]}
    if not arrivals:
        return out
    first, last = arrivals[0][0], arrivals[-1][0]
    out["first_sample"] = first - ends[0]
    # Forwards outside belong to a token that never came, or (where tokens are handed over a step
    # late) to the time before the first one.
    later = zip(begins[1:], ends[1:], strict=False)
    out["decode"] = sum(e - b for b, e in later if first <= b and e <= last)
    out["sample"] = last - first - out["decode"]
    return out


def count_row_tokens(
    ids: Iterable[int], eos_ids: Iterable[int]
) -> tuple[int, Literal["stop", "length"]]:
    """Generated tokens of one row of a padded batch, and why it ended.

    A row counts up to and including its first end token of any listed id; what follows is padding.
    Without an end token every id counts and the row ended at its length.
    """
    ends = frozenset(eos_ids)
    count = 0
    for token in ids:
        count += 1
        if token in ends:
            return count, "stop"
    return count, "length"

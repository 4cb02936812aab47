"""What watches a ``generate()`` call: the token streamer and the stage marks.

Nothing here decodes text, copies from a device or synchronises: a token is stamped when
``generate()`` hands over its id, which it does after copying the id to the host.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


Around = Callable[..., Any]
"""Called instead of a forward, with the forward as its first argument."""

_TAPPING = threading.Lock()


def tap_forward(model: Any, around: Around) -> None:
    """Let ``around`` run the forwards that the calling thread does with ``model``.

    Set on the instance, where a compiled or dispatched model has a forward of its own; other
    threads' forwards are not touched, nor seen.
    """
    with _TAPPING:
        current = vars(model).get("forward")
        taps: dict[int, Around] | None = getattr(current, "llmsla_taps", None)
        if taps is None:
            taps = {}
            model.forward = _tapped(model.forward, current, taps)
        taps[threading.get_ident()] = around


def untap_forward(model: Any) -> None:
    """Undo :func:`tap_forward` of the calling thread; the last one puts the old forward back."""
    with _TAPPING:
        current = vars(model).get("forward")
        taps: dict[int, Around] | None = getattr(current, "llmsla_taps", None)
        if taps is None:
            return
        taps.pop(threading.get_ident(), None)
        if taps:
            return
        before = current.llmsla_before
        if before is None:
            del model.forward
        else:
            model.forward = before


def _tapped(forward: Callable[..., Any], before: Any, taps: Mapping[int, Around]) -> Any:
    who = threading.get_ident

    @functools.wraps(forward)  # generate() reads the signature
    def tapped(*args: Any, **kwargs: Any) -> Any:
        around = taps.get(who())
        return forward(*args, **kwargs) if around is None else around(forward, *args, **kwargs)

    marked: Any = tapped
    marked.llmsla_taps, marked.llmsla_before = taps, before
    return marked


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
        self.begins: list[int] = []
        self.ends: list[int] = []

    def __enter__(self) -> StageMarks:
        clock, events, watch = self._clock, self._events, self._watch
        begin, end = self.begins.append, self.ends.append

        def timed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

        tap_forward(self._model, timed)
        return self

    def __exit__(self, *_exc: object) -> None:
        untap_forward(self._model)

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

"""Static batches: requests wait for one another, and one ``generate()`` answers them together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import GenerationAborted, LlmslaError
from .base import Ask, Timeouts
from .hf_crew import HfCrew, Seat
from .hf_logits import BatchWatch
from .hf_request import Requests
from .hf_run import CAST_WARNING, current_device, free_memory, is_memory
from .hf_stream import StageMarks, stages

GATHER_S = 0.03
"""How long an incomplete batch waits for more requests once the model is free."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What must be the same for all rows of a batch."""

    sampling: tuple[tuple[str, Any], ...]
    forced: bool


class BatchCrew(HfCrew):
    """Batches of up to ``size`` prompts, padded on the left to the longest.

    A batch starts when ``size`` requests wait, or :data:`GATHER_S` after the first of them came
    and the batch before ended. A request's clock runs while it waits. Each row's tokens count up
    to its first end token or its own ``max_new_tokens``, and it is returned then; its place is
    free again with the batch.
    """

    mode = "batch"

    def __init__(
        self,
        model: Any,
        requests: Requests,
        size: int,
        timeouts: Timeouts,
        new_events: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(requests, size, timeouts)
        self._model = model
        self._new_events = new_events
        self._waiting: deque[Seat] = deque()
        self._rows: list[Seat] = []
        """Of the batch that runs; emptied when it has ended."""
        self._work_there = threading.Condition()
        self._closing = False
        self._lost: str | None = None
        self._batches = 0
        self._free_since = 0.0
        self._thread = threading.Thread(target=self._work, name="llmsla-batches", daemon=True)
        self._thread.start()

    def prepare(self, ask: Ask) -> Ask:
        """Check it.

        Raises:
            UsageError: sampling that ``generate()`` cannot honour.
            TargetError: a prompt that the model cannot take.
        """
        self._requests.sampling(ask)
        self._requests.ids(ask)
        return ask

    def facts(self) -> Mapping[str, Any]:
        """Batches that ran, and how long one waits to be filled."""
        return {"batches": self._batches, "gather_s": GATHER_S}

    # -- what the base class asks of an engine

    def _enter(self, seat: Seat) -> None:
        self._requests.sampling(seat.ask)
        with self._work_there:
            self._waiting.append(seat)
            self._work_there.notify_all()

    def _leave(self, seat: Seat) -> None:
        with self._work_there:
            if seat in self._waiting:
                self._waiting.remove(seat)

    def _gone(self, seat: Seat) -> bool:
        # A row cannot leave its batch: it is let go of, and the batch ends when all rows are.
        return seat not in self._rows or any(s.leaving is None and not s.over for s in self._rows)

    def _dead(self) -> str | None:
        return self._lost

    def _stop(self, within_s: float) -> bool:
        with self._work_there:
            self._closing = True
            self._work_there.notify_all()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # -- the engine's thread

    def _work(self) -> None:
        while (batch := self._gather()) is not None:
            self._rows = batch
            reason = self._run(batch)
            self._rows = []
            self._free_since = time.perf_counter()
            # Outside the handler of the error: its traceback held what filled the memory.
            if reason is not None:
                free_memory()
                if "device-side assert" in reason:
                    self._lost = reason
                self._fail(batch, reason)

    def _gather(self) -> list[Seat] | None:
        """The next batch; None when the crew is closing."""
        with self._work_there:
            while not self._closing:
                if not self._waiting:
                    self._work_there.wait()
                    continue
                key = _key(self._waiting[0].ask)
                alike = [s for s in self._waiting if _key(s.ask) == key][: self.size]
                began = (self._waiting[0].record.start_ns or 0) / 1e9
                left = max(began, self._free_since) + GATHER_S - time.perf_counter()
                if len(alike) == self.size or left <= 0:
                    for seat in alike:
                        self._waiting.remove(seat)
                    return alike
                self._work_there.wait(left)
        return None

    def _run(self, batch: list[Seat]) -> str | None:
        """One ``generate()``; returns why it failed."""
        try:
            with current_device(self._model.device), CAST_WARNING:
                _Batch(self, batch).run(self._model, self._new_events, self._batches)
        except GenerationAborted:
            return "the generation was ended"
        except LlmslaError as e:
            return str(e)
        except Exception as e:
            tokens = max(len(s.out) for s in batch)
            return _explain(e, len(batch), tokens)
        finally:
            self._batches += 1
        return None

    def done(self, seats: list[Seat]) -> None:
        """These rows are complete."""
        self._end(seats)


class _Batch:
    """One batch on its way; also the streamer of its ``generate()``."""

    def __init__(self, crew: BatchCrew, seats: list[Seat]) -> None:
        self._crew = crew
        self._seats = seats
        self._clock = time.perf_counter_ns
        self._eos = frozenset(crew._requests.ends.eos)
        self._prompt_seen = False
        self._marks: StageMarks | None = None
        self._watch: BatchWatch | None = None
        self._ready_ns = 0
        self._last: list[Seat] = []
        """Rows that ended with the last step of all: finished when their checks are done."""

    def run(self, model: Any, new_events: Callable[[], Any] | None, number: int) -> None:
        """Generate; rows are handed back as they end."""
        begun = self._clock()
        first, requests = self._seats[0].ask, self._crew._requests
        longest = max(len(s.prompt) for s in self._seats)
        notes: list[str] = []
        arguments = {**requests.sampling(first), **requests.cache(longest, notes)}
        if first.sampling.get("seed") is not None:
            torch.manual_seed((int(first.sampling["seed"]) * 1_000_003 + number) % 2**63)
        for seat in self._seats:
            seat.notes += notes
        new = max(s.ask.max_new_tokens for s in self._seats)
        ids, mask = self._padded(longest, model.device)
        self._watch = BatchWatch(sampling=bool(arguments["do_sample"]))
        events = None if new_events is None else new_events()
        self._marks = StageMarks(model, self._clock, events=events, watch=self._watch)
        self._ready_ns = self._clock()
        for seat in self._seats:
            entered = (seat.record.start_ns or 0) + seat.record.stages.get("tokenise", 0)
            seat.record.stage("queue", max(0, begun - entered))
        with self._marks:
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=new,
                min_new_tokens=new if first.force_length else None,
                eos_token_id=sorted(self._eos) or None,
                pad_token_id=self._pad,
                streamer=self,
                **arguments,
            )
        self._finish(self._last)
        if any(not s.over for s in self._seats):
            raise GenerationAborted("generate() returned before every row had ended")

    @property
    def _pad(self) -> int:
        pad = self._crew._requests.ends.pad
        return 0 if pad is None else pad  # masked, so any id will do

    def _padded(self, longest: int, device: Any) -> tuple[Any, Any]:
        """Ids and attention mask, both (rows, longest)."""
        ids, mask = [], []
        for seat in self._seats:
            gap = longest - len(seat.prompt)
            ids.append([self._pad] * gap + seat.prompt)
            mask.append([0] * gap + [1] * len(seat.prompt))
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    # -- the streamer

    def put(self, value: Any) -> None:
        """One id for each row, ended ones included; the first call is the prompts."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        tokens = value.tolist()  # waits for the device
        at = self._clock()
        ended = []
        for seat, token in zip(self._seats, tokens, strict=True):
            if seat.over or seat.leaving is not None or seat in self._last:
                continue
            seat.arrive(at, token)
            ends = token in self._eos and not seat.ask.force_length
            if ends or len(seat.out) >= seat.ask.max_new_tokens:
                ended.append(seat)
        if all(s.over or s.leaving is not None or s in ended for s in self._seats):
            if not ended:
                raise GenerationAborted("every request of the batch was ended")
            self._last = ended
        elif ended:
            self._finish(ended)

    def end(self) -> None:
        """Nothing to flush."""

    def _finish(self, seats: list[Seat]) -> None:
        """Check and hand back rows that are complete."""
        marks, watch = self._marks, self._watch
        if not seats or marks is None or watch is None:
            return
        bad = watch.first_bad_step()
        for seat in seats:
            if bad is not None:
                seat.failure = (
                    f"the model's logits are not finite at output token {bad + 1} (NaN or "
                    f"infinity), in a batch of {len(self._seats)}: the answer may be noise. Check "
                    "the checkpoint, or use bfloat16 or float32 instead of float16."
                )
            record = seat.record
            told = stages(marks.begins, marks.ends, record.arrivals, self._ready_ns)
            for name, ns in told.items():
                record.stage(name, ns)
        if seats is self._last:
            self._device_stages(seats, marks)
        self._crew.done(seats)

    def _device_stages(self, seats: list[Seat], marks: StageMarks) -> None:
        """Only for rows that ended with their batch: reading sooner would hold up the others."""
        steps = marks.device_ms()
        for seat in seats if steps else ():
            seat.record.stage("prefill_device", round(steps[0] * 1e6))
            seat.record.stage("decode_device", round(sum(steps[1:]) * 1e6))


def _key(ask: Ask) -> _Key:
    return _Key(tuple(sorted(ask.sampling.items())), ask.force_length)


def _explain(e: Exception, rows: int, tokens: int) -> str:
    cause = f"{type(e).__name__}: {e}"
    if is_memory(e):
        return (
            f"out of memory after {tokens} tokens in a batch of {rows} ({cause}). Use fewer "
            "requests in flight, shorter prompts, a smaller dtype, or a larger device."
        )
    if "device-side assert" in cause:
        return (
            f"a CUDA kernel failed after {tokens} tokens ({cause}), device-side assert: the CUDA "
            "context is lost, every later request of this process fails too. Start again."
        )
    return f"generate() failed after {tokens} tokens in a batch of {rows} ({cause})."

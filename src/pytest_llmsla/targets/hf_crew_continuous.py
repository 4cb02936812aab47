"""Requests that join and leave one running batch, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import LlmslaError, TargetError
from .base import Ask, Timeouts
from .hf_continuous import FEWEST_TOKENS, Engine
from .hf_crew import HfCrew, Seat
from .hf_request import Requests
from .hf_sampling import SHARED_SEED
from .hf_steps import Delivery, Step

NS_PER_MS = 1_000_000


class ContinuousCrew(HfCrew):
    """Up to ``size`` requests in transformers' continuous batching.

    The engine is made before the first request's clock, for the longest request prepared so far,
    and made anew, when nothing is in flight, for a longer one, for other sampling, or after it
    failed. Check the model with :func:`hf_continuous.refuse` first.
    """

    mode = "continuous"

    def __init__(self, model: Any, requests: Requests, size: int, timeouts: Timeouts) -> None:
        super().__init__(requests, size, timeouts)
        self._model = model
        self._engine: Engine | None = None
        self._sampling: dict[str, Any] | None = None
        self._tokens = FEWEST_TOKENS
        self._by_key: dict[str, Seat] = {}
        self._made = 0
        self._closed = False

    def prepare(self, ask: Ask) -> Ask:
        """Make room for it, and an engine where there is none for it.

        Raises:
            UsageError: the sampling cannot be honoured here.
            TargetError: the request cannot be made, or differs from those in flight.
        """
        need = len(self._requests.ids(ask)) + ask.max_new_tokens
        while self._tokens < need:
            self._tokens *= 2
        self._ready(ask)
        return ask

    def facts(self) -> Mapping[str, Any]:
        """Sizes of the engine as it is now, tokens; none before it is made."""
        return {} if self._engine is None else self._engine.facts

    def _ready(self, ask: Ask) -> Engine:
        """An engine for this request: the one there is, or a new one where nothing is in flight."""
        sampling = {**self._requests.sampling(ask), "seed": ask.sampling.get("seed")}
        engine = self._engine
        if engine is None or self._dead() is not None:
            return self._renew(sampling)
        live = any(not s.over for s in self._by_key.values())
        if sampling != self._sampling and live:
            raise TargetError(
                f"sampling {dict(ask.sampling)} differs from that of the requests in flight, and "
                "continuous batching has one for all. Use one, or target.batching: threads."
            )
        if live or (sampling == self._sampling and engine.tokens >= self._tokens):
            return engine
        return self._renew(sampling)

    def _renew(self, sampling: dict[str, Any]) -> Engine:
        """End the engine and make another; what was in flight in it fails."""
        engine = self._engine
        if engine is not None:
            dead = engine.dead()
            self._fail(self._by_key.values(), dead or "continuous batching was started anew")
            if engine.lost or not engine.stop(self._timeouts.grace_s):
                self.hung = dead or "continuous batching did not end: its target cannot be used"
                raise TargetError(self.hung)
            self._engine = None
        self._by_key = {}
        self._hurry = False
        self._sampling = sampling
        self._engine = Engine(
            self._model,
            {k: v for k, v in sampling.items() if k != "seed"},
            sampling["seed"],
            eos=self._requests.ends.eos,
            size=self.size,
            tokens=self._tokens,
            receiver=self,
        )
        return self._engine

    # -- the manager's thread

    def received(self, step: Step | None, deliveries: list[Delivery]) -> None:
        """Ids of one step: stamp them, and end what is complete."""
        ended = []
        for one in deliveries:
            seat = self._by_key.get(one.key)
            if seat is None or seat.over:
                continue
            if step is not None and one.fresh:
                _stages(seat, step, one)
            for at, token in one.fresh:
                seat.arrive(at, token)
            if one.error is not None:
                seat.said = one.error
                self._look_now()
            elif step is not None and not step.finite:
                self._fail([seat], _not_finite(len(seat.out), len(deliveries)))
                if not one.finished and self._engine is not None:
                    self._engine.forget(one.key)
            elif one.finished:
                ended.append(seat)
        if ended:
            self._end(ended)

    # -- what the base class asks of an engine

    def _enter(self, seat: Seat) -> None:
        engine, ask = self._ready(seat.ask), seat.ask
        if self._sampling and self._sampling["do_sample"] and self._sampling["seed"] is not None:
            seat.notes.append(SHARED_SEED)
        self._made += 1
        seat.cached = 0
        seat.key = f"{seat.job.blank.id}/{self._made}"
        kept = {k: s for k, s in self._by_key.items() if not s.over}
        self._by_key = {**kept, seat.key: seat}
        engine.add(seat.key, seat.prompt, ask.max_new_tokens, forced=ask.force_length)

    def _leave(self, seat: Seat) -> None:
        if self._engine is not None and seat.key:
            self._engine.cancel(seat.key)

    def _gone(self, seat: Seat) -> bool:
        return self._engine is None or not seat.key or self._engine.gone(seat.key)

    def _dead(self) -> str | None:
        return None if self._engine is None else self._engine.dead()

    def _stop(self, within_s: float) -> bool:
        engine = self._engine
        if engine is None:
            return True
        self._closed = True
        if not engine.stop(within_s):
            return False
        self._engine = None
        return True

    def _watch(self) -> None:
        super()._watch()
        engine = self._engine
        if engine is None or self._closed:
            return
        dead = engine.dead()
        if dead is None:
            # One request that the manager gave up while it goes on with the others.
            for seat in list(self._by_key.values()):
                if seat.said is not None and not seat.over:
                    self._fail([seat], f"continuous batching failed ({seat.said})")
            self._hurry = False
            return
        # Made anew here, before the clock of any later request.
        try:
            self._renew(self._sampling or {})
        except LlmslaError as e:
            self.hung = self.hung or f"{dead}, and then: {e}"


def _stages(seat: Seat, step: Step, one: Delivery) -> None:
    """Where the time up to this token went. ``decode`` and ``sample`` add up to the gaps."""
    record, at = seat.record, one.fresh[-1][0]
    device = None if step.device_ms is None else round(step.device_ms * NS_PER_MS)
    if not seat.out:
        ready = (record.start_ns or 0) + record.stages.get("tokenise", 0)
        record.stage("queue", max(0, one.scheduled_ns - ready))
        record.stage("prefill", step.end_ns - one.scheduled_ns)
        record.stage("first_sample", at - step.end_ns)
        if device is not None:
            record.stage("prefill_device", device)
        return
    forward = step.end_ns - step.begin_ns
    record.stage("decode", forward)
    record.stage("sample", at - record.arrivals[-1][0] - forward)
    if device is not None:
        record.stage("decode_device", device)


def _not_finite(token: int, sharing: int) -> str:
    return (
        f"the model's logits are not finite at output token {token} (NaN or infinity), in a step "
        f"shared by {sharing} requests: the answer may be noise. Check the checkpoint, or use "
        "bfloat16 or float32 instead of float16."
    )

"""An in-process Hugging Face model as the thing under test."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import TargetError, UsageError
from .base import Answer, Ask, Clock, Crew, Recorder, Timeouts
from .hf_sampling import SHARED_SEED, Seeds
from .hf_spec import HfSpec

if TYPE_CHECKING:
    from ..probes.sampler import Source
    from .hf_load import Loaded


def _silent(_line: str) -> None:
    """The default of ``say``."""


class TransformersTarget:
    """A loaded model with its tokenizer. Several threads may call :meth:`generate` at once.

    The model's own sampling defaults are put aside: what sla.yaml says is what runs.
    """

    kind = "transformers"
    start_point = "request accepted in-process"

    def __init__(self, spec: HfSpec, loaded: Loaded) -> None:
        from ..probes.memory import MemoryProbe
        from .hf_describe import inspect
        from .hf_engine import plain_generation_config
        from .hf_prompt import PromptRenderer
        from .hf_request import Requests

        self._spec = spec
        self._loaded: Loaded | None = loaded
        self._renderer = PromptRenderer.of(loaded.tokenizer)
        seen = inspect(spec, loaded, self._renderer)
        self._facts, self._ends, self._context = seen.facts, seen.ends, seen.context
        plain_generation_config(loaded.model, self._ends.eos, self._ends.pad)
        devices: list[str] = seen.facts["devices"]
        self._memory = MemoryProbe(",".join(devices))
        self._new_events = _step_events(devices)
        self._seeds = Seeds()
        self._requests = Requests(
            spec,
            self._renderer,
            self._ends,
            rows=seen.facts["vocabulary_rows"],
            context=self._context,
        )
        self.crew: Callable[[int, Timeouts], Crew] | None = (
            None if spec.batching == "threads" else self._crew
        )
        """Makes a crew; None where requests in flight share the model by threads alone."""

    @classmethod
    def load(
        cls, spec: Mapping[str, Any], *, say: Callable[[str], None] = _silent
    ) -> TransformersTarget:
        """Load the model that the ``target`` mapping of sla.yaml names.

        ``say`` gets a line before each step that takes long.

        Raises:
            UsageError: the mapping is wrong, or asks for what is not installed here.
            TargetError: the model cannot be found, read or used.
        """
        parsed = HfSpec.from_mapping(spec)
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                raise UsageError(
                    f"target.kind: transformers needs the package {package}, which is not "
                    "installed. Install it: pip install 'pytest-llmsla[transformers]'"
                )
        from .hf_load import load

        return cls(parsed, load(parsed, say=say))

    @property
    def model(self) -> Any:
        """The transformers model, in evaluation mode."""
        return self._open().model

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._open().tokenizer

    @property
    def clock(self) -> Clock:
        """``time.perf_counter_ns``."""
        return time.perf_counter_ns

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report; see :func:`hf_describe.inspect`."""
        return self._facts

    def count(self, prompt: str, system: str | None = None) -> int:
        """Tokens of the rendered prompt: exactly what ``generate`` sees."""
        return len(self._renderer.ids(prompt, system))

    def encode(self, text: str) -> list[int]:
        """Ids of bare text, no special tokens."""
        encoded = self.tokenizer(text, add_special_tokens=False)
        return [int(i) for i in encoded["input_ids"]]

    def max_context(self) -> int | None:
        """Positions the model has, tokens; None when its config does not say."""
        return self._context

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """Answer one prompt; see :class:`~pytest_llmsla.targets.base.Target`.

        An end token counts as a generated token. An answer that is an end token alone, that is
        not finite, or longer than asked is an error.

        Raises:
            UsageError: sampling that ``generate()`` cannot honour.
            TargetError: the request cannot be answered; the target can be asked again.
            GenerationAborted: the recorder was cancelled.
        """
        import torch

        from .hf_run import Call, run

        entered = record.clock()
        model, requests = self.model, self._requests
        arguments = requests.sampling(ask)
        ticket = self._seeds.begin(ask.sampling.get("seed"))
        try:
            ids = requests.ids(ask)
            notes = requests.notes(ask)
            arguments |= requests.cache(len(ids), notes)
            input_ids = torch.tensor([ids], device=model.device)
            call = Call(
                input_ids,
                ask.max_new_tokens,
                self._ends.eos,
                {
                    **arguments,
                    "attention_mask": torch.ones_like(input_ids),
                    "min_new_tokens": ask.max_new_tokens if ask.force_length else None,
                    "eos_token_id": list(self._ends.eos) or None,
                    "pad_token_id": self._ends.pad,
                },
            )
            ready = record.clock()
            record.stage("tokenise", ready - entered)
            outcome = run(model, call, record, ready, self._new_events)
        finally:
            overlapped = self._seeds.end(ticket)
        if overlapped and arguments["do_sample"] and ask.sampling.get("seed") is not None:
            notes.append(SHARED_SEED)
        if outcome.late:
            notes.append("tokens came one step late: TTFT holds a step more than the model needs")
        return requests.answer(ask, record, len(ids), outcome.ids, notes)

    def reset_peaks(self) -> None:
        """Start the measured window of memory peaks (after warm-up)."""
        self._memory.reset()

    def samples(self) -> list[Source]:
        """What a sampler reads of its cards while it is measured."""
        return self._memory.sources()

    def memory(self) -> Mapping[str, Any]:
        """Memory figures in GiB, each None with its reason where it cannot be read."""
        return self._memory.read()

    def close(self) -> None:
        """Release the model. Idempotent."""
        if self._loaded is None:
            return
        from .hf_run import free_memory

        self._loaded = None
        free_memory()

    def _crew(self, size: int, timeouts: Timeouts) -> Crew:
        """``size`` requests at once, by ``target.batching``.

        Raises:
            UsageError: this model or these packages cannot be shared that way.
        """
        loaded = self._open()
        if self._spec.batching == "batch":
            from .hf_crew_batch import BatchCrew

            return BatchCrew(loaded.model, self._requests, size, timeouts, self._new_events)
        from .hf_continuous import refuse
        from .hf_crew_continuous import ContinuousCrew

        refuse(self._spec, loaded.model, self._facts["devices"])
        return ContinuousCrew(loaded.model, self._requests, size, timeouts)

    def _open(self) -> Loaded:
        if self._loaded is None:
            raise TargetError(f"the target {self._spec.model} is closed. Load it again.")
        return self._loaded


def _step_events(devices: list[str]) -> Callable[[], Any] | None:
    """Maker of CUDA step events; None off CUDA, or where layers are spread over several devices."""
    if len(devices) != 1 or not devices[0].startswith("cuda"):
        return None
    from ..probes.cuda import StepEvents

    pools = threading.local()  # several threads may ask the model at once

    def fresh() -> StepEvents:
        pool: StepEvents | None = getattr(pools, "events", None)
        if pool is None:
            pool = pools.events = StepEvents(reserve=64)
        pool.reset()
        return pool

    return fresh

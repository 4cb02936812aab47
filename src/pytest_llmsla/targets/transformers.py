"""An in-process Hugging Face model as the thing under test."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import TargetError, UsageError
from .base import Answer, Ask, Clock, Recorder
from .hf_sampling import sampling_arguments
from .hf_spec import HfSpec

if TYPE_CHECKING:
    from .hf_load import Loaded

SHORT_PROMPT = 32
"""``use_cache: auto`` turns the cache off below this many prompt tokens, as published."""


def _silent(_line: str) -> None:
    """The default of ``say``."""


class TransformersTarget:
    """A loaded model with its tokenizer, answering one request at a time.

    The model's own sampling defaults are put aside: what sla.yaml says is what runs.
    """

    kind = "transformers"
    start_point = "request accepted in-process"

    def __init__(self, spec: HfSpec, loaded: Loaded) -> None:
        from ..probes.memory import MemoryProbe
        from .hf_describe import inspect
        from .hf_engine import plain_generation_config
        from .hf_prompt import PromptRenderer

        self._spec = spec
        self._loaded: Loaded | None = loaded
        self._renderer = PromptRenderer.of(loaded.tokenizer)
        seen = inspect(spec, loaded, self._renderer)
        self._facts, self._ends, self._context = seen.facts, seen.ends, seen.context
        plain_generation_config(loaded.model, self._ends.eos, self._ends.pad)
        devices: list[str] = seen.facts["devices"]
        self._memory = MemoryProbe(",".join(devices))
        self._new_events = _step_events(devices)
        self._asked = 0

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

    @staticmethod
    def check_sampling(sampling: Mapping[str, Any]) -> None:
        """Check ``workload.sampling`` before anything is loaded.

        Raises:
            UsageError: a key or value that ``generate()`` cannot honour.
        """
        sampling_arguments(sampling)

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
        model = self.model
        arguments = sampling_arguments(ask.sampling)
        self._seed(ask.sampling.get("seed"))
        ids = self._ids(ask)
        self._check_prompt(ids, ask.max_new_tokens)
        notes: list[str] = []
        if ask.system and not self._renderer.system_role and ask.ids is None:
            notes.append("system prompt put before the user's: the template has no system role")
        arguments |= self._cache_arguments(len(ids), notes)
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
        if outcome.late:
            notes.append("tokens came one step late: TTFT holds a step more than the model needs")
        return self._answer(ask, record, len(ids), outcome.ids, notes)

    def reset_peaks(self) -> None:
        """Start the measured window of memory peaks (after warm-up)."""
        self._memory.reset()

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

    def _open(self) -> Loaded:
        if self._loaded is None:
            raise TargetError(f"the target {self._spec.model} is closed. Load it again.")
        return self._loaded

    def _ids(self, ask: Ask) -> list[int]:
        if ask.ids is not None:
            return list(ask.ids)
        if not ask.prompt:
            raise TargetError("the prompt is empty. Give it at least one character.")
        return self._renderer.ids(ask.prompt, ask.system)

    def _check_prompt(self, ids: list[int], new: int) -> None:
        if not ids:
            raise TargetError("the prompt has no token. Give it some text.")
        rows = self._facts["vocabulary_rows"]
        # Beyond its table an id ends a CUDA process for good, so it is caught here.
        if rows is not None and max(ids) >= rows:
            raise TargetError(
                f"the prompt holds token id {max(ids)}; the model has {rows} embeddings. Is "
                "target.tokenizer the model's own?"
            )
        if self._context is not None and len(ids) + new > self._context:
            raise TargetError(
                f"the prompt has {len(ids)} tokens and {new} are asked for, {len(ids) + new} "
                f"together; the model has {self._context} positions. Shorten the prompt or "
                "max_new_tokens."
            )

    def _cache_arguments(self, prompt: int, notes: list[str]) -> dict[str, Any]:
        use = self._spec.use_cache
        if use == "auto":
            use = prompt >= SHORT_PROMPT
            if not use:
                notes.append(f"use_cache off: prompt of {prompt} tokens, under {SHORT_PROMPT}")
        # generate() compiles by itself with a static cache; only target.compile may decide that.
        out: dict[str, Any] = {"use_cache": bool(use), "disable_compile": True}
        if use and self._spec.cache == "static":
            out["cache_implementation"] = "static"
        return out

    def _seed(self, seed: Any) -> None:
        """Another seed for every request, the same ones in every run."""
        import torch

        if seed is not None:
            torch.manual_seed((int(seed) * 1_000_003 + self._asked) % 2**63)
        self._asked += 1

    def _answer(
        self, ask: Ask, record: Recorder, prompt: int, out: list[int], notes: list[str]
    ) -> Answer:
        began = record.clock()
        text = str(
            self.tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
        record.stage("detokenise", record.clock() - began)
        ended = out[-1] in self._ends.eos
        if ended:
            notes.append(f"the end token {out[-1]} is counted")
        if ask.force_length and len(out) < ask.max_new_tokens:
            notes.append(f"forced length not honoured: {ask.max_new_tokens} asked, got {len(out)}")
        return Answer(
            text=text,
            prompt_tokens=prompt,
            output_tokens=len(out),
            token_source="model",
            finish_reason="stop" if ended else "length",
            notes=tuple(notes),
        )


def _step_events(devices: list[str]) -> Callable[[], Any] | None:
    """Maker of CUDA step events; None off CUDA, or where layers are spread over several devices."""
    if len(devices) != 1 or not devices[0].startswith("cuda"):
        return None
    from ..probes.cuda import StepEvents

    pool = StepEvents(reserve=64)

    def fresh() -> StepEvents:
        pool.reset()
        return pool

    return fresh

"""An in-process Hugging Face model as the thing under test."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import GenerationAborted, TargetError, UsageError
from .base import Answer, Ask, Clock, Recorder
from .hf_prompt import PromptRenderer
from .hf_sampling import sampling_arguments
from .hf_spec import HfSpec
from .hf_stream import StageMarks, TokenStreamer, stages

if TYPE_CHECKING:
    from .hf_load import Loaded

SHORT_PROMPT = 32
"""``use_cache: auto`` turns the cache off below this many prompt tokens, as published."""


def _silent(_line: str) -> None:
    """The default of ``say``."""


class TransformersTarget:
    """A loaded model with its tokenizer, answering one request at a time."""

    kind = "transformers"
    start_point = "request accepted in-process"

    def __init__(self, spec: HfSpec, loaded: Loaded) -> None:
        from .hf_checks import inspect

        self._spec = spec
        self._loaded = loaded
        self._renderer = PromptRenderer.of(loaded.tokenizer)
        self._facts = inspect(spec, loaded, self._renderer)
        self._asked = 0
        self._closed = False

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
        return self._loaded.model

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._loaded.tokenizer

    @property
    def clock(self) -> Clock:
        """``time.perf_counter_ns``."""
        return time.perf_counter_ns

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report; see :func:`hf_checks.inspect`."""
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
        value = self._facts["context_length"]
        return None if value is None else int(value)

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """Answer one prompt; see :class:`~pytest_llmsla.targets.base.Target`."""
        import torch

        entered = record.clock()
        arguments = sampling_arguments(ask.sampling)
        self._seed(ask.sampling.get("seed"))
        ids = list(ask.ids) if ask.ids is not None else self._renderer.ids(ask.prompt, ask.system)
        self._check_length(len(ids), ask.max_new_tokens)
        notes: list[str] = []
        use_cache = self._use_cache(len(ids), notes)
        input_ids = torch.tensor([ids], device=self.model.device)
        ready = record.clock()
        record.stage("tokenise", ready - entered)
        streamer = TokenStreamer(record)
        marks = StageMarks(self.model, record.clock)
        with marks, torch.inference_mode():
            self.model.generate(
                input_ids=input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=ask.max_new_tokens,
                min_new_tokens=ask.max_new_tokens if ask.force_length else None,
                use_cache=use_cache,
                eos_token_id=self._facts["eos_token_ids"] or None,
                pad_token_id=self._facts["pad_token_id"],
                streamer=streamer,
                **arguments,
            )
        for name, ns in stages(marks.begins, marks.ends, record.arrivals, ready).items():
            record.stage(name, ns)
        return self._answer(ask, record, streamer, len(ids), notes)

    def _answer(
        self, ask: Ask, record: Recorder, streamer: TokenStreamer, prompt: int, notes: list[str]
    ) -> Answer:
        out = streamer.token_ids()
        began = record.clock()
        text = str(self.tokenizer.decode(out, skip_special_tokens=True))
        record.stage("detokenise", record.clock() - began)
        return Answer(
            text=text,
            prompt_tokens=prompt,
            output_tokens=len(out),
            token_source="model",
            finish_reason="stop" if out and out[-1] in self._facts["eos_token_ids"] else "length",
            notes=tuple(notes),
        )

    def _seed(self, seed: Any) -> None:
        import torch

        if seed is not None:
            torch.manual_seed((int(seed) * 1_000_003 + self._asked) % 2**63)
        self._asked += 1

    def _use_cache(self, prompt: int, notes: list[str]) -> bool:
        if self._spec.use_cache != "auto":
            return bool(self._spec.use_cache)
        if prompt < SHORT_PROMPT:
            notes.append(f"use_cache off: prompt of {prompt} tokens, under {SHORT_PROMPT}")
            return False
        return True

    def _check_length(self, prompt: int, new: int) -> None:
        context = self.max_context()
        if context is not None and prompt + new > context:
            raise TargetError(
                f"the prompt has {prompt} tokens and {new} are asked for, together {prompt + new}; "
                f"the model has {context} positions. Shorten the prompt or max_new_tokens."
            )

    def reset_peaks(self) -> None:
        """Start the measured window of memory peaks."""

    def memory(self) -> Mapping[str, float | None]:
        """Memory figures in GiB."""
        return {}

    def close(self) -> None:
        """Release the model. Idempotent."""
        self._closed = True


__all__ = ["GenerationAborted", "TransformersTarget"]

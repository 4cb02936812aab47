"""One request of a loaded model: from what was asked to ids and arguments, and to its answer."""

from __future__ import annotations

from typing import Any

from ..errors import TargetError
from .base import Answer, Ask, Recorder
from .hf_checks import EndTokens
from .hf_prompt import PromptRenderer
from .hf_sampling import sampling_arguments
from .hf_spec import HfSpec

SHORT_PROMPT = 32
"""``use_cache: auto`` turns the cache off below this many prompt tokens, as published."""


class Requests:
    """What every way of asking a model shares. Holds no state of a request: any thread may use it.

    ``rows`` is the number of embeddings, ``context`` the positions; None where unknown.
    """

    def __init__(
        self,
        spec: HfSpec,
        renderer: PromptRenderer,
        ends: EndTokens,
        *,
        rows: int | None,
        context: int | None,
    ) -> None:
        self.ends = ends
        self._spec = spec
        self._renderer = renderer
        self._rows = rows
        self._context = context

    def ids(self, ask: Ask) -> list[int]:
        """Prompt ids as the model will see them, checked.

        Raises:
            TargetError: an empty prompt, an id the model has no embedding for, or too many tokens.
        """
        if ask.ids is not None:
            ids = list(ask.ids)
        elif ask.prompt:
            ids = self._renderer.ids(ask.prompt, ask.system)
        else:
            raise TargetError("the prompt is empty. Give it at least one character.")
        self._check(ids, ask.max_new_tokens)
        return ids

    def notes(self, ask: Ask) -> list[str]:
        """What is not as the policy says it, for every request."""
        if ask.system and not self._renderer.system_role and ask.ids is None:
            return ["system prompt put before the user's: the template has no system role"]
        return []

    def sampling(self, ask: Ask) -> dict[str, Any]:
        """Sampling arguments of ``generate()``; see :func:`hf_sampling.sampling_arguments`."""
        return sampling_arguments(ask.sampling)

    def cache(self, prompt: int, notes: list[str]) -> dict[str, Any]:
        """Cache arguments of ``generate()`` for a (or a batch's longest) prompt of that length."""
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

    def answer(
        self, ask: Ask, record: Recorder, prompt: int, out: list[int], notes: list[str]
    ) -> Answer:
        """The answer of generated ids ``out``; decodes its text, as stage ``detokenise``."""
        began = record.clock()
        text = str(
            self._renderer.tokenizer.decode(
                out, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )
        record.stage("detokenise", record.clock() - began)
        # A forced answer may hold an end token where one does not end it.
        forced = ask.force_length and len(out) >= ask.max_new_tokens
        ended = out[-1] in self.ends.eos and not forced
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

    def _check(self, ids: list[int], new: int) -> None:
        if not ids:
            raise TargetError("the prompt has no token. Give it some text.")
        # Beyond its table an id ends a CUDA process for good, so it is caught here.
        if self._rows is not None and max(ids) >= self._rows:
            raise TargetError(
                f"the prompt holds token id {max(ids)}; the model has {self._rows} embeddings. Is "
                "target.tokenizer the model's own?"
            )
        if self._context is not None and len(ids) + new > self._context:
            raise TargetError(
                f"the prompt has {len(ids)} tokens and {new} are asked for, {len(ids) + new} "
                f"together; the model has {self._context} positions. Shorten the prompt or "
                "max_new_tokens."
            )

"""OpenAI's chat and completions APIs, as many servers speak them.

Read from the sources of vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and ``transformers serve``, and
from OpenAI's reference. Keys that only some servers know (top_k, min_p, repetition_penalty,
ignore_eos, min_tokens, continuous_usage_stats) are vLLM's names, which the others took over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ...wire.errors import WireError
from ...wire.said import short
from ...wire.sse import Event
from ..base import Ask
from .channels import read_delta
from .dialect import Options, Piece
from .reading import (
    failing,
    items,
    mapping,
    output_count,
    prompt_count,
    read_event,
    server_times,
    text,
    word,
)
from .sampling import LENGTH, ONE, PROMPT, STREAM, Reserved, SamplingKeys, replaced, with_extra

_OWN = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
_BORROWED = ("top_k", "min_p", "repetition_penalty")
SAMPLING = SamplingKeys(
    api="an OpenAI API",
    names={key: key for key in (*_OWN, *_BORROWED)},
    greedy={"temperature": 0},
)
CAP = "max_completion_tokens"
_NO_FINISH = ("null", "None")  # as gateways write it that turn everything into text
RESERVED = Reserved(
    {
        "stream": STREAM,
        "model": "the model comes from target.model",
        "messages": PROMPT,
        "prompt": PROMPT,
        "max_tokens": f"{LENGTH} (name {CAP} instead where the server wants that key)",
        "max_new_tokens": LENGTH,
        "max_output_tokens": LENGTH,
        "n_predict": LENGTH,
        "n": ONE,
        "best_of": ONE,
        "echo": "an echoed prompt would be timed as an answer",
    }
)


@dataclass(frozen=True, slots=True)
class _OpenAI:
    """What both APIs have in common.

    Attributes:
        model: sent as ``model``; None leaves it out.
        extra_body: keys for every request, put last; a null takes a key out. A
            ``max_completion_tokens`` in it names the key of the token cap, whatever its value.
    """

    model: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    optional = ("include_usage", "continuous_usage_stats", "ignore_eos", "min_tokens")
    at_root = False
    streams = True
    renderer = None

    def __post_init__(self) -> None:
        RESERVED.check(self.extra_body)

    def can_force(self, options: Options) -> bool:
        """True while the server takes ``ignore_eos`` or ``min_tokens``."""
        return options.takes("ignore_eos") or options.takes("min_tokens")

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """Keys that not every server knows, and what ``extra_body`` changes."""
        sent = SAMPLING.of(ask.sampling)
        borrowed = tuple(
            f"{key} is not in OpenAI's API: a server that does not know it may ignore it"
            for key in _BORROWED
            if key in sent
        )
        return borrowed + replaced(sent, self.extra_body)

    def _finished(self, body: dict[str, Any], ask: Ask, options: Options) -> dict[str, Any]:
        """``body`` with everything but the prompt."""
        if self.model is not None:
            body["model"] = self.model
        body["stream"] = True
        if options.takes("include_usage"):
            body["stream_options"] = {"include_usage": True}
            if options.takes("continuous_usage_stats"):
                body["stream_options"]["continuous_usage_stats"] = True
        if ask.force_length:
            if options.takes("ignore_eos"):
                body["ignore_eos"] = True
            if options.takes("min_tokens"):
                body["min_tokens"] = ask.max_new_tokens
        body.update(SAMPLING.of(ask.sampling))
        with_extra(body, self.extra_body)
        body[CAP if CAP in self.extra_body else "max_tokens"] = ask.max_new_tokens
        return body

    def read(self, event: Event) -> Piece:
        """What a chunk says; usage is taken wherever it stands.

        Raises:
            WireError: no JSON object, a second choice, an absurd count, a channel of odd type.
        """
        return read_event(event, read_chunk)


@dataclass(frozen=True, slots=True)
class OpenAIChat(_OpenAI):
    """``POST chat/completions``. A system prompt is a message of its own."""

    name = "openai chat"
    path = "chat/completions"

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request.

        Raises:
            UsageError: a sampling key that is unknown or cannot be expressed.
        """
        return self._finished({"messages": messages_of(ask)}, ask, options)


@dataclass(frozen=True, slots=True)
class OpenAICompletions(_OpenAI):
    """``POST completions``. The prompt goes out as it is: no chat template, no system prompt."""

    name = "openai completions"
    path = "completions"

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request.

        Raises:
            UsageError: a system prompt, or a sampling key that is unknown or cannot be expressed.
        """
        refuse_system(ask, "the completions API")
        return self._finished({"prompt": ask.prompt}, ask, options)


def messages_of(ask: Ask) -> list[dict[str, str]]:
    """The prompt as messages: the system prompt, if any, then the user's text."""
    user = {"role": "user", "content": ask.prompt}
    return [user] if ask.system is None else [{"role": "system", "content": ask.system}, user]


def refuse_system(ask: Ask, api: str) -> None:
    """An API on raw text has no place for a system prompt.

    Raises:
        UsageError: ``ask`` has one.
    """
    if ask.system is not None:
        raise UsageError(
            f"workload.system_prompt cannot be sent through {api}: it takes one raw text. Use "
            "api: chat, or put the system prompt into the prompts and remove system_prompt."
        )


def read_chunk(payload: Mapping[str, Any]) -> Piece:
    """What one chunk of either API says."""
    piece = Piece()
    usage = mapping(payload.get("usage"), "usage")
    choices = items(payload.get("choices"), "choices")
    for raw in choices:
        choice = mapping(raw, "a choice")
        index = output_count(choice.get("index"), "choice index")
        if index:
            raise WireError(f"the server sent choice {index}: one answer was asked for")
        _read_choice(choice, piece)
        usage = usage or mapping(choice.get("usage"), "usage")
    if len(choices) > 1:
        raise WireError(f"the server sent {len(choices)} choices at once: one answer was asked for")
    groq = payload.get("x_groq")
    if isinstance(groq, dict):
        usage = usage or mapping(groq.get("usage"), "usage")
        _failed(groq.get("error"), piece)
    if usage:
        read_usage(usage, piece)
    timings = mapping(payload.get("timings"), "timings")
    if timings:
        _read_timings(timings, piece)
    return piece


def _read_choice(choice: Mapping[str, Any], piece: Piece) -> None:
    # A server that cannot stream may send one event with a whole message.
    delta = choice.get("delta")
    said = mapping(choice.get("message") if delta is None else delta, "delta")
    read_delta(said, piece)
    piece.whole = delta is None and choice.get("message") is not None
    plain = choice.get("text")
    if plain is not None:
        plain = text(plain, "text")
        piece.text += plain
        piece.visible += plain
    piece.tokens = _tokens(choice)
    finish = word(choice.get("finish_reason"), "finish_reason")
    piece.finish = None if finish in _NO_FINISH else finish
    native = choice.get("native_finish_reason")  # OpenRouter: what its own became
    if isinstance(native, str):
        piece.error = failing(native)
    _failed(choice.get("error") or said.get("error"), piece)


def _failed(error: Any, piece: Piece) -> None:
    """An error beside an answer's text, inside it, or in a vendor's block."""
    if error:
        piece.error = f"error in a choice: {short(json.dumps(error))}"


def _tokens(choice: Mapping[str, Any]) -> int | None:
    """Tokens of a chunk by its ids (vLLM, SGLang: ``return_token_ids``), else by its logprobs."""
    ids = choice.get("token_ids")
    if ids is not None:
        return len(items(ids, "token_ids"))
    logprobs = mapping(choice.get("logprobs"), "logprobs")
    for key in ("content", "tokens"):
        if logprobs.get(key):
            return len(items(logprobs[key], f"logprobs.{key}"))
    return None


def read_usage(usage: Mapping[str, Any], piece: Piece) -> None:
    """Counts of a ``usage`` object, and its ways of telling a prefix-cache hit."""
    piece.total = output_count(usage.get("completion_tokens"), "usage.completion_tokens")
    piece.prompt_tokens = prompt_count(usage.get("prompt_tokens"), "usage.prompt_tokens")
    details = mapping(usage.get("prompt_tokens_details"), "usage.prompt_tokens_details")
    for source, key in (
        (details, "cached_tokens"),
        (usage, "prompt_cache_hit_tokens"),  # DeepSeek
        (usage, "cached_tokens"),  # Moonshot
    ):
        cached = prompt_count(source.get(key), key)
        if cached is not None:  # where they contradict each other, nothing is taken for new
            piece.cached_tokens = max(cached, piece.cached_tokens or 0)


def _read_timings(timings: Mapping[str, Any], piece: Piece) -> None:
    """llama.cpp's own block, in its last chunk or (``timings_per_token``) in every one."""
    piece.server_ms = server_times(timings)
    if piece.total is None:
        piece.total = output_count(timings.get("predicted_n"), "timings.predicted_n")
    if piece.cached_tokens is None:
        piece.cached_tokens = prompt_count(timings.get("cache_n"), "timings.cache_n")

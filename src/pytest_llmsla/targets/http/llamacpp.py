"""llama.cpp's native API: ``POST /completion``, with its running count and its own timings.

Read from the source of llama-server: an event holds ``content`` and
``tokens_predicted``, the tokens so far, the end token included; the last one has ``stop`` true
and ``timings``. Text may be held back, so an event can bring several tokens. ``tokens_cached`` is
everything in the slot, prompt and answer, and no cache hit; ``timings.cache_n`` is one.
``/apply-template`` renders a chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...wire.errors import WireError
from ...wire.sse import Event
from ..base import Ask
from .dialect import Options, Piece, Renderer
from .reading import (
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

SAMPLING = SamplingKeys(
    api="llama.cpp's /completion",
    names={
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "frequency_penalty": "frequency_penalty",
        "presence_penalty": "presence_penalty",
        "seed": "seed",
    },
    greedy={"temperature": 0},
)
RESERVED = Reserved(
    {
        "stream": STREAM,
        "prompt": PROMPT,
        "n_predict": LENGTH,
        "max_tokens": LENGTH,
        "max_completion_tokens": LENGTH,
        "n": ONE,
        "n_cmpl": ONE,
        "response_fields": "it would take out the fields that hold the counts",
    }
)
_FINISH = {"eos": "stop", "limit": "length"}
_STOPPED = {"stopped_eos": "stop", "stopped_limit": "length", "stopped_word": "word"}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama-server's own completion route.

    Attributes:
        extra_body: keys for every request, put last; a null takes a key out.
    """

    extra_body: Mapping[str, Any] = field(default_factory=dict)

    name = "llama.cpp"
    path = "completion"
    optional = ("ignore_eos",)
    at_root = True
    streams = True
    renderer = Renderer(path="apply-template", key="prompt")

    def __post_init__(self) -> None:
        RESERVED.check(self.extra_body)

    def can_force(self, options: Options) -> bool:
        """True while the server takes ``ignore_eos``."""
        return options.takes("ignore_eos")

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """Sampling keys that ``extra_body`` changes."""
        return replaced(SAMPLING.of(ask.sampling), self.extra_body)

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request; ``ask.prompt`` is the rendered chat.

        ``cache_prompt`` is the server's own default, said aloud: what it saves is in the answer.

        Raises:
            UsageError: a sampling key that is unknown.
        """
        body: dict[str, Any] = {
            "prompt": ask.prompt,
            "stream": True,
            "n_predict": ask.max_new_tokens,
            "cache_prompt": True,
            **SAMPLING.of(ask.sampling),
        }
        if ask.force_length and options.takes("ignore_eos"):
            body["ignore_eos"] = True
        return with_extra(body, self.extra_body)

    def read(self, event: Event) -> Piece:
        """What an event says; the total runs along in every one.

        Raises:
            WireError: no JSON object, a second answer, or a field of odd type.
        """
        return read_event(event, _read)


def _read(payload: Mapping[str, Any]) -> Piece:
    if output_count(payload.get("index"), "index"):
        raise WireError("the server sent several answers: one was asked for")
    piece = Piece()
    piece.text = piece.visible = text(payload.get("content"), "content")
    piece.tokens = len(items(payload.get("tokens"), "tokens")) or None
    piece.total = output_count(payload.get("tokens_predicted"), "tokens_predicted")
    piece.prompt_tokens = prompt_count(payload.get("tokens_evaluated"), "tokens_evaluated")
    if payload.get("stop") is True:
        piece.finish = _finish(payload)
        if payload.get("truncated") is True:
            piece.error = "the server cut the prompt or the answer to its context (truncated)"
    timings = mapping(payload.get("timings"), "timings")
    if timings:
        piece.server_ms = server_times(timings)
        piece.cached_tokens = _cached(timings, piece.prompt_tokens)
    return piece


def _finish(payload: Mapping[str, Any]) -> str:
    """Why it stopped: ``stop_type``, or the flags that servers of 2024 had instead."""
    kind = word(payload.get("stop_type"), "stop_type")
    if kind is None:
        kind = next((v for k, v in _STOPPED.items() if payload.get(k) is True), "stop")
    return _FINISH.get(kind, kind)


def _cached(timings: Mapping[str, Any], prompt: int | None) -> int | None:
    """Prompt tokens that came from the cache: ``cache_n``, or those that were not processed."""
    cached = prompt_count(timings.get("cache_n"), "timings.cache_n")
    processed = prompt_count(timings.get("prompt_n"), "timings.prompt_n")
    if cached is None and prompt is not None and processed is not None:
        return max(0, prompt - processed)
    return cached

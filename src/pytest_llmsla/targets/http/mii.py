"""DeepSpeed-MII by two of its servers; neither counts tokens in a stream.

Read from the sources of MII 0.3:

* the OpenAI server (``mii.entrypoints.openai_api_server``): chunks as OpenAI's, but it knows
  temperature, top_p, top_k and ``min_tokens`` only, drops every other key without a word, always
  samples, and sends no usage in a stream;
* the RESTful gateway (``mii.serve(enable_restful_api=True)``): ``POST /mii/<deployment>``, which
  does not stream: the whole answer comes as one document, so TTFT is the time of all of it and ITL
  cannot be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ...wire.errors import WireError
from ...wire.sse import Event
from ..base import Ask
from .dialect import Options, Piece
from .openai import CAP, messages_of, read_chunk, refuse_system
from .openai import RESERVED as OPENAI_RESERVED
from .reading import (
    error_in,
    excerpt,
    failing,
    mapping,
    output_count,
    parse,
    prompt_count,
    read_event,
    text,
    word,
)
from .sampling import LENGTH, PROMPT, Reserved, SamplingKeys, replaced, with_extra

_NAMES = {key: key for key in ("temperature", "top_p", "top_k")}
SAMPLING = SamplingKeys(
    api="DeepSpeed-MII's API",
    names=_NAMES,
    greedy={"top_k": 1},  # it always samples: out of one candidate that is the likeliest token
)
GATEWAY_SAMPLING = SamplingKeys(
    api="DeepSpeed-MII's gateway",
    names=_NAMES,
    greedy={"do_sample": False},
    sampled={"do_sample": True},
)
RESERVED = Reserved(
    {**OPENAI_RESERVED.words, "max_length": LENGTH, CAP: f"{LENGTH}, which MII calls max_tokens"}
)
GATEWAY_RESERVED = Reserved(
    {
        "prompts": PROMPT,
        "max_new_tokens": LENGTH,
        "return_full_text": "an echoed prompt would be taken for an answer",
        "stream": "the gateway cannot stream",
    },
    anyway={},
)


@dataclass(frozen=True, slots=True)
class MiiOpenAI:
    """MII's OpenAI server: ``POST chat/completions``.

    Attributes:
        model: sent as ``model``; the server wants the name it was started with.
        extra_body: keys for every request, put last; a null takes a key out.
    """

    model: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    name = "mii chat"
    path = "chat/completions"
    optional = ("min_tokens",)
    at_root = False
    streams = True
    renderer = None

    def __post_init__(self) -> None:
        RESERVED.check(self.extra_body)

    def can_force(self, options: Options) -> bool:
        """True while the server takes ``min_tokens``."""
        return options.takes("min_tokens")

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """The seed, which MII has no key for, and what ``extra_body`` changes."""
        sent = SAMPLING.of(ask.sampling)
        return SAMPLING.notes(ask.sampling) + replaced(sent, self.extra_body)

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request.

        Raises:
            UsageError: a sampling key that is unknown or that MII does not have.
        """
        body: dict[str, Any] = {} if self.model is None else {"model": self.model}
        body.update(messages=messages_of(ask), stream=True, max_tokens=ask.max_new_tokens)
        body.update(SAMPLING.of(ask.sampling))
        if ask.force_length and options.takes("min_tokens"):
            body["min_tokens"] = ask.max_new_tokens
        return with_extra(body, self.extra_body)

    def read(self, event: Event) -> Piece:
        """What a chunk says: as OpenAI's.

        Raises:
            WireError: as for OpenAI's.
        """
        return read_event(event, read_chunk)


@dataclass(frozen=True, slots=True)
class MiiRest:
    """MII's RESTful gateway: ``POST /mii/<deployment>`` on the bare prompt, answered in one piece.

    Attributes:
        model: the deployment's name.
        extra_body: keys for every request, put last; a null takes a key out.
    """

    model: str
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    name = "mii rest"
    optional = ()
    at_root = True
    streams = False
    renderer = None

    def __post_init__(self) -> None:
        GATEWAY_RESERVED.check(self.extra_body)

    @property
    def path(self) -> str:
        """Below the server's root."""
        return f"mii/{quote(self.model)}"

    def can_force(self, options: Options) -> bool:
        """Always: the gateway passes ``ignore_eos`` and ``min_new_tokens`` on."""
        return True

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """The seed, which MII has no key for, and what ``extra_body`` changes."""
        sent = GATEWAY_SAMPLING.of(ask.sampling)
        return GATEWAY_SAMPLING.notes(ask.sampling) + replaced(sent, self.extra_body)

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request.

        Raises:
            UsageError: a system prompt, or a sampling key that MII does not have.
        """
        refuse_system(ask, "MII's gateway")
        body: dict[str, Any] = {"prompts": [ask.prompt], "max_new_tokens": ask.max_new_tokens}
        body.update(GATEWAY_SAMPLING.of(ask.sampling))
        if ask.force_length:
            body.update(ignore_eos=True, min_new_tokens=ask.max_new_tokens)
        return with_extra(body, self.extra_body)

    def read(self, event: Event) -> Piece:
        """The whole document as one event: ``[{"generated_text": …, "generated_length": …}]``.

        Raises:
            WireError: no JSON, or not exactly one answer.
        """
        try:
            return _read_document(event.data)
        except RecursionError:
            raise WireError(f"malformed answer, nested too deeply: {excerpt(event.data)}") from None


def _read_document(data: bytes) -> Piece:
    found = parse(data)
    if isinstance(found, dict) and (failed := error_in(found)) is not None:
        return Piece(error=failed)
    if not isinstance(found, list) or len(found) != 1:
        raise WireError(f"malformed answer, one in a list expected: {excerpt(data)}")
    return _read_answer(mapping(found[0], "an answer"))


def _read_answer(answer: Mapping[str, Any]) -> Piece:
    words = text(answer.get("generated_text"), "generated_text")
    finish = word(answer.get("finish_reason"), "finish_reason") or "stop"
    return Piece(
        text=words,
        visible=words,
        finish=finish,
        error=failing(finish),
        total=output_count(answer.get("generated_length"), "generated_length"),
        prompt_tokens=prompt_count(answer.get("prompt_length"), "prompt_length"),
    )

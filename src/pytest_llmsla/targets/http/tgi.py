"""TGI's native API: ``POST /generate_stream``, one event a token.

Read from TGI 3's router: an event holds ``token`` (id, text, special), the last one also
``generated_text`` and ``details`` (finish_reason, generated_tokens, input_length). A token whose
text is still half a character has an empty text; the end token is ``special`` and counted by the
server. ``/chat_tokenize`` renders a chat. ``/generate_stream`` puts the tokenizer's own special
tokens before the text that it gets; there is no key against that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...wire.sse import Event
from ..base import Ask
from .dialect import Options, Piece, Renderer
from .reading import mapping, output_count, prompt_count, read_event, text, word
from .sampling import LENGTH, ONE, PROMPT, STREAM, Reserved, SamplingKeys, replaced, with_extra

_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "frequency_penalty",
    "seed",
)
SAMPLING = SamplingKeys(
    api="TGI's /generate_stream",
    names={key: key for key in _KEYS},
    greedy={"do_sample": False},  # TGI samples as soon as it sees a temperature, top_p or top_k
    sampled={"do_sample": True},
    skip_off=frozenset({"top_p"}),  # it refuses 1
)
RESERVED = Reserved({"inputs": PROMPT, "stream": STREAM})
RESERVED_PARAMETERS = Reserved(
    {
        "max_new_tokens": LENGTH,
        "details": "without details the number of tokens is unknown",
        "decoder_input_details": "TGI refuses it in a stream",
        "return_full_text": "an echoed prompt would be taken for an answer",
        "best_of": ONE,
    }
)
_FINISH = {"eos_token": "stop"}


@dataclass(frozen=True, slots=True)
class Tgi:
    """TGI's own streaming route. It has no way to force an output length.

    Attributes:
        extra_body: keys for every request; those under ``parameters`` are put among TGI's own. A
            null takes a key out.
    """

    extra_body: Mapping[str, Any] = field(default_factory=dict)

    name = "tgi"
    path = "generate_stream"
    optional = ()
    at_root = True
    streams = True
    renderer = Renderer(path="chat_tokenize", key="templated_text")

    def __post_init__(self) -> None:
        RESERVED.check(self.extra_body)
        RESERVED_PARAMETERS.check(self._parameters, "target.extra_body.parameters")

    @property
    def _parameters(self) -> Mapping[str, Any]:
        found = self.extra_body.get("parameters")
        return found if isinstance(found, Mapping) else {}

    def can_force(self, options: Options) -> bool:
        """Never: ``/generate_stream`` knows neither ignore_eos nor a least length."""
        return False

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """Sampling keys that ``extra_body`` changes."""
        return replaced(SAMPLING.of(ask.sampling), self._parameters)

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request; ``ask.prompt`` is the rendered chat.

        Raises:
            UsageError: a sampling key that is unknown or that TGI does not have.
        """
        parameters: dict[str, Any] = {
            "max_new_tokens": ask.max_new_tokens,
            "details": True,
            "decoder_input_details": False,
            **SAMPLING.of(ask.sampling),
        }
        with_extra(parameters, self._parameters)
        body: dict[str, Any] = {"inputs": ask.prompt}
        with_extra(body, {k: v for k, v in self.extra_body.items() if k != "parameters"})
        body["parameters"] = parameters
        return body

    def read(self, event: Event) -> Piece:
        """What an event says. The total stands in the last one only.

        Raises:
            WireError: no JSON object, or a field of odd type.
        """
        return read_event(event, _read)


def _read(payload: Mapping[str, Any]) -> Piece:
    piece = Piece()
    if payload.get("token") is not None:
        token = mapping(payload["token"], "token")
        piece.tokens = 1
        if token.get("special") is not True:
            piece.text = piece.visible = text(token.get("text"), "token.text")
    details = mapping(payload.get("details"), "details")
    finish = word(details.get("finish_reason"), "finish_reason")
    piece.finish = None if finish is None else _FINISH.get(finish, finish)
    piece.total = output_count(details.get("generated_tokens"), "generated_tokens")
    piece.prompt_tokens = prompt_count(details.get("input_length"), "input_length")
    # Only the last event holds the whole text; without details nothing else tells the end.
    piece.done = piece.finish is None and payload.get("generated_text") is not None
    return piece

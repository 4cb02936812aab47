"""From the ``target`` mapping of sla.yaml to a target that has been asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import LlmslaError, TargetError, UsageError
from ...wire.errors import WireError
from ...wire.exchange import refusal
from ..base import Ask, Recorder
from .answering import EmptyError
from .choose import asks_for_model, dialect_of
from .dialect import Options
from .facts import LLAMACPP, ServerFacts, pick_model, server_facts
from .lengths import lengths_for
from .spec import HttpSpec
from .target import HttpTarget
from .view import View

PREFLIGHT_TOKENS = 4
_PREFLIGHTS = (
    "In one word, what colour is a clear sky?",
    "Write three sentences about a river.",
    "Once upon a time there was",
)
"""Tried in turn: a model may end one of them at once, and an empty answer shows nothing."""


class HttpLoader:
    """Factory of every HTTP kind."""

    @staticmethod
    def load(spec: Mapping[str, Any], *, say: Callable[[str], None] = lambda _: None) -> HttpTarget:
        """Look at the server, ask it once, and find out how long prompts are.

        Raises:
            UsageError: the mapping cannot be used, or a key is not set.
            TargetError: the server does not answer, or not with a stream.
        """
        given = HttpSpec.from_mapping(spec)
        target = HttpTarget(given, dialect_of(given))
        try:
            return _ready(target, say)
        except LlmslaError as e:
            target.close()
            kind = UsageError if isinstance(e, UsageError) else TargetError
            raise kind(given.scrubber.scrub(str(e))) from None
        except BaseException:
            target.close()
            raise


def _ready(target: HttpTarget, say: Callable[[str], None]) -> HttpTarget:
    spec = target.spec
    say(f"looking at {spec.address.url} …")
    try:
        target.client.warm(target.client.take())  # says at once where nobody listens
    except WireError as e:
        raise TargetError(f"{e}{_unreachable(str(e), spec)}") from None
    facts = server_facts(target.client, spec.kind, spec.model)
    if asks_for_model(spec) and spec.model is None and not facts.models:
        _refuse_closed_list(target)
    target.spec = spec = _exact_counts(spec, facts)
    if asks_for_model(spec):
        target.spec = spec = replace(spec, model=pick_model(facts, spec.model))
    target.dialect = dialect_of(spec)
    target.learn_rendering()
    preflight(target)
    target.client.learn_reuse()
    target.lengths = lengths_for(
        target.client,
        kind=spec.kind,
        api=spec.api,
        model=spec.model,
        tokenizer=spec.tokenizer,
        ask_short=lambda prompt, system: _short(target, prompt, system),
        say=say,
    )
    target.lengths.scrub = spec.scrubber.scrub
    target.context = facts.max_context or target.lengths.max_context
    target.view = View(target, facts)
    return target


def preflight(target: HttpTarget) -> None:
    """Ask once, unmeasured: which options the server takes, and whether it streams at all.

    Raises:
        TargetError: it does not answer as it must, whatever optional keys are left out.
    """
    try:
        _once(target, PREFLIGHT_TOKENS)
        return
    except TargetError as first:
        refused = getattr(first, "status", None)
        if refused not in (400, 404, 422, 500, 501) or not target.dialect.optional:
            raise TargetError(_failed(target, first)) from None
        # Some servers refuse what they do not know without naming it.
        target.options = Options(frozenset(target.dialect.optional))
        try:
            _once(target, PREFLIGHT_TOKENS)
        except TargetError:
            target.options = Options()
            raise TargetError(_failed(target, first)) from None
    for name in target.dialect.optional:  # which of them was it?
        without = target.options
        target.options = Options(without.refused - {name})
        try:
            _once(target, PREFLIGHT_TOKENS)
        except TargetError:
            target.options = without


def _failed(target: HttpTarget, e: TargetError) -> str:
    """Why the preflight failed, and what to do about the commonest causes."""
    spec, status = target.spec, getattr(e, "status", None)
    asked = f"POST {spec.address.url}/{target.dialect.path}"
    if target.dialect.at_root:
        asked = f"POST {spec.address.root().url}/{target.dialect.path}"
    advice = ""
    if status in (401, 403):
        advice = _KEY
    elif status == 404:
        advice = ". Look at target.base_url (most servers want /v1 at its end) and target.model"
    return f"the preflight request ({asked}) failed: {e}{advice}"


_KEY = ". The server wants a key, or another one: set target.api_key_env or target.api_key_file"


def _unreachable(said: str, spec: HttpSpec) -> str:
    """What to do where no connection can be opened."""
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER" in said:
        return ". Does it speak plain http? Then write http:// in target.base_url"
    if "TLS" in said:
        return ""
    return ". Is the server running there? (target.base_url)"


def _refuse_closed_list(target: HttpTarget) -> None:
    """A list of models that wants a key is no server without models.

    Raises:
        TargetError: the server refuses to list them.
    """
    reply = target.client.fetch("GET", "models")
    if reply.status in (401, 403):
        refused = refusal(reply.status, reply.headers, reply.body)
        raise TargetError(f"GET {target.spec.address.url}/models: {refused}{_KEY}")


def _exact_counts(spec: HttpSpec, facts: ServerFacts) -> HttpSpec:
    """llama.cpp's OpenAI routes tell running totals when asked for timings of each token."""
    key = "timings_per_token"
    if spec.kind != "openai" or facts.software != LLAMACPP or key in spec.extra_body:
        return spec
    return replace(spec, extra_body={**spec.extra_body, key: True})


def _once(target: HttpTarget, tokens: int) -> None:
    for text in _PREFLIGHTS:
        ask = Ask(text, tokens, {"greedy": True}, force_length=True)
        try:
            target.generate(ask, Recorder(target.clock))
            return
        except EmptyError:
            if text == _PREFLIGHTS[-1]:
                raise


def _short(target: HttpTarget, prompt: str, system: str | None) -> int | None:
    """Prompt tokens of a request for one token, as the server counts them."""
    # Forced where it can be: a model that ends at once says nothing, and then no length either.
    answer = target.generate(
        Ask(prompt, 1, {"greedy": True}, system=system, force_length=True), Recorder(target.clock)
    )
    return answer.prompt_tokens

"""Which dialect a spec asks for. Each is imported when it is chosen."""

from __future__ import annotations

from ...errors import UsageError
from .dialect import Dialect
from .spec import HttpSpec


def dialect_of(spec: HttpSpec) -> Dialect:
    """The dialect of ``spec.kind`` and ``spec.api``.

    Raises:
        UsageError: there is none, or extra_body holds a key that is not the user's to set.
    """
    kind, api, extra = spec.kind, spec.api, spec.extra_body
    if kind == "openai":
        from .openai import OpenAIChat, OpenAICompletions

        if api == "completions":
            return OpenAICompletions(spec.model, extra)
        return OpenAIChat(spec.model, extra)
    if kind == "tgi":
        from .tgi import Tgi

        return Tgi(extra)
    if kind == "llamacpp":
        from .llamacpp import LlamaCpp

        return LlamaCpp(extra)
    if kind == "mii":
        from .mii import MiiOpenAI, MiiRest

        if api != "rest":
            return MiiOpenAI(spec.model, extra)
        if spec.model is None:
            raise UsageError(
                "target.model is missing: with api: rest it is the name of the deployment, as in "
                "/mii/NAME."
            )
        return MiiRest(spec.model, extra)
    raise UsageError(f"target.kind {kind!r} is no HTTP kind; valid: openai, tgi, llamacpp, mii.")


def asks_for_model(spec: HttpSpec) -> bool:
    """True where requests name a model."""
    return spec.kind == "openai" or (spec.kind == "mii" and spec.api != "rest")

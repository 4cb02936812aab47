"""What a server says about itself: software, version, models, longest context, data types.

All of it is optional and none of it is trusted: a route that is missing, refuses, or answers
something odd leaves its facts absent and never raises. Only the keys named here are read, because
some servers put their own API key beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import TargetError, UsageError
from .fetching import Fetches

_LONGEST = 200
_LONGEST_ID = 1000
_MOST_BYTES = 8 * 1024 * 1024
_MOST_MODELS = 200
_SHOWN = 20
_LARGEST_CONTEXT = 10**9
_TIMEOUT_S = 5.0

VLLM, TGI, LLAMACPP, SGLANG = "vllm", "text-generation-inference", "llama.cpp", "sglang"
OLLAMA, LMDEPLOY, TENSORRT_LLM = "ollama", "lmdeploy", "tensorrt-llm"

_OWNERS = {
    "vllm": VLLM,
    "llamacpp": LLAMACPP,
    "sglang": SGLANG,
    "library": OLLAMA,
    "lmdeploy": LMDEPLOY,
    "tensorrt_llm": TENSORRT_LLM,
}
"""``owned_by`` of a listed model, where it names the software."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What was found out. Texts are the server's own: inert, cut, to be escaped where shown."""

    software: str | None = None
    version: str | None = None
    header: str | None = None
    """Its ``Server`` header."""
    models: tuple[str, ...] = ()
    model: str | None = None
    """What it has loaded, in its own words (a folder, a file, a hub id)."""
    max_context: int | None = None
    """Longest prompt plus output of one request, tokens."""
    dtype: str | None = None
    quantization: str | None = None
    chat_template: bool | None = None
    """None: it does not tell."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """JSON-ready; what is not known is left out."""
        told = {
            "software": self.software,
            "version": self.version,
            "header": self.header,
            "models": [_text(m) for m in self.models[:_SHOWN]] or None,
            "models_listed": len(self.models) or None,
            "model": self.model,
            "max_context": self.max_context,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "chat_template": self.chat_template,
            **self.details,
        }
        return {name: value for name, value in told.items() if value is not None}


def server_facts(client: Fetches, kind: str, model: str | None = None) -> ServerFacts:
    """Ask the server about itself, a handful of GETs; never raises for what it answers.

    Args:
        client: of ``base_url``.
        kind: the target's kind: ``openai``, ``tgi``, ``llamacpp``, ``mii``.
        model: the model that will be asked for; None when it is still to be chosen.
    """
    look = _Look(client)
    found = _listed(look, model)
    for read in _order(kind, found.software):
        if look.gone:
            break
        more = read(look, model)
        if more is not None:
            found = _joined(found, more)
            break
    return replace(found, header=look.header)


def pick_model(facts: ServerFacts, asked: str | None) -> str:
    """The model to ask for: the one asked for, else the only one that the server lists.

    Raises:
        UsageError: none was asked for, and the server lists none or several.
    """
    if asked:
        return asked
    if len(facts.models) == 1:
        return facts.models[0]
    if not facts.models:
        raise UsageError(
            "target.model is not set and the server does not list its models. "
            "Set target.model to the name that requests carry."
        )
    raise UsageError(
        f"target.model is not set and the server lists {len(facts.models)} models. "
        f"Set it to one of {_names(facts.models)}."
    )


def unlisted(facts: ServerFacts, asked: str | None) -> str | None:
    """A warning where the model asked for is not among those listed; None where all is well.

    No error: gateways hide models, and some servers answer to any name.
    """
    if not asked or not facts.models or asked in facts.models:
        return None
    return (
        f"target.model {asked!r} is not among the models that the server lists "
        f"({_names(facts.models)})"
    )


def _names(models: tuple[str, ...]) -> str:
    rest = len(models) - _SHOWN
    listed = ", ".join(repr(m) for m in models[:_SHOWN])
    return f"{listed} and {rest} more" if rest > 0 else listed


class _Look:
    """GETs that give a JSON object or None. Two failed connections end the looking."""

    def __init__(self, client: Fetches) -> None:
        self._client = client
        self._failed = 0
        self.header: str | None = None

    @property
    def gone(self) -> bool:
        return self._failed >= 2

    def get(self, path: str, *, root: bool = True, body: Any = None) -> Mapping[str, Any] | None:
        if self.gone:
            return None
        method = "GET" if body is None else "POST"
        try:
            reply = self._client.fetch(method, path, body, timeout_s=_TIMEOUT_S, root=root)
        except TargetError:
            self._failed += 1
            return None
        self._failed = 0
        self.header = self.header or _header(reply.headers, "server")
        if reply.status != 200 or len(reply.body) > _MOST_BYTES:
            return None
        try:
            said = json.loads(reply.body)
        except (ValueError, RecursionError):
            return None
        return said if isinstance(said, Mapping) else None


def _header(headers: Any, name: str) -> str | None:
    """A header's value, whether they come as a mapping or as pairs, as text or as bytes."""
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers or ()
    for key, value in pairs:
        if _plain(key).lower() == name:
            return _text(_plain(value))
    return None


def _plain(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _listed(look: _Look, model: str | None) -> ServerFacts:
    """``/v1/models``: ids, and for the one that is used its context and owner."""
    said = look.get("models", root=False) or {}
    rows = [row for row in _list(said.get("data")) if isinstance(row, Mapping)]
    by_id = {name: row for row in rows[:_MOST_MODELS] if (name := _id(row.get("id")))}
    used = by_id.get(model or "") or (next(iter(by_id.values())) if len(by_id) == 1 else {})
    any_row = used or next(iter(by_id.values()), {})
    meta = _mapping(used.get("meta"))
    return ServerFacts(
        software=_OWNERS.get(str(any_row.get("owned_by"))),
        models=tuple(by_id),
        max_context=_tokens(used.get("max_model_len")) or _tokens(meta.get("n_ctx")),
        model=_text(used.get("root")),
        quantization=_text(meta.get("ftype")),
    )


Reader = Callable[[_Look, "str | None"], "ServerFacts | None"]


def _order(kind: str, software: str | None) -> Iterator[Reader]:
    """Which routes to ask: the one that fits first, then what else it could be."""
    by_software: dict[str, Reader] = {
        LLAMACPP: _props,
        TGI: _info,
        SGLANG: _server_info,
        OLLAMA: _ollama,
        VLLM: _version,
        TENSORRT_LLM: _version,
    }
    hints = [{"tgi": TGI, "llamacpp": LLAMACPP}.get(kind), software]
    if software is None:
        hints += by_software
    readers = [by_software[hint] for hint in hints if hint in by_software]
    yield from dict.fromkeys(readers)


def _props(look: _Look, model: str | None) -> ServerFacts | None:
    """llama.cpp: ``n_ctx`` is that of one slot, which is what a request can use."""
    said = look.get("props")
    settings = _mapping((said or {}).get("default_generation_settings"))
    if said is None or not settings:
        return None
    return ServerFacts(
        software=LLAMACPP,
        version=_text(said.get("build_info")),
        model=_text(said.get("model_path")),
        max_context=_tokens(settings.get("n_ctx")),
        quantization=_text(said.get("model_ftype")),
        chat_template=bool(said.get("chat_template")),
        details=_kept({"slots": _tokens(said.get("total_slots"))}),
    )


def _info(look: _Look, model: str | None) -> ServerFacts | None:
    """TGI."""
    said = look.get("info")
    if said is None or not _text(said.get("model_id")):
        return None
    if "max_total_tokens" not in said and "docker_label" not in said:
        return None
    return ServerFacts(
        software=TGI,
        version=_text(said.get("version")),
        models=tuple(name for name in (_id(said.get("model_id")),) if name),
        model=_text(said.get("model_id")),
        max_context=_tokens(said.get("max_total_tokens")),
        dtype=_text(said.get("model_dtype")),
        quantization=_text(said.get("quantize")),
        details=_kept(
            {
                "model_revision": _text(said.get("model_sha")),
                "device": _text(said.get("model_device_type")),
                "max_input_tokens": _tokens(said.get("max_input_tokens"))
                or _tokens(said.get("max_input_length")),
                "max_concurrent_requests": _tokens(said.get("max_concurrent_requests")),
                "build": _text(said.get("docker_label")) or _text(said.get("sha")),
            }
        ),
    )


def _server_info(look: _Look, model: str | None) -> ServerFacts | None:
    """SGLang; older versions have it under another name. It also holds the API key: not read."""
    for path in ("server_info", "get_server_info"):
        said = look.get(path)
        if said is None or not _text(said.get("model_path")):
            continue
        given = _text(said.get("chat_template"))
        return ServerFacts(
            software=SGLANG,
            version=_text(said.get("version")),
            model=_text(said.get("model_path")),
            max_context=_tokens(said.get("context_length")),
            dtype=_text(said.get("dtype")),
            quantization=_text(said.get("quantization")),
            chat_template=True if given else None,
            details=_kept(
                {
                    "kv_cache_dtype": _text(said.get("kv_cache_dtype")),
                    "kv_cache_tokens": _tokens(said.get("max_total_num_tokens")),
                    "tensor_parallel": _tokens(said.get("tp_size")),
                    "device": _text(said.get("device")),
                }
            ),
        )
    return None


def _ollama(look: _Look, model: str | None) -> ServerFacts | None:
    """Ollama. A model's own context is not what it is loaded with: only ``/api/ps`` counts."""
    said = look.get("api/version")
    version = _text((said or {}).get("version"))
    if version is None:
        return None
    loaded = _list((look.get("api/ps") or {}).get("models"))
    row = next((_mapping(r) for r in loaded if _same(model, _mapping(r).get("name"))), {})
    details = _mapping(row.get("details"))
    shown = (look.get("api/show", body={"model": model}) or {}) if model else {}
    details = details or _mapping(shown.get("details"))
    return ServerFacts(
        software=OLLAMA,
        version=version,
        model=_text(row.get("name")),
        max_context=_tokens(row.get("context_length")),
        quantization=_text(details.get("quantization_level")),
        chat_template=bool(shown["template"]) if "template" in shown else None,
        details=_kept({"parameters": _text(details.get("parameter_size"))}),
    )


def _same(model: str | None, name: object) -> bool:
    return model is None or name in (model, f"{model}:latest")


def _version(look: _Look, model: str | None) -> ServerFacts | None:
    """vLLM and TensorRT-LLM: the same route, told apart by the owner of their models."""
    version = _text((look.get("version") or {}).get("version"))
    return None if version is None else ServerFacts(version=version)


def _joined(one: ServerFacts, two: ServerFacts) -> ServerFacts:
    """``two`` over ``one``: what a server says of itself over what its model list says."""
    context = two.max_context
    if two.software not in (LLAMACPP, TGI, OLLAMA):
        context = one.max_context or two.max_context  # max_model_len is what requests are held to
    return ServerFacts(
        software=two.software or one.software,
        version=two.version,
        models=one.models or two.models,
        model=two.model or one.model,
        max_context=context if context is not None else one.max_context,
        dtype=two.dtype,
        quantization=two.quantization or one.quantization,
        chat_template=two.chat_template,
        details=two.details,
    )


def _kept(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}


def _id(value: object) -> str | None:
    """A model's id, whole, as it is sent back in requests; one that cannot be sent is none."""
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_ID:
        return None
    return None if any("\ud800" <= ch <= "\udfff" for ch in value) else value


def _text(value: object) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return None
    value = value.encode("utf-8", "backslashreplace").decode()
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"


def _tokens(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= _LARGEST_CONTEXT else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

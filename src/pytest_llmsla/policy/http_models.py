"""The keys of targets that are asked over HTTP. No model here ever holds a credential: keys come
from the environment or a file, and ``${NAME}`` in a header stays as it is written."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictStr

from .keys import (
    FLAG,
    MAPPING,
    SECONDS,
    TEXT_OR_NULL,
    Keys,
    Positive,
    Text,
    Timeouts,
    key,
)

MAX_RETRIES = 10
URL = "http://host:port/v1, https://host/v1 or http+unix://%2Fpath%2Fto.sock/v1"
VARIABLE = "the bare name of an environment variable"


def _plain_json(value: object) -> object:
    """Refuse what JSON cannot hold; only a mapping from Python can bring it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("holds something that is no JSON") from None
    return value


class HttpTimeouts(Timeouts):
    """When a request over HTTP is given up."""

    connect_s: Positive = key(10.0, SECONDS, "Longest wait for a connection, TLS included.")


class HttpTarget(Keys):
    """A server that streams its answers."""

    kind: str
    base_url: Text = key(..., URL, "Where the server's routes begin. ${NAME} allowed; printed.")
    model: Text | None = key(
        None, TEXT_OR_NULL, "Model to ask for; null: the server's only one. ${NAME} allowed."
    )
    api_key_env: Text | None = key(
        None, f"{VARIABLE}, or null", "Variable that holds the API key; sent as a Bearer token."
    )
    api_key_file: Text | None = key(
        None, "the path of a file, or null", "File that holds the API key; relative path."
    )
    headers: dict[StrictStr, Text] = key(
        {}, "a mapping {name: text}", "Further headers; ${NAME} is put in when the run begins."
    )
    extra_body: Annotated[dict[StrictStr, Any], BeforeValidator(_plain_json)] = key(
        {}, "a mapping of JSON values", "Further keys of every request's body; printed."
    )
    verify_tls: StrictBool | Text = key(
        True, "true, false or the path of a CA file", "Whether the certificate is checked."
    )
    proxy: Text | None = key(
        None, "http://host:port or ${NAME}, or null", "HTTP proxy; null: none, whatever is set."
    )
    connect_in_ttft: StrictBool = key(
        False, FLAG, "true: each request opens a connection, whose time counts."
    )
    metrics_url: Text | None = key(
        None,
        "http://host:port/metrics, or null",
        "Prometheus metrics; null: /metrics of the server. ${NAME} allowed; printed.",
    )
    retries: Annotated[int, Field(strict=True, ge=0, le=MAX_RETRIES)] = key(
        0,
        f"a whole number from 0 to {MAX_RETRIES}",
        "Further attempts after 429 or 503; the clock runs on from the first.",
    )
    timeouts: HttpTimeouts = key(HttpTimeouts(), MAPPING, "When a request is given up.")
    memory_gib: Positive | None = key(
        None, "a number of GiB greater than 0, or null", "Declared memory use of the server."
    )
    memory_source: Text | None = key(
        None, TEXT_OR_NULL, "Where that figure comes from; with memory_gib."
    )
    tokenizer: Text | None = key(
        None, TEXT_OR_NULL, "Folder or tokenizer.json, for a server that has no /tokenize."
    )


class OpenaiTarget(HttpTarget):
    """A server that speaks OpenAI's API: vLLM, TensorRT-LLM, SGLang, Ollama and many more."""

    kind: Literal["openai"] = key(..., "openai", "What is under test.")
    api: Literal["chat", "completions"] = key("chat", "chat or completions", "Route that is asked.")


class TgiTarget(HttpTarget):
    """Text Generation Inference by its own route, ``/generate_stream``."""

    kind: Literal["tgi"] = key(..., "tgi", "What is under test.")


class LlamacppTarget(HttpTarget):
    """llama.cpp's ``llama-server`` by its own route, ``/completion``."""

    kind: Literal["llamacpp"] = key(..., "llamacpp", "What is under test.")


class MiiTarget(HttpTarget):
    """DeepSpeed-MII by its OpenAI server or its REST gateway."""

    kind: Literal["mii"] = key(..., "mii", "What is under test.")
    api: Literal["openai", "rest"] = key("openai", "openai or rest", "Server that is asked.")


HTTP_KINDS = ("openai", "tgi", "llamacpp", "mii")

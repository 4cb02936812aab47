"""The wire formats of servers that cannot run on this machine, one function a system.

Sources: TensorRT-LLM ``serve/openai_protocol.py``, TGI's OpenAPI document and
``router/src/server.rs``, DeepSpeed-MII ``entrypoints/*.py``, SGLang ``entrypoints/openai``, Ollama
``openai/openai.go``, LMDeploy ``serve/openai/api_server.py``, OpenAI's API reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replay import MODEL, Reply, Wire, paced, rendered, sse, tokens_of, word

KEY = "sk-replayed-0123456789"
"""The key of the protected endpoint."""

_OPENAI_KEYS = {
    *("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature"),
    *("top_p", "seed", "frequency_penalty", "presence_penalty", "max_completion_tokens", "n"),
}


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Tokens of the rendered prompt of an OpenAI request."""
    if "messages" in body:
        return tokens_of("".join(rendered(m["content"]) for m in body["messages"]))
    return tokens_of(body["prompt"])


def new_tokens(body: Mapping[str, Any]) -> int:
    """What an OpenAI request asks for at most."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)


def usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """OpenAI's usage object."""
    total = prompt + output
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total}
    return {**counts, **more}


def models(owner: str, **more: Any) -> dict[str, Any]:
    """The answer of ``/v1/models``."""
    row = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": owner, **more}
    return {"object": "list", "data": [row]}


def chunk(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A streamed chat chunk."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000}
    return {**head, "model": MODEL, "choices": choices, **more}


def choice(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """The one choice of a chunk."""
    return {"index": 0, "delta": dict(delta), "finish_reason": finish, **more}


def fixed(body: Any) -> Callable[[Mapping[str, Any], Mapping[str, str]], Reply]:
    """A route that always says the same."""
    return lambda asked, headers: Reply(200, body)


def _wants(body: Mapping[str, Any], option: str) -> bool:
    return bool((body.get("stream_options") or {}).get(option))


def trtllm() -> Wire:
    """Keys it does not know are an error; running totals when asked; the last text with finish."""
    known = {*_OPENAI_KEYS, "ignore_eos", "min_tokens", "top_k", "min_p", "repetition_penalty"}

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        unknown = sorted(set(body) - known)
        if unknown:
            said = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{unknown[0]}')}}]"
            error = {"object": "error", "message": said, "type": "BadRequestError", "code": 400}
            return Reply(400, {**error, "param": None})
        prompt, n = prompt_tokens(body), new_tokens(body)
        running = _wants(body, "continuous_usage_stats")
        events = [chunk([choice({"role": "assistant", "content": ""}, logprobs=None)])]
        if running:
            events[0]["usage"] = usage(prompt, 0)
        for i in range(1, n + 1):
            finish = "length" if i == n else None
            made = chunk([choice({"content": word(i)}, finish, logprobs=None)])
            events.append({**made, "usage": usage(prompt, i)} if running else made)
        if _wants(body, "include_usage"):
            cached = {"prompt_tokens_details": {"cached_tokens": 0}}
            events.append(chunk([], usage=usage(prompt, n, **cached)))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 1))

    return Wire(
        "trtllm",
        {
            ("GET", "/health"): fixed(None),
            ("GET", "/version"): fixed({"version": "1.2.0"}),
            ("GET", "/v1/models"): fixed(models("tensorrt_llm")),
            ("GET", "/metrics"): fixed([{"iter": 1, "gpuMemUsage": 16 * 1024**3}]),
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def _tgi_info() -> dict[str, Any]:
    return {
        "model_id": MODEL,
        "model_sha": "0e9e39f249a16976918f6564b8830bc894c89659",
        "max_concurrent_requests": 128,
        "max_best_of": 2,
        "max_stop_sequences": 4,
        "max_input_tokens": 4095,
        "max_total_tokens": 4096,
        "validation_workers": 2,
        "max_client_batch_size": 4,
        "router": "text-generation-router",
        "version": "3.3.6",
        "docker_label": "sha-24ee5a4",
    }


def _tgi_tokens(text: str) -> list[dict[str, Any]]:
    return [{"id": b, "text": chr(b), "start": 0, "stop": 1} for b in text.encode()]


def _tgi_tokenize(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
    return Reply(200, _tgi_tokens(body["inputs"]))


def _tgi_chat_tokenize(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
    text = "".join(rendered(m["content"]) for m in body["messages"])
    return Reply(200, {"tokenize_response": _tgi_tokens(text), "templated_text": text})


def tgi() -> Wire:
    """``data:`` without a space; ``index`` counts tokens; details in the last event."""

    def stream(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        n = int(body["parameters"]["max_new_tokens"])
        length = tokens_of(body["inputs"])
        events = []
        for i in range(1, n + 1):
            token = {"id": 1000 + i, "text": word(i), "logprob": -0.5, "special": False}
            event = {"index": i, "token": token, "generated_text": None, "details": None}
            if i == n:
                event["generated_text"] = "".join(word(k) for k in range(1, n + 1))
                ended = {"finish_reason": "length", "generated_tokens": n, "seed": 0}
                event["details"] = {**ended, "input_length": length}
            events.append(sse(event, space=""))
        return Reply(events=paced(events, 0))

    return Wire(
        "tgi",
        {
            ("GET", "/info"): fixed(_tgi_info()),
            ("GET", "/health"): fixed(None),
            ("POST", "/tokenize"): _tgi_tokenize,
            ("POST", "/chat_tokenize"): _tgi_chat_tokenize,
            ("POST", "/generate_stream"): stream,
        },
    )


def tgi_openai() -> Wire:
    """TGI's Messages API: every chunk carries the role; one usage chunk at the end."""

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        prompt, n = prompt_tokens(body), new_tokens(body)
        more = {"system_fingerprint": "3.3.6-sha-24ee5a4"}
        events = [
            chunk(
                [
                    choice(
                        {"role": "assistant", "content": word(i)},
                        "length" if i == n else None,
                        logprobs=None,
                    )
                ],
                **more,
                usage=None,
            )
            for i in range(1, n + 1)
        ]
        if _wants(body, "include_usage"):
            events.append(chunk([], **more, usage=usage(prompt, n)))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 0))

    return Wire(
        "tgi-openai",
        {
            ("GET", "/info"): fixed(_tgi_info()),
            ("GET", "/health"): fixed(None),
            ("GET", "/v1/models"): fixed(models(MODEL)),
            ("POST", "/tokenize"): _tgi_tokenize,
            ("POST", "/chat_tokenize"): _tgi_chat_tokenize,
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def mii_openai() -> Wire:
    """A role chunk, then text; never any usage; a finish reason in the last chunk."""

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        n = new_tokens(body)
        events = [chunk([choice({"role": "assistant"})])]
        for i in range(1, n + 1):
            events.append(chunk([choice({"content": word(i)}, "length" if i == n else None)]))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 1))

    return Wire(
        "mii-openai",
        {
            ("GET", "/health"): fixed({"status": "ok"}),
            ("GET", "/v1/models"): fixed(models("microsoft", root=MODEL)),
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def mii_rest() -> Wire:
    """The gateway of ``mii.serve``: no stream, one document with both counts."""

    def generate(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        prompt, n = body["prompts"][0], int(body["max_new_tokens"])
        text = "".join(word(i) for i in range(1, n + 1))
        answer = {"generated_text": text, "prompt_length": tokens_of(prompt)}
        return Reply(200, [{**answer, "generated_length": n, "finish_reason": "length"}])

    return Wire(
        "mii-rest",
        {
            ("GET", "/healthz"): fixed("ok"),
            ("POST", "/mii/llama-deployment"): generate,
        },
    )


def sglang() -> Wire:
    """A role chunk with null usage, text with running totals when asked, usage at the end."""

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        prompt, n = prompt_tokens(body), new_tokens(body)
        running = _wants(body, "continuous_usage_stats")
        none = {"reasoning_content": None, "tool_calls": None}
        first = choice({"role": "assistant", "content": "", **none}, matched_stop=None)
        events = [chunk([first], usage=None)]
        for i in range(1, n + 1):
            text = choice({"role": None, "content": word(i), **none}, matched_stop=None)
            events.append(chunk([text], usage=usage(prompt, i) if running else None))
        last = {"role": None, "content": None, **none}
        events.append(chunk([choice(last, "length", matched_stop=None)], usage=None))
        if _wants(body, "include_usage"):
            details = {"prompt_tokens_details": None, "reasoning_tokens": 0}
            events.append(chunk([], usage=usage(prompt, n, **details)))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 1))

    served = {"model_path": MODEL, "version": "0.5.6", "dtype": "auto", "tp_size": 1}
    return Wire(
        "sglang",
        {
            ("GET", "/health"): fixed(None),
            ("GET", "/server_info"): fixed({**served, "api_key": None}),
            ("GET", "/v1/models"): fixed(models("sglang", root=MODEL, max_model_len=8192)),
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def ollama() -> Wire:
    """Role in every chunk, an empty last text with the finish reason; unknown keys are ignored."""

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        prompt, n = prompt_tokens(body), new_tokens(body)
        more = {"system_fingerprint": "fp_ollama"}
        events = [
            chunk([choice({"role": "assistant", "content": word(i)})], **more)
            for i in range(1, n + 1)
        ]
        end = choice({"role": "assistant", "content": ""}, "length")
        events.append(chunk([end], **more))
        if _wants(body, "include_usage"):
            events.append(chunk([], **more, usage=usage(prompt, n)))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 0))

    loaded = {"name": MODEL, "context_length": 8192, "details": {"quantization_level": "Q4_K_M"}}
    return Wire(
        "ollama",
        {
            ("GET", "/api/version"): fixed({"version": "0.13.0"}),
            ("GET", "/api/ps"): fixed({"models": [loaded]}),
            ("GET", "/v1/models"): fixed(models("library")),
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def lmdeploy() -> Wire:
    """Role in every chunk; usage inside the chunk that has the finish reason."""

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        prompt, n = prompt_tokens(body), new_tokens(body)
        events = []
        for i in range(1, n + 1):
            last = i == n
            delta = {"role": "assistant", "content": word(i), "tool_calls": None}
            made = choice({**delta, "reasoning_content": None}, "length" if last else None)
            counted = usage(prompt, n) if last and _wants(body, "include_usage") else None
            events.append(chunk([{**made, "logprobs": None}], usage=counted))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 0))

    return Wire(
        "lmdeploy",
        {
            ("GET", "/health"): fixed(None),
            ("GET", "/v1/models"): fixed(models("lmdeploy", root=MODEL)),
            ("POST", "/v1/chat/completions"): chat,
        },
    )


def protected(refuse: frozenset[int] = frozenset()) -> Wire:
    """A paid endpoint: wants its key on every route, refuses vendor keys, counts at the end.

    ``refuse``: numbers of the chat requests that are answered 429.
    """
    known = {*_OPENAI_KEYS} - {"max_tokens"}
    asked = [0]

    def guarded(route: Callable[..., Reply]) -> Callable[..., Reply]:
        def checked(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
            if headers.get("authorization") != f"Bearer {KEY}":
                said = f"Incorrect API key provided: {headers.get('authorization')}"
                return Reply(401, {"error": {"message": said, "code": "invalid_api_key"}})
            return route(body, headers)

        return checked

    def chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        asked[0] += 1
        if asked[0] in refuse:
            error = {"message": "Rate limit reached", "type": "requests"}
            said = {"error": {**error, "code": "rate_limit_exceeded"}}
            return Reply(429, said, headers={"Retry-After": "1"})
        unknown = sorted(set(body) - known) + sorted(
            set(body.get("stream_options") or {}) - {"include_usage"}
        )
        if unknown:
            message = f"Unrecognized request argument supplied: {unknown[0]}"
            return Reply(400, {"error": {"message": message, "type": "invalid_request_error"}})
        prompt, n = prompt_tokens(body), new_tokens(body)
        more = {"system_fingerprint": "fp_1", "service_tier": "default"}
        empty = {"role": "assistant", "content": "", "refusal": None}
        events = [chunk([choice(empty, logprobs=None)], **more, usage=None)]
        for i in range(1, n + 1):
            text = choice({"content": word(i)}, logprobs=None)
            events.append(chunk([text], **more, usage=None, obfuscation="x" * (i % 7)))
        events.append(chunk([choice({}, "length", logprobs=None)], **more, usage=None))
        if _wants(body, "include_usage"):
            cached = {"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}}
            events.append(chunk([], **more, usage=usage(prompt, n, **cached)))
        return Reply(events=paced([*map(sse, events), sse("[DONE]")], 1))

    listed = models("system")
    listed["data"].append({**listed["data"][0], "id": "another-model"})
    return Wire(
        "protected",
        {
            ("GET", "/v1/models"): guarded(fixed(listed)),
            ("POST", "/v1/chat/completions"): guarded(chat),
        },
    )


WIRES: Mapping[str, Callable[[], Wire]] = {
    "trtllm": trtllm,
    "tgi": tgi,
    "tgi-openai": tgi_openai,
    "mii-openai": mii_openai,
    "mii-rest": mii_rest,
    "sglang": sglang,
    "ollama": ollama,
    "lmdeploy": lmdeploy,
    "protected": protected,
}

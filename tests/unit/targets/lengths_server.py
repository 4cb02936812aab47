"""Small servers on loopback that count tokens as vLLM, SGLang, llama.cpp and TGI do, or lie."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pytest_llmsla.targets.http.lengths import lengths_for
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.targets.http.tokenize_routes import PROBES
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.workload.text import builtin_corpora

TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role != 'system' %}<|turn|>system\nBe kind.<|end|>\n"
    "{% endif %}{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
"""Begins with <s>, brings a system prompt of its own, trims what it is given."""
SPECIALS = ("<s>", "</s>", "<|turn|>", "<|end|>")
Answer = tuple[int, Any]
Routes = Mapping[str, Callable[[Mapping[str, Any]], Answer]]


@cache
def vocabulary() -> Tokenizer:
    """A byte-level BPE of 4,500 tokens, made of the built-in texts; puts <s> before raw text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # As in real ones, English words are mostly whole and those of other languages are cut.
    lines = [
        " ".join(sentence for block in corpus.blocks[style] for sentence in block)
        for language, corpus in builtin_corpora().items()
        for style in corpus.blocks
        for _ in range(4 if language == "en" else 1)
    ]
    lines += PROBES * 8
    trainer = trainers.BpeTrainer(
        vocab_size=4500,
        special_tokens=[AddedToken(t, special=True) for t in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def folder(where: Path, template: str | None = TEMPLATE) -> Path:
    """The tokenizer as a folder of files."""
    where.mkdir(parents=True, exist_ok=True)
    vocabulary().save(str(where / "tokenizer.json"))
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", **flags},
    }
    (where / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (where / "chat_template.jinja").write_text(template)
    return where


def ids(text: str, special: bool = False) -> list[int]:
    return list(vocabulary().encode(text, add_special_tokens=special).ids)


def render(messages: list[Mapping[str, str]]) -> str:
    """What TEMPLATE makes of messages, written without Jinja."""
    turns = [f"<|turn|>{m['role']}\n{m['content'].strip()}<|end|>\n" for m in messages]
    if messages[0]["role"] != "system":
        turns.insert(0, "<|turn|>system\nBe kind.<|end|>\n")
    return "<s>" + "".join(turns) + "<|turn|>assistant\n"


def _chat(prompt: str, system: str | None) -> list[Mapping[str, str]]:
    user = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def usage(prompt: str, system: str | None) -> int:
    """prompt_tokens of a chat."""
    return len(ids(render(_chat(prompt, system))))


def raw_usage(prompt: str, system: str | None) -> int:
    """prompt_tokens of a raw text."""
    return len(ids(prompt, special=True))


def vllm(body: Mapping[str, Any]) -> Answer:
    if "messages" in body:
        found = ids(render(body["messages"]))
    elif "prompt" in body:
        found = ids(body["prompt"], special=body.get("add_special_tokens", True))
    else:
        return 400, {"error": {"message": "neither messages nor prompt", "code": 400}}
    return 200, {"count": len(found), "max_model_len": 2048, "tokens": found, "token_strs": None}


def sglang(body: Mapping[str, Any]) -> Answer:
    if "prompt" not in body:
        return 422, {"detail": [{"loc": ["body", "prompt"], "msg": "Field required"}]}
    found = ids(body["prompt"], special=body["add_special_tokens"])
    return 200, {"count": len(found), "max_model_len": 10**30, "tokens": found}


def llama_tokenize(body: Mapping[str, Any]) -> Answer:
    text = body.get("content", "")
    # It adds no second begin token: /apply-template leaves out the first.
    return 200, {"tokens": ids(text, special=body.get("add_special", False)) if text else []}


def llama_template(body: Mapping[str, Any]) -> Answer:
    return 200, {"prompt": render(body["messages"]).removeprefix("<s>")}


def tgi_tokenize(body: Mapping[str, Any]) -> Answer:
    if "inputs" not in body:
        return 422, {"error": "missing field `inputs`", "error_type": "validation"}
    return 200, _tgi_tokens(ids(body["inputs"], special=True))


def tgi_chat(body: Mapping[str, Any]) -> Answer:
    text = render(body["messages"])
    return 200, {"tokenize_response": _tgi_tokens(ids(text)), "templated_text": text}


def _tgi_tokens(found: list[int]) -> list[dict[str, Any]]:
    return [{"id": i, "text": "x", "start": 0, "stop": 1} for i in found]


VLLM: Routes = {"/tokenize": vllm}
SGLANG: Routes = {"/tokenize": sglang, "/v1/tokenize": sglang}
LLAMA: Routes = {"/tokenize": llama_tokenize, "/apply-template": llama_template}
TGI: Routes = {"/tokenize": tgi_tokenize, "/chat_tokenize": tgi_chat}
NOTHING: Routes = {}


class Served:
    """A client of a small server, and what the server was asked."""

    def __init__(self, client: Client, seen: list[str]) -> None:
        self.client = client
        self.seen = seen
        self.said: list[str] = []
        self.asked: list[tuple[str, str | None]] = []

    def lengths(
        self,
        *,
        kind: str = "openai",
        api: str | None = "chat",
        tokenizer: Path | None = None,
        count: Callable[[str, str | None], int | None] = usage,
    ) -> Lengths:
        """``lengths_for`` with short answers that count as ``count`` does."""

        def ask_short(prompt: str, system: str | None) -> int | None:
            self.asked.append((prompt, system))
            return count(prompt, system)

        return lengths_for(
            self.client,
            kind=kind,
            api=api,
            model="m",
            tokenizer=None if tokenizer is None else str(tokenizer),
            ask_short=ask_short,
            say=self.said.append,
        )


@contextmanager
def nobody() -> Iterator[Served]:
    """A client of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client(Address.parse(f"http://127.0.0.1:{port}/v1"))
    try:
        yield Served(client, [])
    finally:
        client.close()


@contextmanager
def served(routes: Routes) -> Iterator[Served]:
    """A server with these POST routes; anything else is 404."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append(self.path)
            route = routes.get(self.path)
            status, said = (404, {"detail": "Not Found"}) if route is None else route(body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    client = Client(Address.parse(f"http://127.0.0.1:{server.server_port}/v1"))
    try:
        yield Served(client, seen)
    finally:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()

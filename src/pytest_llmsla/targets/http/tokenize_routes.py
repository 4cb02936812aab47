"""Servers that count tokens: vLLM's, SGLang's, llama.cpp's and TGI's routes, found by trying.

Every answer is checked, since another server may give the same path another meaning: llama.cpp
answers 200 with no tokens to what vLLM would count. A route is looked for with a text that no
tokenizer gives zero tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import TargetError
from ...wire.said import words_of
from .fetching import Fetches

PROBE = "Hello, how are you today?"
PROBES = (PROBE, "What is the capital of France?", "Please tell me about the weather.")
"""Asked in turn until one is answered: a model may end an answer at its first token."""
PROBE_TOKENS = 7
"""What each of them has in practically every vocabulary."""
_LONGEST = 50_000_000
"""Tokens; a larger count is none."""
_TIMEOUT_S = 30.0
_NOT_THERE = (404, 405, 501)

Count = Callable[[str, "str | None"], int]


class NoRouteError(TargetError):
    """The server does not count this way; the message says what it did instead."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Route:
    """One way in which the server counts."""

    name: str
    """``server /tokenize (vLLM)``."""
    count: Count
    whole: bool = True
    """False: bare text is counted, and what the server's chat template adds is not."""
    max_context: int | None = None


@dataclass
class Asker:
    """Posts to a server and reads what it says."""

    client: Fetches
    root: bool = True
    calls: int = 0
    """Requests sent so far."""

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that the server answers.

        Raises:
            NoRouteError: another status than 200, or no JSON.
            WireError: no answer.
        """
        self.calls += 1
        reply = self.client.fetch("POST", path, body, timeout_s=_TIMEOUT_S, root=self.root)
        if reply.status != 200:
            said = "" if reply.status in _NOT_THERE else words_of(reply.body)
            raise NoRouteError(
                f"/{path}: HTTP {reply.status}" + (f" ({said})" if said else ""), reply.status
            )
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError):
            raise NoRouteError(f"/{path}: answered, but not with JSON") from None


@dataclass
class Search:
    """What was tried to find a route."""

    kind: str
    model: str | None
    asker: Asker
    tried: list[str] = field(default_factory=list)

    def find(self, chat: bool) -> Route | None:
        """The first route that counts; None when there is none, with :attr:`tried` saying why.

        Raises:
            WireError: the server does not answer at all.
        """
        for make in self._chat() if chat else self._raw():
            try:
                return make()
            except NoRouteError as e:
                self.tried.append(str(e))
                if e.status in _NOT_THERE and str(e).startswith("/tokenize") and self.asker.root:
                    return self._below_prefix(chat)
        return None

    def _below_prefix(self, chat: bool) -> Route | None:
        """Gateways often pass on what is below ``/v1`` only."""
        if self.kind != "openai":
            return None
        self.asker.root = False
        for make in (self._messages, self._bare) if chat else (self._prompt,):
            try:
                return make()
            except NoRouteError as e:
                self.tried.append(f"below base_url {e}")
                if e.status in _NOT_THERE:
                    break
        self.asker.root = True
        return None

    def _chat(self) -> Iterator[Callable[[], Route]]:
        if self.kind in ("openai", "mii"):
            yield self._messages
        if self.kind in ("openai", "llamacpp"):
            yield self._llama_chat
        if self.kind == "openai":
            yield self._tgi_chat
            yield self._bare
        if self.kind == "tgi":
            yield self._tgi_rendered

    def _raw(self) -> Iterator[Callable[[], Route]]:
        if self.kind in ("openai", "mii"):
            yield self._prompt
        if self.kind in ("openai", "llamacpp"):
            yield self._llama_raw
        if self.kind in ("openai", "tgi"):
            yield self._tgi_raw

    def _named(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**({} if self.model is None else {"model": self.model}), **body}

    def _messages(self) -> Route:
        """vLLM's ``/tokenize`` of a chat."""

        def ask(prompt: str, system: str | None) -> Any:
            body = {"messages": _messages(prompt, system), "add_generation_prompt": True}
            return self.asker.post("tokenize", self._named(body))

        context = _context(_counted(ask(PROBE, None), "/tokenize")[1])
        return Route(
            "server /tokenize (vLLM)",
            lambda prompt, system: _counted(ask(prompt, system), "/tokenize")[0],
            max_context=context,
        )

    def _prompt(self, special: bool = True) -> Route:
        """vLLM's and SGLang's ``/tokenize`` of a text."""

        def count(prompt: str, system: str | None) -> int:
            body = {"prompt": prompt, "add_special_tokens": special}
            return _counted(self.asker.post("tokenize", self._named(body)), "/tokenize")[0]

        count(PROBE, None)
        return Route("server /tokenize (vLLM, SGLang)", count)

    def _bare(self) -> Route:
        """SGLang's ``/tokenize``, which knows no chat."""
        return Route(
            "server /tokenize (SGLang), chat template measured",
            self._prompt(special=False).count,
            whole=False,
        )

    def _llama_chat(self) -> Route:
        """llama.cpp's ``/apply-template``, then its ``/tokenize``."""

        def render(prompt: str, system: str | None) -> str:
            said = self.asker.post("apply-template", {"messages": _messages(prompt, system)})
            return _text(said, "prompt", "/apply-template")

        count = Rendered(render, self._llama_count)
        count(PROBE, None)
        return Route("server /apply-template and /tokenize (llama.cpp)", count)

    def _llama_raw(self) -> Route:
        self._llama_count(PROBE)
        return Route(
            "server /tokenize (llama.cpp)", lambda prompt, system: self._llama_count(prompt)
        )

    def _llama_count(self, text: str) -> int:
        body = {"content": text, "add_special": True, "parse_special": True}
        said = self.asker.post("tokenize", body)
        return _length(said.get("tokens") if isinstance(said, dict) else None, "/tokenize")

    def _tgi_chat(self) -> Route:
        """TGI's ``/chat_tokenize``: what its OpenAI route makes of a chat."""

        def count(prompt: str, system: str | None) -> int:
            said = self._tgi_render(prompt, system)
            return _length(said.get("tokenize_response"), "/chat_tokenize")

        count(PROBE, None)
        return Route("server /chat_tokenize (TGI)", count)

    def _tgi_rendered(self) -> Route:
        """TGI's ``/chat_tokenize`` to render and its ``/tokenize`` for what it makes of a text."""

        def render(prompt: str, system: str | None) -> str:
            return _text(self._tgi_render(prompt, system), "templated_text", "/chat_tokenize")

        count = Rendered(render, self._tgi_count)
        count(PROBE, None)
        return Route("server /chat_tokenize and /tokenize (TGI)", count)

    def _tgi_render(self, prompt: str, system: str | None) -> Mapping[str, Any]:
        body = self._named({"messages": _messages(prompt, system)})
        said = self.asker.post("chat_tokenize", body)
        return said if isinstance(said, dict) else {}

    def _tgi_raw(self) -> Route:
        self._tgi_count(PROBE)
        return Route("server /tokenize (TGI)", lambda prompt, system: self._tgi_count(prompt))

    def _tgi_count(self, text: str) -> int:
        return _length(self.asker.post("tokenize", {"inputs": text}), "/tokenize")


class Rendered:
    """Counts a chat in one call instead of two: what stands around the user's text is remembered.

    Only where a second rendering has shown that it is the same around another text, and only for
    texts that begin and end with something visible, because templates like to trim.
    """

    def __init__(self, render: Callable[[str, str | None], str], count: Callable[[str], int]):
        self._render = render
        self._count = count
        self._around: dict[str | None, tuple[str, str] | None] = {}

    def __call__(self, prompt: str, system: str | None) -> int:
        """Tokens of the rendered chat."""
        if system not in self._around:
            self._around[system] = self._look(system)
        around = self._around[system]
        if around is None or prompt != prompt.strip() or not prompt:
            return self._count(self._render(prompt, system))
        return self._count(around[0] + prompt + around[1])

    def _look(self, system: str | None) -> tuple[str, str] | None:
        mark, other = "llmsla-mark", "(2) Other\nlines, 其他"
        before, found, after = self._render(mark, system).partition(mark)
        if not found or mark in after:
            return None
        return (before, after) if self._render(other, system) == before + other + after else None


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _counted(said: Any, path: str) -> tuple[int, Any]:
    """The count of a vLLM answer and its max_model_len.

    Raises:
        NoRouteError: there is none, or it contradicts the tokens beside it.
    """
    count = said.get("count") if isinstance(said, dict) else None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _LONGEST:
        raise NoRouteError(f"{path}: answered {_shown(said)}, which holds no count of tokens")
    tokens = said.get("tokens")
    if isinstance(tokens, list) and tokens and len(tokens) != count:
        raise NoRouteError(f"{path}: answered count {count} beside {len(tokens)} tokens")
    return count, said.get("max_model_len")


def _length(tokens: Any, path: str) -> int:
    """How many tokens a list holds.

    Raises:
        NoRouteError: it is none, or empty.
    """
    if not isinstance(tokens, list) or not tokens:
        raise NoRouteError(f"{path}: answered without a list of tokens")
    return len(tokens)


def _text(said: Any, key: str, path: str) -> str:
    text = said.get(key) if isinstance(said, dict) else None
    if not isinstance(text, str) or not text:
        raise NoRouteError(f"{path}: answered without the rendered chat ({key})")
    return text


def _context(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST:
        return None
    return value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]

"""What is learnt of a server before anything is measured, and what to do where it fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.targets import load

Answers = dict[str, tuple[int, Any]]


class Serving:
    """An OpenAI-like server whose routes answer as told; a chat is streamed."""

    def __init__(self, **routes: tuple[int, Any]) -> None:
        self.routes = routes
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.say(outer.routes.get(self.path.rpartition("/")[2], (404, {})))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not self.path.endswith("/chat/completions"):
                    self.say((404, {}))
                    return
                outer.bodies.append(body)
                said = outer.routes.get("chat")
                self.say(said if said is not None else (200, streamed(body)))

            def say(self, given: tuple[int, Any]) -> None:
                status, body = given
                stream = isinstance(body, bytes)
                data = body if stream else json.dumps(body).encode()
                kind = "text/event-stream" if stream else "application/json"
                head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\n"
                # One write: a second one would wait for an acknowledgement.
                self.wfile.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        Thread(target=self.server.serve_forever, daemon=True).start()


def streamed(body: dict[str, Any]) -> bytes:
    """As many tokens as asked for; a prompt has as many as it has words."""
    prompt = len(body["messages"][-1]["content"].split())
    events: list[Any] = [
        {"choices": [{"index": 0, "delta": {"content": "x"}}]} for _ in range(body["max_tokens"])
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    usage = {"prompt_tokens": prompt + 5, "completion_tokens": body["max_tokens"]}
    events.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(e)}\n\n" for e in events).encode() + b"data: [DONE]\n\n"


@pytest.fixture
def serving() -> Iterator[Callable[..., Serving]]:
    """Makes servers, and closes them."""
    made: list[Serving] = []

    def make(**routes: tuple[int, Any]) -> Serving:
        made.append(Serving(**routes))
        return made[-1]

    yield make
    for each in made:
        each.server.shutdown()
        each.server.server_close()


def listing(*names: str, owner: str = "me") -> tuple[int, Any]:
    return 200, {"data": [{"id": name, "owned_by": owner} for name in names]}


CLOSED = (401, {"error": {"message": "no key", "code": "invalid_api_key"}})


@pytest.mark.parametrize("status", [401, 403])
def test_a_list_of_models_that_wants_a_key_says_so(
    serving: Callable[..., Serving], status: int
) -> None:
    """It is no question of target.model."""
    server = serving(models=(status, {"error": {"message": "no key"}}))
    with pytest.raises(TargetError, match=rf"models: HTTP {status}: no key.*target\.api_key_env"):
        load({"kind": "openai", "base_url": server.url})


def test_an_answer_that_wants_a_key_says_so(serving: Callable[..., Serving]) -> None:
    """With the request that was refused."""
    server = serving(chat=CLOSED)
    with pytest.raises(TargetError, match=r"chat/completions\) failed: HTTP 401.*api_key_env"):
        load({"kind": "openai", "base_url": server.url, "model": "m"})


def test_a_wrong_route_names_the_address_that_was_asked(serving: Callable[..., Serving]) -> None:
    """And the commonest cause."""
    server = serving(chat=(404, {"detail": "Not Found"}))
    with pytest.raises(TargetError, match=r"POST http://127.*Not Found.*base_url .*/v1"):
        load({"kind": "openai", "base_url": server.url, "model": "m"})


def test_nobody_there_is_said_at_once() -> None:
    """With the key that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TargetError, match=r"Connection refused\. Is the server running there\?"):
        load({"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "model": "m"})


def test_tls_to_a_plain_server_says_what_to_write(serving: Callable[..., Serving]) -> None:
    """Not only what the library calls it."""
    server = serving()
    url = server.url.replace("http://", "https://")
    with pytest.raises(TargetError, match=r"write http:// in target\.base_url"):
        load({"kind": "openai", "base_url": url, "model": "m"})


def test_several_models_are_listed(serving: Callable[..., Serving]) -> None:
    """So that one can be chosen."""
    server = serving(models=listing("a", "b"))
    with pytest.raises(UsageError, match=r"lists 2 models\. Set it to one of 'a', 'b'"):
        load({"kind": "openai", "base_url": server.url})


def test_the_only_model_is_asked_for(serving: Callable[..., Serving]) -> None:
    """Without being named; and every request names it."""
    server = serving(models=listing("only"))
    target = load({"kind": "openai", "base_url": server.url})
    target.close()
    assert {body["model"] for body in server.bodies} == {"only"}
    assert not any("timings_per_token" in body for body in server.bodies)


def test_a_model_that_ends_one_probe_at_once_is_asked_another(
    serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty answer shows neither that it streams nor that it does not."""
    server = serving(models=listing("m"))
    whole = streamed

    def ending(body: dict[str, Any]) -> bytes:
        if "sky" not in body["messages"][-1]["content"]:
            return whole(body)
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        return f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode()

    monkeypatch.setitem(globals(), "streamed", ending)
    load({"kind": "openai", "base_url": server.url}).close()
    assert "sky" in server.bodies[0]["messages"][-1]["content"]
    assert "river" in server.bodies[1]["messages"][-1]["content"]


def test_llamacpp_is_asked_for_running_totals(serving: Callable[..., Serving]) -> None:
    """Its OpenAI route tells them only so; the report says that they were asked for."""
    server = serving(models=listing("m", owner="llamacpp"))
    target = load({"kind": "openai", "base_url": server.url})
    target.close()
    assert server.bodies[-1]["timings_per_token"] is True
    assert target.describe()["extra_body"] == {"timings_per_token": True}


def test_the_users_own_word_on_it_stands(serving: Callable[..., Serving]) -> None:
    """A key in extra_body is not set again."""
    server = serving(models=listing("m", owner="llamacpp"))
    extra = {"timings_per_token": False}
    load({"kind": "openai", "base_url": server.url, "extra_body": extra}).close()
    assert server.bodies[-1]["timings_per_token"] is False

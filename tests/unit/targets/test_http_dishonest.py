"""Servers that answer with something else than a model's tokens, or not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.targets.base import Recorder
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.counting import TokenEvent
from pytest_llmsla.targets.http.facts import ServerFacts
from pytest_llmsla.targets.http.mii import MiiRest
from pytest_llmsla.targets.http.not_ours import refuse_echo, refuse_stored
from pytest_llmsla.targets.http.openai import OpenAIChat
from pytest_llmsla.targets.http.reader import StreamReader
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.targets.http.view import View
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event
from streams.runner import ask_for, judge, target_of, url_of
from streams.samples import CASE, REQUEST, assert_failed, assert_sound, sound
from streams.script import Answer, Wire, answer
from streams.server import Clock, Server

PROMPT = "Tell me, in three sentences, how the tides of an inland sea come about."


def echoing(*first: str) -> Answer:
    """``first`` at once, then an answer that is far too slow; no usage."""
    events: list[Any] = [[5, {"delta": {"content": text}}] for text in first]
    events += [[900 + 30 * i, {"delta": {"content": "x"}}] for i in range(3)]
    events += [[1000, {"delta": {}, "finish": "stop"}], [1005, {"done": True}]]
    return answer({"status": 200, "events": events}, Wire("chunked"))


@pytest.mark.parametrize(
    "first",
    [
        [PROMPT],
        [f"<|user|>\n{PROMPT}\n<|assistant|>\n"],
        [f" {PROMPT.rpartition(' ')[0]}"],
        [PROMPT[4:]],
        [f"You asked: {PROMPT}\nWell, "],
        [PROMPT.replace("inland", "inner")],
        [PROMPT.replace(",", " ,").upper()],
        [f"{word} " for word in PROMPT.split()],
        [PROMPT[:30], PROMPT[30:]],
    ],
    ids=[
        "as it was sent",
        "rendered",
        "without its last word",
        "without its beginning",
        "with words around it",
        "with one word changed",
        "in other letters",
        "word by word, at once",
        "in two events, at once",
    ],
)
def test_a_server_that_repeats_the_prompt_has_no_ttft(first: list[str]) -> None:
    """5 ms is the time of an echo: an error that says so, whatever stands around the prompt."""
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        ran = ask_for(target, REQUEST, server, [echoing(*first)], prompt=PROMPT)
    assert_failed(ran, "repeats the prompt", "echo")
    assert {f.verdict for f in judge(CASE, [ran.t]).values()} == {"error"}


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        (f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n", PROMPT),
        (
            "请用三句话说明内海的潮汐是怎样形成的，不要列出要点，谢谢你。",
            "问：请用三句话说明内海的潮汐是怎样形成的，不要列出要点，谢谢",
        ),
        (" ".join(f"word{i}" for i in range(400)), " ".join(f"word{i}" for i in range(20, 390))),
        ("x" * 40, f"> {'x' * 40}"),
    ],
    ids=["without the marks of its template", "unspaced words", "a tenth is missing", "one word"],
)
def test_an_echo_is_known_by_its_words(prompt: str, first: str) -> None:
    """What a decoder, a trim or a template changes is not what makes it an answer."""
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo([TokenEvent(0, first), TokenEvent(10**9, "x")], prompt)


@pytest.mark.parametrize(
    "first",
    [
        "You asked how the tides of an inland sea come about.",
        "You want me to tell you, in three sentences, how the tides of an inland sea come about.",
        "Three sentences on how the tides of an inland sea come about: ",
        "Sure! The tides of an inland sea",
        "x" * 80,
        "",
    ],
)
def test_a_first_block_in_the_model_s_own_words_is_an_answer(first: str) -> None:
    """Filters hand over the first sentence at once, and models begin with the question."""
    refuse_echo([TokenEvent(0, first), TokenEvent(10**9, "x")], PROMPT)


LONG = " ".join(f"word{i}" for i in range(400))
SHORT = "Explain how photosynthesis works"
MS = 10**6


def timed(*parts: tuple[float, str], then_ms: float, pace_ms: float = 20) -> list[TokenEvent]:
    """``parts`` at their times, then ten words of an answer of its own."""
    own = [(then_ms + pace_ms * i, f" own{i}") for i in range(10)]
    return [TokenEvent(round(at * MS), text) for at, text in (*parts, *own)]


@pytest.mark.parametrize(
    "cut",
    [slice(320), slice(80, 400), slice(200), slice(100, 301), slice(1, 400)],
    ids=["its first 80 %", "its last 80 %", "half of it", "its middle", "all but a word"],
)
def test_half_of_a_long_prompt_is_an_echo_that_was_cut(cut: slice) -> None:
    """By a limit on what is echoed: it is no more the model's than all of it."""
    first = "You said: " + " ".join(LONG.split()[cut])
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo(timed((0, first), then_ms=200), LONG)


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        (LONG, " ".join(LONG.split()[:190])),
        (" ".join(LONG.split()[:50]), " ".join(LONG.split()[:40])),
        (LONG, " ".join(f"{w} x" if i % 7 == 6 else w for i, w in enumerate(LONG.split()[:300]))),
    ],
    ids=["less than half", "of a prompt that is not long", "in short runs"],
)
def test_a_part_of_a_prompt_may_be_a_quotation(prompt: str, first: str) -> None:
    """A first block of a filter may hold a sentence of it."""
    refuse_echo(timed((0, first), then_ms=200), prompt)


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("Write a short poem about the sea", "Here is a short poem about the sea:\n\n"),
        (
            "Write a short poem about the sea and its tides",
            "Here is a short poem about the sea and its tides:\n\n",
        ),
        (SHORT, "Sure, let me explain how photosynthesis works."),
        (SHORT, "Well: explain how photosynthesis works!"),
    ],
)
def test_a_short_question_is_in_many_answers(prompt: str, first: str) -> None:
    """Several tokens in a first chunk are usual: stream intervals, gateways that batch."""
    refuse_echo(timed((0, first), then_ms=160), prompt)


@pytest.mark.parametrize(
    "first",
    [
        SHORT,
        f"{SHORT}\n\n",
        f"<|user|>\n{SHORT}<|end|>\n<|assistant|>\n",
        f"<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n{SHORT}<|im_end|>\n",
        f"system\nBe kind.\nuser\n{SHORT}\nassistant\n",
        f"### Instruction:\n{SHORT}",
    ],
    ids=["as it is", "in a line", "in a template", "in a turn", "without marks", "in words"],
)
def test_a_short_prompt_at_the_beginning_is_an_echo(first: str) -> None:
    """Or where a template puts it."""
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo(timed((0, first), then_ms=160), SHORT)


WORDS = [f"{word} " for word in PROMPT.split()]


@pytest.mark.parametrize(
    "parts",
    [
        [(0, "\n"), (5, PROMPT)],
        [(0, PROMPT[:36]), (20, PROMPT[36:])],
        [(6 * i, word) for i, word in enumerate(WORDS)],
        [(0, "\n"), (5, "\n"), (26, PROMPT)],
    ],
    ids=["behind a line", "in halves", "word by word", "behind two lines"],
)
def test_an_echo_behind_an_early_event_is_one(parts: list[tuple[float, str]]) -> None:
    """The leap of a prefill stands behind it, at whatever pace it came."""
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo(timed(*parts, then_ms=parts[-1][0] + 200), PROMPT)


def test_an_echo_behind_an_early_event_is_one_before_an_answer_at_once_too() -> None:
    """There is no pace to compare with: nothing acquits."""
    events = [TokenEvent(0, "\n"), TokenEvent(5 * MS, PROMPT), TokenEvent(205 * MS, "own " * 50)]
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo(events, PROMPT)


def test_an_echo_before_an_answer_in_bursts_is_one() -> None:
    """Three tokens in one read: most gaps of the answer are 0."""
    own = [TokenEvent((300 + 60 * (i // 3)) * MS, f" own{i}") for i in range(30)]
    words = [TokenEvent(6 * i * MS, word) for i, word in enumerate(WORDS)]
    with pytest.raises(WireError, match="repeats the prompt"):
        refuse_echo([*words, *own], PROMPT)


@pytest.mark.parametrize("pace_ms", [15, 20, 40])
def test_a_pause_behind_a_restated_question_is_none(pace_ms: float) -> None:
    """Thoughts restate it at the model's own pace; then another request's prefill stops them."""
    parts = [(pace_ms * i, word) for i, word in enumerate(WORDS)]
    refuse_echo(timed(*parts, then_ms=parts[-1][0] + 6 * pace_ms), PROMPT)


@pytest.mark.parametrize("prompt", ["", "?" * 30, "x" * 30, "two wordsthatarelong"])
def test_a_prompt_of_few_words_is_no_echo_by_itself(prompt: str) -> None:
    """Nothing that could be repeated is not repeated by everything."""
    refuse_echo([TokenEvent(0, "an answer of its own, long"), TokenEvent(10**9, "x")], prompt)


def test_an_answer_that_speaks_of_the_prompt_is_none() -> None:
    """A word of it, or a model that quotes it token by token."""
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        assert_sound(ask_for(target, REQUEST, server, [sound()], prompt=PROMPT))
    words = [TokenEvent(i * 10**6, f"{word} ") for i, word in enumerate(PROMPT.split())]
    refuse_echo(words, PROMPT)
    refuse_echo([TokenEvent(0, "Tell me"), TokenEvent(1, "x")], "Tell me")
    refuse_echo([TokenEvent(0, PROMPT)], PROMPT)  # not streamed: its time is that of all of it


@pytest.mark.parametrize(
    "headers",
    [
        {"age": "0"},
        {"age": "0, 0"},
        {"x-cache": "MISS"},
        {"x-cache": "TCP_MISS from edge"},
        {"x-cache-hits": "0, 0"},
        {"x-cache-hit": "false"},
        {"x-litellm-cache-key": ""},
        {"x-kv-cache": "hit"},
        {"cache-control": "no"},
        {"cache-control": "max-age=1, stale-while-revalidate=1"},
        {"cache-status": "edge; hit=?0"},
        {"cache-status": "edge; fwd=miss; stored; collapsed=?0"},
        {"cache-status": '"the hit; cache"; fwd=bypass; detail="hit, but old"'},
        {"cache-status": "origin; fwd=uri-miss, edge; fwd=method"},
        {"cache-status": "MISS"},
        {"x-cache": "MISS from squid", "x-cache-lookup": "HIT from squid:3128"},
        {"x-cache": "NO_HIT"},
        {"x-cache": "hit=0"},
        {"x-cache": "hit=0.00"},
        {"x-cache": "hit: no"},
        {"x-cache": "HIT: None"},
        {"x-cache": "hit=?0; ttl=3"},
        {"x-cacheable": "YES"},
        {"x-cache-enabled": "true"},
        {"x-cache-key": "hit/v1/chat"},
        {"x-radix-cache-hit": "true"},
        {"server-timing": "cdn-cache; desc=MISS, edge; dur=1"},
        {"server-timing": "prefix-cache; desc=HIT"},
        {"server-timing": "Prefix-Cache; desc=HIT"},
        {"x-varnish": "32770"},
        {"x-varnish": "12, 56"},
        {"warning": '199 - "odd, 110 times"'},
        {"warning": "199 - odd"},
    ],
)
def test_headers_that_tell_of_no_stored_answer(headers: dict[str, str]) -> None:
    """Misses, and hits of a cache of prompts: those are another matter."""
    refuse_stored(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"age": "3"},
        {"age": "0, 3"},
        {"x-cache": "HIT"},
        {"x-cache": "TCP_HIT from edge"},
        {"x-cache": "TCP_MEM_HIT"},
        {"x-cache": "HIT: node3"},
        {"x-cache": "Hit: Norway"},
        {"x-cache": "HIT: no-osl-1"},
        {"x-cache": "hit=0.97"},
        {"x-cache": "HIT:05"},
        {"x-cache": "RefreshHit from cloudfront"},
        {"cache-status": "edge; hit"},
        {"x-vercel-cache": "STALE"},
        {"x-cache-hit": "true"},
        {"x-litellm-cache-hit": "True"},
        {"x-litellm-cache-key": "3f9a"},
        {"x-cache-hits": "0, 1"},
        {"cache-status": "edge; hit=?1"},
        {"cache-status": 'origin; fwd=miss, "edge of it"; hit; ttl=3'},
        {"cache-status": "HIT"},
        {"x-cache": "MISS", "cache-status": "edge;hit"},
        {"x-cache": "HIT from squid", "x-cache-lookup": "MISS from squid:3128"},
        {"x-cache-lookup": "Cache Hit"},
        {"x-cache-status": "STALE"},
        {"x-cache-status": "REVALIDATED"},
        {"x-from-cache": "1"},
        {"server-timing": "cdn-cache; desc=HIT, edge; dur=1"},
        {"server-timing": 'Cache;desc="HIT"'},
        {"server-timing": 'edge;dur=1, cfCacheStatus;desc="HIT"'},
        {"x-varnish": "32770 32768"},
        {"x-varnish": "12 34, 56"},
        {"x-varnish": "12, 34 56"},
        {"warning": '199 - "odd", 110 - "Response is Stale"'},
        {"warning": '110 - "Response is Stale"'},
    ],
)
def test_headers_that_tell_of_a_stored_answer(headers: dict[str, str]) -> None:
    """In the words of caches on the way and of gateways: its time is not the model's."""
    with pytest.raises(WireError, match="cache of answers"):
        refuse_stored(headers)


def test_the_text_of_one_answer_is_bounded() -> None:
    """Few events, each within its limit, could fill the memory together."""
    reader = StreamReader(OpenAIChat("m"), Recorder(), 64)
    chunk = {"choices": [{"index": 0, "delta": {"content": "y" * 5_000_000}}]}
    event = Event(1, "message", json.dumps(chunk).encode())
    for _ in range(3):
        reader.event(event)
    with pytest.raises(WireError, match="longer than the limit"):
        reader.event(event)


Serve = Callable[[int, socket.socket], None]


@contextmanager
def listening(serve: Serve) -> Iterator[tuple[int, list[int]]]:
    """A port, and the number of every connection that came: ``serve`` has each, then it ends."""
    heard: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                heard.append(len(heard) + 1)
                with closing(sock):
                    serve(len(heard), sock)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(server.getsockname()[1]), heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_metrics_that_never_answer_are_not_waited_for_again_and_again() -> None:
    """Every bucket would wait for them; twice is enough, and the line says why it is empty.

    Each time both paths are tried: a server that hangs up on one may answer on the other.
    """

    def hang_up(_: int, sock: socket.socket) -> None:
        sock.recv(9999)

    with listening(hang_up) as (port, heard):
        spec = HttpSpec.from_mapping(
            {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "model": "m"}
        )
        target = HttpTarget(spec, dialect_of(spec))
        view = View(target, ServerFacts())
        for _ in range(4):
            view.reset()
            assert "/metrics" in view.window()["reason"]
        target.close()
    assert len(heard) == 4


def test_metrics_that_were_too_busy_are_read_again_in_the_next_window() -> None:
    """Else hits of a prefix cache would go unseen from then on."""
    page = b"vllm:generation_tokens_total 1\nvllm:request_success_total 1\n"
    page += b"vllm:prefix_cache_hits_total 7\n"
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(page)

    def serve(number: int, sock: socket.socket) -> None:
        sock.recv(9999)
        if number not in (2, 3, 4, 5):
            sock.sendall(answer + page)

    with listening(serve) as (port, heard):
        spec = HttpSpec.from_mapping(
            {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "model": "m"}
        )
        target = HttpTarget(spec, dialect_of(spec))
        view = View(target, ServerFacts())
        view.reset()
        told = [bool(view.window().get("reason")) for _ in range(3)]
        assert told == [True, True, True]
        assert len(heard) == 5  # nobody waits for a third in one window
        view.reset()
        assert view.window()["prefix_cache"]["hits"] == 0
        target.close()


def test_a_server_that_hangs_on_a_kept_connection_is_not_asked_again() -> None:
    """Only a connection that was closed is: a second wait would be as long as the first."""
    heard: list[bytes] = []

    def serve(_: int, sock: socket.socket) -> None:
        heard.append(sock.recv(9999))
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        while said := sock.recv(9999):
            heard.append(said)

    with listening(serve) as (port, _):
        client = Client(Address.parse(f"http://127.0.0.1:{port}"))
        assert client.fetch("GET", "a").ok
        with pytest.raises(WireError, match="timed out"):
            client.fetch("GET", "b", timeout_s=0.05)
        client.close()
    assert [said.split(b" ")[1] for said in heard] == [b"/a", b"/b"]


@pytest.mark.parametrize("host", ["a..b", "a" * 70, ".example"])
def test_a_host_that_cannot_be_one_is_named(host: str) -> None:
    """The library has an error of its own for these."""
    client = Client(Address.parse(f"http://{host}:9/v1"))
    with pytest.raises(WireError, match=r"no host can have such a name|cannot be resolved"):
        client.fetch("GET", "models")
    client.close()


@pytest.mark.parametrize("url", ["http://münchen.example/v1", "http://127.0.0.1/é/v1"])
def test_an_address_that_cannot_be_sent_says_how_to_write_it(url: str) -> None:
    """Before anything is sent, and without a traceback that holds what would be."""
    with pytest.raises(UsageError, match=r"no ASCII.*xn--.*%XX"):
        Address.parse(url)


def test_the_zone_of_an_ipv6_address_is_for_this_host_alone() -> None:
    """RFC 6874: written with %25; the server need not know of it."""
    address = Address.parse("http://[fe80::1%25eth0]:8000/v1")
    assert (address.host, address.authority) == ("fe80::1%eth0", "[fe80::1]:8000")


def test_the_name_of_a_deployment_cannot_break_the_request_line() -> None:
    """It stands in the path."""
    assert MiiRest("my model\r\nx").path == "mii/my%20model%0D%0Ax"


@pytest.mark.parametrize("why", ["error", "aborted", "insufficient_system_resource"])
def test_a_document_that_ended_in_failure_is_no_answer(why: str) -> None:
    """MII's gateway gives the reason beside the text."""
    said = json.dumps([{"generated_text": "x", "finish_reason": why}]).encode()
    assert why in str(MiiRest("d").read(Event(0, "message", said)).error)

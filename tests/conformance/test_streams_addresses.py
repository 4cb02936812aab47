"""IPv6, Unix sockets, TLS and proxies. Most in real time, so without a word about times."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import trustme

from pytest_llmsla.targets.http.target import HttpTarget
from streams.proxy import Proxy
from streams.runner import Ran, ask_for, target_of, url_of
from streams.samples import (
    CASE,
    CUT,
    EVENTS,
    KEY,
    REQUEST,
    asked,
    assert_failed,
    assert_sound,
    assert_timed,
    at_once,
    framed,
    sound,
)
from streams.script import Answer, Step
from streams.server import Clock, Server


@contextmanager
def real(url: str, server: Server, **more: Any) -> Iterator[HttpTarget]:
    with target_of(CASE, server, url, **more) as target:
        yield target


def plain_ask(target: HttpTarget, server: Server, given: Answer | None = None) -> Ran:
    return ask_for(target, REQUEST, server, [given or sound()])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6() -> None:
    """An address in brackets, which are kept in the Host header."""
    with Server(Clock(), family=socket.AF_INET6) as server:
        with real(f"http://[::1]:{server.port}/v1", server) as target:
            assert_timed(plain_ask(target, server))
        assert server.posts[0].headers["host"] == f"[::1]:{server.port}"


def test_a_unix_socket(tmp_path: Path) -> None:
    """The path in the URL, the routes behind it; no address in the Host header."""
    path = tmp_path / "s.sock"
    with Server(Clock(), family=socket.AF_UNIX, path=path) as server:
        url = "http+unix://" + str(path).replace("/", "%2F") + "/v1"
        with real(url, server) as target:
            assert_timed(plain_ask(target, server))
        assert server.posts[0].target == "/v1/chat/completions"
        assert server.posts[0].headers["host"] == "localhost"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextmanager
def tls_server(authority: trustme.CA, name: str, clock: Clock | None = None) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    with Server(clock, tls=context) as server:
        yield server


def test_tls_with_an_authority_of_ones_own(authority: trustme.CA, tmp_path: Path) -> None:
    """verify_tls names its certificate; several requests share one connection."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with (
        tls_server(authority, "127.0.0.1") as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=str(ca)) as target,
    ):
        asked = 0
        # One that was idle for long, on a machine that does much else, is not used again.
        while asked == server.connections and asked < 50:
            assert_sound(plain_ask(target, server))
            asked += 1
        assert server.connections < asked


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_that_cannot_be_trusted_is_refused(
    trusted: bool, authority: trustme.CA, tmp_path: Path
) -> None:
    """An unknown authority; a known one that vouches for another host. Nothing is sent."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    name = "elsewhere.example" if trusted else "127.0.0.1"
    verify = str(ca) if trusted else True
    with (
        tls_server(authority, name) as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=verify) as target,
    ):
        ran = plain_ask(target, server)
        assert server.requests == []
    assert_failed(ran, "tls", "certificate", "mismatch" if trusted else "verify_tls")


def test_an_expired_certificate_is_refused_in_words(authority: trustme.CA, tmp_path: Path) -> None:
    """Even one of a trusted authority; nothing is sent."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    authority.issue_cert("127.0.0.1", not_after=yesterday).configure_cert(context)
    with (
        Server(tls=context) as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=str(ca)) as target,
    ):
        ran = plain_ask(target, server)
        assert server.requests == []
    assert_failed(ran, "tls", "certificate", "expired")


def test_tls_that_ends_without_its_own_end_does_a_whole_answer_no_harm(
    authority: trustme.CA,
) -> None:
    """Many servers leave close_notify out; the end marker has come."""
    with (
        tls_server(authority, "127.0.0.1") as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=False) as target,
    ):
        assert_sound(plain_ask(target, server, at_once(framed("connection: close"))))


def test_tls_unverified_is_said_aloud(authority: trustme.CA) -> None:
    """verify_tls: false works, and the report warns."""
    with (
        tls_server(authority, "elsewhere.example") as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=False) as target,
    ):
        assert_sound(plain_ask(target, server))
        assert "verify_tls" in json.dumps(target.describe()["warnings"])


def test_tls_cut_without_its_own_end_is_no_whole_answer(authority: trustme.CA) -> None:
    """A body that ends with the connection may have been cut by anybody on the way."""
    with (
        tls_server(authority, "127.0.0.1") as server,
        real(f"https://127.0.0.1:{server.port}/v1", server, verify_tls=False) as target,
    ):
        cut = Answer((Step(0, framed("connection: close", body=b"".join(EVENTS[:4]))),
                      Step(0, b"", "eof")))  # fmt: skip
        ran = plain_ask(target, server, cut)
    assert_failed(ran, CUT)


def test_plain_http_to_a_tls_port_and_back(authority: trustme.CA) -> None:
    """Each is an error that says what is wrong, not a hang."""
    soon = {"timeouts": {"connect_s": 0.2}}
    with tls_server(authority, "127.0.0.1") as server:
        with real(f"http://127.0.0.1:{server.port}/v1", server) as target:
            assert plain_ask(target, server).t.status == "error"
        server.play([])
    with Server() as server, real(f"https://127.0.0.1:{server.port}/v1", server, **soon) as target:
        assert_failed(plain_ask(target, server), "tls|connect")


def test_a_proxy_is_asked_for_the_whole_address() -> None:
    """Plain HTTP goes to the proxy with its absolute form; the password is sent and not shown."""
    with Server() as server, Proxy() as proxy:
        more = {"proxy": f"http://me:{KEY}@127.0.0.1:{proxy.port}"}
        with real(f"http://127.0.0.1:{server.port}/v1", server, **more) as target:
            assert_sound(plain_ask(target, server, sound("close")))
        [head] = proxy.heard
        path = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        assert head.startswith(f"POST {path} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic bWU6" in head


def test_tls_goes_through_a_tunnel(authority: trustme.CA, tmp_path: Path) -> None:
    """CONNECT, then TLS with the server itself: the proxy sees neither route nor key."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with tls_server(authority, "127.0.0.1") as server, Proxy() as proxy:
        more = {"proxy": f"http://127.0.0.1:{proxy.port}", "verify_tls": str(ca)}
        with real(f"https://127.0.0.1:{server.port}/v1", server, **more) as target:
            assert_sound(plain_ask(target, server))
            assert_sound(plain_ask(target, server))
        [head] = proxy.heard
        assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
        assert "chat/completions" not in head
        assert "authorization" not in server.posts[0].headers


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_named(scheme: str) -> None:
    """407 is the proxy's answer, not the server's."""
    with Server() as server, Proxy(refuse=True) as proxy:
        more = {"proxy": f"http://127.0.0.1:{proxy.port}"}
        with real(f"{scheme}://127.0.0.1:{server.port}/v1", server, **more) as target:
            assert_failed(plain_ask(target, server), "407", "target.proxy takes")
        assert server.requests == []


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What HTTP_PROXY says is not the policy's: it would be measured without a word."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert_timed(asked(sound()))


def test_what_is_sent_asks_for_an_answer_that_can_be_timed() -> None:
    """One POST: streamed, not compressed, on a connection that is kept, its length told."""
    with Server(Clock()) as server, target_of(CASE, server, url_of(CASE, server)) as target:
        ask_for(target, REQUEST, server, [sound()])
        [request] = server.posts
    body = json.loads(request.body)
    assert request.target == "/v1/chat/completions"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers.get("connection", "keep-alive") == "keep-alive"
    assert (body["stream"], body["stream_options"]["include_usage"]) == (True, True)
    assert body["max_tokens"] == 64

"""The target mapping as HTTP targets read it: secrets resolved at load and never shown."""

from __future__ import annotations

import pickle
import traceback
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy import policy_from_mapping
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.wire.secret import Secret

KEY = "sk-hunter2-hunter2"
URL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("TENANT", "blue-team")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("GONE", raising=False)


def read(**keys: Any) -> HttpSpec:
    return HttpSpec.from_mapping({"kind": "openai", "base_url": URL, **keys})


def refused(**keys: Any) -> str:
    """The message, after looking for the key in it and in every variable on its way."""
    with pytest.raises(UsageError) as caught:
        read(**keys)
    stack = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = [f for f in stack.stack if "pytest_llmsla" in f.filename]
    seen = "".join([str(caught.value), *(str(f.locals) for f in ours)])
    assert "hunter2" not in seen
    return str(caught.value)


def test_a_whole_policy_becomes_a_spec() -> None:
    """Every key of the policy arrives, with defaults filled in by the policy."""
    loaded = policy_from_mapping(
        {
            "version": 1,
            "target": {
                "kind": "openai",
                "base_url": "https://h/v1",
                "api": "completions",
                "model": "m",
                "headers": {"X-Tenant": "${TENANT}", "X-Plain": "p"},
                "extra_body": {"a": 1},
                "verify_tls": False,
                "proxy": "http://p:3128",
                "connect_in_ttft": True,
                "metrics_url": "http://h:9/metrics",
                "retries": 2,
                "timeouts": {"connect_s": 3.0},
                "memory_gib": 21.8,
                "memory_source": "nvidia-smi",
            },
            "buckets": [{"name": "b", "prompt_max": 9}],
        },
        "t",
    )
    spec = HttpSpec.from_mapping(loaded.target_spec())
    assert (spec.kind, spec.api, spec.model, spec.verify) == ("openai", "completions", "m", False)
    assert spec.address.url == "https://h/v1"
    assert spec.headers == {"X-Tenant": Secret("blue-team"), "X-Plain": "p"}
    assert (spec.extra_body, spec.proxy, spec.connect_in_ttft) == ({"a": 1}, "http://p:3128", True)
    assert spec.metrics is not None
    assert spec.metrics.url == "http://h:9/metrics"
    assert (spec.retries, spec.connect_s, spec.first_token_s, spec.total_s) == (2, 3, 60, 300)
    assert (spec.memory_gib, spec.memory_source) == (21.8, "nvidia-smi")


def test_a_key_from_the_environment_is_a_bearer_token() -> None:
    """It is sent, and neither shown nor written to disk."""
    spec = read(api_key_env="MY_KEY")
    sent = spec.headers["Authorization"]
    assert isinstance(sent, Secret)
    assert sent.reveal() == f"Bearer {KEY}"
    assert KEY not in f"{spec!r} {spec}"
    with pytest.raises(TypeError, match="not written to disk"):
        pickle.dumps(spec)


@pytest.mark.parametrize("text", [KEY, f"{KEY}\n", f"\ufeff{KEY}\r\n"])
def test_a_key_from_a_file_loses_the_editors_line_end(tmp_path: Path, text: str) -> None:
    """Marks and line ends that editors add are not part of the key."""
    path = tmp_path / "key"
    path.write_bytes(text.encode())
    assert read(api_key_file=str(path)).headers == {"Authorization": Secret(f"Bearer {KEY}")}


def write(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (write(b""), "target.api_key_file: the file is empty; it must hold the API key."),
        (write(b" \n"), "target.api_key_file: the file is empty; it must hold the API key."),
        (
            write(f"{KEY}\n{KEY}".encode()),
            "target.api_key_file: the file holds several lines, a space, a control character or a "
            "letter that is no ASCII; valid: the API key alone.",
        ),
        (
            write(KEY.encode() + b"\xff"),
            "target.api_key_file is no text. Give a file that holds the API key alone.",
        ),
        (
            lambda path: path.mkdir(),
            "target.api_key_file cannot be read (Is a directory). The path starts at the policy's "
            "folder; it must name a file that holds the API key alone.",
        ),
        (
            lambda path: None,
            "target.api_key_file cannot be read (No such file or directory). The path starts at "
            "the policy's folder; it must name a file that holds the API key alone.",
        ),
        (write(b"x" * 70_000), "target.api_key_file holds more than 65536 bytes."),
    ],
)
def test_a_file_that_holds_no_key_is_refused(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    """Before anything is sent, without a word of what the file holds."""
    path = tmp_path / "perhaps-the-key-itself"
    make(path)
    said = refused(api_key_file=str(path))
    assert said == message
    assert "perhaps" not in said


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"api_key_env": "GONE"},
            "target.api_key_env: the environment variable GONE is not set (or empty). Set it.",
        ),
        (
            {"api_key_env": "EMPTY"},
            "target.api_key_env: the environment variable EMPTY is not set (or empty). Set it.",
        ),
        (
            {"headers": {"X-A": "a ${GONE}"}},
            "target.headers.X-A: the environment variable GONE is not set (or empty). Set it.",
        ),
        (
            {"proxy": "${GONE}"},
            "target.proxy: the environment variable GONE is not set (or empty). Set it.",
        ),
        (
            {"base_url": None},
            "target.base_url is missing. Give the address of the server, such as "
            "http://127.0.0.1:8000/v1.",
        ),
    ],
)
def test_what_is_missing_is_named(keys: dict[str, Any], message: str) -> None:
    """The key of sla.yaml and the variable, and what to do."""
    assert refused(**keys) == message


@pytest.mark.parametrize(
    ("value", "word"),
    [(f"{KEY}\r\nHost: evil", "several lines"), (f"Bearer {KEY}", "a space"), (f"{KEY}ü", "ASCII")],
)
def test_a_key_that_cannot_be_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, word: str
) -> None:
    """No variable can add a header of its own to the request."""
    monkeypatch.setenv("BAD_KEY", value)
    message = refused(api_key_env="BAD_KEY")
    assert message.startswith("target.api_key_env: the variable BAD_KEY holds several lines")
    assert word in message
    assert refused(proxy="${BAD_KEY}").startswith("target.proxy is no address of a proxy")
    if word != "a space":  # a header may be "Bearer KEY"
        message = refused(headers={"X-A": "${BAD_KEY}"})
        assert message.startswith("target.headers.X-A: its value holds a line end")


@pytest.mark.parametrize(
    "value",
    [
        "p:3128",
        "socks5://u:hunter2@p:1",
        "http://u:hunter2@p:hunter2",
        "http://",
        "http://u:hunter2@p:1/path",
        "http://u:hunter2@p:1?x=1",
        "http://[u:hunter2@p",
    ],
)
def test_a_proxy_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """What a variable brought is not shown, however broken it is."""
    monkeypatch.setenv("PROXY_OF_TEST", value)
    assert refused(proxy="${PROXY_OF_TEST}") == (
        "target.proxy is no address of a proxy; valid: http://host:port or "
        "http://user:password@host:port, without a path. Look at the variables in it."
    )


def test_a_value_from_the_environment_is_not_expanded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a variable holds is text, whatever it looks like."""
    monkeypatch.setenv("OUTER", "${MY_KEY}")
    assert read(headers={"X-A": "${OUTER}"}).headers == {"X-A": Secret("${MY_KEY}")}


def test_the_scrubber_knows_every_form_of_every_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that repeats what it got, whole or in part, does not get it into a report."""
    monkeypatch.setenv("PROXY_PASSWORD", "p%40ssword")
    spec = read(
        api_key_env="MY_KEY",
        headers={"X-Tenant": "tenant ${TENANT}"},
        proxy="http://me:${PROXY_PASSWORD}@p:1",
    )
    basic = b64encode(b"me:p@ssword").decode()
    said = f"{KEY} Bearer {KEY} blue-team p%40ssword p@ssword {basic} http://me:p%40ssword@p:1 fine"
    assert spec.scrubber.scrub(said) == "*** Bearer *** *** *** *** *** *** fine"
    assert "p%40ssword" not in repr(spec)


def test_a_longer_secret_is_taken_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one secret begins another, nothing of the longer one is left."""
    monkeypatch.setenv("LONGER", f"{KEY}-and-more")
    spec = read(headers={"X-A": "${MY_KEY}", "X-B": "${LONGER}"})
    assert spec.scrubber.scrub(f"{KEY}-and-more {KEY}") == "*** ***"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"verify_tls": False, "base_url": "https://h/v1"}, ["verify_tls: false"]),
        ({"verify_tls": False}, []),
        ({"api_key_env": "MY_KEY", "base_url": "http://far/v1"}, ["without TLS"]),
        ({"api_key_env": "MY_KEY"}, []),
        ({"api_key_env": "MY_KEY", "base_url": "http://[::1]:8/v1"}, []),
        ({"api_key_env": "MY_KEY", "base_url": "http+unix://%2Fa.sock/v1"}, []),
        ({"base_url": "http://far/v1"}, []),
    ],
)
def test_what_a_report_must_say_of_the_way_to_the_server(
    keys: dict[str, Any], words: list[str]
) -> None:
    """An unchecked certificate, and a credential in the clear to another machine."""
    found = read(**keys).warnings
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))

"""Servers in sla.yaml: what each kind takes, what is refused, and that no secret gets in or out."""

from __future__ import annotations

import copy
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_samples import HTTP, SHORT, http, load, refusal

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy import Policy, load_policy, policy_from_mapping
from pytest_llmsla.policy.credentials import secret_header, secret_key, secret_name, secret_value
from pytest_llmsla.policy.file import expand
from pytest_llmsla.policy.http_models import HTTP_KINDS, HttpTarget
from pytest_llmsla.policy.schema import schema_text

KEYED = """\
version: 1
service: s
target:
  kind: openai
  model: smollm2-135m-instruct
  revision: null
  tokenizer: null
  dtype: auto
  quantization: none
  double_quant: false
  compute_dtype: null
  device: auto
  attn: auto
  cache: dynamic
  use_cache: true
  compile: false
  compile_quantized: false
  batching: continuous
  offline: auto
  entry: null
  base_url: http://127.0.0.1:8000/v1
  api: chat
  api_key_env: null
  headers: {}
  extra_body: {}
  verify_tls: true
  proxy: null
  connect_in_ttft: false
  metrics_url: null
  retries: 0
  timeouts: {connect_s: 10, first_token_s: 60, idle_s: 30, total_s: 300}
  memory_gib: null
  memory_source: null
buckets: [{name: short, prompt_max: 128, ttft_ms: 300}]
"""
"""A file that writes every key of the format, each at its default."""

SECRET = "hunter2"
BODY_SECRET = (
    "a credential may not be sent in the body, which is printed: put it in an environment variable "
    'and send it as a header: target.headers: {NAME: "${VARIABLE}"}'
)
IN_URL = (
    "holds a user name or a password, which would be printed: take it out and put it in an "
    "environment variable and name that: target.api_key_env for a Bearer token, or target.headers: "
    '{NAME: "${VARIABLE}"}'
)
IN_QUERY = IN_URL.replace(
    "a user name or a password, which would be printed",
    "a query parameter that looks like a credential and would be printed",
)
ADDRESS = "http://host:port/v1, https://host/v1 or http+unix://%2Fpath%2Fto.sock/v1"


def target_of(folder: Path, text: str, **kwargs: Any) -> HttpTarget:
    target = load(folder, text, **kwargs).policy.target
    assert isinstance(target, HttpTarget)
    return target


@pytest.mark.parametrize("kind", [*HTTP_KINDS, "transformers"])
def test_a_file_that_writes_every_default_loads_for_every_kind(tmp_path: Path, kind: str) -> None:
    """One file with all keys can be turned to another kind by its first line."""
    text = KEYED.replace("openai", kind)
    if kind == "transformers":
        text = text.replace("base_url: http://127.0.0.1:8000/v1", "base_url: null")
    policy = load(tmp_path, text).policy
    assert policy.target.kind == kind
    short = {
        "transformers": SHORT.replace(", dtype: bfloat16", ""),
        "openai": http("model: smollm2-135m-instruct"),
    }.get(kind, http("model: smollm2-135m-instruct", kind=kind))
    assert policy.target == load(tmp_path, short).policy.target


@pytest.mark.parametrize(("kind", "api"), [("openai", "chat"), ("mii", "openai")])
def test_the_route_has_a_default_where_there_is_a_choice(
    tmp_path: Path, kind: str, api: str
) -> None:
    """chat for OpenAI's API; MII begins with its OpenAI server."""
    assert load(tmp_path, http(kind=kind)).policy.model_dump()["target"]["api"] == api


def test_defaults_of_a_server(tmp_path: Path) -> None:
    """Nothing hidden: no retry, no proxy, certificates checked, connections open beforehand."""
    t = target_of(tmp_path, HTTP)
    assert (t.retries, t.proxy, t.verify_tls, t.connect_in_ttft) == (0, None, True, False)
    assert (t.headers, t.extra_body, t.model, t.api_key_env) == ({}, {}, None, None)
    assert (t.timeouts.connect_s, t.timeouts.first_token_s) == (10, 60)
    assert load(tmp_path, HTTP).policy.itl.estimated == "error"


def test_a_policy_of_a_server_survives_json(tmp_path: Path) -> None:
    """What a run records is read back as the same policy, by either way in."""
    text = http(
        "headers: {Authorization: 'Bearer ${KEY}', X-Tenant: blue}",
        "extra_body: {a: [1, {b: null}]}",
        "retries: 2",
        "timeouts: {connect_s: 3}",
    )
    loaded = load(tmp_path, text, environ={"KEY": SECRET})
    stored = json.loads(json.dumps(loaded.policy.model_dump(mode="json")))
    assert Policy.model_validate(stored) == loaded.policy
    assert policy_from_mapping(stored, "a run").sha256 == loaded.sha256


CASES: list[tuple[str, str, str]] = [
    # kind, line under target, message after the key
    ("openai", "headers: x", "headers: got text; valid: a mapping {name: text}"),
    ("openai", "headers: {X-A: 7}", "headers.X-A: got a number; valid: text that is not empty. "
     "Write it in quotes."),
    ("openai", "headers: {X-A: ''}", "headers.X-A: got empty text; valid: text that is not empty"),
    ("openai", "headers: {'': b}", "headers: holds something that is no name of a header: "
     'letters, digits and - only; write {X-Tenant: "blue"}'),
    ("openai", "headers: {'X A': b}", "headers: holds something that is no name of a header: "
     'letters, digits and - only; write {X-Tenant: "blue"}'),
    ("openai", 'headers: {"X\\r\\nA": b}', "headers: holds something that is no name of a header: "
     'letters, digits and - only; write {X-Tenant: "blue"}'),
    ("openai", 'headers: {X-A: "b\\r\\nHost: c"}', "headers.X-A: its value holds a line end, a "
     "control character or a letter that is no ASCII"),
    ("openai", "headers: {X-A: ü}", "headers.X-A: its value holds a line end, a control character "
     "or a letter that is no ASCII"),
    ("openai", "headers: {X-A: b, x-a: c}", "headers.x-a: given twice (X-A); upper and lower case "
     "are one"),
    ("openai", "headers: {Host: h}", "headers.Host: may not be set: it follows from base_url. "
     "Remove it"),
    ("openai", "headers: {Content-Type: text/plain}", "headers.Content-Type: may not be set: it is "
     "application/json. Remove it"),
    ("openai", "headers: {Content-Length: '3'}", "headers.Content-Length: may not be set: the "
     "client frames its requests itself. Remove it"),
    ("openai", "headers: {transfer-encoding: chunked}", "headers.transfer-encoding: may not be "
     "set: the client frames its requests itself. Remove it"),
    ("openai", "headers: {Connection: close}", "headers.Connection: may not be set: the client "
     "keeps its connections itself. Remove it"),
    ("openai", "headers: {Accept-Encoding: gzip}", "headers.Accept-Encoding: may not be set: it is "
     "identity: compressed, tokens would wait for each other. Remove it"),
    ("openai", "headers: {Accept: '*/*'}", "headers.Accept: may not be set: it is "
     "text/event-stream, or the JSON of a question before the run. Remove it"),
    ("openai", "headers: {Proxy-Authorization: 'Basic ${A}'}", "headers.Proxy-Authorization: may "
     "not be set: it follows from proxy: http://${USER}:${PASSWORD}@host:port. Remove it"),
    ("openai", f"headers: {{Authorization: Bearer {SECRET}}}", "headers.Authorization: a "
     "credential may not be written in the file: put it in an environment variable and write "
     'Authorization: "Bearer ${NAME}"'),
    ("openai", f"headers: {{X-Api-Key: {SECRET}}}", "headers.X-Api-Key: a credential may not be "
     'written in the file: put it in an environment variable and write X-Api-Key: "${NAME}"'),
    ("openai", f"headers: {{X-Auth-User: '{SECRET} ${{A}}'}}", "headers.X-Auth-User: a credential "
     'may not be written in the file: put it in an environment variable and write X-Auth-User: '
     '"${NAME}"'),
    ("openai", f"headers: {{X-Any: Bearer {SECRET}}}", "headers.X-Any: a credential may not be "
     'written in the file: put it in an environment variable and write X-Any: "${NAME}"'),
    ("openai", "headers: {X-A: '${A:-b}'}", "headers.X-A: valid: ${NAME} of letters, digits and _, "
     "without a default value"),
    ("openai", "headers: {X-A: '${GONE}'}", "headers.X-A: the environment variable GONE is not set "
     "(or empty): set it"),
    ("openai", f"api_key_env: sk-{SECRET}", "api_key_env: this is no name of an environment "
     "variable; it looks like the key itself. Put the key in a variable and write its name: "
     "api_key_env: MY_API_KEY"),
    ("openai", f"api_key_env: hf_abcdefghij{SECRET}", "api_key_env: this is no name of an "
     "environment variable; it looks like the key itself. Put the key in a variable and write its "
     "name: api_key_env: MY_API_KEY"),
    ("openai", "api_key_env: '${A}'", "api_key_env: the name alone, without $ and braces: "
     "api_key_env: MY_API_KEY"),
    ("openai", "api_key_env: GONE", "api_key_env: the environment variable GONE is not set (or "
     "empty): set it"),
    ("openai", "api_key_file: gone.key", "api_key_file: there is no such file; the path starts at "
     "the folder of the policy, FOLDER"),
    ("openai", f"api_key_file: sk-abcdefghi{SECRET}xyz", "api_key_file: there is no such file; the "
     "path starts at the folder of the policy, FOLDER"),
    ("openai", "verify_tls: gone.pem", "verify_tls: there is no such CA file; the path starts at "
     "the folder of the policy, FOLDER"),
    ("openai", "verify_tls: 1", "verify_tls: got 1; valid: true, false or the path of a CA file"),
    ("openai", f"proxy: http://u:{SECRET}@h:1", "proxy: holds a user name or a password, which may "
     "not be written in the file. Write http://${USER}:${PASSWORD}@host:port, or ${NAME} for the "
     "whole address"),
    ("openai", "proxy: h:3128", "proxy: is no address of a proxy; valid: http://host:port, without "
     "a path, or ${NAME}"),
    ("openai", "proxy: socks5://h:1", "proxy: is no address of a proxy; valid: http://host:port, "
     "without a path, or ${NAME}"),
    ("openai", "proxy: '${GONE}'", "proxy: the environment variable GONE is not set (or empty): "
     "set it"),
    ("openai", f"extra_body: {{api_key: {SECRET}}}", f"extra_body.api_key: {BODY_SECRET}"),
    ("openai", f"extra_body: {{a: [{{userPassword: {SECRET}}}]}}",
     f"extra_body.a[0].userPassword: {BODY_SECRET}"),
    ("openai", f"extra_body: {{a: Bearer {SECRET}}}", f"extra_body.a: {BODY_SECRET}"),
    ("openai", "extra_body: {a: '${B}'}", "extra_body.a: ${NAME} may stand only in target.model, "
     "target.entry, target.base_url and target.metrics_url, and in target.headers and "
     "target.proxy, where it is never shown: write it out"),
    ("openai", "extra_body: {stream: false}", "extra_body.stream: without a stream no token can be "
     "timed: remove it"),
    ("openai", "extra_body: {n: 2}", "extra_body.n: a request is one answer: remove it"),
    ("openai", "extra_body: {messages: []}", "extra_body.messages: set by workload.prompts: use "
     "that, and remove it here"),
    ("openai", "extra_body: {model: m}", "extra_body.model: set by target.model: use that, and "
     "remove it here"),
    ("openai", "extra_body: {max_tokens: 9}", "extra_body.max_tokens: set by "
     "workload.max_new_tokens: use that, and remove it here"),
    ("openai", "extra_body: {max_completion_tokens: 9}", "extra_body.max_completion_tokens: must "
     "be the value of workload.max_new_tokens, 64: it only says which key the server wants"),
    ("openai", "extra_body: {temperature: 0.1}", "extra_body.temperature: set by "
     "workload.sampling, so that the report shows what was sent: use that (null here leaves the "
     "key out of the request)"),
    ("openai", "retries: 11", "retries: got 11; valid: a whole number from 0 to 10"),
    ("openai", "retries: true", "retries: got true; valid: a whole number from 0 to 10"),
    ("openai", "memory_gib: 3", "memory_gib: needs memory_source: a declared figure and where it "
     "comes from go together"),
    ("openai", "memory_source: a note", "memory_source: needs memory_gib: a declared figure and "
     "where it comes from go together"),
    ("openai", "api: rest", "api: got 'rest'; valid: chat or completions"),
    ("mii", "api: completions", "api: got 'completions'; valid: openai or rest"),
    ("tgi", "extra_body: {parameters: {top_k: 3}}", "extra_body.parameters.top_k: set by "
     "workload.sampling, so that the report shows what was sent: use that (null here leaves the "
     "key out of the request)"),
    ("tgi", "api: completions", "api: belongs to target kind openai and mii, not to tgi: remove "
     "it"),
    ("llamacpp", "dtype: float32", "dtype: belongs to target kind transformers, not to llamacpp: "
     "remove it"),
    ("openai", "timeouts: {connect_s: 0}", "timeouts.connect_s: got 0; valid: a number of seconds "
     "greater than 0"),
    ("openai", "metrics_url: metrics", f"metrics_url: begins with neither http:// nor https://; "
     f"valid: {ADDRESS}"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "message"), CASES, ids=[c[1][:32] for c in CASES])
def test_each_mistake_has_its_message(tmp_path: Path, kind: str, line: str, message: str) -> None:
    """The key, what is valid, what to do, and never the value of a key that may be secret."""
    text = refusal(tmp_path, http(line, kind=kind), environ={"A": "x"})
    at, _, said = text.partition(": ")
    assert said.replace(str(tmp_path), "FOLDER") == f"target.{message}"
    assert at == "sla.yaml:5"
    assert SECRET not in text


URLS: list[tuple[str, str]] = [
    (f"http://u:{SECRET}@h/v1", IN_URL),
    (f"http://{SECRET}@h/v1", IN_URL),
    (f"http://u:pa/{SECRET}@h/v1", IN_URL),
    (f"u:{SECRET}@h", IN_URL),
    (f"https://h/v1?api_key={SECRET}", IN_QUERY),
    (f"https://h/v1?api-version=1&code={SECRET}", IN_QUERY),
    (f"https://h/v1?a=Bearer%20{SECRET}", IN_QUERY),
    (f"http://h:{SECRET}", f"is no address: check its host and port; valid: {ADDRESS}"),
    ("http://h:99999/v1", f"is no address: check its host and port; valid: {ADDRESS}"),
    ("http://[::1/v1", f"is no address: check its host and port; valid: {ADDRESS}"),
    ("http:///v1", f"names no host, or port 0; valid: {ADDRESS}"),
    ("http://h:0/v1", f"names no host, or port 0; valid: {ADDRESS}"),
    ("localhost:8000/v1", f"begins with neither http:// nor https://; valid: {ADDRESS}"),
    ("ws://h/v1", f"begins with another word than http, https or http+unix; valid: {ADDRESS}"),
    ("http+unix://run/a.sock", "a Unix socket needs its whole path, with %2F for each slash: "
     "http+unix://%2Frun%2Fserver.sock/v1"),
    ("http://h/v 1", "holds a space, a line end or a control character: remove it"),
    ("http://h/v1#a", "holds a part from # on, which no server gets: remove it"),
    ("http://h/v1/chat/completions", "ends with /chat/completions, a route that the client adds "
     "itself: end before it"),
    ("http://h/generate_stream/", "ends with /generate_stream, a route that the client adds "
     "itself: end before it"),
]  # fmt: skip


@pytest.mark.parametrize("expanded", [False, True], ids=["written", "from a variable"])
@pytest.mark.parametrize(("url", "message"), URLS, ids=[u[:36] for u, _ in URLS])
def test_an_address_that_cannot_be_used_or_printed_is_refused(
    tmp_path: Path, url: str, message: str, expanded: bool
) -> None:
    """Written or brought by a variable: what is wrong is said, the address is not repeated."""
    written = '"${URL}"' if expanded else json.dumps(url)
    text = HTTP.replace("http://127.0.0.1:8000/v1", written)
    said = refusal(tmp_path, text, environ={"URL": url})
    assert said == f"sla.yaml:4: target.base_url: {message}"
    assert SECRET not in said


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1]:8000",
        "https://h/openai/deployments/d?api-version=2024-06-01",
        "http+unix://%2frun%2Fa.sock/v1",
        "HTTP://H:80/",
        "http://10.0.0.1:1/a/b/v1/",
    ],
)
def test_addresses_that_people_have_are_fine(tmp_path: Path, url: str) -> None:
    """IPv6, prefixes, harmless query parameters, Unix sockets."""
    target = target_of(tmp_path, HTTP.replace("http://127.0.0.1:8000/v1", url))
    assert target.base_url == url


def test_a_variable_cannot_smuggle_a_credential_past_the_check(tmp_path: Path) -> None:
    """An expanded address is looked at again, even when it looks like one that is not expanded."""
    text = HTTP.replace("http://127.0.0.1:8000/v1", '"${URL}"')
    said = refusal(tmp_path, text, environ={"URL": f"http://u:{SECRET}@h/${{X}}"})
    assert "holds a user name or a password" in said
    assert SECRET not in said


def test_addresses_and_model_are_expanded_and_hashed(tmp_path: Path) -> None:
    """Two servers under one text are two policies; what is printed is what was asked."""
    text = http('model: "${M}"', 'metrics_url: "http://${H}/metrics"')
    text = text.replace("127.0.0.1:8000", "${H}")
    a = load(tmp_path, text, environ={"H": "a:1", "M": "m"})
    b = load(tmp_path, text, environ={"H": "b:1", "M": "m"})
    assert isinstance(a.policy.target, HttpTarget)
    assert a.policy.target.base_url == "http://a:1/v1"
    assert a.policy.target.metrics_url == "http://a:1/metrics"
    assert a.policy.target.model == "m"
    assert a.sha256 != b.sha256


def test_secrets_stay_names_in_the_policy(tmp_path: Path) -> None:
    """Headers, proxy and key are resolved later: hash and dump do not depend on their values."""
    text = http(
        "headers: {Authorization: 'Bearer ${KEY}', Cookie: 'session=${KEY}; a=${KEY}'}",
        "proxy: 'http://${KEY}:${KEY}@h:1'",
    )
    one = load(tmp_path, text, environ={"KEY": SECRET})
    two = load(tmp_path, text, environ={"KEY": "another"})
    assert one.sha256 == two.sha256
    assert isinstance(one.policy.target, HttpTarget)
    assert one.policy.target.headers["Authorization"] == "Bearer ${KEY}"
    shown = [repr(one), str(one), one.policy.model_dump_json(), repr(one.target_spec())]
    assert SECRET not in "".join(shown)


def test_judging_elsewhere_needs_no_variable_and_no_file(tmp_path: Path) -> None:
    """``llmsla check`` on another machine asks for nothing that only a run needs."""
    text = http(
        "headers: {X-Api-Key: '${GONE}'}",
        "verify_tls: gone.pem",
        "proxy: '${GONE}'",
        "api_key_env: GONE",
        "metrics_url: '${GONE}/metrics'",
    )
    text = text.replace("127.0.0.1:8000", "${GONE}")
    target = target_of(tmp_path, text, to_run=False, environ={})
    assert target.base_url == "http://${GONE}/v1"
    assert target_of(tmp_path, http("api_key_file: gone"), to_run=False).api_key_file == "gone"


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (["api_key_env: A", "api_key_file: a.key"], "api_key_env is given too: remove one"),
        (
            ["api_key_env: A", "headers: {authorization: 'Bearer ${A}'}"],
            "the API key is sent in this header already: remove one",
        ),
        (["api_key_file: sk-abcdefghijk7lmnopq"], "this looks like the key itself"),
    ],
)
def test_a_key_is_given_in_one_way(tmp_path: Path, keys: list[str], word: str) -> None:
    """Which of two keys was sent is never a guess."""
    (tmp_path / "a.key").write_text(SECRET)
    (tmp_path / "sk-abcdefghijk7lmnopq").write_text("")
    said = refusal(tmp_path, http(*keys), environ={"A": SECRET})
    assert word in said
    assert "sk-abc" not in said.replace("sk-abcdefghijk7lmnopq'", "")


def test_a_unix_socket_has_no_proxy(tmp_path: Path) -> None:
    """Two ways to the server cannot both be taken."""
    text = http("proxy: http://p:3128")
    text = text.replace("http://127.0.0.1:8000", "http+unix://%2Fa.sock")
    assert "proxy: a Unix socket is reached without a proxy" in refusal(tmp_path, text)


SAMPLING = [
    ("tgi", "min_p: 0.1", False),
    ("tgi", "presence_penalty: 1", False),
    ("tgi", "presence_penalty: 0", True),
    ("tgi", "frequency_penalty: 1", True),
    ("mii", "repetition_penalty: 1.1", False),
    ("mii", "repetition_penalty: 1.0", True),
    ("mii", "greedy: true, min_p: 0.1", True),
    ("openai", "min_p: 0.1, top_k: 3, presence_penalty: 1", True),
    ("llamacpp", "min_p: 0.1, top_k: 3, presence_penalty: 1, repetition_penalty: 1.1", True),
]


@pytest.mark.parametrize(("kind", "keys", "takes"), SAMPLING)
def test_sampling_that_an_api_cannot_express_is_refused(
    tmp_path: Path, kind: str, keys: str, takes: bool
) -> None:
    """A declared condition is one that can be sent; a value that does nothing may stand."""
    text = http(kind=kind) + f"workload: {{sampling: {{{keys}}}}}\n"
    if takes:
        assert load(tmp_path, text).policy.target.kind == kind
    else:
        name = keys.partition(":")[0]
        assert refusal(tmp_path, text) == (
            f"sla.yaml:6: workload.sampling.{name}: the API of {kind} has no such parameter: "
            "remove it"
        )


def test_a_connect_timeout_belongs_to_servers(tmp_path: Path) -> None:
    """At its default it may stand anywhere; another value would be ignored, so it is refused."""
    text = SHORT.replace("dtype: bfloat16", "timeouts: {connect_s: N, idle_s: 3}")
    assert load(tmp_path, text.replace("N", "10")).policy.target.timeouts.idle_s == 3
    assert refusal(tmp_path, text.replace("N", "5")) == (
        "sla.yaml:3: target.timeouts.connect_s: belongs to target kind openai, tgi, llamacpp and "
        "mii, not to transformers: remove it"
    )


def test_a_server_must_have_an_address(tmp_path: Path) -> None:
    """No default server is asked by accident."""
    for text in (
        HTTP.replace("  base_url: http://127.0.0.1:8000/v1\n", ""),
        HTTP.replace("http://127.0.0.1:8000/v1", "null"),
    ):
        said = refusal(tmp_path, text)
        assert f"target.base_url: {'missing' if 'null' not in text else 'got nothing'}" in said
        assert f"valid: {ADDRESS}" in said


@pytest.mark.parametrize("value", ["0777", "1_000", "yes", "hunter2 : {"])
def test_no_reading_of_yaml_repeats_what_may_be_a_secret(tmp_path: Path, value: str) -> None:
    """The messages about ambiguous numbers keep quiet about keys, known and unknown alike."""
    for line in (
        f"headers: {{X-Api-Key: {value}}}",
        f"extra_body: {{password: {value}}}",
        f"api_key: {value}",
        f"proxy: {value}",
    ):
        assert value not in refusal(tmp_path, http(line)).replace("yes or no", "")


def test_a_policy_from_python_is_held_to_the_same_rules() -> None:
    """There is no way in for a secret, nor for what JSON cannot hold."""
    raw = {"kind": "openai", "base_url": "http://h/v1"}
    base = {"version": 1, "buckets": [{"name": "b", "prompt_max": 9}]}
    with pytest.raises(UsageError, match="a credential may not be written"):
        policy_from_mapping({**base, "target": {**raw, "headers": {"Cookie": "a=1"}}}, "t")
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(UsageError, match=r"extra_body: got a mapping; valid: a mapping of"):
            policy_from_mapping({**base, "target": {**raw, "extra_body": {"a": value}}}, "t")
    with pytest.raises(UsageError, match="holds a user name"):
        policy_from_mapping({**base, "target": {**raw, "base_url": "http://u:p@h"}}, "t")


KEYS = [k for k in HttpTarget.model_fields if k != "kind"] + ["api", "api_key", "dtype"]
PIECES = ["http://", "h", ":8", "/v1", "@", "?", "key=", "${A}", "${", "}", "\r\n", "[", "#", "%2F"]
TEXTS = st.text(max_size=6) | st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXTS, x, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(HTTP_KINDS), st.dictionaries(st.sampled_from(KEYS), JSONISH, max_size=4))
def test_nonsense_is_a_usage_error_and_never_a_crash(kind: str, keys: dict[str, Any]) -> None:
    """Whatever stands under a server's keys, it loads or is refused in words."""
    target = {"kind": kind, "base_url": "http://h/v1", **keys}
    raw = {"version": 1, "target": target, "buckets": [{"name": "b", "prompt_max": 9}]}
    expand(copy.deepcopy(raw), {"A": "http://u:p@h"}, True)
    try:
        loaded = policy_from_mapping(raw, "t")
    except UsageError:
        return
    assert "@" not in str(getattr(loaded.policy.target, "base_url", "")).partition("?")[0]
    assert json.dumps(loaded.policy.model_dump(mode="json"), allow_nan=False)


def test_a_stored_policy_shows_no_input_when_it_is_refused() -> None:
    """The library's own errors do not repeat what they were given."""
    raw = {
        "version": 1,
        "target": {"kind": "openai", "base_url": 3, "headers": {"X-Api-Key": [SECRET]}},
        "buckets": [{"name": "b", "prompt_max": 9}],
    }
    with pytest.raises(ValueError, match="base_url") as caught:
        Policy.model_validate(raw)
    assert SECRET not in str(caught.value)


def test_a_traceback_with_local_variables_holds_no_secret_of_the_file(tmp_path: Path) -> None:
    """A key written by mistake is not shown by ``--showlocals`` either."""
    path = tmp_path / "sla.yaml"
    path.write_text(http(f"headers: {{Authorization: Bearer {SECRET}}}"))
    with pytest.raises(UsageError) as caught:
        load_policy(path)
    stack = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [f for f in stack.stack if "pytest_llmsla" in f.filename]
    assert frames
    assert SECRET not in "".join(str(f.locals) for f in frames)
    assert caught.value.__context__ is None


def test_paths_of_a_server_start_at_the_policy(tmp_path: Path) -> None:
    """The mapping that the target gets has whole paths; the policy, and its hash, as written."""
    for name in ("ca.pem", "api.key"):
        (tmp_path / name).write_text("x")
    (tmp_path / "tok").mkdir()
    text = http("verify_tls: ca.pem", "api_key_file: api.key", "tokenizer: tok")
    loaded = load(tmp_path, text)
    spec = loaded.target_spec()
    assert spec["verify_tls"] == str(tmp_path / "ca.pem")
    assert spec["api_key_file"] == str(tmp_path / "api.key")
    assert spec["tokenizer"] == str(tmp_path / "tok")
    assert isinstance(loaded.policy.target, HttpTarget)
    assert loaded.policy.target.verify_tls == "ca.pem"
    other = load(tmp_path, http("tokenizer: org/name")).target_spec()
    assert (other["tokenizer"], other["verify_tls"]) == ("org/name", True)
    in_process = load(tmp_path, SHORT)
    assert in_process.target_spec() == in_process.policy.target.model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("Authorization", True),
        ("X-API-Key", True),
        ("Ocp-Apim-Subscription-Key", True),
        ("X-Auth-User", True),
        ("X-Authenticated-As", True),
        ("xAuthToken", True),
        ("Set-Cookie", True),
        ("X-Goog-Signature", True),
        ("X-Tenant", False),
        ("X-Author", False),
        ("X-Request-Id", False),
        ("User-Agent", False),
        ("X-Monkey", False),
    ],
)
def test_headers_that_carry_credentials(name: str, secret: bool) -> None:
    """By their name, in any spelling; an ordinary header is left alone."""
    assert secret_header(name) is secret


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("apiKey", True),
        ("key", True),
        ("access_token", True),
        ("token", True),
        ("client_secret", True),
        ("sig", True),
        ("max_tokens", False),
        ("max_completion_tokens", False),
        ("stop_token_ids", False),
        ("eos_token", False),
        ("prompt_cache_key", False),
        ("return_token_ids", False),
        ("add_special_tokens", False),
        ("api-version", False),
        ("author", False),
    ],
)
def test_keys_that_carry_credentials(name: str, secret: bool) -> None:
    """The many keys of a body that speak of tokens are not taken for credentials."""
    assert secret_key(name) is secret


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Bearer abcd", True),
        ("basic dXNlcjpw", True),
        ("sk-proj-0123456789abcdef", True),
        ("hf_abcdefghijklmnop1", True),
        ("eyJhbGciOiJIUzI1NiJ9.e30.x", True),
        ("basic", False),
        ("sk-short", False),
        ("hf_transfer_enabled_everywhere", False),
        ("meta-llama/Llama-3.1-8B-Instruct", False),
    ],
)
def test_values_in_the_shape_of_a_key(text: str, secret: bool) -> None:
    """Well-known shapes are caught under any name; model names and words are not."""
    assert secret_value(text) is secret


def test_names_of_variables_are_no_keys() -> None:
    """What people call their variables passes; a key put there by mistake does not."""
    for name in ("OPENAI_API_KEY", "MY_KEY_2", "hf_token", "key"):
        assert not secret_name(name)
    for name in ("hf_abcdefghijklmnop1", "f3a9c1d2e4b5a6978812"):
        assert secret_name(name)


def test_the_schema_holds_no_place_for_a_secret() -> None:
    """Editors are offered names and files, never a key itself."""
    names = json.loads(schema_text())["$defs"]["OpenaiTarget"]["properties"]
    assert {"api_key_env", "api_key_file"} <= set(names)
    assert not {"api_key", "token", "password"} & set(names)

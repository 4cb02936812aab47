"""What a server says about itself, from the answers of many kinds and of broken ones."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from http_answers import served
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmsla.errors import UsageError
from pytest_llmsla.log.strict_json import plain
from pytest_llmsla.targets.http.facts import ServerFacts, pick_model, server_facts, unlisted
from pytest_llmsla.wire.address import Address
from pytest_llmsla.wire.client import Client


def models(*ids: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": i, "object": "model", **more} for i in ids]}


SERVERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vllm": (
        "openai",
        {
            "/v1/models": models("m", owned_by="vllm", root="/data/m", max_model_len=2048),
            "/version": {"version": "0.32.0"},
        },
        {"software": "vllm", "version": "0.32.0", "max_context": 2048, "model": "/data/m"},
    ),
    "llama.cpp": (
        "llamacpp",
        {
            "/v1/models": models("m.gguf", owned_by="llamacpp", meta={"n_ctx_train": 8192}),
            "/props": {
                "default_generation_settings": {"n_ctx": 2048},
                "total_slots": 2,
                "model_path": "m.gguf",
                "model_ftype": "Q4_1",
                "build_info": "b7000-abc",
                "chat_template": "{{ x }}",
            },
        },
        {
            "software": "llama.cpp",
            "version": "b7000-abc",
            "max_context": 2048,
            "quantization": "Q4_1",
            "chat_template": True,
            "slots": 2,
        },
    ),
    "TGI": (
        "tgi",
        {
            "/info": {
                "model_id": "org/m",
                "model_sha": "abc",
                "model_dtype": "float16",
                "model_device_type": "cuda",
                "max_total_tokens": 4096,
                "max_input_tokens": 4000,
                "max_concurrent_requests": 128,
                "version": "3.3.0",
                "docker_label": "sha-1",
            }
        },
        {
            "software": "text-generation-inference",
            "version": "3.3.0",
            "models": ["org/m"],
            "max_context": 4096,
            "dtype": "float16",
            "device": "cuda",
        },
    ),
    "SGLang": (
        "openai",
        {
            "/v1/models": models("m", owned_by="sglang", max_model_len=8192),
            "/get_server_info": {
                "model_path": "/data/m",
                "version": "0.5.2",
                "dtype": "auto",
                "quantization": "fp8",
                "context_length": None,
                "api_key": "sk-very-secret",
                "max_total_num_tokens": 100000,
            },
        },
        {
            "software": "sglang",
            "version": "0.5.2",
            "max_context": 8192,
            "quantization": "fp8",
            "kv_cache_tokens": 100000,
        },
    ),
    "Ollama": (
        "openai",
        {
            "/v1/models": models("smollm2:latest", owned_by="library"),
            "/api/version": {"version": "0.9.0"},
            "/api/ps": {
                "models": [
                    {
                        "name": "smollm2:latest",
                        "context_length": 4096,
                        "details": {"quantization_level": "Q4_0", "parameter_size": "135M"},
                    }
                ]
            },
        },
        {"software": "ollama", "version": "0.9.0", "max_context": 4096, "quantization": "Q4_0"},
    ),
    "TensorRT-LLM": (
        "openai",
        {
            "/v1/models": models("m", owned_by="tensorrt_llm"),
            "/version": {"version": "1.1.0"},
        },
        {"software": "tensorrt-llm", "version": "1.1.0"},
    ),
    "LMDeploy": (
        "openai",
        {"/v1/models": models("m", owned_by="lmdeploy")},
        {"software": "lmdeploy"},
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_each_kind_of_server_is_known_by_its_own_words(name: str) -> None:
    """Software, version, context and types come from the route that this server has."""
    kind, answers, expected = SERVERS[name]
    with served(answers, header="words of its own") as (client, server):
        found = server_facts(client, kind).describe()
    assert expected.items() <= found.items()
    assert found["header"] == "words of its own"
    assert len(server.asked) <= 4  # a server that is known is not asked for others' routes
    assert "secret" not in json.dumps(found)


def test_the_model_list_says_nothing_of_another_model() -> None:
    """With several models, context and folder are those of the one that is asked for."""
    rows = [{"id": "a", "max_model_len": 100}, {"id": "b", "max_model_len": 200}]
    with served({"/v1/models": {"data": rows}}) as (client, _):
        assert server_facts(client, "openai", "b").max_context == 200
        assert server_facts(client, "openai", None).max_context is None
        assert server_facts(client, "openai", "c").max_context is None


ROUTES = ("/v1/models", "/props", "/info", "/server_info", "/api/version", "/version")
ODD: dict[str, Any] = {
    "nothing": {},
    "html for everything": dict.fromkeys(ROUTES, "<html>"),
    "an empty object for everything": {route: {} for route in ROUTES},
    "lists": {route: [1] for route in ROUTES},
    "wrong types": {
        "/v1/models": {"data": [None, 3, {"id": 7}, {"id": ""}, {"id": "\ud800"}, {"id": ["x"]}]},
        "/props": {"default_generation_settings": {"n_ctx": "2048"}, "total_slots": -1},
        "/info": {"model_id": {"x": 1}, "max_total_tokens": 1e9},
        "/version": {"version": {"deep": [1]}},
    },
    "deep": {"/v1/models": "[" * 100_000},
    "bytes": {"/v1/models": b"\xff\xfe\x00", "/version": b'{"version": "\xff"}'},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_leave_facts_absent(name: str) -> None:
    """Whatever comes back, nothing is raised and the facts are plain JSON."""
    with served(ODD[name]) as (client, _):
        for kind in ("openai", "tgi", "llamacpp", "mii"):
            found = server_facts(client, kind, "m")
            told = found.describe()
            assert json.loads(json.dumps(told, allow_nan=False)) == plain(told)
            assert found.max_context is None
            assert found.models == ()


def test_a_server_that_is_not_there_is_asked_twice_at_most() -> None:
    """A refused connection ends the looking instead of costing a wait for every route."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        client = Client(Address.parse(f"http://127.0.0.1:{port}/v1"))
        assert server_facts(client, "openai") == ServerFacts()
        client.close()


def test_texts_are_cut_and_ids_are_kept_whole() -> None:
    """A fact is for reading and is cut; a model's id goes back to the server and is not."""
    long = "m" * 700
    answers = {
        "/v1/models": models(long, "x" * 5000, owned_by="vllm", root="r" * 900),
        "/version": {"version": "9" * 10_000},
    }
    with served(answers) as (client, _):
        found = server_facts(client, "openai", long)
    assert found.models == (long,)
    assert pick_model(found, None) == long
    assert found.version is not None
    assert len(found.version) == len(str(found.model)) == 200
    assert all(len(str(v)) < 2000 for v in found.describe().values())


def test_thousands_of_models_stay_bounded() -> None:
    """A gateway's list is cut; the report shows the first and how many there were."""
    with served({"/v1/models": models(*(f"m{i}" for i in range(5000)))}) as (client, _):
        told = server_facts(client, "openai").describe()
    assert len(told["models"]) == 20
    assert told["models_listed"] == 200


KEYS = [
    *("data", "id", "models", "name", "details", "version", "model_id", "n_ctx", "meta"),
    *("owned_by", "model_path", "default_generation_settings", "max_total_tokens"),
]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_survived(said: Any) -> None:
    """Every route answers the same arbitrary JSON: facts stay plain and nothing is raised."""

    class Same:
        @staticmethod
        def fetch(*_: Any, **__: Any) -> Any:
            return type(
                "R", (), {"status": 200, "headers": {}, "body": json.dumps(said).encode()}
            )()

    for kind in ("openai", "llamacpp"):
        told = server_facts(Same(), kind, "m").describe()
        json.dumps(told, allow_nan=False)


def test_the_only_model_is_taken() -> None:
    """No model asked for and one listed: that one."""
    assert pick_model(ServerFacts(models=("only",)), None) == "only"
    assert pick_model(ServerFacts(), "asked") == "asked"


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ((), "does not list its models. Set target.model"),
        (("a", "b"), "lists 2 models. Set it to one of 'a', 'b'"),
        (tuple(f"m{i}" for i in range(25)), "and 5 more"),
    ],
)
def test_no_model_is_guessed(listed: tuple[str, ...], words: str) -> None:
    """None or several listed: the message says what to set, and to what."""
    with pytest.raises(UsageError, match="is not set") as e:
        pick_model(ServerFacts(models=listed), None)
    assert words in str(e.value)


def test_a_model_that_is_not_listed_is_a_warning() -> None:
    """Gateways hide models: it is said, and no error."""
    facts = ServerFacts(models=("a", "b"))
    assert pick_model(facts, "hidden") == "hidden"
    assert "'hidden'" in str(unlisted(facts, "hidden"))
    assert unlisted(facts, "a") is None
    assert unlisted(ServerFacts(), "a") is None

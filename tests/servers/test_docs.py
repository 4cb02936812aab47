"""docs/servers.md: what it says about servers that cannot run here is replayed, and what it says
about the others is what the tests beside this one start and gate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import test_llamacpp
import test_transformers_serve
import test_vllm
import yaml
from every_server import EveryServer
from real_server import LLAMACPP, ROOT, TRANSFORMERS, VLLM, Kind
from replay import MODEL, TEMPLATE, Replay
from server_gate import FORMATS, Gate, gate
from wires import KEY, WIRES, protected

PAGE = (ROOT / "docs" / "servers.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```\w+ title="(?P<title>[^"]+)"\n(?P<body>.*?)^```$', re.M | re.S)
FILES = {match["title"]: match["body"] for match in BLOCK.finditer(PAGE)}
SYSTEMS = sorted(title.removesuffix("/sla.yaml") for title in FILES if title.endswith("/sla.yaml"))
WIRE_OF = {"mii": "mii-openai"}
"""Sections whose wire has a longer name."""

REAL: dict[str, tuple[type[EveryServer], Kind, str, int]] = {
    "vllm": (test_vllm.TestChat, VLLM, "meta-llama/Llama-3.1-8B-Instruct", 8000),
    "llamacpp": (test_llamacpp.TestNative, LLAMACPP, "llama-3.1-8b-instruct-q4.gguf", 8080),
    "llamacpp-openai": (test_llamacpp.TestOpenai, LLAMACPP, "llama-3.1-8b-instruct-q4.gguf", 8080),
    "transformers": (
        test_transformers_serve.TestChat,
        TRANSFORMERS,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        8000,
    ),
}


def policy_of(system: str) -> dict[str, Any]:
    """The sla.yaml of a section."""
    contents: dict[str, Any] = yaml.safe_load(FILES[f"{system}/sla.yaml"])
    return contents


def test_every_section_is_run_or_replayed() -> None:
    """No section of the page is only words."""
    assert set(SYSTEMS) == set(REAL) | {s for s in SYSTEMS if WIRE_OF.get(s, s) in WIRES}
    assert {WIRE_OF.get(s, s) for s in SYSTEMS} >= set(WIRES)
    for system in SYSTEMS:
        assert f"pytest {system}/sla.yaml" in FILES[f"{system}/gate.sh"]


@pytest.mark.parametrize("system", sorted(REAL))
def test_a_section_is_what_the_real_server_is_gated_by(system: str) -> None:
    """Start line and target of the page are those of the tests, but for names and places."""
    tests, kind, model, port = REAL[system]
    if f"{system}/start.sh" in FILES:
        typed = FILES[f"{system}/start.sh"].strip()
        assert kind.start.format(model=model, port=port) == typed
    target = policy_of(system)["target"]
    assert target.pop("base_url") == f"http://127.0.0.1:{port}{tests.path}"
    ours = {k: v for k, v in tests.target.items() if k != "api_key_env"}
    assert {k: v for k, v in target.items() if k != "model"} == {
        k: v for k, v in ours.items() if k != "model"
    }
    assert ("model" in target) == ("model" in ours)
    assert policy_of(system)["itl"] == {"p95_ms": 50, **tests.itl}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json that counts as the replayed servers do."""
    tokenizers = pytest.importorskip("tokenizers")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = {char: i for i, char in enumerate(sorted(level.alphabet()))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    made.pre_tokenizer = level
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.format("{{ m['content'] }}")
    config = {"chat_template": "{% for m in messages %}" + template + "{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def replayed(system: str, replay: Replay, tokenizer: Path, folder: Path, *args: str) -> Gate:
    """Gate a section's own policy at the replayed server, with fewer and shorter answers."""
    contents = policy_of(system)
    target = contents["target"]
    target["base_url"] = re.sub(r"//[^/]+", f"//127.0.0.1:{replay.port}", target["base_url"])
    target["base_url"] = target["base_url"].replace("https://", "http://")
    if target["kind"] == "openai" or target.get("api") == "openai":
        target["model"] = MODEL
    if "tokenizer" in target or system not in ("tgi", "tgi-openai"):
        target["tokenizer"] = str(tokenizer)
    contents["workload"] = {"max_new_tokens": 6, "warmup": {"max_requests": 3}}
    if "max_completion_tokens" in target.get("extra_body", {}):
        target["extra_body"]["max_completion_tokens"] = 6
    contents |= {"evidence": {"preset": "fast"}, "report": {"formats": FORMATS}}
    if system != "protected":  # one section is enough for the three buckets that all share
        contents["buckets"] = contents["buckets"][:1]
    if key := target.get("api_key_file"):
        (folder / key).write_text(KEY + "\n", encoding="utf-8")
    return gate(folder, contents, *args)


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s not in REAL])
def test_a_section_gates_the_replayed_server(system: str, tokenizer: Path, tmp_path: Path) -> None:
    """Asked as the page says, a server that speaks the documented format is measured and passes."""
    with Replay(WIRES[WIRE_OF.get(system, system)]()) as replay:
        done = replayed(system, replay, tokenizer, tmp_path)
    if system == "mii-rest":
        assert_unstreamed(done)
        return
    assert done.exit == 0, done.said
    assert set(done.verdicts().values()) == {"pass"}
    for line in done.requests:
        assert line["status"] == "ok"
        assert line["output_tokens"] == 6
        assert [tokens for _, tokens in line["arrivals"]] == [1] * 6
    assert any(method == "POST" for method, _, _ in replay.asked)


def assert_unstreamed(done: Gate) -> None:
    """What the page says of a gateway that does not stream: TTFT is measured, ITL cannot be."""
    assert done.exit == 1, done.said
    assert done.verdicts()["short/itl_p95"] == "error"
    assert done.verdicts()["short/error_rate"] == "pass"


def test_the_protected_section_survives_one_refusal(tokenizer: Path, tmp_path: Path) -> None:
    """A 429 while measuring is asked again after its Retry-After, is counted, and costs TTFT."""
    with Replay(protected(refuse=frozenset({12}))) as replay:
        done = replayed("protected", replay, tokenizer, tmp_path, "--showlocals", "-vv")
    retried = [line for line in done.requests if line.get("retries")]
    assert len(retried) == 1, done.said
    assert done.report["target"]["transport"]["retries"] == 1
    first, start = retried[0]["arrivals"][0][0], retried[0]["start_ns"]
    assert first - start >= 1e9
    assert KEY not in done.said
    for path in done.files():
        assert path.name == "key.txt" or KEY.encode() not in path.read_bytes(), path

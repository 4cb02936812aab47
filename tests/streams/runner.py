"""Runs a case of streams.yaml: real sockets, the product's own target, asker and verdicts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pytest_llmsla.asker import Asker, Timeouts
from pytest_llmsla.finding import Finding
from pytest_llmsla.policy import policy_from_mapping
from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.targets.base import Ask
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.timeline import NS_PER_MS, Timeline
from pytest_llmsla.verdict import Gatekeeper

from .script import Answer, Wire, answers
from .server import Clock, Server, in_lock_step

GATE = "case"
PROMPT = "a prompt"
_KINDS = {"chat": "openai", "completions": "openai", "tgi": "tgi", "llamacpp": "llamacpp"}
_S = 1000.0
Case = Mapping[str, Any]


def load(path: Path) -> dict[str, Case]:
    """The cases of a file by id."""
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {case["id"]: case for case in cases}


def known_length(tokens: int) -> Lengths:
    """A client that counts every prompt as ``tokens``."""
    return Lengths("the case", lambda prompt, system: tokens, chat=False)


@dataclass(frozen=True)
class Ran:
    """One request of a case: its record, and when the client returned, ms after it began.

    ``posts`` is everything that the server was sent meanwhile: nothing else is sent either.
    """

    t: Timeline
    finished_ms: float
    posts: int


def spec_of(case: Case, url: str, **more: Any) -> dict[str, Any]:
    """The ``target`` of the sla.yaml that a case stands for."""
    client = case.get("client") or {}
    api = case.get("api", "chat")
    target: dict[str, Any] = {"kind": _KINDS[api], "base_url": url}
    if _KINDS[api] == "openai":
        target |= {"api": api, "model": "m"}
    times = {
        f"{name[:-3]}_s": client[name] / _S
        for name in ("first_token_ms", "idle_ms", "total_ms")
        if name in client
    }
    if times:
        target["timeouts"] = times
    if "retries" in client:
        target["retries"] = client["retries"]
    return target | more


@contextmanager
def target_of(case: Case, server: Server, url: str, **more: Any) -> Iterator[HttpTarget]:
    """A target in lock-step with ``server``; nothing is asked of the server by making it."""
    clock, client = server.clock or time.perf_counter_ns, case.get("client") or {}
    given = {k: client[k] for k in ("max_event_bytes",) if k in client}
    tokens = (case.get("request") or {}).get("prompt_tokens")
    lengths = None if tokens is None else known_length(tokens)
    spec = HttpSpec.from_mapping(spec_of(case, url, **more))
    target = HttpTarget(spec, dialect_of(spec), clock=clock, lengths=lengths, **given)
    if server.clock is not None:
        in_lock_step(target, server)
    try:
        yield target
    finally:
        target.close()


def url_of(case: Case, server: Server) -> str:
    """base_url of a case on a TCP server."""
    native = _KINDS[case.get("api", "chat")] != "openai"
    return f"http://127.0.0.1:{server.port}" + ("" if native else "/v1")


def ask(target: HttpTarget, case: Case, server: Server, name: str, wire: Wire) -> Ran:
    """One request of a case."""
    request = case["request"]
    prompt = request.get("prompt", PROMPT)
    return ask_for(target, request, server, answers(case, wire), name=name, prompt=prompt)


def ask_for(
    target: HttpTarget,
    request: Mapping[str, Any],
    server: Server,
    given: Sequence[Answer],
    *,
    name: str = "r1",
    force_length: bool = False,
    prompt: str = PROMPT,
) -> Ran:
    """One request, answered by ``given``."""
    clock = server.clock
    blank = Timeline(
        id=name,
        bucket="all",
        start_ns=0,
        end_ns=0,
        prompt_tokens=request["prompt_tokens"],
        max_new_tokens=request["max_tokens"],
        prompt=prompt,
    )
    server.play(given)
    before, began = len(server.requests), target.clock()
    wanted = Ask(prompt, request["max_tokens"], {"greedy": True}, force_length=force_length)
    with Asker(target, Timeouts(first_token_s=60, idle_s=60, total_s=60)) as asker:
        t = asker.ask(wanted, blank)
    assert asker.hung is None
    ran = Ran(t, (target.clock() - began) / NS_PER_MS, len(server.requests) - before)
    if clock is not None:
        clock.now += NS_PER_MS  # one request at a time: the next begins later
    return ran


def run(case: Case, wire: Wire, cases: Mapping[str, Case]) -> list[Ran]:
    """Every request of a case, one after the other; a mix asks each of its parts."""
    parts = [(case, case.get("repeat", 1))]
    if "mix" in case:
        parts = [(cases[part["of"]], part["n"]) for part in case["mix"]]
    out: list[Ran] = []
    with Server(Clock()) as server:
        for part, times in parts:
            with target_of(part, server, url_of(part, server)) as target:
                for _ in range(times):
                    out.append(ask(target, part, server, f"r{len(out) + 1}", wire))
    return out


def judge(
    case: Case, timelines: Sequence[Timeline], *, force_length: bool = False
) -> dict[str, Finding]:
    """The product's verdicts on these requests, by limit: any number of them is enough."""
    limits, client = case.get("limits") or {}, case.get("client") or {}
    request = case.get("request") or {"max_tokens": 64}
    policy = {
        "version": 1,
        "service": "scripted",
        "target": spec_of(case, "http://127.0.0.1:9/v1"),
        "workload": {
            "max_new_tokens": max(3, request["max_tokens"]),  # fewer is no policy on ITL
            "force_length": force_length,
            "warm_cache": client.get("warm_cache", False),
        },
        "buckets": [{"name": "all", "prompt_max": 100_000, "ttft_ms": limits.get("ttft_ms", 300)}],
        "itl": {
            "p95_ms": limits.get("itl_p95_ms", 50),
            "estimated": "error" if client.get("strict_counts") else "allow",
        },
        "evidence": {"preset": "observed"},
    }
    keeper = Gatekeeper(policy_from_mapping(policy, "case"), gate=GATE)
    for t in timelines:
        keeper.add(t)
    names = {"ttft": "ttft_ms", "itl": "itl_p95_ms"}
    return {names[f.metric]: f for f in keeper.findings() if f.metric in names}


def mixed(values: Sequence[float], failed: int, q: float) -> float | None:
    """A percentile in which every failed request is slower than any limit."""
    return nearest_rank([*values, *[math.inf] * failed], q)


def with_ids(ran: Sequence[Ran]) -> list[Timeline]:
    """The timelines of a run, each with an id of its own."""
    return [replace(r.t, id=f"r{i}") for i, r in enumerate(ran, 1)]

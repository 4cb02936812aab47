"""Servers that cache, refuse, do not stream or are not there: whole gates over real sockets.

Client and server share a clock that only the server's script moves (tests/streams).
"""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from gate_samples import policy
from pytest_llmsla.finding import EXIT_CODES
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.session import Gate, Session, finish
from pytest_llmsla.targets import Target
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.targets.scripted import ScriptedTarget
from pytest_llmsla.timeline import NS_PER_MS
from streams.heard import Request
from streams.script import Answer, Wire, answer
from streams.server import Clock, Server, in_lock_step

COUNT = ScriptedTarget(lambda ask, index: pytest.fail("never asked")).count
BLOCK = 16
TOKENS = 4
KEY = "test_servers.py::test_it"
Play = Callable[[Request], Answer]


def prompt_of(request: Request) -> str:
    """The user's text in a chat request."""
    text: str = json.loads(request.body)["messages"][-1]["content"]
    return text


def streamed(
    ttft_ms: float, prompt: str = "", *, cached: int | None = None, when: Any = None
) -> Answer:
    """Four tokens, 20 ms apart, with a final usage."""
    usage: dict[str, Any] = {"prompt_tokens": COUNT(prompt), "completion_tokens": TOKENS}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    events: list[Any] = [[ttft_ms + 20 * i, {"delta": {"content": "x"}}] for i in range(TOKENS)]
    end = events[-1][0]
    events += [
        [end, {"delta": {}, "finish": "length"}],
        [end, {"json": {"choices": [], "usage": usage}}],
        [end, {"done": True}],
    ]
    return answer({"status": 200, "events": events}, Wire("chunked"))


def refused(status: int, at_ms: float = 20, **headers: str) -> Answer:
    """An error document; the connection is closed."""
    said = json.dumps({"error": {"message": f"no room <{status}>", "code": status}})
    events = [[at_ms, {"raw": said}], [at_ms, {"close": "eof"}]]
    kind = {"content-type": "application/json", **headers}
    return answer({"status": status, "headers": kind, "events": events}, Wire())


class Served(Session):
    """A session whose one target shares a clock with the server it asks."""

    def __init__(self, folder: Path, target: HttpTarget, loaded: LoadedPolicy | None) -> None:
        super().__init__(folder, release=loaded)
        self._served = target

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        return self._served


def servers_policy(
    url: str, limit_ms: float = 300, *, prompt_max: int = 64, **groups: Any
) -> LoadedPolicy:
    target = {"kind": "openai", "model": "m", "base_url": url, **groups.pop("target", {})}
    workload = {"max_new_tokens": TOKENS, **groups.pop("workload", {})}
    bucket = {"name": "short", "prompt_max": prompt_max, "ttft_ms": limit_ms}
    return policy(bucket, target=target, workload=workload, **groups)


@contextmanager
def served(
    folder: Path,
    play: Play,
    limit_ms: float = 300,
    *,
    key: str | None = KEY,
    tls: ssl.SSLContext | None = None,
    clock: Clock | None = None,
    **groups: Any,
) -> Iterator[tuple[Gate, Server, Session]]:
    """A gate on a server that answers each POST by ``play``."""
    with Server(clock or Clock(), tls=tls) as server:
        server.answer_by(play)
        scheme = "http" if tls is None else "https"
        url = f"{scheme}://127.0.0.1:{server.port}/v1"
        loaded = servers_policy(url, limit_ms, **groups)
        spec = HttpSpec.from_mapping(loaded.target_spec())
        lengths = Lengths("pieces", COUNT, chat=False)
        assert server.clock is not None
        target = HttpTarget(spec, dialect_of(spec), clock=server.clock, lengths=lengths)
        in_lock_step(target, server)
        session = Served(folder / "out", target, loaded if key is None else None)
        try:
            yield session.gate(key, loaded), server, session
            session.close()
        finally:
            target.close()


def told(session: Session) -> dict[str, Mapping[str, Any]]:
    """Findings of the report, as read back from the run's log, by id."""
    return {f["id"]: f for f in finish(session.run_dir)["findings"]}


# -- A10: a prefix cache


class Cache:
    """1200 ms to the first token of a prompt whose first block is new, else 60."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, request: Request) -> Answer:
        prompt = prompt_of(request)
        block = " ".join(prompt.split()[:BLOCK])
        self.seen[block] += 1
        new = self.seen[block] == 1
        cached = 0 if new else COUNT(prompt) - 8
        return streamed(1200 if new else 60, prompt, cached=cached)


def test_warm_up_does_not_prime_the_cache_for_what_is_measured(tmp_path: Path) -> None:
    """A10: every request, warm-up included, begins anew: TTFT is the cold one, and FAIL."""
    cache = Cache()
    groups = {"prompt_max": 600, "evidence": {"preset": "fast"}}
    with served(tmp_path, cache, 800, key=None, **groups) as (gate, server, session):
        gate.measure()
    found = told(session)["short/ttft_p95"]
    assert (found["verdict"], found["observed"]) == ("fail", 1200)
    assert len(cache.seen) == len(server.posts) > 10
    assert set(cache.seen.values()) == {1}


def test_a_declared_warm_cache_is_judged_warm_and_said_so(tmp_path: Path) -> None:
    """A10: one prompt again and again, on purpose: 60 ms, PASS, the cached share in the report."""
    prompts = tmp_path / "prompts.jsonl"
    text = " ".join(f"word{i}" for i in range(600))
    prompts.write_text(json.dumps({"prompt": text}) + "\n", encoding="utf-8")
    groups = {
        "prompt_max": 600,
        "workload": {"warm_cache": True, "prompts": str(prompts)},
        "evidence": {"preset": "fast"},
    }
    with served(tmp_path, Cache(), 800, key=None, **groups) as (gate, _, session):
        gate.measure()
    found = told(session)["short/ttft_p95"]
    assert (found["verdict"], found["observed"]) == ("pass", 60)
    assert any("warm cache" in note and "99%" in note for note in found["notes"])


def test_one_prompt_in_a_file_is_refused_unless_declared(tmp_path: Path) -> None:
    """A10: what would be sent again and again cannot even begin undeclared."""
    prompts = tmp_path / "prompts.jsonl"
    text = " ".join(f"word{i}" for i in range(600))
    prompts.write_text(json.dumps({"prompt": text}) + "\n", encoding="utf-8")
    groups = {"prompt_max": 600, "workload": {"prompts": str(prompts)}}
    with served(tmp_path, Cache(), 800, key=None, **groups) as (gate, server, session):
        gate.measure()
        assert server.posts == []
    found = told(session)["short/ttft_p95"]
    assert found["verdict"] == "error"
    assert "warm_cache" in found["reason"]


@pytest.mark.parametrize("says", [True, False], ids=["told by the server", "not told"])
def test_the_same_prompt_undeclared_never_passes(says: bool, tmp_path: Path) -> None:
    """A10: 21 times the same, 20 of them fast: an error that names the cache, not a PASS."""
    cache, text = Cache(), " ".join(f"word{i}" for i in range(600))

    def play(request: Request) -> Answer:
        warm = bool(cache.seen)
        cache(request)
        return streamed(60 if warm else 1200, text, cached=592 * warm if says else None)

    with served(tmp_path, play, 800, prompt_max=600, evidence={"preset": "observed"}) as (
        gate, _, session,
    ):  # fmt: skip
        for _ in range(21):
            gate.ask(text)
    found = told(session)[f"{KEY}/ttft_p95"]
    assert found["verdict"] == "error"
    assert "cache" in found["reason"]


# -- D8: refusals and retries


class Busy:
    """Every second request is refused at first; every fourth on its retry as well."""

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    def __call__(self, request: Request) -> Answer:
        prompt = prompt_of(request)
        n = list(self.tries).index(prompt) if prompt in self.tries else len(self.tries)
        self.tries[prompt] = tries = self.tries.get(prompt, 0) + 1
        if n % 4 == 0 or (n % 4 == 2 and tries == 1):
            return refused(503 if n % 8 < 4 else 429, **{"retry-after": "1"})
        return streamed(200, prompt)


@pytest.mark.parametrize(
    ("retries", "posts", "failed", "retried"), [(0, 20, 10, 0), (1, 30, 5, 5), (2, 35, 5, 5)]
)
def test_a_retry_is_part_of_the_latency_and_a_refusal_is_a_failure(
    retries: int, posts: int, failed: int, retried: int, tmp_path: Path
) -> None:
    """D8: no hidden POST, the errors counted, TTFT from the first attempt, and FAIL both ways."""
    warm = {"warmup": {"max_requests": 0}}
    groups = {"target": {"retries": retries}, "workload": warm, "evidence": {"preset": "observed"}}
    with served(tmp_path, Busy(), 300, **groups) as (gate, server, session):
        every = [gate.ask(f"prompt number {n}") for n in range(20)]
        asked_before = len(server.posts)
    # The first ask warms up once; its POSTs are no part of the 20 requests.
    ok = [t for t in every if t.ok]
    late = sorted(t.ttft_ms or 0 for t in ok)[len(ok) - retried :] if retried else []
    assert asked_before - _warm_posts(session) == posts
    assert [t.ttft_ms for t in ok if not t.retries] == [200] * 10
    assert late == [1220] * retried
    assert [t.retries for t in ok if t.retries] == [1] * retried
    found = told(session)
    rate, ttft = found[f"{KEY}/error_rate"], found[f"{KEY}/ttft_p95"]
    assert (rate["verdict"], rate["observed"]) == ("fail", failed / 20)
    assert (ttft["verdict"], ttft["observed"]) == ("fail", None)  # no number: failures are above
    assert any(f"{failed} failed requests count as over" in note for note in ttft["notes"])
    assert any(f"{retried} retries in {retried}" in note for note in ttft["notes"]) is (retried > 0)


def _warm_posts(session: Session) -> int:
    lines = (session.run_dir / "timelines.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(
        1 + json.loads(line).get("retries", 0)
        for line in lines
        if json.loads(line).get("type") == "request" and json.loads(line).get("warmup")
    )


# -- D9d: the cost of a connection


@pytest.mark.parametrize(
    ("included", "first", "later"), [(False, 100, 100), (True, 250, 250)],
)  # fmt: skip
def test_connecting_is_a_time_of_its_own(
    included: bool, first: float, later: float, tmp_path: Path
) -> None:
    """D9d: 150 ms to shake hands, 100 to the first token: apart, or included and said so."""
    clock = Clock()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def slow(*_: object) -> None:
        clock.now += 150 * NS_PER_MS

    context.sni_callback = slow
    warm = {"warmup": {"max_requests": 0}}
    target = {"verify_tls": False, "connect_in_ttft": included}
    groups = {"target": target, "workload": warm, "evidence": {"preset": "observed"}}
    with served(
        tmp_path, lambda r: streamed(100, prompt_of(r)), tls=context, clock=clock, **groups
    ) as (gate, server, session):
        every = [gate.ask(f"prompt number {n}") for n in range(10)]
        connections = server.connections
    assert [t.ttft_ms for t in every] == [first, *[later] * 9]
    took = [t.stages.get("connect", 0) / NS_PER_MS for t in every]
    assert took == ([150] * 10 if included else [0] * 10)  # else the warm-up has opened it
    assert connections == (11 if included else 1)
    found = told(session)[f"{KEY}/ttft_p95"]
    assert ("connecting and network included" in found["start_point"]) is included


# -- S1: no stream, S2: nothing but failures


def test_an_answer_that_is_not_streamed_has_no_ttft_and_no_itl(tmp_path: Path) -> None:
    """S1: one JSON document after 400 ms: "not streamed" for both, and red."""
    usage = {"prompt_tokens": 3, "completion_tokens": 40}
    message = {"message": {"role": "assistant", "content": "x" * 40}, "finish_reason": "stop"}
    said = json.dumps({"object": "chat.completion", "choices": [message], "usage": usage})
    kind = {"content-type": "application/json"}
    whole = {"status": 200, "headers": kind, "events": [[400, {"raw": said}]]}
    with served(
        tmp_path, lambda _: answer(whole, Wire()), 1000, evidence={"preset": "observed"}
    ) as (gate, _, session):
        t = gate.ask("a prompt")
    assert t.end_ns - t.start_ns >= 400 * NS_PER_MS
    found = told(session)
    for name in ("ttft_p95", "itl_p95"):
        assert found[f"{KEY}/{name}"]["verdict"] == "error"
        assert "not streamed" in found[f"{KEY}/{name}"]["reason"]
        assert found[f"{KEY}/{name}"]["observed"] is None
    assert found[f"{KEY}/error_rate"]["verdict"] == "fail"


def test_a_stream_of_one_event_has_a_ttft_and_no_itl(tmp_path: Path) -> None:
    """S1: streamed in name only: 40 tokens in one event after 400 ms."""

    def play(request: Request) -> Answer:
        usage = {"prompt_tokens": COUNT(prompt_of(request)), "completion_tokens": 40}
        events = [
            [400, {"delta": {"content": "x" * 40}, "finish": "stop", "usage": usage}],
            [400, {"done": True}],
        ]
        return answer({"status": 200, "events": events}, Wire("chunked"))

    groups = {"workload": {"max_new_tokens": 40}, "evidence": {"preset": "observed"}}
    with served(tmp_path, play, 1000, **groups) as (gate, _, session):
        every = [gate.ask(f"prompt number {n}") for n in range(5)]
    assert [t.ttft_ms for t in every] == [400] * 5
    found = told(session)
    assert found[f"{KEY}/ttft_p95"]["observed"] == 400
    assert found[f"{KEY}/itl_p95"]["verdict"] == "error"
    assert "too few samples" in found[f"{KEY}/itl_p95"]["reason"]


def test_when_every_request_fails_every_metric_is_an_error(tmp_path: Path) -> None:
    """S2: ten times 500: ERROR each, 100 %, the first message once with its count."""
    with served(tmp_path, lambda _: refused(500), evidence={"preset": "observed"}) as (
        gate, _, session,
    ):  # fmt: skip
        every = [gate.ask(f"prompt number {n}") for n in range(10)]
    assert {t.status for t in every} == {"error"}
    report = finish(session.run_dir)
    found = {f["id"]: f for f in report["findings"]}
    for name in ("ttft_p95", "itl_p95"):
        assert found[f"{KEY}/{name}"]["verdict"] == "error"
        assert "HTTP 500: no room <500>" in found[f"{KEY}/{name}"]["reason"]
        assert "(10 of 10 requests)" in found[f"{KEY}/{name}"]["reason"]
    assert found[f"{KEY}/error_rate"]["observed"] == 1.0
    assert found[f"{KEY}/error_rate"]["verdict"] == "fail"
    assert [e["count"] for e in report["errors"]] == [10]
    assert EXIT_CODES[report["verdict"]] > 0


def test_a_release_gate_stops_when_every_request_fails(tmp_path: Path) -> None:
    """S2: three warm-up errors are enough; no limit is left without a verdict, none passes."""
    with served(tmp_path, lambda _: refused(500), key=None) as (gate, server, session):
        gate.measure()
        assert len(server.posts) < 10
    report = finish(session.run_dir)
    assert {f["verdict"] for f in report["findings"]} == {"error"}
    assert EXIT_CODES[report["verdict"]] > 0
    assert "HTTP 500" in report["findings"][0]["reason"]


def test_nobody_listening_is_an_error_of_every_limit(tmp_path: Path) -> None:
    """S2: connection refused when the target is loaded: the address in every reason."""
    with Server() as server:
        url = f"http://127.0.0.1:{server.port}/v1"
    loaded = servers_policy(url)
    session = Session(tmp_path / "out", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    report = finish(session.run_dir)
    assert {f["verdict"] for f in report["findings"]} == {"error"}
    for found in report["findings"]:
        assert "127.0.0.1" in found["reason"]
        assert "refused" in found["reason"].lower()
    assert EXIT_CODES[report["verdict"]] > 0

"""A server that answers from a prefix cache and says so in its metrics alone: whole gates."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_cases_servers import COUNT, prompt_of, served, streamed

from pytest_llmsla.session import Silent, finish
from pytest_llmsla.targets.http.facts import ServerFacts
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.targets.http.view import View
from pytest_llmsla.timeline import REPEATED
from streams.heard import Request
from streams.script import Answer

BLOCK = 16
PROMPTS = 60
WARM_UP = 7
EVIDENCE = {"preset": "fast", "max_requests": 45}


@dataclass
class Cache:
    """Whole blocks of prompts that earlier runs left, and vLLM's counters of what was found."""

    left: frozenset[str] = frozenset()
    tells: bool = False
    """The server was started to say it in each answer."""
    others: int = 0
    """Requests of somebody else that it finishes with each of ours."""
    shared: int = 0
    """Tokens that every prompt has in common with the one before."""
    counts: bool = True
    """Its metrics have counters of the cache."""
    hits: int = 0
    requests: int = 0
    seen: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Answer:
        prompt = prompt_of(request)
        self.seen.append(prompt)
        found = (COUNT(prompt) - 1) // BLOCK * BLOCK if prompt in self.left else self.shared
        self.hits += found
        self.requests += 1 + self.others
        return streamed(60, prompt, cached=found if self.tells else None)

    def metrics(self) -> str:
        served = f'vllm:request_success_total{{finished_reason="length"}} {self.requests}\n'
        if not self.counts:
            return served
        return (
            f"{served}"
            f"vllm:prefix_cache_queries_total 1e9\nvllm:prefix_cache_hits_total {self.hits}\n"
        )


@contextmanager
def published(cache: Cache) -> Iterator[str]:
    """``cache``'s counters behind a URL."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = cache.metrics().encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on standard error."""

    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def a_file(folder: Path) -> list[str]:
    """A team's own prompts, of some seventy tokens each."""
    texts = [" ".join([f"p{n}", *(f"w{i}" for i in range(66))]) for n in range(PROMPTS)]
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    (folder / "asks.jsonl").write_text(lines, encoding="utf-8")
    return texts


def gate_of(
    folder: Path, cache: Cache, *, ask: str | None = None, **workload: Any
) -> dict[str, Any]:
    """TTFT's finding of a gate over the team's prompts, judged again from its log."""
    return told_of(folder, cache, ask=ask, **workload)[0]


class Hears(Silent):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def told_of(
    folder: Path, cache: Cache, *, ask: str | None = None, **workload: Any
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The same, with the notes of the report and what the run said."""
    workload = {
        "prompts": str(folder / "asks.jsonl"),
        "warmup": {"max_requests": WARM_UP},
    } | workload
    with published(cache) as url:
        groups: dict[str, Any] = {"target": {"metrics_url": url}, "workload": workload}
        groups |= {"evidence": EVIDENCE if ask is None else {"preset": "observed"}}
        key = None if ask is None else "test_it.py::test_it"
        hears = Hears()
        with served(folder, cache, key=key, prompt_max=80, **groups) as (gate, _, session):
            session.progress = hears
            target = session.target_of(gate.loaded)
            assert isinstance(target, HttpTarget)
            target.view = View(target, ServerFacts())
            if ask is None:
                gate.measure()
            else:
                gate.ask(ask)
            live = {f.id: f.verdict for f in gate.findings()}
        report = finish(session.run_dir)
        found = next(f for f in report["findings"] if f["id"].endswith("ttft_p95"))
        assert live[found["id"]] == found["verdict"]  # the replay says the same
        return found, report["notes"], hears.said


def test_prompts_that_an_earlier_run_left_in_a_silent_cache_never_pass(tmp_path: Path) -> None:
    """vLLM as it is started by default tells no ``cached_tokens``: its counter does."""
    texts = a_file(tmp_path)
    found = gate_of(tmp_path, Cache(frozenset(texts)))
    assert found["verdict"] == "error"
    assert "vllm:prefix_cache_hits_total" in found["reason"]
    assert "not that of a new prompt" in found["reason"]


def test_new_prompts_pass_on_the_same_server(tmp_path: Path) -> None:
    """What every prompt shares, up to a block, is no hit of a remembered one."""
    a_file(tmp_path)
    found = gate_of(tmp_path, Cache(shared=BLOCK))
    assert (found["verdict"], found["notes"]) == ("pass", [])


def test_a_cache_that_is_told_is_judged_by_request(tmp_path: Path) -> None:
    """The counter then adds nothing: the answers' own numbers name the prompts."""
    texts = a_file(tmp_path)
    found = gate_of(tmp_path, Cache(frozenset(texts), tells=True))
    assert found["verdict"] == "error"
    assert "prompts were answered from a prefix cache (up to 64 of " in found["reason"]


def test_the_log_has_the_counter_beside_what_was_told(tmp_path: Path) -> None:
    """Warm-up is in neither: it was sent before the window."""
    for tells in (True, False):
        folder = tmp_path / str(tells)
        folder.mkdir()
        a_file(folder)
        cache = Cache(shared=BLOCK, tells=tells)
        gate_of(folder, cache)
        log = next(folder.glob("out/runs/*/timelines.jsonl")).read_text("utf-8").splitlines()
        lines = [json.loads(x) for x in log]
        measured = sum(x["type"] == "request" and x["bucket"] == "short" for x in lines) - WARM_UP
        said = next(x["server"]["prefix_cache"] for x in lines if x["type"] == "server")
        assert said["hits"] == measured * BLOCK
        assert said["told"] == measured * BLOCK * tells
        assert said["silent"] == measured * (not tells)


def test_hits_that_may_be_those_of_others_are_told_and_no_error(tmp_path: Path) -> None:
    """A counter of the whole server cannot say whose they are."""
    texts = a_file(tmp_path)
    found = gate_of(tmp_path, Cache(frozenset(texts), others=1))
    assert found["verdict"] == "pass"
    assert any("others were served meanwhile" in note for note in found["notes"])


def test_a_warm_cache_that_is_meant_is_told_by_the_counter(tmp_path: Path) -> None:
    """Hits are wanted then, and the report has their number all the same."""
    texts = a_file(tmp_path)
    found = gate_of(tmp_path, Cache(frozenset(texts)), warm_cache=True)
    assert found["verdict"] == "pass"
    assert any("answers do not tell it" in note for note in found["notes"])


def test_one_timed_call_is_held_to_it_too(tmp_path: Path) -> None:
    """``timed_generate`` sends what the test gives it, in every run the same."""
    texts = a_file(tmp_path)
    old, new = Cache(frozenset(texts)), Cache()
    assert gate_of(tmp_path, old, ask=texts[0])["verdict"] == "error"
    assert gate_of(tmp_path / "new", new, ask=texts[0], prompts="builtin")["verdict"] == "pass"


@pytest.mark.parametrize("again", ["another test", "another attempt"])
def test_a_prompt_that_the_run_has_sent_is_not_new_elsewhere(tmp_path: Path, again: str) -> None:
    """A silent cache has it from then on, whichever test or attempt sends it."""
    texts = a_file(tmp_path)
    cache = Cache(counts=False)
    with served(tmp_path, cache, key="t.py::t", prompt_max=80) as (gate, _, session):
        gate.ask(texts[0])
        if again == "another attempt":
            gate.begin_attempt(2)
        else:
            gate = session.gate("t.py::u", gate.loaded)
        repeated = [n for text in texts[:2] for n in gate.ask(text).notes if "sent before" in n]
    assert repeated == [f"{REPEATED}: sent before in this run"]


UNTOLD = "nobody can tell whether prompts were answered from a prefix cache: "


@pytest.mark.parametrize("ask", [False, True], ids=["files", "a test's own"])
def test_a_server_that_tells_nothing_of_its_cache_is_warned_of(tmp_path: Path, ask: bool) -> None:
    """The same prompts in every run, and neither answers nor metrics say: told while it runs, once,
    and in the report; no failure, because nobody knows of one."""
    texts = a_file(tmp_path)
    own = {"ask": texts[0], "prompts": "builtin"} if ask else {}
    found, notes, said = told_of(tmp_path, Cache(frozenset(texts), counts=False), **own)
    assert found["verdict"] == "pass"
    (note,) = [note for note in notes if note.startswith(UNTOLD)]
    assert said.count(note) == 1
    assert ("1 of 1 answers do not say" in note) == ask
    assert ("written in the test" in note) == ask


@pytest.mark.parametrize(
    "settings",
    [{"prompts": "builtin"}, {"warm_cache": True}, {"cache": Cache(counts=False, tells=True)},
     {"cache": Cache()}],
    ids=["new prompts", "meant", "answers tell", "metrics tell"],
)  # fmt: skip
def test_where_it_is_told_or_cannot_happen_nobody_is_warned(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Prompts that are new, hits that are wanted, or a server that says so."""
    a_file(tmp_path)
    others = {name: value for name, value in settings.items() if name != "cache"}
    cache = settings.get("cache", Cache(counts=False))
    _, notes, said = told_of(tmp_path, cache, **others)
    assert not [note for note in [*notes, *said] if note.startswith(UNTOLD)]


def test_prompts_made_for_the_test_that_asks_them_are_new(tmp_path: Path) -> None:
    """``sla_prompts`` with ``timed_generate``: other prompts in every run."""
    with served(tmp_path, Cache(counts=False), prompt_max=80) as (gate, _, session):
        gate.ask(next(gate.prompts()).text)
    assert not [note for note in finish(session.run_dir)["notes"] if note.startswith(UNTOLD)]

"""Whole gates of a server that is asked many things at once, on a clock that a script moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gate_samples import policy
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.session import Session, finish
from pytest_llmsla.targets import Target
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.targets.scripted import ScriptedTarget
from pytest_llmsla.timeline import NS_PER_MS
from streams.crews import name_of
from streams.heard import Request
from streams.script import Answer, Wire, answer
from streams.server import Clock, Server, in_lock_step

COUNT = ScriptedTarget(lambda ask, index: pytest.fail("never asked")).count
TOKENS = 4
GAP_MS = 20


class Slots:
    """A service of so many slots: who finds none free waits until one is; refuses at will."""

    def __init__(self, clock: Clock, slots: int, refuse_every: int = 0) -> None:
        self._clock = clock
        self._free_at = [0] * slots
        self._refuse_every = refuse_every
        self.heard = 0

    def __call__(self, request: Request) -> Answer:
        self.heard += 1
        if self._refuse_every and self.heard % self._refuse_every == 0:
            said = {"raw": json.dumps({"error": "busy"})}
            body = {"status": 503, "events": [[20, said], [20, {"close": "eof"}]]}
            return answer(body, Wire())
        slot = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        begin = max(self._clock.now, self._free_at[slot])
        self._free_at[slot] = begin + (100 + GAP_MS * (TOKENS - 1)) * NS_PER_MS
        first = (begin - self._clock.now) / NS_PER_MS + 100
        return self._streamed(first, name_of(request))

    @staticmethod
    def _streamed(first: float, prompt: str) -> Answer:
        events: list[Any] = [
            [first + GAP_MS * n, {"delta": {"content": "x"}}] for n in range(TOKENS)
        ]
        end = events[-1][0]
        usage = {"prompt_tokens": COUNT(prompt), "completion_tokens": TOKENS}
        events += [
            [end, {"delta": {}, "finish": "length"}],
            [end, {"json": {"choices": [], "usage": usage}}],
            [end, {"done": True}],
        ]
        return answer({"status": 200, "events": events}, Wire("chunked"))


class Served(Session):
    """A session whose one target shares a clock with the server it asks."""

    def __init__(self, folder: Path, target: HttpTarget, loaded: LoadedPolicy) -> None:
        super().__init__(folder, release=loaded)
        self._served = target

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        return self._served


@contextmanager
def gated(
    folder: Path, slots: int, *, refuse_every: int = 0, **groups: Any
) -> Iterator[dict[str, Any]]:
    """The report of a gate of a service with so many slots, TTFT at most 150 ms."""
    clock = Clock()
    with Server(clock) as server:
        server.answer_by(Slots(clock, slots, refuse_every))
        url = f"http://127.0.0.1:{server.port}/v1"
        target_keys = {"kind": "openai", "model": "m", "base_url": url, **groups.pop("target", {})}
        loaded = policy(
            {"name": "short", "prompt_max": 64, "ttft_ms": 150},
            target=target_keys,
            workload={"max_new_tokens": TOKENS, **groups.pop("workload", {})},
            evidence={"preset": "fast", **groups.pop("evidence", {})},
            **groups,
        )
        spec = HttpSpec.from_mapping(loaded.target_spec())
        lengths = Lengths("pieces", COUNT, chat=False)
        target = HttpTarget(spec, dialect_of(spec), clock=clock, lengths=lengths)
        in_lock_step(target, server)
        session = Served(folder / "out", target, loaded)
        try:
            session.gate(None, loaded).measure()
            session.close()
            yield finish(session.run_dir)
        finally:
            target.close()


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {f["id"]: f["verdict"] for f in report["findings"]}


FOUR: dict[str, Any] = {"tgs": {"concurrency": [1, 4]}}


def test_a_service_that_takes_four_at_once_passes_at_both_levels(tmp_path: Path) -> None:
    """Four slots: the same times alone and with three others, over four connections and a few."""
    with gated(tmp_path, 4, **FOUR) as report:
        found = verdicts(report)
    for place in ("short", "short/concurrency-4"):
        assert found[f"{place}/ttft_p95"] == "pass"
        assert found[f"{place}/itl_p95"] == "pass"
    finding = next(f for f in report["findings"] if f["id"] == "short/concurrency-4/ttft_p95")
    assert finding["observed"] == 100
    entry = next(e for e in report["tgs"] if e.get("finding") == "tgs/concurrency-4")
    assert entry["mode"] == "http"
    assert entry["conditions"]["concurrency"]["actual"] >= 3.6


def test_a_service_that_queues_three_of_four_fails_under_load(tmp_path: Path) -> None:
    """One slot: it holds its limit alone and breaks it with three others, by their waiting."""
    with gated(tmp_path, 1, **FOUR) as report:
        found = verdicts(report)
    assert found["short/ttft_p95"] == "pass"
    assert found["short/concurrency-4/ttft_p95"] == "fail"
    assert found["short/concurrency-4/itl_p95"] == "pass"


def test_refusals_under_load_are_failures_and_never_a_pass(tmp_path: Path) -> None:
    """Every third is refused: no limit of a level that lost a third of its requests passes."""
    with gated(tmp_path, 4, refuse_every=3, **FOUR) as report:
        found = verdicts(report)
    for place in ("short", "short/concurrency-4"):
        assert found[f"{place}/ttft_p95"] == "fail"
        assert found[f"{place}/error_rate"] == "fail"


@pytest.mark.parametrize(("slots", "verdict"), [(4, "pass"), (1, "fail")])
def test_an_open_loop_counts_from_when_a_request_was_due(
    slots: int, verdict: str, tmp_path: Path
) -> None:
    """10 requests/s of 160 ms each: four slots take them, one falls behind for ever."""
    load = {"load": {"kind": "constant", "rate": 10, "max_in_flight": 32}}
    with gated(tmp_path, slots, workload=load, evidence={"max_requests": 150}) as report:
        finding = next(f for f in report["findings"] if f["id"].endswith("ttft_p95"))
    if verdict == "pass":
        assert (finding["verdict"], finding["observed"]) == ("pass", 100)
    else:
        assert finding["verdict"] in ("fail", "inconclusive", "error")
        assert report["verdict"] != "pass"

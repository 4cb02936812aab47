"""Load from a real Ray cluster of several nodes on this machine; one is killed in mid-run."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.load import Driver, Due, LevelPlan
from pytest_llmsla.load.ray_crew import RayCrew
from pytest_llmsla.runner import BucketPlan
from pytest_llmsla.targets.base import Timeouts
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.targets.scripted import Script, ScriptedTarget
from pytest_llmsla.timeline import NS_PER_MS, Timeline
from pytest_llmsla.workload import Prompt

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.ray
NODES = 3
TTFT_MS, ITL_MS, TOKENS = 30.0, 10.0, 6


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whether a crew worked or could not even begin, none of its threads lives on here."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("llmsla"):
            thread.join(5)
            assert not thread.is_alive(), thread.name


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a real server."""
    path = Path(__file__).with_name("steady_server.py")
    command = [sys.executable, str(path), "--ttft", str(TTFT_MS), "--itl", str(ITL_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two more nodes, each of one CPU."""
    found = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    for _ in range(NODES - 1):
        found.add_node(num_cpus=1)
    found.wait_for_nodes()
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()


def spec_of(port: int, **more: Any) -> dict[str, Any]:
    """The target mapping."""
    return {
        "kind": "openai",
        "base_url": f"http://127.0.0.1:{port}/v1",
        "model": "steady",
        **more,
    }


def target_of(spec: Mapping[str, Any]) -> HttpTarget:
    """A target that has not learnt anything: nothing has to be learnt of this server."""
    given = HttpSpec.from_mapping(spec)
    return HttpTarget(given, dialect_of(given))


class Records:
    """A sink that keeps everything, and does something after so many requests."""

    def __init__(self, after: int = 0, then: Any = None) -> None:
        self.starts: list[Mapping[str, Any]] = []
        self.judged: list[Timeline] = []
        self.problems: list[str] = []
        self._after, self._then = after, then

    def started(self, request: Mapping[str, Any]) -> None:
        self.starts.append(request)

    def ended(self, t: Timeline) -> None:
        pass

    def judge(self, t: Timeline) -> Timeline:
        self.judged.append(t)
        if len(self.judged) == self._after:
            self._then()
        return t

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        pass

    def problem(self, bucket: str | None, reason: str) -> None:
        self.problems.append(reason)

    def phase(self, bucket: str, name: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def drive(crew: RayCrew, target: HttpTarget, sink: Records, requests: int, **level: Any) -> str:
    """Measure so many requests, without warm-up."""
    ids, prompts = (
        itertools.count(),
        (Prompt(f"p {k}", None, 7, "short") for k in itertools.count()),
    )
    plan = BucketPlan(
        bucket="short",
        prompts=prompts,
        warmup_prompts=prompts,
        max_new_tokens=TOKENS,
        sampling={"greedy": True},
        force_length=True,
        max_requests=requests,
        warmup_max=0,
    )
    level_plan = LevelPlan(
        buckets=[plan],
        max_seconds=120.0,
        budget=lambda *_: requests,
        likely=lambda *_: 0,
        **level,
    )
    driver = Driver(target, crew, sink, lambda: f"r{next(ids)}")
    return driver.run(level_plan, lambda _: True)


def test_what_is_no_server_cannot_be_asked_from_elsewhere() -> None:
    """A model in this process has one place; the message says what to do."""
    target = ScriptedTarget(lambda *_: Script())
    with pytest.raises(UsageError, match="workers: local"):
        RayCrew(target, {}, 1, Timeouts())


def test_a_cluster_that_is_not_there_is_told(server: int) -> None:
    """The address and the reason, not a traceback of another library."""
    spec = spec_of(server)
    target = target_of(spec)
    try:
        with pytest.raises(TargetError, match=r"ray://127\.0\.0\.1:9"):
            RayCrew(target, spec, 1, Timeouts(), address="ray://127.0.0.1:9")
    finally:
        target.close()


def test_every_node_sends_and_every_answer_comes_home(cluster: Any, server: int) -> None:
    """Closed loop over three nodes: as many in flight as asked, every token counted, in order."""
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 6, Timeouts())
    try:
        sink = Records()
        assert drive(crew, target, sink, 90, concurrency=6) == "requests"
        facts = crew.facts()
    finally:
        crew.close()
        target.close()
    assert [t.id for t in sink.judged] == [s["id"] for s in sink.starts]
    assert all(t.ok and t.tokens == TOKENS for t in sink.judged), sink.judged[0]
    assert {t.stamp for t in sink.judged} == {"kernel"}
    assert len(facts["workers"]) == NODES
    assert all(w["requests"] > 10 for w in facts["workers"])
    assert facts["lost"] == []
    # The server waits that long: a time that is shorter was not measured but made up.
    assert all((t.ttft_ms or 0) >= TTFT_MS - 1 for t in sink.judged)


def test_a_worker_that_says_nothing_any_more_is_lost(
    cluster: Any, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that hangs is found by its silence: the cluster takes it for alive."""
    monkeypatch.setattr("pytest_llmsla.load.ray_crew._POLL_S", 1.0)
    monkeypatch.setattr("pytest_llmsla.load.ray_crew._SILENT_S", 4.0)
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 6, Timeouts())
    pid = crew.facts()["workers"][0]["pid"]
    try:
        sink = Records(after=30, then=lambda: os.kill(pid, signal.SIGSTOP))
        assert drive(crew, target, sink, 100, concurrency=6) == "requests"
        facts = crew.facts()
    finally:
        crew.close()
        target.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lost = [t for t in sink.judged if not t.ok]
    assert 1 <= len(lost) <= 6
    assert all("said nothing for 5 s" in (t.error or "") for t in lost)
    assert len(sink.judged) == 100
    assert len(facts["lost"]) == 1


def test_a_head_that_was_away_takes_nobody_for_lost(
    cluster: Any, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the workers said meanwhile lies ready: they were not silent, nobody listened."""
    monkeypatch.setattr("pytest_llmsla.load.ray_crew._POLL_S", 0.5)
    monkeypatch.setattr("pytest_llmsla.load.ray_crew._SILENT_S", 0.5)
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 6, Timeouts())
    try:
        sink = Records(after=30, then=lambda: time.sleep(3))
        assert drive(crew, target, sink, 60, concurrency=6) == "requests"
        facts = crew.facts()
    finally:
        crew.close()
        target.close()
    assert facts["lost"] == []
    assert all(t.ok for t in sink.judged)


def test_a_worker_whose_thread_ends_is_lost(cluster: Any, server: int) -> None:
    """Its calls go on being answered, so only it can say that nothing will come any more."""
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 6, Timeouts())
    try:
        # A number where requests belong is what an older version on one machine might send.
        broken = crew._workers[0].actor
        sink = Records(after=10, then=lambda: broken.submit.remote(7))
        assert drive(crew, target, sink, 60, concurrency=6) == "requests"
        facts = crew.facts()
    finally:
        crew.close()
        target.close()
    lost = [t for t in sink.judged if not t.ok]
    assert 1 <= len(lost) <= 6
    assert all("thread that sends has ended" in (t.error or "") for t in lost)
    assert len(sink.judged) == 60
    assert len(facts["lost"]) == 1


def test_an_open_loop_keeps_its_schedule_across_workers(cluster: Any, server: int) -> None:
    """Requests are handed over before they are due, and sent when they are."""
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 64, Timeouts())
    try:
        sink = Records()
        due = [Due(round(k * 20 * NS_PER_MS)) for k in range(100)]
        assert drive(crew, target, sink, 1_000, schedule=due) == "schedule"
    finally:
        crew.close()
        target.close()
    assert len(sink.judged) == 100
    assert all(t.ok for t in sink.judged)
    for t in sink.judged:
        assert t.scheduled_ns is not None
        assert t.late_ns is not None
        assert t.start_ns >= t.scheduled_ns  # never before it is due


def test_clocks_that_are_not_one_are_aligned_within_a_bound(
    cluster: Any, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clocks taken for different ones, the measured bound is on record and in no time."""
    monkeypatch.setattr("pytest_llmsla.load.ray_crew.clock_of", lambda: "another machine")
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 4, Timeouts())
    try:
        sink = Records()
        before = target.clock()
        drive(crew, target, sink, 30, concurrency=4)
        after = target.clock()
        workers = crew.facts()["workers"]
    finally:
        crew.close()
        target.close()
    assert all(not w["same_clock"] and w["clock_bound_ms"] > 0 for w in workers)
    slack = round(2e6 * max(w["clock_bound_ms"] for w in workers))
    # The clocks are one in truth, so aligned times lie where they were measured.
    assert all(before <= t.start_ns <= t.end_ns <= after + slack for t in sink.judged)


def test_a_key_stays_at_home(cluster: Any, server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is not sent to workers: one that has no key of its own says which is missing."""
    monkeypatch.setenv("STEADY_KEY", "sk-very-secret-value")
    spec = spec_of(server, api_key_env="STEADY_KEY")
    target = target_of(spec)
    try:
        with pytest.raises(TargetError, match="STEADY_KEY") as caught:
            RayCrew(target, spec, 1, Timeouts())
    finally:
        target.close()
    assert "sk-very-secret-value" not in str(caught.value)


def test_a_node_that_dies_takes_its_requests_and_nothing_else(cluster: Any, server: int) -> None:
    """Its requests are errors that name it, the others go on to the end, and the facts say so."""
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    spec = spec_of(server)
    target = target_of(spec)
    crew = RayCrew(target, spec, 6, Timeouts())
    try:
        sink = Records(after=30, then=lambda: cluster.remove_node(node, allow_graceful=False))
        assert drive(crew, target, sink, 200, concurrency=6) == "requests"
        facts = crew.facts()
    finally:
        crew.close()
        target.close()
    lost = [t for t in sink.judged if not t.ok]
    assert 1 <= len(lost) <= 6
    assert all("was lost" in (t.error or "") for t in lost)
    assert len(sink.judged) == 200
    assert len(facts["lost"]) == 1
    assert "requests in flight" in facts["lost"][0]

    # The cluster may list the dead machine for minutes: the next crew begins without it.
    target = target_of(spec)
    crew = RayCrew(target, spec, 4, Timeouts())
    try:
        sink = Records()
        assert drive(crew, target, sink, 20, concurrency=4) == "requests"
        workers = crew.facts()["workers"]
    finally:
        crew.close()
        target.close()
    assert all(t.ok for t in sink.judged)
    assert len(workers) == NODES

"""The loop: warm up, interleave, stop when told to, and turn what cannot go on into a problem."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.runner import BucketPlan, Runner, RunPlan, Timeouts
from pytest_llmsla.targets.base import Answer, Ask, Recorder
from pytest_llmsla.targets.scripted import Script, ScriptedTarget
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.workload import Prompt

GOOD = Script([(100, 1), (20, 1), (20, 1)])
BAD = Script(error="boom")


@dataclass
class Recording:
    """Keeps everything a runner tells."""

    begun: list[Mapping[str, Any]] = field(default_factory=list)
    ended: list[Timeline] = field(default_factory=list)
    memory: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    problems: list[tuple[str | None, str]] = field(default_factory=list)
    phases: list[tuple[str, str]] = field(default_factory=list)

    def started(self, request: Mapping[str, Any]) -> None:
        self.begun.append(request)

    def finished(self, t: Timeline) -> Timeline:
        self.ended.append(t)
        return t

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        self.memory.append((bucket, phase, memory))

    def problem(self, bucket: str | None, reason: str) -> None:
        self.problems.append((bucket, reason))

    def phase(self, bucket: str, name: str) -> None:
        self.phases.append((bucket, name))

    @property
    def measured(self) -> list[Timeline]:
        return [t for t in self.ended if not t.warmup]

    @property
    def warmup(self) -> list[Timeline]:
        return [t for t in self.ended if t.warmup]


def prompts(bucket: str, name: str = "p") -> Iterator[Prompt]:
    return (Prompt(f"{name} {n} of {bucket}", None, 4, bucket) for n in itertools.count())


def bucket(name: str = "short", **fields: Any) -> BucketPlan:
    plan = BucketPlan(
        bucket=name,
        prompts=prompts(name),
        warmup_prompts=prompts(name, "w"),
        max_new_tokens=3,
        sampling={"greedy": True},
        force_length=True,
        max_requests=300,
        warmup_max=0,
    )
    return replace(plan, **fields)


def playing(scripts: Iterable[Script]) -> ScriptedTarget:
    """Answers with one script after the other, the last one for ever."""
    every = list(scripts)
    return ScriptedTarget(lambda ask, index: every[min(index, len(every) - 1)])


def run(
    target: ScriptedTarget,
    *buckets: BucketPlan,
    wants: Callable[[str], bool] = lambda _: True,
    seconds: float = 600,
    timeouts: Timeouts | None = None,
) -> tuple[str, Recording]:
    sink, ids = Recording(), itertools.count(1)
    runner = Runner(target, sink, lambda: f"r{next(ids)}")
    plan = RunPlan(buckets, seconds, timeouts or Timeouts())
    return runner.run(plan, wants), sink


def test_buckets_take_turns() -> None:
    """One request of each, over and over: drift of the machine meets all buckets alike."""
    _, sink = run(playing([GOOD]), bucket("a", max_requests=3), bucket("b", max_requests=3))
    assert [t.bucket for t in sink.measured] == ["a", "b"] * 3


def test_units_are_numbered_from_what_is_on_record() -> None:
    """A second run of a bucket goes on where the first one ended, and asks only what is left."""
    ended, sink = run(playing([GOOD]), bucket(already=4, max_requests=6))
    assert ([t.unit for t in sink.measured], ended) == ([4, 5], "requests")


def test_every_request_is_announced_and_carries_what_it_was_asked_with() -> None:
    """Ids, sampling, gate and purpose are the same in the announcement and in the result."""
    _, sink = run(playing([GOOD]), bucket(max_requests=2, warmup_max=1, gate="t.py::t", attempt=2))
    assert [b["id"] for b in sink.begun] == [t.id for t in sink.ended]
    assert len({t.id for t in sink.ended}) == 3
    for begun, t in zip(sink.begun, sink.ended, strict=True):
        for name in ("bucket", "unit", "warmup", "attempt", "gate", "purpose", "max_new_tokens"):
            assert begun[name] == getattr(t, name)
        assert t.sampling == {"greedy": True}
        assert begun["start_ns"] <= t.start_ns


def test_no_prompt_is_sent_twice() -> None:
    """Warm-up and measured requests draw from streams of their own."""
    _, sink = run(playing([GOOD]), bucket(max_requests=5, warmup_max=31))
    asked = [t.prompt for t in sink.ended]
    assert len(set(asked)) == len(asked)


# -- when it ends


def test_it_ends_when_nothing_is_wanted() -> None:
    """A decided bucket is left at once, the other goes on."""
    seen: list[str] = []

    def wants(name: str) -> bool:
        seen.append(name)
        return name == "b" and seen.count("b") < 5

    ended, sink = run(playing([GOOD]), bucket("a"), bucket("b"), wants=wants)
    assert ended == "decided"
    assert {t.bucket for t in sink.measured} == {"b"}


def test_a_budget_of_requests_ends_it() -> None:
    """No request more than the budget, and it says so."""
    ended, sink = run(playing([GOOD]), bucket(max_requests=7))
    assert (ended, len(sink.measured)) == ("requests", 7)


def test_a_budget_of_seconds_ends_it() -> None:
    """With no time left nothing is asked, neither to warm up nor to measure."""
    ended, sink = run(playing([GOOD]), bucket(warmup_max=31), seconds=0)
    assert (ended, sink.ended) == ("seconds", [])


# -- warm-up


def test_warm_up_ends_when_it_is_steady() -> None:
    """Eleven equal requests are enough; none of them is measured."""
    _, sink = run(playing([GOOD]), bucket(max_requests=2, warmup_max=31))
    assert (len(sink.warmup), len(sink.measured)) == (11, 2)
    assert sink.phases == [("short", "warm-up"), ("short", "measure")]


def test_warm_up_that_never_settles_ends_at_its_limit() -> None:
    """Ever slower answers are warmed up at most so often."""
    slower = [Script([(100 * 1.5**n, 1)]) for n in range(20)]
    _, sink = run(playing(slower), bucket(max_requests=1, warmup_max=17))
    assert len(sink.warmup) == 17


def test_each_bucket_is_warmed_before_any_is_measured() -> None:
    """A first call of one shape never lands between measured calls of another."""
    _, sink = run(
        playing([GOOD]),
        bucket("a", warmup_max=3, max_requests=2),
        bucket("b", warmup_max=3, max_requests=2),
    )
    assert [(t.bucket, t.warmup) for t in sink.ended[:6]] == [("a", True)] * 3 + [("b", True)] * 3


def test_three_failed_warm_ups_in_a_row_stop_the_bucket() -> None:
    """It is a problem with its cause; the other bucket is measured."""
    target = playing([BAD, BAD, BAD, GOOD])
    _, sink = run(
        target,
        bucket("a", warmup_max=31, max_requests=2),
        bucket("b", warmup_max=31, max_requests=2),
    )
    assert sink.problems == [("a", "3 consecutive warm-up requests failed: RuntimeError: boom")]
    assert {t.bucket for t in sink.measured} == {"b"}


def test_two_failed_warm_ups_are_forgiven() -> None:
    """Failures that do not follow each other are counted, and warm-up goes on."""
    _, sink = run(playing([BAD, BAD, GOOD, BAD, BAD, GOOD]), bucket(warmup_max=31, max_requests=1))
    assert sink.problems == []
    assert [t.ok for t in sink.warmup[:6]] == [False, False, True, False, False, True]


# -- failures while measuring


def test_five_first_failures_stop_their_bucket_only() -> None:
    """A bucket that gives nothing is left; the others are measured to their end."""
    failing = ScriptedTarget(lambda ask, index: BAD if " a" in ask.prompt else GOOD)
    ended, sink = run(failing, bucket("a"), bucket("b", max_requests=9))
    assert [t.bucket for t in sink.measured].count("a") == 5
    assert [t.bucket for t in sink.measured].count("b") == 9
    assert sink.problems == [("a", "the first 5 measured requests all failed: RuntimeError: boom")]
    assert ended == "requests"


def test_a_later_row_of_failures_does_not_stop_it() -> None:
    """Failures after a success are evidence, however many follow each other."""
    _, sink = run(playing([GOOD, BAD]), bucket(max_requests=20))
    assert (len(sink.measured), sink.problems) == (20, [])


def test_a_second_run_stops_after_five_failures_as_well() -> None:
    """First means first of this run, also where requests are on record already."""
    _, sink = run(playing([BAD]), bucket(already=30, max_requests=100))
    assert len(sink.measured) == 5


def test_a_generation_that_hangs_ends_the_run() -> None:
    """It is on record with the problem of every bucket; nothing is asked after it."""
    release = threading.Event()

    class Hanging(ScriptedTarget):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            if "1 of" in ask.prompt:
                release.wait()
            return super().generate(ask, record)

    ended, sink = run(
        Hanging(lambda ask, index: GOOD),
        bucket("a"),
        bucket("b"),
        timeouts=Timeouts(first_token_s=1.0, grace_s=0.1),
    )
    release.set()
    assert ended == "problem"
    assert [t.status for t in sink.measured] == ["ok", "ok", "error"]
    assert [name for name, _ in sink.problems] == [None]
    assert "cannot be used any more" in sink.problems[0][1]


def test_a_hang_in_warm_up_ends_the_run_too() -> None:
    """No other request is sent into a target that still works on one."""
    release = threading.Event()

    class Hanging(ScriptedTarget):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            release.wait()
            return super().generate(ask, record)

    ended, sink = run(
        Hanging(lambda ask, index: GOOD),
        bucket(warmup_max=31),
        timeouts=Timeouts(first_token_s=0.1, grace_s=0.1),
    )
    release.set()
    assert (ended, len(sink.ended), sink.measured) == ("problem", 1, [])


# -- prompts that cannot be made


def running_out(after: int, error: Exception | None) -> Iterator[Prompt]:
    yield from itertools.islice(prompts("a"), after)
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "no prompt is left"),
        (UsageError("bucket a: 2 prompts, all used up"), "bucket a: 2 prompts, all used up"),
        (ValueError("tokenizer gone"), "making a prompt raised ValueError: tokenizer gone"),
    ],
)
@pytest.mark.parametrize("where", ["prompts", "warmup_prompts"])
def test_a_bucket_without_prompts_is_a_problem_and_others_go_on(
    error: Exception | None, words: str, where: str
) -> None:
    """What runs out in the middle of a run stops that bucket, with the reason."""
    given: dict[str, Any] = {where: running_out(2, error), "warmup_max": 31}
    _, sink = run(playing([GOOD]), bucket("a", **given), bucket("b", max_requests=6))
    assert sink.problems == [("a", words)]
    assert [t.bucket for t in sink.measured].count("b") == 6
    assert [t.bucket for t in sink.measured].count("a") == (2 if where == "prompts" else 0)


# -- memory


class Probe(ScriptedTarget):
    """Memory as ``read`` gives it; ``reset`` is called when peaks are reset."""

    def __init__(self, read: Callable[[], Any], reset: Callable[[], None] = lambda: None) -> None:
        super().__init__(lambda ask, index: GOOD)
        self._read, self._reset = read, reset

    def memory(self) -> Any:
        return self._read()

    def reset_peaks(self) -> None:
        self._reset()


def fails() -> Any:
    raise OSError("card gone")


def test_memory_is_read_after_every_measured_request() -> None:
    """As many readings as requests, none for warm-up."""
    _, sink = run(Probe(lambda: {"rss_peak": 1.0}), bucket(max_requests=4, warmup_max=3))
    assert sink.memory == [("short", "measured", {"rss_peak": 1.0})] * 4


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Probe(fails), "OSError: card gone"),
        (Probe(lambda: None), "TypeError"),
        (Probe(lambda: {"rss_peak": 1.0}, fails), "could not be started: OSError: card gone"),
    ],
)
def test_memory_that_cannot_be_read_is_unknown_not_fatal(target: Probe, words: str) -> None:
    """Requests go on; the reading says why there is no figure."""
    _, sink = run(target, bucket(max_requests=2))
    assert len(sink.measured) == len(sink.memory) == 2
    for _, _, memory in sink.memory:
        assert set(memory) == {"problem"}
        assert words in memory["problem"]


# -- one request at a time


def test_one_request_is_asked_warm() -> None:
    """A warm-up call, then one measured request with its memory."""
    sink, ids = Recording(), itertools.count(1)
    runner = Runner(playing([GOOD]), sink, lambda: f"r{next(ids)}")
    plan = bucket(already=3)
    runner.warm_once(plan, Timeouts())
    t = runner.ask_once(plan, Prompt("Hello there", "Be kind", 4, "short"), Timeouts())
    assert [x.warmup for x in sink.ended] == [True, False]
    assert (t.unit, t.prompt, len(sink.memory)) == (3, "Hello there", 1)
    assert t.prompt_tokens == 4  # words of prompt and system prompt, as the target counts them


def test_a_warm_up_call_that_hangs_is_told() -> None:
    """The caller hears of it before it sends another request."""
    release = threading.Event()

    class Hanging(ScriptedTarget):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            release.wait()
            return super().generate(ask, record)

    sink = Recording()
    runner = Runner(Hanging(lambda ask, index: GOOD), sink, lambda: "r1")
    runner.warm_once(bucket(), Timeouts(first_token_s=0.1, grace_s=0.1))
    release.set()
    assert [name for name, _ in sink.problems] == [None]

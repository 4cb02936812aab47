"""The driver of load, on scripts with a virtual clock: every time is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from pytest_llmsla.load import Driver, Due, LevelPlan
from pytest_llmsla.runner import BucketPlan
from pytest_llmsla.targets.base import Ask, Timeouts
from pytest_llmsla.targets.scripted import Script, ScriptedTarget
from pytest_llmsla.timeline import NS_PER_MS, NS_PER_S, Timeline
from pytest_llmsla.workload import Prompt

Play = Callable[[Ask, int], Script]


def answer(ttft: float, itl: float = 10.0, tokens: int = 11) -> Script:
    """``ttft`` ms to the first token and ``itl`` ms to each further one."""
    return Script(arrivals=[(ttft, 1), *[(itl, 1)] * (tokens - 1)])


def steady(_: Ask, __: int) -> Script:
    """200 ms a request: 100 to the first token, ten gaps of 10."""
    return answer(100.0)


def uneven(_: Ask, index: int) -> Script:
    """Every fifth takes a second."""
    return answer(900.0 if index % 5 == 0 else 50.0)


class Records:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.starts: list[Mapping[str, Any]] = []
        self.ends: list[Timeline] = []
        self.judged: list[Timeline] = []
        self.problems: list[tuple[str | None, str]] = []
        self.memory: list[str] = []
        self.said: list[str] = []

    def started(self, request: Mapping[str, Any]) -> None:
        self.starts.append(request)

    def ended(self, t: Timeline) -> None:
        self.ends.append(t)

    def judge(self, t: Timeline) -> Timeline:
        self.judged.append(t)
        return t

    def resources(self, bucket: str, phase: str, memory: Mapping[str, Any]) -> None:
        self.memory.append(bucket)

    def problem(self, bucket: str | None, reason: str) -> None:
        self.problems.append((bucket, reason))

    def phase(self, bucket: str, name: str) -> None:
        self.said.append(f"{bucket}: {name}")

    def say(self, text: str) -> None:
        self.said.append(text)

    @property
    def measured(self) -> list[Timeline]:
        """Requests that count, in start order."""
        return [t for t in self.judged if not t.warmup]

    @property
    def warmups(self) -> list[Timeline]:
        """Requests that do not, in start order."""
        return [t for t in self.judged if t.warmup]


def bucket(name: str = "short", *, warmup_max: int = 31, prompts: int = 10_000) -> BucketPlan:
    """A bucket of as many prompts as given."""

    def some(n: int) -> Iterator[Prompt]:
        return (Prompt(f"{name} {k}", None, 2, name) for k in range(n))

    return BucketPlan(
        bucket=name,
        prompts=some(prompts),
        warmup_prompts=some(10_000),
        max_new_tokens=11,
        sampling={},
        force_length=True,
        max_requests=10,
        warmup_max=warmup_max,
    )


def run(
    play: Play,
    buckets: Iterable[BucketPlan],
    *,
    concurrency: int | None = None,
    schedule: Iterable[Due] | None = None,
    size: int | None = None,
    slots: int | None = None,
    units: int = 10,
    wants: Callable[[Records, str], bool] = lambda _, __: True,
    **rest: Any,
) -> tuple[Records, str]:
    """Drive one level; a budget of ``units`` blocks a bucket."""
    target = ScriptedTarget(play, slots=slots)
    crew = target.crew(size or concurrency or 64, Timeouts())
    sink = Records()
    ids = itertools.count()
    driver = Driver(target, crew, sink, lambda: f"r{next(ids)}")
    plan = LevelPlan(
        buckets=list(buckets),
        max_seconds=600.0,
        budget=lambda _, block: units * block,
        likely=lambda _, block: units * block,
        concurrency=concurrency,
        schedule=schedule,
        **rest,
    )
    return sink, driver.run(plan, lambda name: wants(sink, name))


def most_at_once(timelines: Iterable[Timeline]) -> int:
    """The largest number of requests in flight together."""
    edges = sorted((at, step) for t in timelines for at, step in ((t.start_ns, 1), (t.end_ns, -1)))
    return max(itertools.accumulate(step for _, step in edges))


class TestClosedLoop:
    """A number of requests is kept in flight."""

    @pytest.mark.parametrize("n", [1, 2, 4, 7])
    def test_n_are_in_flight_from_the_first_measured_start_to_the_last(self, n: int) -> None:
        """Warm-up flows into measuring: the level never drains in between."""
        sink, why = run(steady, [bucket()], concurrency=n)
        assert why == "requests"
        assert most_at_once(sink.judged) == n
        first, last = sink.measured[0].start_ns, sink.measured[-1].start_ns
        for at in range(first, last + 1, 7 * NS_PER_MS):
            assert sum(t.start_ns <= at < t.end_ns for t in sink.judged) == n

    def test_units_are_blocks_of_n_consecutive_starts(self) -> None:
        """Every block but the last is whole, and says how large it is."""
        sink, _ = run(steady, [bucket()], concurrency=4)
        assert [t.unit for t in sink.measured] == [k // 4 for k in range(40)]
        assert {t.block for t in sink.measured} == {4}
        assert {t.concurrency for t in sink.judged} == {4}

    def test_the_first_wave_is_warm_up(self) -> None:
        """Ten that find everything cold are left out, and on record with their times."""

        def cold(_: Ask, index: int) -> Script:
            return answer(5_000.0) if index < 10 else answer(70.0)

        sink, _ = run(cold, [bucket()], concurrency=10)
        assert [t.ttft_ms for t in sink.warmups[:10]] == [5_000.0] * 10
        assert {t.ttft_ms for t in sink.measured} == {70.0}

    def test_without_warm_up_the_first_wave_is_measured(self) -> None:
        """Switched off is off: nothing is dropped silently."""

        def cold(_: Ask, index: int) -> Script:
            return answer(5_000.0) if index < 10 else answer(70.0)

        sink, _ = run(cold, [bucket(warmup_max=0)], concurrency=10)
        assert sink.warmups == []
        assert [t.ttft_ms for t in sink.measured[:10]] == [5_000.0] * 10

    def test_judged_in_start_order_however_they_end(self) -> None:
        """A slow one holds up the judging of those after it, not their records."""

        sink, _ = run(uneven, [bucket()], concurrency=3)
        starts = [s["id"] for s in sink.starts]
        assert [t.id for t in sink.judged] == starts
        assert [t.id for t in sink.ends] != starts
        assert sorted(t.id for t in sink.ends) == sorted(starts)

    def test_every_start_is_on_record_with_what_its_request_says(self) -> None:
        """The two lines of a request agree, so that a killed run can be read."""
        sink, _ = run(steady, [bucket()], concurrency=2)
        by_id = {t.id: t for t in sink.ends}
        for start in sink.starts:
            t = by_id[start["id"]]
            for name in ("bucket", "unit", "block", "concurrency", "scheduled_ns", "warmup"):
                assert start[name] == getattr(t, name)

    def test_buckets_are_mixed_by_weight_until_none_needs_more(self) -> None:
        """One bucket that is decided stays in the mix: without it the load would be another."""
        sink, why = run(
            steady,
            [bucket("a"), bucket("b")],
            concurrency=4,
            weights={"a": 3.0, "b": 1.0},
            units=100,
            wants=lambda sink, name: (
                name == "b" and sum(t.bucket == "b" for t in sink.measured) < 20
            ),
        )
        assert why == "decided"
        names = [t.bucket for t in sink.measured]
        assert names.count("a") == pytest.approx(3 * names.count("b"), abs=3)

    def test_a_ramp_grows_linearly_and_is_warm_up(self) -> None:
        """Nothing that was sent under less than the full load is measured."""
        sink, _ = run(steady, [bucket()], concurrency=8, ramp_s=8.0)
        seconds = 1_000 * NS_PER_MS
        for at in (1.5, 3.5, 6.5):
            flying = sum(t.start_ns <= at * seconds < t.end_ns for t in sink.judged)
            assert flying == pytest.approx(at, abs=1)
        assert sink.measured[0].start_ns >= 8 * seconds

    def test_three_warm_ups_in_a_row_that_fail_stop_their_bucket_only(self) -> None:
        """The other bucket is measured to its end."""

        def broken(ask: Ask, _: int) -> Script:
            return Script(error="boom") if ask.prompt.startswith("b ") else answer(100.0)

        sink, why = run(broken, [bucket("a"), bucket("b")], concurrency=4)
        assert why == "requests"
        assert [p for p, _ in sink.problems] == ["b"]
        assert "consecutive warm-up requests failed" in sink.problems[0][1]
        assert {t.bucket for t in sink.measured} == {"a"}

    def test_five_measured_that_fail_at_first_stop_it(self) -> None:
        """A service that answers nothing is not asked hundreds of times."""
        sink, why = run(lambda *_: Script(error="boom"), [bucket(warmup_max=0)], concurrency=4)
        assert why == "problem"
        assert "the first 5 measured requests all failed" in sink.problems[0][1]
        assert 5 <= len(sink.measured) <= 9

    def test_failures_after_a_success_stop_nothing(self) -> None:
        """They are evidence."""

        def later(_: Ask, index: int) -> Script:
            return Script(error="boom") if index > 30 else answer(100.0)

        sink, why = run(later, [bucket()], concurrency=4)
        assert why == "requests"
        assert sink.problems == []

    def test_prompts_that_run_out_are_told(self) -> None:
        """What was measured stays; the bucket has a problem."""
        sink, why = run(steady, [bucket(prompts=9)], concurrency=4, units=10)
        assert why == "problem"
        assert sink.problems == [("short", "no prompt is left")]
        assert len(sink.measured) == 9

    def test_prompts_that_only_keep_the_load_up_run_out_without_an_error(self) -> None:
        """A bucket that is decided has no problem: the level ends, and the other one is open."""
        sink, why = run(
            steady,
            [bucket("a", prompts=40), bucket("b")],
            concurrency=4,
            units=100,
            wants=lambda sink, name: (
                name == "b" or sum(t.bucket == "a" for t in sink.measured) < 20
            ),
        )
        assert why == "prompts"
        assert sink.problems == []
        assert sum(t.bucket == "a" for t in sink.measured) == 40
        assert any("cannot be kept up" in text for text in sink.said)

    def test_an_interrupt_leaves_every_request_on_record(self) -> None:
        """Those in flight end as errors before the interrupt goes on."""
        seen: list[Records] = []

        def interrupted(sink: Records, _: str) -> bool:
            seen.append(sink)
            if len(sink.measured) >= 8:
                raise KeyboardInterrupt
            return True

        with pytest.raises(KeyboardInterrupt):
            run(uneven, [bucket()], concurrency=4, wants=interrupted)
        sink = seen[-1]
        assert {t.id for t in sink.ends} == {s["id"] for s in sink.starts}
        lost = [t for t in sink.judged if not t.ok]
        assert lost
        assert {t.error for t in lost} == {"the run was ended while it was in flight"}


def every(ms: float, n: int) -> list[Due]:
    """``n`` requests, one each ``ms``."""
    return [Due(round(k * ms * NS_PER_MS)) for k in range(n)]


class TestOpenLoop:
    """A schedule is kept, whatever the service does."""

    def test_every_request_starts_when_it_is_due(self) -> None:
        """A slow answer delays nobody."""

        def slow_once(_: Ask, index: int) -> Script:
            return answer(30_000.0 if index == 20 else 100.0)

        sink, why = run(slow_once, [bucket()], schedule=every(100.0, 60), units=100)
        assert why == "schedule"
        assert [t.start_ns for t in sink.judged] == [k * 100 * NS_PER_MS for k in range(60)]
        assert [t.scheduled_ns for t in sink.judged] == [t.start_ns for t in sink.judged]
        assert {t.late_ns for t in sink.judged} == {0}

    def test_ttft_counts_from_the_due_time_when_the_client_has_no_place(self) -> None:
        """Ten due at once through one place, 100 ms each: 100, 200 … 1,000 ms from the due time.

        From the moment each was sent it is 100 for all; the wait is a stage of its own.
        """
        sink, _ = run(
            lambda *_: answer(100.0, tokens=1),
            [bucket(warmup_max=0)],
            schedule=[Due(0)] * 10,
            size=1,
        )
        assert [t.ttft_ms for t in sink.measured] == [100.0 * k for k in range(1, 11)]
        sent = [(t.arrivals[0][0] - t.start_ns) / NS_PER_MS for t in sink.measured]
        assert sent == [100.0] * 10
        waits = [t.stages.get("client_queue", 0) / NS_PER_MS for t in sink.measured]
        assert waits == [100.0 * k for k in range(10)]
        assert {t.late_ns for t in sink.measured} == {0}

    def test_any_number_may_be_due_at_one_moment(self) -> None:
        """A schedule without end whose requests all come at once is sent as places are free."""
        sink, why = run(steady, [bucket()], schedule=itertools.repeat(Due(0)), size=3, units=10)
        assert why == "requests"
        assert most_at_once(sink.judged) == 3
        assert {t.scheduled_ns for t in sink.judged} == {0}

    def test_a_block_holds_more_than_were_in_flight(self) -> None:
        """200 ms a request, one each 50 ms: four in flight, so blocks of five."""
        sink, why = run(steady, [bucket()], schedule=every(50.0, 500))
        assert why == "requests"
        assert {t.block for t in sink.measured} == {5}
        assert [t.unit for t in sink.measured] == [k // 5 for k in range(50)]

    def test_a_server_with_a_queue_shows_it_in_ttft(self) -> None:
        """More is offered than two slots serve: TTFT grows with every request."""
        sink, _ = run(steady, [bucket(warmup_max=0)], schedule=every(50.0, 40), slots=2, units=40)
        ttft = [t.ttft_ms or 0 for t in sink.measured]
        assert ttft == sorted(ttft)
        assert ttft[-1] > 1_500

    def test_a_trace_says_which_bucket_is_due(self) -> None:
        """What was recorded is replayed, lengths included."""
        due = [Due(k * 100 * NS_PER_MS, "ab"[k % 3 == 0]) for k in range(90)]
        sink, _ = run(steady, [bucket("a"), bucket("b")], schedule=due)
        assert [t.bucket for t in sink.judged[:6]] == ["b", "a", "a", "b", "a", "a"]

    def test_what_is_in_flight_when_the_schedule_is_over_is_awaited(self) -> None:
        """The last answers count like the first."""
        sink, why = run(steady, [bucket(warmup_max=0)], schedule=every(10.0, 7))
        assert why == "schedule"
        assert len(sink.measured) == 7
        assert all(t.ok for t in sink.measured)


@pytest.mark.parametrize(("bursty", "block"), [(True, 14), (False, 1)])
def test_requests_of_a_burst_are_one_block_where_they_come_in_bursts(
    bursty: bool, block: int
) -> None:
    """Eight at once every ten seconds: hardly one in flight on average, and each met seven."""
    due = (Due(k // 8 * 10 * NS_PER_S) for k in itertools.count())
    sink, why = run(steady, [bucket()], schedule=due, bursty=bursty)
    assert why == "requests"
    assert {t.block for t in sink.measured} == {block}

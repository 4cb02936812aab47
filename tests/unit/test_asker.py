"""One request: whatever the target does, it ends as a result, in time, and nothing lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_llmsla.asker import Asker, HungError, Timeouts, say
from pytest_llmsla.errors import GenerationAborted
from pytest_llmsla.targets.base import Answer, Ask, Clock, Recorder, Target
from pytest_llmsla.targets.python import PythonTarget
from pytest_llmsla.targets.scripted import Script, ScriptedTarget
from pytest_llmsla.timeline import Timeline

ASK = Ask("a prompt of five words", 8)
BLANK = Timeline(id="r1", bucket="short", start_ns=0, end_ns=0, prompt_tokens=5, max_new_tokens=8)
SOON = Timeouts(first_token_s=0.2, idle_s=0.2, total_s=2.0, grace_s=0.2)


class Engine:
    """``body(prompt)`` as an engine's generate; counts words."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self._body = body

    def generate(self, prompt: str, *, max_new_tokens: int, sampling: Any) -> Any:
        return self._body()

    def count(self, prompt: str, system: str | None) -> int:
        return len(prompt.split())


def ask(target: Target, timeouts: Timeouts | None = None) -> Timeline:
    with Asker(target, timeouts or Timeouts()) as asker:
        return asker.ask(ASK, BLANK)


def engine(body: Callable[..., Any]) -> PythonTarget:
    return PythonTarget(Engine(body))


def tokens(n: int, error: BaseException | None = None) -> Callable[[], Iterator[int]]:
    def body() -> Iterator[int]:
        yield from range(n)
        if error is not None:
            raise error

    return body


@pytest.fixture(autouse=True)
def before() -> set[int | None]:
    """Threads that were there already: one of another test may still wait for a connection."""
    return {t.ident for t in threading.enumerate()}


def own_threads(before: set[int | None]) -> set[str]:
    threads = (t for t in threading.enumerate() if t.ident not in before)
    return {t.name for t in threads if t.name.startswith("llmsla")}


@dataclass
class Odd:
    """A target whose parts can each be broken; everything else is sound."""

    answer: Any = field(default_factory=lambda: Answer("", 5, 1, "model", "stop"))
    arrive: Callable[[Recorder], None] = field(default=lambda r: r.arrive())
    times: Iterator[Any] = field(default_factory=lambda: iter(range(0, 10**9, 1000)))
    kind: str = "odd"
    start_point: str = "here"

    @property
    def clock(self) -> Clock:
        return lambda: next(self.times)

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        self.arrive(record)
        return self.answer  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        return {}

    def count(self, prompt: str, system: str | None = None) -> int:
        return 5

    def encode(self, text: str) -> list[int] | None:
        return None

    def max_context(self) -> int | None:
        return None

    def reset_peaks(self) -> None: ...

    def memory(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


# -- what an engine may raise


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"), "CUDA out of memory"),
        (MemoryError(), "MemoryError"),
        (ValueError("probability tensor contains either inf, nan"), "inf, nan"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (RecursionError("deep"), "RecursionError: deep"),
        (Exception("two\n  lines"), "two lines"),
        (Exception("x" * 9000), "xxx…"),
    ],
)
@pytest.mark.parametrize("after", [0, 3])
def test_whatever_an_engine_raises_is_a_result(
    error: BaseException, words: str, after: int
) -> None:
    """Type and message are kept, and the tokens before it; nothing reaches the caller."""
    t = ask(engine(tokens(after, error)))
    assert (t.status, len(t.arrivals)) == ("error", after)
    assert words in str(t.error)
    assert len(str(t.error)) <= 500


def test_an_exception_that_cannot_be_shown_is_a_result() -> None:
    """Even where its own text raises."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert say(MuteError()).startswith("MuteError: ")
    assert ask(engine(tokens(1, MuteError()))).status == "error"


def test_the_next_request_is_answered_by_the_same_asker() -> None:
    """A failure leaves nothing behind that the next request could trip over."""
    bodies = iter([tokens(2, RuntimeError("boom")), tokens(8)])
    with Asker(engine(lambda: next(bodies)()), Timeouts()) as asker:
        assert [asker.ask(ASK, BLANK).status for _ in range(2)] == ["error", "ok"]


def test_a_sound_answer_is_taken_whole() -> None:
    """Counts, finish reason and one arrival a token."""
    t = ask(engine(tokens(8)))
    assert (t.status, t.tokens, t.output_tokens, t.prompt_tokens) == ("ok", 8, 8, 5)
    assert (t.finish_reason, t.token_source, t.error) == ("length", "model", None)
    assert t.start_ns <= t.arrivals[0][0] <= t.arrivals[-1][0] == t.end_ns


def test_no_token_at_all_is_taken_as_it_is() -> None:
    """An end at once has no arrival; the rules say what that means."""
    t = ask(engine(tokens(0)))
    assert (t.arrivals, t.finish_reason) == ((), "stop")


def test_an_engine_without_end_is_left_after_one_token_too_many() -> None:
    """More tokens than asked for end the request at once, without a deadline."""

    def endless() -> Iterator[int]:
        while True:
            yield 1

    assert ask(engine(endless)).tokens == ASK.max_new_tokens + 1


def test_the_worker_has_ended_when_the_asker_is_left(before: set[int | None]) -> None:
    """No thread of ours lives on, whether requests worked or failed."""
    ask(engine(tokens(8)))
    ask(engine(tokens(1, RuntimeError("boom"))))
    assert own_threads(before) == set()


# -- deadlines


def until_cancelled(record: Recorder) -> None:
    while not record.cancelled:
        threading.Event().wait(0.01)


@dataclass
class Stalls(Odd):
    """Gives ``before`` tokens, then none until it is told to stop; the second time it answers."""

    before: int = 0
    asked: int = 0

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        self.asked += 1
        if self.asked == 1:
            for _ in range(self.before):
                record.arrive()
            until_cancelled(record)
        record.arrive()
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("before", "timeouts", "words"),
    [
        (0, Timeouts(0.2, 60, 60, 60), "no first token after 0.2 s (timeouts.first_token_s)"),
        (1, Timeouts(60, 0.2, 60, 60), "no further token for 0.2 s (timeouts.idle_s)"),
    ],
)
def test_silence_is_an_error_that_stops_at_the_next_token(
    before: int, timeouts: Timeouts, words: str
) -> None:
    """One request is lost and keeps what it had; the target answers the next one."""
    target = Stalls(before=before)
    late, good = ask(target, timeouts), ask(target)
    assert words in str(late.error)
    assert (late.status, len(late.arrivals), good.status) == ("error", before + 1, "ok")


def test_tokens_without_end_are_stopped_by_the_total() -> None:
    """Each token in time and still not done: the whole request has a limit as well."""

    class Drips(Odd):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            while True:
                threading.Event().wait(0.01)
                record.arrive()

    t = ask(Drips(), Timeouts(first_token_s=60, idle_s=60, total_s=0.3, grace_s=60))
    assert "not complete after 0.3 s (timeouts.total_s)" in str(t.error)


def test_an_engine_that_never_stops_makes_the_target_unusable(before: set[int | None]) -> None:
    """The hung request is an error, the next one is refused, and leaving does not block."""
    release = threading.Event()

    def hangs() -> Iterator[int]:
        yield 0
        release.wait()
        yield 1

    with Asker(engine(hangs), SOON) as asker:
        t = asker.ask(ASK, BLANK)
        assert t.status == "error"
        assert "did not stop within 0.2 s" in str(t.error)
        with pytest.raises(HungError, match="cannot be used any more"):
            asker.ask(ASK, BLANK)
    thread = next(t for t in threading.enumerate() if t.name == "llmsla-target")
    assert thread.daemon  # so that the process can end although it still runs
    release.set()
    thread.join(5)
    assert own_threads(before) == set()


def test_an_engine_that_swallows_the_abort_is_late_all_the_same() -> None:
    """An answer that comes after its deadline is no answer, however complete it is."""

    class Stubborn(Odd):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            until_cancelled(record)
            for _ in range(8):
                with suppress(GenerationAborted):
                    record.arrive()
            return Answer("", 5, 8, "model", "length")

    t = ask(Stubborn(), Timeouts(first_token_s=0.2, grace_s=60))
    assert (t.status, t.tokens) == ("error", 8)
    assert "timeouts.first_token_s" in str(t.error)


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ([(61_000, 1), (20, 1)], "first token took longer than 60 s"),
        ([(100, 1), (31_000, 1), (20, 1)], "no further token for 30 s"),
        ([(100, 1), *[(29_000, 1)] * 11], "took longer than 300 s"),
    ],
)
def test_deadlines_hold_on_the_targets_own_clock_too(
    arrivals: list[tuple[float, int]], words: str
) -> None:
    """Times that a script or an engine's own clock tells are held to the same limits."""
    t = ask(ScriptedTarget(lambda ask, index: Script(arrivals)))
    assert t.status == "error"
    assert words in str(t.error)


def test_an_interrupt_while_waiting_reaches_the_caller_and_stops_the_engine(
    before: set[int | None],
) -> None:
    """Ctrl-C is the user's: it is not taken for a result of the model."""
    began = threading.Event()

    class Interrupting(Odd):
        def generate(self, ask: Ask, record: Recorder) -> Answer:
            began.set()
            until_cancelled(record)
            return self.answer  # type: ignore[no-any-return]

    class Waits(Asker):
        def _wait(self, record: Recorder, done: threading.Event) -> str | None:
            return super()._wait(record, Interrupted(done))  # type: ignore[arg-type]

    class Interrupted:
        def __init__(self, done: threading.Event) -> None:
            self._done, self._waits = done, 0

        def wait(self, seconds: float) -> bool:
            self._waits += 1
            if self._waits == 1:
                began.wait(5)
                raise KeyboardInterrupt
            return self._done.wait(seconds)

    with pytest.raises(KeyboardInterrupt), Waits(Interrupting(), Timeouts()) as asker:
        asker.ask(ASK, BLANK)
    assert own_threads(before) == set()


# -- answers and clocks that are none


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned NoneType; valid: an Answer"),
        ("text", "returned str"),
        (Answer("", 5.0, 1, "model", "stop"), "prompt_tokens is 5.0"),  # type: ignore[arg-type]
        (Answer("", "5", 1, "model", "stop"), "prompt_tokens is '5'"),  # type: ignore[arg-type]
        (Answer("", True, 1, "model", "stop"), "prompt_tokens is True"),
        (Answer("", -1, 1, "model", "stop"), "prompt_tokens is -1"),
        (Answer("", 5, 1.0, "model", "stop"), "output_tokens is 1.0"),  # type: ignore[arg-type]
        (Answer("", 5, 1, "guess", "stop"), "token_source is 'guess'"),  # type: ignore[arg-type]
        (Answer("", 5, 1, "model", "stop", cached_tokens=0.5), "cached_tokens is 0.5"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_another_shape_is_an_error(answer: Any, words: str) -> None:
    """What a target of a third party returns is checked before it is evidence."""
    t = ask(Odd(answer=answer))
    assert t.status == "error"
    assert words in str(t.error)


def test_counts_may_be_integers_of_another_library() -> None:
    """A NumPy integer is a whole number."""
    import numpy

    count = numpy.int64(5)
    t = ask(Odd(answer=Answer("", count, 1, "model", "stop")))  # type: ignore[arg-type]
    assert (t.status, t.prompt_tokens, type(t.prompt_tokens)) == ("ok", 5, int)


@pytest.mark.parametrize("tokens_given", [True, 1.0, "1", -1, 2**64])
def test_an_arrival_of_no_count_is_an_error(tokens_given: Any) -> None:
    """Tokens are counted in whole numbers."""
    t = ask(Odd(arrive=lambda r: r.arrive(tokens_given)))
    assert "tokens of an arrival" in str(t.error)


@pytest.mark.parametrize(
    "times",
    [
        iter([0.0, 0.5, 1.0]),  # seconds, as time.perf_counter() gives them
        iter([0, 5, 10.0]),
        iter(["0", "1", "2"]),
        iter([None, None, None]),
        iter([True, True, True]),
        iter([0, 2**70, 2**71]),
    ],
)
def test_a_clock_that_gives_no_nanoseconds_is_an_error(times: Iterator[Any]) -> None:
    """Seconds taken for nanoseconds would be a TTFT of nothing."""
    t = ask(Odd(times=times))
    assert "clock gave" in str(t.error)


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_clock_that_raises_is_an_error_at_once(good: int) -> None:
    """Wherever it breaks, the caller does not wait for a deadline."""

    def times() -> Iterator[int]:
        yield from range(good)
        raise OSError("clock gone")

    t = ask(Odd(times=times()))
    assert t.status == "error"
    assert "clock gone" in str(t.error) or "StopIteration" in str(t.error)


def test_a_clock_that_goes_back_is_kept_for_the_rules_to_see() -> None:
    """Nothing is mended here: times that run backwards are evidence against the request."""
    t = ask(Odd(times=iter([100, 50, 60])))
    assert t.arrivals == ((50, 1),)
    assert t.start_ns == 100

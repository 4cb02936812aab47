"""A script is played to the nanosecond, on a clock that nobody waits for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_samples import MS, engine
from pytest_llmsla.errors import UsageError
from pytest_llmsla.targets import load
from pytest_llmsla.targets.base import Answer, Ask, Recorder
from pytest_llmsla.targets.scripted import Script, ScriptedTarget, from_mapping

ASK = Ask("a prompt, 三个字", 8)


def play(target: ScriptedTarget, ask: Ask = ASK) -> tuple[Answer, Recorder]:
    record = Recorder(target.clock)
    record.start()
    return target.generate(ask, record), record


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 9)), max_size=12))
def test_arrivals_are_exact(steps: list[tuple[int, int]]) -> None:
    """Delays add up without an error, and tokens are counted as written."""
    target = ScriptedTarget(lambda ask, index: Script(steps))
    answer, record = play(target)
    at, expected = 0, []
    for ms, tokens in steps:
        at += ms * MS
        expected.append((at, tokens))
    assert record.arrivals == expected
    assert answer.output_tokens == sum(k for _, k in steps)


def test_requests_are_numbered_and_follow_each_other() -> None:
    """The index counts from 0; time goes on from request to request."""
    seen: list[int] = []

    def script(ask: Ask, index: int) -> Script:
        seen.append(index)
        return Script([(100, 1)])

    target = ScriptedTarget(script)
    starts = [play(target)[1].start_ns for _ in range(3)]
    target.advance(7)
    assert (seen, starts, target.clock()) == ([0, 1, 2], [0, 100 * MS, 200 * MS], 307 * MS)


@pytest.mark.parametrize("error", ["out of memory", ValueError("out of memory")])
def test_an_error_comes_after_its_arrivals(error: Any) -> None:
    """What arrived before it stays on the recorder."""
    target = ScriptedTarget(lambda ask, index: Script([(100, 1), (20, 1)], error=error))
    record = Recorder(target.clock)
    record.start()
    with pytest.raises((RuntimeError, ValueError), match="out of memory"):
        target.generate(ASK, record)
    assert len(record.arrivals) == 2


def test_a_script_overrides_what_is_counted() -> None:
    """Wrong counts, cached prompts and stages can all be played."""
    script = Script(
        [(100, 2)],
        prompt_tokens=77,
        output_tokens=9,
        cached_tokens=60,
        finish_reason="stop",
        text="hello",
        stages_ms={"prefill": 90.5},
    )
    answer, record = play(ScriptedTarget(lambda ask, index: script))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (77, 9, 60)
    assert (answer.finish_reason, answer.text) == ("stop", "hello")
    assert record.stages == {"prefill": 90_500_000}


def test_pieces_are_counted_as_encoded() -> None:
    """Words, marks and single CJK characters; the system prompt is counted too."""
    target = ScriptedTarget(lambda ask, index: Script())
    ids = target.encode(ASK.prompt)
    assert ids is not None
    assert target.count(ASK.prompt) == len(ids) == 6
    assert target.count(ASK.prompt, "be kind") == 8
    assert target.encode(ASK.prompt) == ids


def test_it_says_that_no_model_was_measured() -> None:
    """Whatever facts it is given."""
    facts = ScriptedTarget(lambda ask, index: Script(), {"model": "llama"}).describe()
    assert facts["kind"] == "scripted"
    assert facts["warnings"][0]["code"] == "scripted"


@pytest.mark.parametrize(
    ("script", "index", "expected"),
    [
        ({"ttft_ms": 100, "itl_ms": 20}, 3, [(100, 1)] + [(20, 1)] * 7),
        ({"ttft_ms": [100, 200], "itl_ms": [20, 30, 40]}, 3, [(200, 1)] + [(20, 1)] * 7),
        ({"ttft_ms": 100, "itl_ms": 20, "tokens": 2}, 0, [(100, 1), (20, 1)]),
        ({"ttft_ms": 100, "itl_ms": 20, "tokens": 0}, 0, []),
        ({"ttft_ms": 100, "itl_ms": 20, "tokens_per_chunk": 3}, 0, [(100, 3), (60, 3), (40, 2)]),
    ],
)
def test_a_script_in_the_policy_is_played(
    script: dict[str, Any], index: int, expected: list[tuple[float, int]]
) -> None:
    """Lists are cycled by request; tokens and chunks as written."""
    assert list(from_mapping(script)(ASK, index).arrivals) == expected


def test_requests_of_a_policy_script_can_fail() -> None:
    """Counted from 0 with warm-up, with their words."""
    made = from_mapping({"ttft_ms": 100, "fail": [1, 3], "error": "no card"})
    assert [made(ASK, n).error for n in range(4)] == [None, "no card", None, "no card"]


def test_a_factory_gives_a_script_or_a_target(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """play(ask, index), or a ScriptedTarget; anything else is refused."""
    module = engine(
        tmp_path,
        monkeypatch,
        """
        from pytest_llmsla.targets.scripted import Script, ScriptedTarget
        def play(ask, index): return Script([(5, 1)])
        def a(): return play
        def b(): return ScriptedTarget(play)
        def c(): return 7
        """,
    )
    for name in "ab":
        target = load({"kind": "scripted", "entry": f"{module.__name__}:{name}"})
        assert isinstance(target, ScriptedTarget)
        assert play(target)[1].arrivals == [(5 * MS, 1)]
    with pytest.raises(UsageError, match="the factory returned int"):
        load({"kind": "scripted", "entry": f"{module.__name__}:c"})

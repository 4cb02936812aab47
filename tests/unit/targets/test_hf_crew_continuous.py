"""Many requests in one running batch of a small real model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hf_crews
import hf_tiny
import psutil
import pytest
import torch
from hf_crews import GREEDY, answers, ask, job, on_logits, texts_alone

from pytest_llmsla.errors import InternalError, TargetError, UsageError
from pytest_llmsla.targets.base import Timeouts
from pytest_llmsla.targets.hf_continuous import pool_blocks, refuse
from pytest_llmsla.targets.hf_crew_continuous import ContinuousCrew
from pytest_llmsla.targets.hf_spec import HfSpec
from pytest_llmsla.targets.transformers import TransformersTarget

pytestmark = pytest.mark.skipif(
    not hf_crews.CONTINUOUS, reason="this transformers has no continuous batching"
)


@pytest.fixture(scope="module", autouse=True)
def short_steps() -> Iterator[None]:
    """Small fixed tensors: making an engine is most of what these tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_llmsla.targets.hf_continuous.STEP_TOKENS", 256)
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TransformersTarget:
    return hf_tiny.load(hf_tiny.save(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def crew(target: TransformersTarget) -> Iterator[ContinuousCrew]:
    """One crew of three for all tests that leave it usable."""
    made = make(target, 3)
    yield made
    made.close()
    assert "forward" not in vars(target.model)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> TransformersTarget:
    """Another model, for tests that make and end a crew of their own."""
    return hf_tiny.load(hf_tiny.save(tmp_path_factory.mktemp("other")))


def make(target: TransformersTarget, size: int, **limits: float) -> ContinuousCrew:
    assert target.crew is not None
    made = target.crew(size, Timeouts(**limits))
    assert isinstance(made, ContinuousCrew)
    return made


def test_each_request_has_its_own_answer_and_times(
    other: TransformersTarget, crew: ContinuousCrew
) -> None:
    """Three at once say what each says alone; their stages add up to their gaps exactly."""
    asks = [ask("hello" + "x" * n, 6 + n) for n in range(3)]
    found = answers(crew, asks)
    assert [t.error for t in found] == [None] * 3
    assert [t.text for t in found] == texts_alone(other, asks)  # the same model
    for t, asked in zip(found, asks, strict=True):
        assert [n for _, n in t.arrivals] == [1] * asked.max_new_tokens
        assert t.output_tokens == asked.max_new_tokens
        assert (t.finish_reason, t.cached_tokens, t.token_source) == ("length", 0, "model")
        assert t.stages["decode"] + t.stages["sample"] == t.arrivals[-1][0] - t.arrivals[0][0]
        before = sum(t.stages[s] for s in ("tokenise", "queue", "prefill", "first_sample"))
        assert t.ttft_ns is not None
        assert 0 <= t.ttft_ns - before < 1_000_000
    steps = [{at for at, _ in t.arrivals} for t in found]
    assert len(set().union(*steps)) >= 8


def test_a_request_joins_while_another_runs(crew: ContinuousCrew) -> None:
    """Nothing drains: the successor of a short request has tokens before the long one's last."""
    long, short = ask("long", 120), ask("short", 2)
    for one in (long, short):
        crew.prepare(one)
    crew.start(job(long, "long"))
    crew.start(job(short, "first"))
    (first,) = crew.wait()
    assert (first.id, crew.in_flight) == ("first", 1)
    crew.start(job(short, "second"))
    ended = [*crew.wait(), *crew.wait()]
    assert [t.id for t in ended] == ["second", "long"]
    assert ended[0].arrivals[-1][0] < ended[1].arrivals[-1][0]


def test_a_request_ends_at_its_end_token(target: TransformersTarget, crew: ContinuousCrew) -> None:
    """It is counted, and the rest of the batch goes on."""

    def end_first_row(step: int, logits: Any) -> None:
        if step == 3:
            logits[0, 0, hf_tiny.EOS] = 1e4

    asks = [ask("first", 9, force=False), ask("other", 9, force=False)]
    crew.prepare(asks[0])
    with on_logits(target, end_first_row):
        found = answers(crew, asks)
    ended = {t.finish_reason: t for t in found}
    assert ended["stop"].tokens < ended["length"].tokens == 9
    assert ended["stop"].notes == (f"the end token {hf_tiny.EOS} is counted",)


def test_a_forced_length_is_kept_by_ignoring_end_tokens(
    target: TransformersTarget, crew: ContinuousCrew
) -> None:
    """A model that only ever ends still gives the tokens that were asked for."""

    def end(_step: int, logits: Any) -> None:
        logits[..., hf_tiny.EOS] = 1e4

    crew.prepare(ask("hello", 7))
    with on_logits(target, end):
        (forced,) = answers(crew, [ask("hello", 7)])
        (free,) = answers(crew, [ask("hello", 7, force=False)])
    assert (forced.tokens, forced.finish_reason, forced.notes) == (7, "length", ())
    assert free.status == "error"
    assert free.error is not None
    assert "ended at once: its first token is the end token 2" in free.error


def test_sampling_is_one_for_all_in_flight(crew: ContinuousCrew) -> None:
    """Another sampling waits until nothing is in flight; it is never replaced by the first."""
    greedy, sampled = ask("hello", 100), ask("hello", 4, sampling={"temperature": 0.9, "seed": 1})
    crew.prepare(greedy)
    crew.start(job(greedy, "greedy"))
    with pytest.raises(TargetError, match="differs from that of the requests in flight"):
        crew.prepare(sampled)
    crew.start(job(sampled, "sampled"))
    by_id = {t.id: t for t in hf_crews.drain(crew)}
    assert "differs from that" in str(by_id["sampled"].error)
    assert by_id["greedy"].ok
    (alone,) = answers(crew, [sampled])
    assert alone.ok
    assert alone.notes == (
        "sampling: requests in flight draw from one seeded sequence, so texts may differ",
    )


def test_what_the_manager_would_drop_is_refused(crew: ContinuousCrew) -> None:
    """A repetition penalty needs a request's own tokens, which a shared step does not have."""
    with pytest.raises(UsageError, match=r"repetition_penalty.*threads or batch"):
        crew.prepare(ask("hello", 4, sampling={"greedy": True, "repetition_penalty": 1.2}))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (KeyError("layer 7"), "KeyError: 'layer 7'"),
        (torch.OutOfMemoryError("no more"), "out of memory in a step that all"),
    ],
)
def test_an_error_in_the_batch_fails_all_and_the_model_answers_again(
    target: TransformersTarget, crew: ContinuousCrew, fault: Exception, words: str
) -> None:
    """Every request in flight names the cause; the next ones find a new engine."""

    def fail(step: int, _logits: Any) -> None:
        if step == 3:
            raise fault

    asks = [ask("one", 9), ask("two", 9)]
    crew.prepare(asks[0])
    with on_logits(target, fail):
        found = answers(crew, asks)
    assert [t.status for t in found] == ["error"] * 2
    for t in found:
        assert words in str(t.error)
        assert t.arrivals
    assert crew.hung is None
    assert [t.error for t in answers(crew, asks)] == [None] * 2


def test_a_lost_device_ends_the_crew(other: TransformersTarget) -> None:
    """After a device-side assert nothing is asked again, and every request says why."""
    crew = make(other, 2)

    def fail(_step: int, _logits: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    crew.prepare(ask("one", 4))
    with on_logits(other, fail):
        (t,) = answers(crew, [ask("one", 4)])
    assert "CUDA context is lost" in str(t.error)
    assert "CUDA context is lost" in str(crew.hung)
    (later,) = answers(crew, [ask("two", 4)])
    assert "CUDA context is lost" in str(later.error)
    crew.close()


def test_logits_that_are_no_numbers_fail_all_that_shared_the_step(
    target: TransformersTarget, crew: ContinuousCrew
) -> None:
    """No answer is taken from a step with a NaN; the requests after it are sound."""

    def spoil(step: int, logits: Any) -> None:
        if step == 3:
            logits[0, 0, 40] = float("nan")

    asks = [ask("one", 9), ask("two", 9)]
    crew.prepare(asks[0])
    with on_logits(target, spoil):
        found = answers(crew, asks)
    assert all("not finite at output token" in str(t.error) for t in found)
    assert [t.error for t in answers(crew, asks)] == [None] * 2


def test_a_deadline_ends_one_request_and_leaves_the_rest(other: TransformersTarget) -> None:
    """A request that takes too long is an error; the others and the engine go on."""
    crew = make(other, 2, total_s=2.0)
    gate = threading.Event()

    def hold(step: int, _logits: Any) -> None:
        if step == 2:
            gate.wait(2.5)

    crew.prepare(ask("one", 9))
    with on_logits(other, hold):
        (t,) = answers(crew, [ask("one", 200)])
    assert t.error == "timed out: not complete after 2 s (timeouts.total_s)"
    assert 0 < t.tokens < 200
    assert crew.hung is None
    (next_one,) = answers(crew, [ask("two", 4)])
    assert next_one.ok
    crew.close()


def test_a_forward_that_never_returns_is_a_hang(other: TransformersTarget) -> None:
    """All in flight say so within their deadlines, and closing returns."""
    crew = make(other, 2, first_token_s=0.2, grace_s=0.2)
    gate = threading.Event()

    def hold(_step: int, _logits: Any) -> None:
        gate.wait(20)

    crew.prepare(ask("one", 4))
    assert crew._engine is not None
    stuck: threading.Thread = crew._engine._manager._generation_thread
    try:
        with on_logits(other, hold):
            found = answers(crew, [ask("one", 4), ask("two", 4)])
            assert all("no first token after 0.2 s" in str(t.error) for t in found)
            assert "cannot be used any more" in str(crew.hung)
            crew.close()
    finally:
        gate.set()
        stuck.join(20)
        crew.close()
    assert stuck.daemon, "the process could not end before it does"
    assert "forward" not in vars(other.model)


def test_a_cancelled_crew_returns_everything(crew: ContinuousCrew) -> None:
    """What was in flight comes back as errors that keep their tokens."""
    for n in range(3):
        crew.prepare(ask("hello", 200))
        crew.start(job(ask("hello", 200), str(n)))
    with pytest.raises(InternalError, match="3 requests are in flight already"):
        crew.start(job(ask("hello", 200), "more"))
    crew.cancel()
    found = hf_crews.drain(crew)
    assert {t.id for t in found} == {"0", "1", "2"}
    assert {t.error for t in found} == {"the run was ended while it was in flight"}


def test_it_waits_until_told_with_nothing_in_flight(crew: ContinuousCrew) -> None:
    """An open loop's next arrival is waited for; without one there is nothing to wait for."""
    until = crew._clock() + 2_000_000
    assert crew.wait(until) == []
    assert crew._clock() >= until
    assert crew.wait() == []


def test_a_request_without_room_waits_in_line_and_none_is_evicted(
    other: TransformersTarget,
) -> None:
    """Its clock runs meanwhile; it can be cancelled there, and is answered when there is room."""
    crew = make(other, 2)
    crew.prepare(ask("hello", 4))
    engine = crew._engine
    assert engine is not None
    engine._held.update({f"held/{n}": 1 for n in range(engine._blocks)})
    crew.start(job(ask("hello", 4), "cancelled"))
    assert crew.wait(crew._clock() + 20_000_000) == []
    crew.cancel()
    assert [t.id for t in hf_crews.drain(crew)] == ["cancelled"]
    crew.start(job(ask("hello", 4), "answered"))
    freed = crew._clock()
    engine._release("held/0")
    (t,) = hf_crews.drain(crew)
    assert t.ok
    assert t.start_ns + t.stages["tokenise"] + t.stages["queue"] > freed
    crew.close()


def test_the_pool_grows_for_longer_requests_while_idle(other: TransformersTarget) -> None:
    """The longest request prepared decides; one longer than memory allows is an error."""
    crew = make(other, 1)
    crew.prepare(ask("hello", 4))
    first = crew._engine
    crew._tokens = 5000
    crew.prepare(ask("hello", 4))
    assert first is not None
    assert crew._engine is not None
    assert (first.facts["pool_tokens"], crew.facts()["pool_tokens"]) == (1024, 5120)
    crew._engine._blocks = 0
    (t,) = answers(crew, [ask("hello", 4)])
    assert "needs 256 tokens of cache, and there is memory for 0" in str(t.error)
    crew.close()


def test_the_pool_is_bounded_by_memory(target: TransformersTarget) -> None:
    """A crew for very many asks for no more than half of what is free, and for one at least."""
    huge = pool_blocks(target.model, 10**9, 8)
    per_block = 256 * 2 * 2 * 1 * 32 * 4  # keys and values, layers, heads, head size, bytes
    assert 8 <= huge < 8 * 10**9
    assert huge * per_block <= psutil.virtual_memory().total // 2
    assert pool_blocks(target.model, 3, 8) == 24


REFUSED: list[tuple[dict[str, Any], list[str], str]] = [
    ({"cache": "static"}, ["cpu"], "of cache only dynamic can be kept"),
    ({"use_cache": False}, ["cpu"], "of use_cache only true can be kept"),
    ({"use_cache": "auto"}, ["cpu"], "of use_cache only true can be kept"),
    ({"compile": "max-autotune"}, ["cpu"], "of compile only false can be kept"),
    ({}, ["cuda:0", "cpu"], "spread over cuda:0, cpu"),
    ({}, ["mps"], "on MPS"),
]


@pytest.mark.parametrize(("options", "devices", "words"), REFUSED)
def test_what_it_cannot_run_is_refused_with_the_alternatives(
    target: TransformersTarget, options: dict[str, Any], devices: list[str], words: str
) -> None:
    """Never another cache, kernel or compilation than the policy says."""
    spec = HfSpec.from_mapping({"model": "m", **options})
    with pytest.raises(UsageError, match=r"Use target\.batching: threads or batch") as e:
        refuse(spec, target.model, devices)
    assert words in str(e.value)


def test_another_attention_kernel_is_refused(target: TransformersTarget) -> None:
    """The paged cache has its own forms of a few kernels."""
    kernel = target.model.config._attn_implementation
    target.model.config._attn_implementation_internal = "flex_attention"
    try:
        with pytest.raises(UsageError, match="attn is flex_attention"):
            refuse(HfSpec("m"), target.model, ["cpu"])
    finally:
        target.model.config._attn_implementation_internal = kernel


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_the_kernel_is_put_back(tmp_path: Path, attn: str) -> None:
    """A request asked alone afterwards finds the attention kernel that the policy named."""
    target = hf_tiny.load(hf_tiny.save(tmp_path), attn=attn)
    crew = make(target, 2)
    asks = [ask("hello", 5)]
    found = answers(crew, asks)
    crew.close()
    crew.close()
    assert target.model.config._attn_implementation == attn
    assert [t.text for t in found] == texts_alone(target, asks)


def test_greedy_asks_share_an_engine() -> None:
    """The samplings that tests use are equal for the crew."""
    assert ask("a", 1).sampling == ask("b", 2).sampling == GREEDY

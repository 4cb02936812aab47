"""What type checkers must accept and refuse of the public API. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typing_extensions import assert_type

from pytest_llmsla import Finding, RecordTgs, SlaResult, SlaRun, TimedGenerate, Timeline, sla
from pytest_llmsla.targets import Target
from pytest_llmsla.workload import Prompt

assert_type(sla, pytest.MarkDecorator)


@sla(prompt_max=128, ttft_ms=300, itl_p95_ms=50)
def test_short_prompts(sla_run: SlaRun) -> None:
    """A mark keeps the signature of the function it stands on."""
    result = sla_run(max_new_tokens=16)
    assert_type(result, SlaResult)
    assert_type(result[0], Timeline)
    assert_type(result.findings, tuple[Finding, ...])
    assert_type(result[0].ttft_ms, float | None)


@sla(bucket="medium", min_tokens_per_s=150)
async def test_async(timed_generate: TimedGenerate, sla_run: SlaRun) -> None:
    """``.aio`` gives what the call gives."""
    assert_type(await timed_generate.aio("The capital of France is"), Timeline)
    assert_type(await sla_run.aio(), SlaResult)


def test_model(sla_model: Target, sla_prompts: Iterator[Prompt], record_tgs: RecordTgs) -> None:
    """The model, prompts and a rate measured elsewhere."""
    assert_type(sla_model.count("text"), int)
    assert_type(next(sla_prompts).tokens, int)
    record_tgs(
        151.5, prompt_lengths="100-500", sampling={"greedy": True}, concurrency=8, memory="5 GiB"
    )


def refused(timed_generate: TimedGenerate, record_tgs: RecordTgs) -> None:
    """Each ignore is an error mypy must report; an unneeded one fails the check."""
    timed_generate()  # type: ignore[call-arg]
    timed_generate(12)  # type: ignore[arg-type]
    record_tgs("151")  # type: ignore[arg-type]

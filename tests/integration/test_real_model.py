"""Marked tests on the embedded real model, as a user writes them, with every warning an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated


@pytest.mark.model
def test_one_look_at_the_real_model(gated: Gated) -> None:
    """Without any policy a mark is judged on the embedded model; a second test shares it."""
    gated.tests(
        """
        @sla(prompt_max=128, ttft_ms=60_000, itl_p95_ms=30_000, evidence="observed",
             max_new_tokens=8, sampling={"greedy": True})
        def test_capital(timed_generate):
            t = timed_generate("What is the capital of France?")
            assert t.ok
            assert "Paris" in t.text
            assert t.output_tokens == 8
            assert t.prompt_tokens > 5  # the chat template is counted

        def test_same_model(sla_model):
            assert sla_model.tokenizer.encode("Hello")
            assert next(sla_model.model.parameters()).device.type in ("cpu", "cuda", "mps")

        @sla(prompt_max=128, ttft_ms=0.001, evidence="observed", max_new_tokens=4)
        def test_too_slow(timed_generate):
            timed_generate("What is the capital of Italy?")
        """,
        ini=False,
    )
    result = gated.run_apart("-v", "-W", "error")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_too_slow FAILED*", "ttft p95*FAIL*"])
    report = gated.report()
    assert report["verdict"] == "fail"
    assert len({f["id"].split("/")[0] for f in report["findings"]}) == 2
    log = (gated.runs()[-1] / "timelines.jsonl").read_text(encoding="utf-8")
    assert "Paris" not in log  # texts are not stored unless asked for

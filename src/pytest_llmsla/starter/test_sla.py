"""Latency limits as Python tests: run them with ``pytest test_sla.py``.

They take target, buckets and sampling from the sla.yaml that pytest's configuration names:
``sla_policy = sla.yaml`` under ``[pytest]`` in pytest.ini. Without that line they would use the
published buckets and the embedded model.
"""

from __future__ import annotations

from typing import Any

from pytest_llmsla import sla


@sla(prompt_max=128, ttft_ms=300, itl_p95_ms=50)
def test_short_prompts(sla_run: Any) -> None:
    """Asks prompts of 1–128 tokens until every limit is decided; the limits fail the test."""
    answers = sla_run()
    assert all(answer.text for answer in answers if answer.ok)


@sla(prompt_max=128, ttft_ms=300, evidence="observed")
def test_one_prompt(timed_generate: Any) -> None:
    """Times one request. Useful while working; it is not release evidence, and says so."""
    answer = timed_generate("The capital of France is")
    assert answer.ok

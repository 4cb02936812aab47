"""The judges of attempts know the same of the target."""

from __future__ import annotations

from gate_samples import SHORT, policy, timeline
from pytest_llmsla.gate.attempts import Attempts
from pytest_llmsla.verdict import Gatekeeper


def test_a_later_attempt_is_judged_by_what_is_known_of_the_target() -> None:
    """A template of 60 tokens comes from the cache each time: no hit, in the first attempt or in
    the second, so both go on to their end."""
    loaded = policy(SHORT, evidence={"preset": "fast"})
    attempts = Attempts(lambda: Gatekeeper(loaded))
    attempts.learn({"template_tokens": 60})
    for attempt in (1, 2):
        if attempt == 2:
            attempts.begin()
        for n in range(25):
            attempts.add(timeline(n, attempt=attempt, cached_tokens=60))
        assert attempts.current.open_limits("short") == ["short/ttft_p95", "short/itl_p95"]

"""``workload.load`` in a policy: what is refused before anything is measured, in which words."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from policy_samples import SHORT, load, refusal

from pytest_llmsla.policy import policy_from_mapping

TRACE = '{"at_s": 0}\n{"at_s": 1}\n'


def with_load(keys: str, more: str = "") -> str:
    """The short policy under this load."""
    return f"{SHORT}workload: {{load: {{{keys}}}}}\n{more}"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("kind: poisson, rate: 0", "rate: got 0; valid: a number of requests per second over 0"),
        ("kind: poisson, rate: .inf", "rate: got .inf, not a finite number"),
        ("kind: poisson, rate: .nan", "rate: got .nan, not a finite number"),
        ("kind: poisson, rate: true", "rate: got true; valid"),
        ("kind: poisson, rate: '3'", "rate: got '3'; valid"),
        ("kind: poisson, rate: -1", "rate: got -1; valid"),
        ("kind: poisson, rate: 1.0e+6", "at most 100000"),
        ("kind: gamma, rate: 3, burstiness: 0", "burstiness: got 0; valid: a number from 0.01"),
        ("kind: gamma, rate: 3, burstiness: 1.0e-9", "burstiness: got 1e-09; valid"),
        ("kind: gamma, rate: 3, burstiness: 1.0e+9", "burstiness: got 1000000000.0; valid"),
        ("kind: constant, rate: 3, max_in_flight: 0", "max_in_flight: got 0; valid"),
        ("kind: constant, rate: 3, max_in_flight: 1000000000", "a whole number from 1 to 65536"),
        ("ramp_s: -1", "ramp_s: got -1; valid: a number of seconds from 0"),
        ("ramp_s: 3600", "ramp_s: 3600 s leave nothing to measure"),
        ("kind: poisson, rate: 3, ramp_s: 4000", "ramp_s: 4000 s leave nothing to measure"),
        ("mix: {short: 0, medium: 1, long: 1}", "mix.short: got 0; valid"),
        ("mix: {short: -1, medium: 1, long: 1}", "mix.short: got -1; valid"),
        ("mix: {short: .inf, medium: 1, long: 1}", "mix.short: got .inf, not a finite number"),
        ("mix: {short: 1.0e-300, medium: 1, long: 1}", "mix.short: got 1e-300; valid"),
        ("mix: {}", "the bucket 'short' has no weight"),
        ("kind: constant, rate: 3, trace_sha256: abc", "trace_sha256"),
        ("kind: trace, trace: t.jsonl, trace_sha256: abc", "another trace than the one"),
        ("kind: trace, trace: '', trace_sha256: abc", "64 hexadecimal digits"),
        ("kind: trace, trace: t.jsonl, rate: 0", "rate: got 0; valid"),
    ],
)
def test_what_is_no_load_is_refused(tmp_path: Path, keys: str, words: str) -> None:
    """Each with its key, what was given and what is valid."""
    (tmp_path / "t.jsonl").write_text(TRACE, "utf-8")
    found = refusal(tmp_path, with_load(keys))
    assert "sla.yaml:10: workload.load." in found
    assert words in found


@pytest.mark.parametrize(
    ("keys", "more", "words"),
    [
        # 69 clean requests a bucket, three buckets, an hour
        (
            "kind: poisson, rate: 0.05",
            "",
            "0.05 requests/s are 60 of the rarest bucket in the 3600",
        ),
        (
            "kind: constant, rate: 1, mix: {short: 98, medium: 1, long: 1}",
            "",
            "are 36 of the rarest bucket in the 3600 s that are measured (evidence.max_seconds "
            "without ramp_s), and a PASS needs 69: give at least 1.92 requests/s",
        ),
        (
            "kind: poisson, rate: 3, ramp_s: 30",
            "evidence: {max_seconds: 60}",
            "are 30 of the rarest bucket in the 30 s",
        ),
    ],
)
def test_a_schedule_that_cannot_bring_enough_is_refused(
    tmp_path: Path, keys: str, more: str, words: str
) -> None:
    """An hour that can end in nothing but INCONCLUSIVE is not begun."""
    assert words in refusal(tmp_path, with_load(keys, f"{more}\n"))


@pytest.mark.parametrize("preset", ["observed", "fast"])
def test_what_can_pass_or_decides_nothing_is_no_problem(tmp_path: Path, preset: str) -> None:
    """Under observed nothing passes anyway; under fast 32 requests are enough."""
    text = with_load("kind: poisson, rate: 0.05", f"evidence: {{preset: {preset}}}\n")
    assert load(tmp_path, text).policy.load.rate == 0.05


def test_a_policy_knows_its_trace_by_content(tmp_path: Path) -> None:
    """The hash is filled in, is part of the policy's own hash, and stands in every figure."""
    path, text = tmp_path / "day.jsonl", with_load("kind: trace, trace: day.jsonl")
    path.write_text(TRACE, "utf-8")
    one, again = load(tmp_path, text), load(tmp_path, text, to_run=False)
    sha = hashlib.sha256(TRACE.encode()).hexdigest()
    assert one.policy.load.trace_sha256 == sha
    assert one.sha256 == again.sha256
    assert one.policy.load.words == f"open loop, trace day.jsonl (sha256 {sha[:12]})"
    stored = policy_from_mapping(one.policy.model_dump(mode="json"), "a run", base=tmp_path)
    assert (stored.policy, stored.sha256) == (one.policy, one.sha256)
    path.write_text(TRACE.replace("1", "2"), "utf-8")
    other = load(tmp_path, text)
    assert other.sha256 != one.sha256
    words = refusal(tmp_path, with_load(f"kind: trace, trace: day.jsonl, trace_sha256: {sha}"))
    assert f"{other.policy.load.trace_sha256}: another trace than the one that is named" in words


def test_a_trace_that_is_elsewhere_is_not_needed_to_judge(tmp_path: Path) -> None:
    """Only a run reads it."""
    text = with_load("kind: trace, trace: day.jsonl")
    assert load(tmp_path, text, to_run=False).policy.load.trace_sha256 is None


def test_a_trace_at_a_rate_says_both(tmp_path: Path) -> None:
    """Its times are stretched: the words name the trace and the rate."""
    (tmp_path / "day.jsonl").write_text(TRACE, "utf-8")
    found = load(tmp_path, with_load("kind: trace, trace: day.jsonl, rate: 2.5")).policy.load
    assert found.words.startswith("open loop, trace day.jsonl (sha256 ")
    assert found.words.endswith("), 2.5 requests/s")


def test_a_policy_without_a_trace_is_written_as_before(tmp_path: Path) -> None:
    """Logs know a policy by its hash: a key that is not used may not change it."""
    assert "trace_sha256" not in load(tmp_path, SHORT).policy.load.model_dump(mode="json")

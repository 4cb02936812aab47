"""The failure block and its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import CONDITIONS, HOSTILE, NORMAL, itl, passed, tgs, ttft, undecided

from pytest_llmsla.finding import Evidence
from pytest_llmsla.reports import numbers, phrases, summary
from pytest_llmsla.reports.text import failure_block
from pytest_llmsla.rules.conditions import undocumented
from pytest_llmsla.stats import operating_characteristic


def test_the_published_example() -> None:
    """A failure reads as the contract shows it."""
    assert failure_block(ttft()).splitlines() == [
        "ttft p95, bucket short (1–128 tokens; measured 31/97/128): FAIL after 5 requests (5 over)",
        "  P95 ≥ 381.0 ms (99 %), limit 300 ms      "
        "observed 412.6 ms, prefill 88 % · sample 6 % · tokenise 4 %",
        "  start: request accepted in-process      sla.yaml:5 buckets.short.ttft_ms",
        "  likely: prefill dominates and grows with prompt length → shorten prompts",
    ]


def test_inconclusive_says_how_far_it_got_and_what_to_do() -> None:
    """An undecided block carries the operating characteristic and the next step."""
    text = " ".join(failure_block(undecided()).split())
    assert "no bound yet: 30 of at least 69 requests" in text
    for part in (
        "1 % ends as PASS in about 96 %",
        "2 % in 64 %",
        "3 % in 29 %",
        "10 % ends as FAIL",
    ):
        assert part in text
    assert "61 %, 15 % in 99.7 %" in text
    assert "evidence.max_requests" in text
    assert "do not rerun until green" in text


@pytest.mark.parametrize(
    ("share", "outcome", "percent"),
    [
        (0.01, "passes", "96"),
        (0.02, "passes", "64"),
        (0.03, "passes", "29"),
        (0.10, "fails", "61"),
        (0.15, "fails", "99.7"),
    ],
)
def test_the_power_that_is_printed_is_that_of_the_test(
    share: float, outcome: str, percent: str
) -> None:
    """Each printed figure rounds the exact probability."""
    assert f"{share:.0%}".replace("%", " %") in phrases.OPERATING_CHARACTERISTIC
    assert f"{percent} %" in phrases.OPERATING_CHARACTERISTIC
    point = operating_characteristic(share)
    assert 100 * getattr(point, outcome) == pytest.approx(float(percent), abs=0.6)


def test_too_few_calls_in_a_test_name_sla_run_and_observed() -> None:
    """A handful of timed calls under a preset is told what to use instead."""
    text = failure_block(undecided(id="test_a.py::test_b/short/ttft_p95", units=1, requests=1))
    assert "sla_run()" in text
    assert "evidence='observed'" in text


def test_observed_findings_are_never_release_evidence() -> None:
    """A single look says so in its first line, whatever its verdict."""
    look = Evidence("observed", None, None, None, None, None, None, None)
    for verdict in ("pass", "fail", "inconclusive"):
        found = undecided(evidence=look, requests=1, units=1, samples=1, verdict=verdict)
        assert "[observed, n=1: not release evidence]" in failure_block(found).splitlines()[0]


@pytest.mark.parametrize("told", ["", "2 of 5 requests failed; "])
def test_a_look_is_marked_once(told: str) -> None:
    """The mark stands beside the verdict and not again as its reason; other words stay."""
    look = Evidence("observed", None, None, None, None, None, None, None)
    mark = "observed, n=5: not release evidence"
    found = undecided(evidence=look, requests=5, reason=f"{told}{mark}")
    for text in (summary.brief(found.to_json()), failure_block(found)):
        assert text.count(mark) == 1
        assert told.rstrip("; ") in text


def test_rule_two_asks_for_a_plan_and_says_how_to_give_it() -> None:
    """An ITL over its limit names the four parts of a plan and both ways to hand it in."""
    text = " ".join(failure_block(itl()).split())
    for part in ("cause, measures, owner and expires", "itl.kv_plan", "kv_plan='plan.md'"):
        assert part in text
    assert "KV-cache plan" not in failure_block(ttft())
    assert "expires" in failure_block(itl(verdict="conditional", reason="plan kv.md"))


@pytest.mark.parametrize("missing", ["memory", "sampling", "concurrency", "prompt_lengths"])
def test_rule_three_says_how_to_document_what_is_missing(missing: str) -> None:
    """An undocumented TGS names exactly the missing condition and how to record it."""
    reason = undocumented({**CONDITIONS, missing: None})
    text = " ".join(failure_block(tgs(reason=reason)).split())
    assert f"undocumented: {missing} ({missing}: " in text
    assert "record_tgs(" in text


def test_a_rate_is_bounded_from_below() -> None:
    """A kept floor on tokens per second shows the lower bound, a broken one the upper."""
    kept = tgs(
        verdict="pass", reason="", limit=60.0, percentile=50, lower=61.5, upper=70.0,
        evidence=NORMAL, requests=9, units=6, samples=6, decided_at=6,
    )  # fmt: skip
    assert "P50 ≥ 61.5 tokens/s (95 %, anytime), limit 60 tokens/s" in failure_block(kept)
    assert "after 6 windows (0 of 6 windows under)" in failure_block(kept)
    broken = replace(kept, verdict="fail", exceeded=6, lower=40.0, upper=50.0)
    assert "P50 ≤ 50.0 tokens/s (99 %)" in failure_block(broken)


def test_a_pass_by_plan_shows_that_the_limit_is_broken() -> None:
    """conditional_passes never makes the figures look kept."""
    found = itl(verdict="pass", reason="KV-cache plan on record: x; policy: conditional_passes")
    assert "P95 ≥ 58.4 ms (99 %), limit 50 ms" in failure_block(found)


def test_pooled_reruns_show_every_attempt() -> None:
    """A rerun never hides its first attempt."""
    found = itl(
        attempts=(
            {"attempt": 1, "requests": 20, "observed": 80.0},
            {"attempt": 2, "requests": 20, "observed": 45.0},
        )
    )
    assert (
        "attempts pooled: 1: 20 requests, observed 80.0 ms · 2: 20 requests, observed 45.0 ms"
        in failure_block(found)
    )


def test_blocks_of_concurrent_requests_are_called_blocks() -> None:
    """Under concurrency the unit is a block, and the block says so."""
    found = passed(requests=276, units=69, samples=276, decided_at=69)
    assert "after 69 blocks" in failure_block(found)


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_stays_inert(text: str) -> None:
    """No control character of a name, reason or source reaches the terminal."""
    found = ttft(id=text, bucket=text, reason=text, source=text, notes=(text,), diagnosis=(text,))
    block = failure_block(found)
    block.encode("utf-8")
    assert not any(ch < " " or "\x7f" <= ch <= "\x9f" for ch in block.replace("\n", ""))
    assert "\u202e" not in block
    assert len(block.splitlines()) == len(failure_block(replace(found, reason="x")).splitlines())


def test_ascii_where_the_terminal_cannot_show_more() -> None:
    """unicode=False leaves ASCII only and keeps the verdict line."""
    text = failure_block(ttft(bucket="短"), unicode=False)
    assert text.isascii()
    assert ">= 381.0 ms" in text
    assert "\\u77ed" in text


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (412.6, 300, "412.6 ms"),
        (300.04, 300, "300.04 ms"),
        (299.97, 300, "299.97 ms"),
        (300.0, 300, "300.0 ms"),
        (299.999999, 300, "299.999999 ms"),
        (0.0004, 300, "0.0004 ms"),
        (None, 300, "–"),
    ],
)
def test_a_figure_never_reads_on_the_wrong_side_of_its_limit(
    value: float | None, limit: float, text: str
) -> None:
    """Rounding adds digits until the text compares with the limit as the value does."""
    assert numbers.measured(value, "ms", against=limit) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.88, "88 %"),
        (0.9996, "99.96 %"),
        (0.004, "0.4 %"),
        (0.5, "50 %"),
    ],
)
def test_shares_reach_0_and_100_only_when_they_are_that(share: float, text: str) -> None:
    """0.4 % of failures is never shown as none."""
    assert numbers.percent(share) == text


def test_a_small_share_of_failures_keeps_a_digit() -> None:
    """One failure of 135 is 0.7 %, not 1 %."""
    assert numbers.measured(1 / 135, "share", against=0.0) == "0.7 %"
    assert numbers.measured(0.0, "share", against=0.0) == "0 %"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    """A report writes no NaN and no infinity as if it were a figure."""
    for write in (numbers.plain, numbers.percent, lambda v: numbers.measured(v, "ms")):
        with pytest.raises(ValueError, match="finite"):
            write(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (360, "6 min"),
        (4800, "1 h 20 min"),
        (7200, "2 h"),
        (0.25, "0.25 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are written as people say them."""
    assert numbers.duration(seconds) == text

"""Findings and reports for the tests of this folder, in the shapes of the published contract."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pytest_llmsla.finding import Evidence, Finding
from pytest_llmsla.rules.conditions import undocumented

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script>",
    "a|b\nc",
    "tick ` tick",
    "[x](javascript:alert(1))",
    "![x](http://evil.example/p.png) www.evil.example <http://evil.example>",
    "# head",
    "nul\x00 esc\x1b[31mred\x1b[0m bell\x07 c1\x81 \u202eoverride",
    "lone \udc80 surrogate",
    "**bold** __bold__ ~~gone~~ $x$ \\",
    "| --- | --- |",
    "1. item",
    "- item",
    "&lt;b&gt; &amp; ]]>",
    "[red]rich markup[/red]",
)

NORMAL = Evidence(
    preset="normal",
    alpha_pass=0.05,
    alpha_fail=0.01,
    M=1,
    log_e_pass=-3.25,
    log_e_fail=5.5,
    h=1.0,
    min_units=69,
)


def ttft(**changes: Any) -> Finding:
    """The finding of the published example, changed as asked."""
    base = Finding(
        id="short/ttft_p95",
        rule="ttft",
        metric="ttft",
        bucket="short",
        percentile=95.0,
        limit=300.0,
        unit="ms",
        verdict="fail",
        reason="decided after 5 requests; 5 of 5 samples over the limit",
        observed=412.6,
        lower=381.0,
        confidence=0.99,
        requests=5,
        units=5,
        samples=5,
        exceeded=5,
        decided_at=5,
        prompt_tokens={"min": 31, "median": 97, "max": 128},
        percentiles={"p50": 400.1, "p95": 412.6, "p99": 412.6},
        evidence=NORMAL,
        source="sla.yaml:5 buckets.short.ttft_ms",
        start_point="request accepted in-process",
        stages={"prefill": 0.88, "sample": 0.06, "tokenise": 0.04},
        diagnosis=("prefill dominates and grows with prompt length → shorten prompts",),
        bucket_range="1–128 tokens",
    )
    return replace(base, **changes)


def undecided(**changes: Any) -> Finding:
    """The same limit after 30 clean requests."""
    return ttft(
        **{
            "verdict": "inconclusive",
            "reason": "budget spent: 30 requests",
            "observed": 299.97,
            "lower": None,
            "requests": 30,
            "units": 30,
            "samples": 30,
            "exceeded": 0,
            "decided_at": None,
            "stages": {},
            "diagnosis": (),
            **changes,
        }
    )


def passed(**changes: Any) -> Finding:
    """The same limit, kept."""
    return ttft(
        **{
            "verdict": "pass",
            "reason": "decided after 69 requests",
            "observed": 101.0,
            "lower": None,
            "upper": 120.5,
            "confidence": 0.95,
            "requests": 69,
            "units": 69,
            "samples": 69,
            "exceeded": 0,
            "decided_at": 69,
            "stages": {},
            "diagnosis": (),
            **changes,
        }
    )


def itl(**changes: Any) -> Finding:
    """An ITL over its limit."""
    return ttft(
        **{
            "id": "short/itl_p95",
            "rule": "itl",
            "metric": "itl",
            "limit": 50.0,
            "observed": 61.2,
            "lower": 58.4,
            "samples": 315,
            "exceeded": 120,
            "stages": {},
            "diagnosis": (),
            "source": "sla.yaml:8 itl.p95_ms",
            **changes,
        }
    )


def tgs(**changes: Any) -> Finding:
    """A TGS figure without its memory condition."""
    return ttft(
        **{
            "id": "tgs/concurrency-1",
            "rule": "tgs",
            "metric": "tgs",
            "bucket": None,
            "percentile": None,
            "limit": None,
            "unit": "tokens/s",
            "reason": undocumented({**CONDITIONS, "memory": None}),
            "observed": 63.2,
            "lower": None,
            "samples": 0,
            "exceeded": 0,
            "decided_at": None,
            "prompt_tokens": {},
            "percentiles": {},
            "evidence": None,
            "stages": {},
            "diagnosis": (),
            "bucket_range": "",
            "source": "sla.yaml:9 tgs",
            **changes,
        }
    )


CONDITIONS = {
    "prompt_lengths": {"min": 31, "median": 97, "max": 128},
    "sampling": {"greedy": False, "temperature": 0.8, "top_p": 0.9},
    "concurrency": 1,
    "memory": {"rss_peak_gib": 0.84},
}


def tgs_entry(**changes: Any) -> dict[str, Any]:
    """A documented steady TGS figure."""
    return {
        "kind": "steady",
        "tokens_per_s": 63.2,
        "per_request_tokens_per_s": 63.2,
        "concurrency": 1,
        "window_s": 2.0,
        "windows": [63.0, 63.2, 63.4],
        "conditions": CONDITIONS,
        "finding": "tgs/concurrency-1",
        "documented": True,
        **changes,
    }


def compared(verdict: str = "fail", row: str = "regression", **changes: Any) -> dict[str, Any]:
    """A comparison with stored runs, of one metric, as baselines write it."""
    reason = "more than 10 % slower, with 95 % confidence"
    return {
        "verdict": verdict,
        "reason": "" if verdict == "pass" else f"short/ttft_p95: {reason}",
        "compared": 1,
        "of": 1,
        "tolerance": 0.1,
        "min_runs": 3,
        "rows": [
            {
                "id": "short/ttft_p95",
                "metric": "ttft",
                "bucket": "short",
                "unit": "ms",
                "verdict": row,
                "reason": reason,
                "base": 5.332956,
                "new": 12.911112,
                "ratio": 2.4210047860886155,
                "lower": 1.1003,
                "upper": 4.2058,
            }
        ],
        "runs": ["a", "b", "c"],
        "left_out": [],
        **changes,
    }


def report(*findings: Finding, **changes: Any) -> dict[str, Any]:
    """A report dict with the keys of the contract."""
    return {
        "schema": "llmsla-report/1",
        "verdict": "fail",
        "complete": True,
        "not_measured": [],
        "service": "llama2-7b-chat-4bit",
        "started": "2026-11-29T10:00:00.000Z",
        "finished": "2026-11-29T10:05:00.000Z",
        "policy": {"path": "sla.yaml", "sha256": "ab" * 32},
        "target": {"kind": "transformers", "model": "smollm2-135m-instruct"},
        "environment": {"hostname": "box", "packages": {"torch": "2.13.0"}},
        "warmup": {"short": {"requests": 11, "steady": True, "worst_ms": 5000.0}},
        "findings": [f.to_json() for f in findings],
        "tgs": [],
        "errors": [],
        **changes,
    }


def rows_of_markdown(text: str) -> dict[str, list[str]]:
    """Cells by limit id, without their escapes."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    plain = [[re.sub(r"\\(.)", r"\1", c) for c in row] for row in cells]
    return {row[0]: row[1:] for row in plain if len(row) == 7 and row[0] != "Limit"}

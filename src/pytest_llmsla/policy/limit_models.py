"""The limits: rules 1 to 3, memory, goodput and failed requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictStr

from ..finding import CONDITIONS, Condition
from . import checks
from .keys import (
    CONCURRENCY,
    COUNT,
    FLAG,
    GIB_OR_NULL,
    MS,
    MS_OR_NULL,
    Count,
    Keys,
    NotNegative,
    Percentile,
    PerConcurrency,
    Positive,
    Text,
    key,
)


class Bucket(Keys):
    """Rule 1: one range of prompt lengths (tokens of the rendered prompt) and its TTFT limit."""

    name: Annotated[StrictStr, Field(pattern=checks.BUCKET_NAME, max_length=64)] = key(
        ...,
        "a word that starts with a letter, of letters, digits, _ and - (not tgs, memory, goodput, "
        "policy)",
        "Name in ids and reports.",
    )
    prompt_min: Count = key(1, COUNT, "Shortest prompt, tokens: the previous prompt_max + 1.")
    prompt_max: Count | None = key(
        None, f"{COUNT} (the last bucket may leave it out)", "Longest prompt, tokens."
    )
    measured_to: Count | None = key(
        None, f"{COUNT}, for an open bucket only", "Longest prompt measured in an open bucket."
    )
    ttft_ms: Positive | None = key(None, MS, "TTFT limit.")

    @property
    def longest(self) -> int:
        """Longest prompt that is measured, tokens."""
        edge = self.prompt_max if self.prompt_max is not None else self.measured_to
        assert edge is not None  # policy.checks: an open bucket has measured_to
        return edge

    @property
    def range_text(self) -> str:
        """``1–128 tokens`` or ``513+ tokens (measured to 1024)``."""
        if self.prompt_max is not None:
            return f"{self.prompt_min}–{self.prompt_max} tokens"
        return f"{self.prompt_min}+ tokens (measured to {self.measured_to})"


class Ttft(Keys):
    """Which percentile the buckets' ``ttft_ms`` hold for."""

    percentile: Percentile = key(
        95.0, "a number from 1, under 100, such as 95", "Percentile of TTFT under its limit."
    )


class Itl(Keys):
    """Rule 2: inter-token latency, pooled over all tokens of a bucket."""

    p50_ms: Positive | None = key(None, MS_OR_NULL, "Limit of the median.")
    p95_ms: Positive | None = key(50.0, MS, "Limit of P95.")
    p99_ms: Positive | None = key(None, MS_OR_NULL, "Limit of P99.")
    stall_p95_ms: Positive | None = key(
        None, MS_OR_NULL, "Limit of P95, over requests, of the largest gap."
    )
    bursts: Literal["error", "allow"] = key(
        "error", "error or allow", "Tokens delivered in bursts: an error, or spread over the gap."
    )
    estimated: Literal["error", "allow"] = key(
        "error",
        "error or allow",
        "Token counts that could only be estimated: no ITL verdict, or judged all the same.",
    )
    kv_plan: Text | None = key(
        None, "the path of a Markdown or YAML file, or null", "KV-cache plan; relative path."
    )
    conditional_passes: StrictBool = key(False, FLAG, "A finding with a valid plan passes.")


class Tgs(Keys):
    """Rule 3: tokens per second, never without its four conditions."""

    concurrency: tuple[Count, ...] = key(
        (1,), CONCURRENCY, "Requests in flight, one level each: every limit holds at every level."
    )
    min_tokens_per_s: Positive | PerConcurrency | None = key(
        None,
        "a number of tokens per second greater than 0, a mapping {concurrency: number}, or null",
        "Least total rate of the median window.",
    )
    require: tuple[Condition, ...] = key(
        CONDITIONS, f"[{', '.join(CONDITIONS)}]", "May not be shortened."
    )


class MemoryLimits(Keys):
    """Optional limits; the name says which number is meant."""

    allocated_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak allocated by the framework.")
    reserved_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak reserved by the framework.")
    device_used_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak in use on the card.")
    rss_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak resident size on the host.")
    growth_mib_per_request: NotNegative | None = key(
        None,
        "a number of MiB from 0, or null for no limit",
        "Most that memory grows by a request, of the host and of the card each.",
    )


class Errors(Keys):
    """Failed requests."""

    max_error_rate: Annotated[float, Field(strict=True, ge=0, lt=1)] = key(
        0.0, "a share from 0, under 1", "Share of failed requests per bucket."
    )


class Goodput(Keys):
    """Requests that met every limit of their bucket."""

    min_share: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = key(
        None, "a share over 0, under 1, or null", "Least share of requests that met every limit."
    )

"""The whole of sla.yaml: frozen pydantic models, one attribute per key.

Types are strict: a boolean or a quoted number is not a number. Rules that span several keys are
in :mod:`policy.checks`; they run on every way in, so that no ``Policy`` breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from . import checks
from .keys import MAPPING, TEXT, Keys, Text, key
from .limit_models import Bucket, Errors, Goodput, Itl, MemoryLimits, Tgs, Ttft
from .load_models import Load
from .run_models import Baseline, EvidenceSettings, ReportSettings
from .target_models import Target, TransformersTarget
from .workload_models import Workload


class Policy(Keys):
    """A whole sla.yaml, resolved: every default filled in, every bucket with its lower edge."""

    version: Literal[1] = key(..., "1", "Version of this format.")
    service: Text = key("unnamed service", TEXT, "Name on the report.")
    target: Target = key(TransformersTarget(), MAPPING, "The thing under test.")
    workload: Workload = key(Workload(), MAPPING, "What is asked.")
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)] = key(
        ..., "a list of at least one bucket", "Rule 1."
    )
    ttft: Ttft = key(Ttft(), MAPPING, "Rule 1's percentile.")
    itl: Itl = key(Itl(), MAPPING, "Rule 2.")
    tgs: Tgs = key(Tgs(), MAPPING, "Rule 3.")
    memory: MemoryLimits = key(MemoryLimits(), MAPPING, "Memory limits.")
    goodput: Goodput = key(Goodput(), MAPPING, "Requests that met every limit.")
    errors: Errors = key(Errors(), MAPPING, "Failed requests.")
    evidence: EvidenceSettings = key(EvidenceSettings(), MAPPING, "Evidence.")
    baseline: Baseline = key(Baseline(), MAPPING, "Comparison with stored runs.")
    report: ReportSettings = key(ReportSettings(), MAPPING, "Reports.")

    @field_validator("version", mode="before")
    @classmethod
    def _version_is_a_number(cls, value: object) -> object:
        if isinstance(value, (bool, float)):  # True == 1 == 1.0 would match Literal[1]
            raise ValueError("version must be the number 1")
        return value

    @field_validator("buckets", mode="before")
    @classmethod
    def _lower_edges(cls, value: object) -> object:
        return checks.with_lower_edges(value) if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _rules(self) -> Policy:
        found = checks.rule_problems(self.model_dump(mode="json"))
        if found:
            raise ValueError("; ".join(f"{'.'.join(map(str, p.path))}: {p.text}" for p in found))
        return self

    @property
    def alpha_pass(self) -> float | None:
        """Largest risk of a wrong PASS per limit; None for ``observed``, which never decides."""
        return checks.ALPHA_PASS[self.evidence.preset]

    @property
    def alpha_fail(self) -> float:
        """Largest risk of a wrong FAIL per limit."""
        return checks.ALPHA_FAIL

    @property
    def load(self) -> Load:
        """How requests come in."""
        return self.workload.load

    @property
    def levels(self) -> tuple[int | None, ...]:
        """What is measured apart: ``(1, 4)`` requests in flight; ``(None,)`` is open loop."""
        return (None,) if self.load.open else self.tgs.concurrency or (1,)

    def min_rate(self, concurrency: int | None) -> float | None:
        """``tgs.min_tokens_per_s`` of a level, tokens/s; None: no limit there."""
        given = self.tgs.min_tokens_per_s
        if isinstance(given, Mapping):
            return None if concurrency is None else given.get(concurrency)
        return given

    def max_requests(self, q: float, block: int = 1) -> int:
        """Budget of measured requests per bucket and level for a limit on quantile ``q`` (0–1).

        ``auto`` is ⌈15/(1−q)⌉ units of ``block`` requests: 300 for P95, 1,500 for P99, one at a
        time.
        """
        given = self.evidence.max_requests
        return automatic_budget(q) * block if given == "auto" else given

    def bucket(self, name: str) -> Bucket:
        """The bucket called ``name``; KeyError when there is none."""
        for b in self.buckets:
            if b.name == name:
                return b
        raise KeyError(name)


def automatic_budget(q: float) -> int:
    """⌈15/(1−q)⌉ without floating-point dust (15/(1−.9) is 150, not 151)."""
    return math.ceil(15 / (1 - Fraction(q).limit_denominator(1_000_000)))

"""The shape of sla.yaml: frozen pydantic models, one attribute per key.

Types are strict: a boolean or a quoted number is not a number. Rules that span several keys are
in :mod:`policy.checks`; they run on every way in, so that no ``Policy`` breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    field_validator,
    model_validator,
)

from . import checks

VALID = "x-valid"
"""Schema key that holds the words for "what is valid"; every message about a key quotes it."""


def key(default: Any, valid: str, about: str, **constraints: Any) -> Any:
    """A key of sla.yaml: its default, what is valid (for messages), what it means (for editors)."""
    return Field(default, description=about, json_schema_extra={VALID: valid}, **constraints)


def _integer_keys(value: object) -> object:
    """YAML and JSON hold the keys of ``{4: 150}`` as text; make them numbers again."""
    if not isinstance(value, Mapping):
        return value
    return {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in value.items()}


Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Index = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Text = Annotated[StrictStr, Field(min_length=1)]
Percentile = Annotated[float, Field(strict=True, ge=1, lt=100, allow_inf_nan=False)]
PerConcurrency = Annotated[dict[Count, Positive], BeforeValidator(_integer_keys)]
Condition = Literal["prompt_lengths", "sampling", "concurrency", "memory"]

MS = "a number of milliseconds greater than 0"
MS_OR_NULL = f"{MS}, or null for no limit"
SECONDS = "a number of seconds greater than 0"
GIB_OR_NULL = "a number of GiB greater than 0, or null for no limit"
COUNT = "a whole number from 1"
FLAG = "true or false"
TEXT = "text that is not empty"
TEXT_OR_NULL = "text that is not empty, or null"
MAPPING = "a mapping of keys"


class _Keys(BaseModel):
    """Base of all groups of keys: frozen, nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Timeouts(_Keys):
    """When a request is given up; it then counts as failed."""

    first_token_s: Positive = key(60.0, SECONDS, "Longest wait for the first token.")
    idle_s: Positive = key(30.0, SECONDS, "Longest silence between two tokens.")
    total_s: Positive = key(300.0, SECONDS, "Longest request.")


class TransformersTarget(_Keys):
    """A Hugging Face model in this process."""

    kind: Literal["transformers"] = key("transformers", "transformers", "What is under test.")
    model: Text = key(
        checks.EMBEDDED_MODEL,
        TEXT,
        "smollm2-135m-instruct (embedded), a hub id, a folder or a .gguf file. ${NAME} allowed.",
    )
    revision: Text | None = key(None, TEXT_OR_NULL, "Hub revision (commit); printed.")
    tokenizer: Text | None = key(None, TEXT_OR_NULL, "Folder or id; null: the model's own.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = key(
        "auto", "auto, float32, float16 or bfloat16", "Type of the parameters."
    )
    quantization: Literal["none", "nf4", "fp4", "int8"] = key(
        "none", "none, nf4, fp4 or int8", "bitsandbytes quantisation."
    )
    double_quant: StrictBool = key(False, FLAG, "Quantise the constants too (nf4, fp4).")
    compute_dtype: Literal["float32", "float16", "bfloat16"] | None = key(
        None, "float32, float16, bfloat16 or null", "Type 4-bit layers compute in."
    )
    device: Annotated[StrictStr, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = key(
        "auto", "auto, cpu, cuda, cuda:N or mps", "auto may spread layers over cards."
    )
    attn: Text = key(
        "auto", "auto, eager, sdpa, flash_attention_2 or another name", "Attention kernel."
    )
    cache: Literal["dynamic", "static"] = key("dynamic", "dynamic or static", "KV cache.")
    use_cache: Literal["auto"] | StrictBool = key(
        True, "true, false or auto", "auto: off for prompts under 32 tokens."
    )
    compile: Literal["reduce-overhead", "max-autotune"] | Literal[False] = key(
        False, "false, reduce-overhead or max-autotune", "torch.compile mode."
    )
    compile_quantized: StrictBool = key(False, FLAG, "Compile a quantised model all the same.")
    offline: Literal["auto"] | StrictBool = key(
        "auto", "auto, true or false", "auto: no download when the environment says offline."
    )
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


class PythonTarget(_Keys):
    """Any callable or (async) iterator of tokens: a team's own engine."""

    kind: Literal["python"] = key("python", "python", "What is under test.")
    entry: Text = key(..., "package.module:factory", "The engine. ${NAME} allowed.")
    tokenizer: Text | None = key(None, TEXT_OR_NULL, "Folder or id of its tokenizer.")
    max_context: Count | None = key(
        None, f"{COUNT}, or null", "Longest prompt plus output, tokens; null: unknown."
    )
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


class Script(_Keys):
    """Exact virtual times of a scripted target. Lists are cycled, one entry a request."""

    ttft_ms: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = key(
        100.0, "a number of milliseconds from 0, or a list of them", "TTFT of each request."
    )
    itl_ms: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = key(
        20.0,
        "a number of milliseconds from 0, or a list of them",
        "Gap of each request.",
    )
    tokens: Index | None = key(
        None, "a whole number from 0, or null", "Tokens given; null: as many as asked."
    )
    tokens_per_chunk: Count = key(1, COUNT, "Tokens that arrive at once.")
    fail: tuple[Index, ...] = key(
        (), "a list of whole numbers from 0", "Requests that fail, counted from 0 with warm-up."
    )
    error: Text = key("scripted failure", TEXT, "What a failing request says.")


class ScriptedTarget(_Keys):
    """A target with exact timestamps and no waiting: for tests."""

    kind: Literal["scripted"] = key("scripted", "scripted", "What is under test.")
    entry: Text | None = key(None, "package.module:factory", "Factory of the script.")
    script: Script | None = key(None, MAPPING, "The script, written here.")
    timeouts: Timeouts = key(Timeouts(), MAPPING, "When a request is given up.")


Target = Annotated[
    TransformersTarget | PythonTarget | ScriptedTarget,
    Field(discriminator="kind"),
]
TARGETS: Mapping[str, type[TransformersTarget] | type[PythonTarget] | type[ScriptedTarget]] = {
    "transformers": TransformersTarget,
    "python": PythonTarget,
    "scripted": ScriptedTarget,
}


class Sampling(_Keys):
    """How tokens are chosen: one of rule 3's four conditions."""

    greedy: StrictBool = key(False, FLAG, "Take the likeliest token; the rest is ignored.")
    temperature: Positive = key(
        0.8, "a number greater than 0 (for 0 write greedy: true)", "Temperature."
    )
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] = key(
        0.9, "a number over 0, at most 1", "Nucleus sampling."
    )
    top_k: Count | None = key(None, f"{COUNT}, or null", "Candidates kept.")
    min_p: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = key(
        None, "a number from 0, under 1, or null", "Least share of the best probability."
    )
    repetition_penalty: Positive | None = key(
        None, "a number greater than 0, or null", "Penalty on repeated tokens."
    )
    frequency_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = key(
        None, "a number from -2 to 2, or null", "Penalty by frequency."
    )
    presence_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = key(
        None, "a number from -2 to 2, or null", "Penalty by presence."
    )
    seed: Seed = key(0, "a whole number from 0", "Seed of the sampling.")


class Warmup(_Keys):
    """Requests that are discarded before measuring, per bucket."""

    max_requests: Index = key(
        31, "a whole number from 0", "At most so many; 0 switches warm-up off; 11 is the earliest."
    )


class Workload(_Keys):
    """What is asked."""

    prompts: Text | dict[Text, Text] = key(
        "builtin",
        "builtin, the path of a file, or a mapping {bucket: file}",
        "Where prompts come from; paths are relative to this file.",
    )
    system_prompt: Text | None = key(None, TEXT_OR_NULL, "System prompt of every request.")
    max_new_tokens: Count = key(64, COUNT, "Tokens asked for.")
    force_length: StrictBool = key(True, FLAG, "Ask for exactly max_new_tokens.")
    sampling: Sampling = key(Sampling(), MAPPING, "Sampling parameters.")
    seed: Seed = key(0, "a whole number from 0", "Order and recombination of prompts.")
    warm_cache: StrictBool = key(False, FLAG, "Prefix-cache hits are intended.")
    warmup: Warmup = key(Warmup(), MAPPING, "Warm-up.")


class Bucket(_Keys):
    """Rule 1: one range of prompt lengths (tokens of the rendered prompt) and its TTFT limit."""

    name: Annotated[StrictStr, Field(pattern=checks.BUCKET_NAME, max_length=64)] = key(
        ...,
        "a word that starts with a letter, of letters, digits, _ and - (not tgs, memory or policy)",
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


class Ttft(_Keys):
    """Which percentile the buckets' ``ttft_ms`` hold for."""

    percentile: Percentile = key(
        95.0, "a number from 1, under 100, such as 95", "Percentile of TTFT under its limit."
    )


class Itl(_Keys):
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
    kv_plan: Text | None = key(
        None, "the path of a Markdown or YAML file, or null", "KV-cache plan; relative path."
    )
    conditional_passes: StrictBool = key(False, FLAG, "A finding with a valid plan passes.")


class Tgs(_Keys):
    """Rule 3: tokens per second, never without its four conditions."""

    concurrency: tuple[Count, ...] = key((1,), "[1]", "Requests in flight.")
    min_tokens_per_s: Positive | PerConcurrency | None = key(
        None,
        "a number of tokens per second greater than 0, a mapping {concurrency: number}, or null",
        "Least total rate of the median window.",
    )
    require: tuple[Condition, ...] = key(
        checks.CONDITIONS, f"[{', '.join(checks.CONDITIONS)}]", "May not be shortened."
    )


class MemoryLimits(_Keys):
    """Optional limits; the name says which number is meant."""

    allocated_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak allocated by the framework.")
    reserved_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak reserved by the framework.")
    device_used_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak in use on the card.")
    rss_peak_gib: Positive | None = key(None, GIB_OR_NULL, "Peak resident size on the host.")


class Errors(_Keys):
    """Failed requests."""

    max_error_rate: Annotated[float, Field(strict=True, ge=0, lt=1)] = key(
        0.0, "a share from 0, under 1", "Share of failed requests per bucket."
    )


class EvidenceSettings(_Keys):
    """How sure a verdict has to be."""

    preset: Literal["fast", "normal", "strict", "observed"] = key(
        "normal", "fast, normal, strict or observed", "Risk of a wrong PASS: .20, .05, .01."
    )
    max_requests: Literal["auto"] | Count = key(
        "auto", f"auto, or {COUNT}", "Budget per bucket; auto: 15/(1-q), 300 for a P95."
    )
    max_seconds: Positive = key(3600.0, SECONDS, "Budget of the whole run.")
    guard: StrictBool = key(True, FLAG, "Drifting noise costs evidence.")


class ReportSettings(_Keys):
    """What is written."""

    dir: Text = key(".llmsla", TEXT, "Report folder, relative to the working directory.")
    formats: Annotated[tuple[Literal["terminal", "json", "markdown"], ...], Field(min_length=1)] = (
        key(
            ("terminal", "json", "markdown"),
            "a list of terminal, json and markdown",
            "Reports to make.",
        )
    )
    keep_text: StrictBool = key(False, FLAG, "Store prompt and answer texts.")


class Policy(_Keys):
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
    errors: Errors = key(Errors(), MAPPING, "Failed requests.")
    evidence: EvidenceSettings = key(EvidenceSettings(), MAPPING, "Evidence.")
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

    def max_requests(self, q: float, concurrency: int = 1) -> int:
        """Budget of measured requests per bucket for a limit on quantile ``q`` (0–1).

        ``auto`` is ⌈15/(1−q)⌉·concurrency: 300 for P95, 1,500 for P99.
        """
        given = self.evidence.max_requests
        return automatic_budget(q) * concurrency if given == "auto" else given

    def bucket(self, name: str) -> Bucket:
        """The bucket called ``name``; KeyError when there is none."""
        for b in self.buckets:
            if b.name == name:
                return b
        raise KeyError(name)


def automatic_budget(q: float) -> int:
    """⌈15/(1−q)⌉ without floating-point dust (15/(1−.9) is 150, not 151)."""
    return math.ceil(15 / (1 - Fraction(q).limit_denominator(1_000_000)))

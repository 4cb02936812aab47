"""Rules of sla.yaml that span keys, and keys this version does not implement.

All functions read the raw mapping and tolerate values of a wrong type (another message is about
those), so that one reading reports every problem of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..finding import CONDITIONS
from .http_checks import http_problems
from .load_checks import has_pace, levels_of, load_problems, pace_problems
from .problems import Path, Problem, by_bucket_problems, dig, listed, number, whole

EMBEDDED_MODEL = "smollm2-135m-instruct"
# Letters of any script; no dot, slash, colon or bracket, which mean something in ids and paths.
BUCKET_NAME = r"^[^\W\d_][\w-]*$"
RESERVED_NAMES = ("tgs", "memory", "goodput", "policy")
ALPHA_PASS: Mapping[str, float | None] = {
    "fast": 0.20,
    "normal": 0.05,
    "strict": 0.01,
    "observed": None,
}
ALPHA_FAIL = 0.01


def with_lower_edges(buckets: Sequence[Any]) -> list[Any]:
    """Buckets with ``prompt_min`` filled in: the previous ``prompt_max`` + 1, else 1."""
    out: list[Any] = []
    edge = 0
    for b in buckets:
        if isinstance(b, Mapping):
            if "prompt_min" not in b:
                b = {**b, "prompt_min": edge + 1}
            top = whole(b.get("prompt_max"))
            edge = max(edge, top) if top is not None else edge
        out.append(b)
    return out


def rule_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Everything wrong across the keys of ``raw``; empty when all rules hold."""
    return [
        *_bucket_problems(raw),
        *_target_problems(raw),
        *http_problems(raw),
        *_workload_problems(raw),
        *_tgs_problems(raw),
        *load_problems(raw),
        *_budget_problems(raw),
    ]


def _bucket_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    buckets = listed(raw, "buckets")
    names: dict[str, str] = {}
    edge = 0
    for i, b in enumerate(with_lower_edges(buckets)):
        if not isinstance(b, Mapping):
            continue
        at: Path = ("buckets", i)
        name = b.get("name")
        if isinstance(name, str):
            if name.casefold() in RESERVED_NAMES:
                yield Problem((*at, "name"), f"{name!r} is taken by the plugin: choose another")
            if name.casefold() in names:
                yield Problem(
                    (*at, "name"),
                    f"{name!r} names two buckets (the first is {names[name.casefold()]!r}; "
                    "upper and lower case are one): give each its own",
                )
            names.setdefault(name.casefold(), name)
        yield from _edge_problems(b, at, edge, last=i == len(buckets) - 1)
        top = whole(b.get("prompt_max"))
        edge = max(edge, top) if top is not None else edge


def _edge_problems(b: Mapping[str, Any], at: Path, edge: int, *, last: bool) -> Iterator[Problem]:
    low, high, to = whole(b.get("prompt_min")), whole(b.get("prompt_max")), b.get("measured_to")
    if low is not None and low <= edge:
        yield Problem(
            (*at, "prompt_min"),
            f"{low} overlaps the bucket before, which reaches {edge}: start at {edge + 1} or later",
        )
    elif high is not None and low is not None and high < low:
        yield Problem(
            (*at, "prompt_max"),
            f"{high} leaves no length: the bucket would be {low}–{high} tokens, unreachable. "
            f"Give at least {low} and list buckets from short to long",
        )
    if high is not None and to is not None:
        yield Problem(
            (*at, "measured_to"),
            f"belongs to an open bucket, and this one ends at prompt_max {high}: remove one",
        )
    if b.get("prompt_max") is not None:
        return
    if not last:
        yield Problem(
            (*at, "prompt_max"),
            "only the last bucket may be open: give prompt_max, the longest prompt in tokens",
        )
    elif to is None:
        yield Problem(
            (*at, "measured_to"),
            "an open bucket (no prompt_max) needs measured_to, the longest prompt that is "
            "measured, in tokens",
        )
    elif whole(to) is not None and low is not None and to <= low:
        yield Problem(
            (*at, "measured_to"),
            f"got {to}; it must be greater than the bucket's lower edge, {low}",
        )


def _target_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    target = raw.get("target")
    if not isinstance(target, Mapping):
        return
    kind = target.get("kind", "transformers")
    if kind == "scripted" and (target.get("entry") is None) == (target.get("script") is None):
        yield Problem(("target", "script"), "a scripted target needs either script or entry")
    entry = target.get("entry")
    if kind in ("python", "scripted") and isinstance(entry, str) and "${" not in entry:
        module, _, factory = entry.partition(":")
        if not module or not factory or ":" in factory:
            yield Problem(
                ("target", "entry"),
                f"got {entry!r}; valid: 'package.module:factory', a module, a colon and what to "
                "call in it",
            )
    if kind != "transformers":
        return
    quantization = target.get("quantization", "none")
    if (
        target.get("compile", False)
        and quantization != "none"
        and target.get("compile_quantized") is not True
    ):
        yield Problem(
            ("target", "compile"),
            f"refused with quantization: {quantization}: the quantised layers fall back to "
            "eager and TTFT grows. Remove one, or force it with compile_quantized: true",
        )
    if target.get("compile", False) and target.get("use_cache") is False:
        yield Problem(
            ("target", "compile"),
            "refused with use_cache: false: without a cache every step has another shape and "
            "would be compiled anew. Remove one",
        )
    for name in ("double_quant", "compute_dtype"):
        if target.get(name) and quantization in ("none", "int8"):
            yield Problem(
                ("target", name),
                f"has no effect with quantization: {quantization}; it belongs to nf4 and fp4",
            )


def _workload_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    asked = whole(dig(raw, "workload", "max_new_tokens", default=64))
    limits = [k for k in ITL_QUANTILES if dig(raw, "itl", k, default=_ITL_DEFAULT.get(k))]
    if asked is not None and 0 < asked < 3 and limits:
        yield Problem(
            ("workload", "max_new_tokens"),
            f"{asked} leaves under two inter-token gaps a request, so itl.{limits[0]} could never "
            "be judged: ask for at least 3",
        )
    if dig(raw, "target", "kind", default="transformers") == "transformers":
        for name in ("frequency_penalty", "presence_penalty"):
            if dig(raw, "workload", "sampling", name) is not None:
                yield Problem(
                    ("workload", "sampling", name),
                    "the transformers target has no such parameter: use repetition_penalty",
                )
    yield from by_bucket_problems(raw, ("workload", "prompts"), "prompts", "FILE")


def _tgs_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    require = dig(raw, "tgs", "require")
    if isinstance(require, (list, tuple)):
        left_out = [c for c in CONDITIONS if c not in require]
        if left_out:
            yield Problem(
                ("tgs", "require"),
                f"{', '.join(left_out)} left out: rule 3 always asks for all four conditions, "
                f"[{', '.join(CONDITIONS)}]; remove the key or list all four",
            )


ITL_QUANTILES: Mapping[str, float] = {
    "p50_ms": 0.50,
    "p95_ms": 0.95,
    "p99_ms": 0.99,
    "stall_p95_ms": 0.95,
}
_ITL_DEFAULT: Mapping[str, float] = {"p95_ms": 50.0}


def quantiles_in_force(raw: Mapping[str, Any]) -> dict[str, float]:
    """Key path → quantile (0–1) of every limit that is judged by counting requests."""
    out: dict[str, float] = {}
    percentile = number(dig(raw, "ttft", "percentile", default=95))
    with_ttft = [b for b in listed(raw, "buckets") if number(dig(b, "ttft_ms")) is not None]
    if with_ttft and percentile is not None and 1 <= percentile < 100:
        out["ttft.percentile"] = percentile / 100
    for k, q in ITL_QUANTILES.items():
        if number(dig(raw, "itl", k, default=_ITL_DEFAULT.get(k))) is not None:
            out[f"itl.{k}"] = q
    share = number(dig(raw, "goodput", "min_share"))
    if share is not None and 0 < share < 1:
        out["goodput.min_share"] = share
    return out


def _budget_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    budget = whole(dig(raw, "evidence", "max_requests"))
    alpha = ALPHA_PASS.get(str(dig(raw, "evidence", "preset", default="normal")))
    counted = budget is not None and budget >= 1  # auto is always enough
    if alpha is None or not (counted or has_pace(raw)):
        return  # observed never passes
    from ..stats import clean_units_to_pass

    clean = {k: clean_units_to_pass(q, alpha) for k, q in quantiles_in_force(raw).items()}
    yield from pace_problems(raw, max(clean.values(), default=0))
    if budget is None or budget < 1:
        return
    # A unit of evidence is as many requests as are in flight together.
    block = max(levels_of(raw), default=1)
    needed = {k: n * block for k, n in clean.items()}
    short = {k: n for k, n in needed.items() if n > budget}
    if short:
        words = ", ".join(f"{k} needs {n}" for k, n in short.items())
        at = f" at concurrency {block}" if block > 1 else ""
        yield Problem(
            ("evidence", "max_requests"),
            f"{budget} cannot reach PASS{at} even when every request is clean: {words} "
            f"(risk of a wrong PASS {alpha:g}). Give at least {max(short.values())}, or auto",
        )

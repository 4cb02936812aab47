"""One finding in words. Terminal, Markdown and failure texts all take their wording from here.

Every function reads the JSON form of a finding (``Finding.to_json()``, or an entry of
``findings`` in report.json) and returns text whose foreign parts are visible but not yet escaped
for Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import numbers
from .escape import shortened

FindingDict = Mapping[str, Any]

OBSERVED = "observed"
"""The evidence preset that looks without a test: never release evidence."""

OPERATING_CHARACTERISTIC = (
    "at 300 requests (P95, preset normal) a true share over the limit of 1 % ends as PASS in 96 % "
    "of gates, 2 % in 66 %, 3 % in 30 %; 10 % ends as FAIL in 62 %, 15 % in 99.7 %"
)

RERUN_WARNING = "do not rerun until green: every rerun adds another chance of a false PASS"

_UNDOCUMENTED = re.compile(r"undocumented:\s*([a-z_]+(?:\s*,\s*[a-z_]+)*)")
_CONDITION_HELP = {
    "memory": "memory is read by an in-process target; elsewhere pass memory={'rss_peak': GiB} "
    "to record_tgs, with the figure's name and source",
    "prompt_lengths": "prompt_lengths needs token counts: a target with a tokenizer, or "
    "record_tgs(..., prompt_lengths=[...])",
    "sampling": "sampling: write workload.sampling in sla.yaml, or pass sampling={...} "
    "to record_tgs",
    "concurrency": "concurrency: write tgs.concurrency in sla.yaml, or pass concurrency=n "
    "to record_tgs",
}


def verdict(f: FindingDict) -> str:
    """``FAIL``, ``INCONCLUSIVE``, …"""
    return str(f["verdict"]).upper()


def name(f: FindingDict) -> str:
    """``ttft p95``, ``error_rate``: the metric and its percentile."""
    metric = shortened(f["metric"])
    if f.get("percentile") is None:
        return metric
    return f"{metric} p{numbers.plain(f['percentile'])}"


def subject(f: FindingDict) -> str:
    """``bucket short``, or the id of a limit that has no bucket."""
    if f.get("bucket"):
        return f"bucket {shortened(f['bucket'])}"
    return shortened(f["id"])


def lengths(f: FindingDict) -> str:
    """``31/97/128``: min, median and max of measured prompt tokens; empty when none is known."""
    tokens = f.get("prompt_tokens") or {}
    figures = [tokens.get(k) for k in ("min", "median", "max")]
    if all(v is None for v in figures):
        return ""
    return "/".join(numbers.NOTHING if v is None else numbers.plain(v) for v in figures)


def scope(f: FindingDict) -> str:
    """``1–128 tokens; measured 31/97/128``; empty for limits without a bucket."""
    parts = [shortened(f["bucket_range"])] if f.get("bucket_range") else []
    if lengths(f):
        parts.append(f"measured {lengths(f)}")
    return "; ".join(parts)


def is_observed(f: FindingDict) -> bool:
    """True when the finding rests on a look, not on a test."""
    return (f.get("evidence") or {}).get("preset") == OBSERVED


def observed_mark(f: FindingDict) -> str:
    """``observed, n=1: not release evidence`` for such findings, else empty."""
    return f"observed, n={f['requests']}: not release evidence" if is_observed(f) else ""


def decision(f: FindingDict) -> str:
    """``after 5 requests (5 over)``: when the verdict fell, and what stood over the limit."""
    in_blocks = f["units"] != f["requests"]
    noun = "block" if in_blocks else "request"
    if f.get("decided_at") is None:
        text = f"after {numbers.counted(f['requests'], 'request')}"
        rest = ""
    else:
        text = f"after {numbers.counted(f['decided_at'], noun)}"
        rest = f"; {f['requests']} on record" if f["decided_at"] != f["requests"] else ""
    inside = f"{over(f)}{rest}".removeprefix("; ")
    return f"{text} ({inside})" if inside else text


def over(f: FindingDict) -> str:
    """``5 over`` when samples are requests, else ``312 of 4032 samples over``; empty for none."""
    if not f["samples"]:
        return ""
    if f["samples"] == f["requests"]:
        return f"{f['exceeded']} over"
    return f"{f['exceeded']} of {numbers.counted(f['samples'], 'sample')} over"


def quantity(f: FindingDict) -> str:
    """What is bounded: ``P95``, or the metric's name where there is no percentile."""
    return numbers.percentile(f.get("percentile")) or shortened(f["metric"])


def observed(f: FindingDict) -> str:
    """The observed figure with its unit."""
    return numbers.measured(f.get("observed"), f["unit"], against=f.get("limit"))


def limit(f: FindingDict) -> str:
    """The limit with its unit."""
    return numbers.limit(f.get("limit"), f["unit"])


def bound(f: FindingDict) -> str:
    """The bound that carries the verdict: ``P95 ≥ 381.0 ms (99 %)``.

    FAIL shows the lower bound, PASS the upper, others what there is; with no bound it says how
    many requests the first one needs.
    """
    lower, upper = _side(f, "lower", "≥"), _side(f, "upper", "≤")
    if f["verdict"] == "fail":
        return lower or "no lower bound"
    if f["verdict"] == "pass":
        return upper or "no upper bound"
    return " and ".join(x for x in (lower, upper) if x) or _no_bound_yet(f)


def _side(f: FindingDict, key: str, sign: str) -> str:
    value = f.get(key)
    if value is None:
        return ""
    evidence = f.get("evidence") or {}
    alpha = evidence.get("alpha_fail" if key == "lower" else "alpha_pass")
    sure = numbers.confidence_of(alpha)
    if key == "upper" and sure:
        sure = f"{sure}, anytime"
    figure = numbers.measured(value, f["unit"], against=f.get("limit"))
    return f"{quantity(f)} {sign} {figure}" + (f" ({sure})" if sure else "")


def _no_bound_yet(f: FindingDict) -> str:
    if is_observed(f):
        return "no bound: one look gives none"
    least = (f.get("evidence") or {}).get("min_units")
    if least is None:
        return "no bound"
    if f["units"] != f["requests"]:
        return f"no upper bound yet: {f['units']} of at least {numbers.counted(least, 'block')}"
    return f"no upper bound yet: {f['units']} of at least {numbers.counted(least, 'request')}"


def percentiles(f: FindingDict) -> str:
    """``P50 81.0 ms · P95 93.0 ms · P99 –``."""
    given = f.get("percentiles") or {}
    return " · ".join(f"{k.upper()} {percentile_of(f, k)}" for k in sorted(given))


def percentile_of(f: FindingDict, key: str) -> str:
    """One of ``p50``, ``p95``, ``p99`` with its unit."""
    against = f.get("limit") if _is_judged(f, key) else None
    value = (f.get("percentiles") or {}).get(key)
    return numbers.measured(value, f["unit"], against=against)


def _is_judged(f: FindingDict, key: str) -> bool:
    return f.get("percentile") is not None and key == f"p{numbers.plain(f['percentile'])}"


def stages(f: FindingDict) -> str:
    """``prefill 88 % · sample 6 % · tokenise 4 %``: shares of TTFT, largest first."""
    shares = sorted((f.get("stages") or {}).items(), key=lambda kv: (-kv[1], kv[0]))
    return " · ".join(f"{shortened(k)} {numbers.percent(v)}" for k, v in shares[:5])


def undocumented(f: FindingDict) -> tuple[str, ...]:
    """The TGS conditions that nobody recorded, as the reason names them."""
    if f["rule"] != "tgs":
        return ()
    found = _UNDOCUMENTED.search(str(f.get("reason", "")))
    return tuple(re.split(r"\s*,\s*", found.group(1))) if found else ()


def next_steps(f: FindingDict) -> list[str]:
    """What to do now; empty for a plain PASS or a plain FAIL."""
    steps = [_CONDITION_HELP.get(c, f"record {c} with the figure") for c in undocumented(f)]
    if f["rule"] == "itl" and f["metric"] == "itl" and f["verdict"] == "fail":
        steps.append(
            "rule 2 asks for a KV-cache plan: write a Markdown or YAML file that names cause, "
            "measures, owner and expires, and give it as itl.kv_plan in sla.yaml "
            "(in a test: kv_plan='plan.md'); the finding is then conditional, not PASS"
        )
    if f["verdict"] == "inconclusive":
        steps.extend(_when_inconclusive(f))
    if f["verdict"] == "conditional":
        steps.append("carry out the KV-cache plan before it expires, then measure again")
    return steps


def _when_inconclusive(f: FindingDict) -> list[str]:
    if is_observed(f):
        return ["for release evidence ask with sla_run() under a preset (fast, normal, strict)"]
    least = (f.get("evidence") or {}).get("min_units")
    steps = []
    if "::" in str(f["id"]) and least is not None and f["units"] < least:
        steps.append(
            "sla_run() asks until every limit is decided; timed_generate() asks once: mark a "
            "single look with evidence='observed'"
        )
    else:
        steps.append(
            "allow more (evidence.max_requests, evidence.max_seconds), measure on a quieter "
            "machine, or take the service further from its limit"
        )
    steps.append(RERUN_WARNING)
    return steps


def carries_characteristic(f: FindingDict) -> bool:
    """True where the power of the test explains the verdict: undecided percentile limits."""
    return f["verdict"] == "inconclusive" and f.get("percentile") is not None and not is_observed(f)


def attempts(f: FindingDict) -> str:
    """``1: 20 requests, observed 80.0 ms · 2: …`` when reruns were pooled, else empty."""
    runs: Sequence[Mapping[str, Any]] = f.get("attempts") or ()
    if len(runs) < 2:
        return ""
    return " · ".join(_attempt(f, i, a) for i, a in enumerate(runs, start=1))


def _attempt(f: FindingDict, index: int, attempt: Mapping[str, Any]) -> str:
    figure = numbers.measured(attempt.get("observed"), f["unit"], against=f.get("limit"))
    asked = numbers.counted(attempt.get("requests", 0), "request")
    return f"{attempt.get('attempt', index)}: {asked}, observed {figure}"

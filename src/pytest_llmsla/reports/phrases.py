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
    "at 300 requests (P95, preset normal) a true share over the limit of 1 % ends as PASS in about "
    "96 % of gates, 2 % in 64 %, 3 % in 29 %; 10 % ends as FAIL in 61 %, 15 % in 99.7 %"
)
"""``stats.operating_characteristic``, held to it by a test; docs/verdicts.md has it with guard."""

RERUN_WARNING = "do not rerun until green: every rerun adds another chance of a false PASS"

_FIGURES_AGAIN = re.compile(
    r"decided after \d+ (?:requests|windows|blocks of \d+ requests)"
    r"(?:; \d+ of \d+ samples over the limit)?"
)
_LONGEST_REASON = 2000
_UNDOCUMENTED = re.compile(r"undocumented:\s*([a-z_]+(?:\s*,\s*[a-z_]+)*)")


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
    """``1–128 tokens; measured 31/97/128; at concurrency 4``; empty where there is nothing."""
    parts = [shortened(f["bucket_range"])] if f.get("bucket_range") else []
    if lengths(f):
        parts.append(f"measured {lengths(f)}")
    if f.get("load"):
        parts.append(shortened(f["load"]))
    return "; ".join(parts)


def is_observed(f: FindingDict) -> bool:
    """True when the finding rests on a look, not on a test."""
    return (f.get("evidence") or {}).get("preset") == OBSERVED


def observed_mark(f: FindingDict) -> str:
    """``observed, n=1: not release evidence`` for such findings, else empty."""
    return f"observed, n={f['requests']}: not release evidence" if is_observed(f) else ""


def decision(f: FindingDict) -> str:
    """``after 5 requests (5 over)``: when the verdict fell, and what stood over the limit."""
    at, unit, made = f.get("decided_at"), _unit(f), f["units"]
    if at is None:
        at, unit, made = f["requests"], "request", f["requests"]
    inside = [over(f)] if over(f) else []
    if at != made:
        inside.append(f"{numbers.counted(made, unit)} on record")
    block = f.get("block", 1)
    each = f" of {numbers.counted(block, 'request')}" if unit == "block" and block > 1 else ""
    return f"after {numbers.counted(at, unit)}{each}" + (
        f" ({'; '.join(inside)})" if inside else ""
    )


def _unit(f: FindingDict) -> str:
    """What the test counts: windows of a rate, blocks under concurrency, else requests."""
    if f["rule"] == "tgs":
        return "window"
    alone = f.get("block", 1) == 1 and f["units"] in (0, f["requests"])
    return "request" if alone else "block"


def over(f: FindingDict) -> str:
    """``5 over`` when samples are requests, else ``312 of 4032 samples over``; empty for none."""
    if f["rule"] == "error":
        return f"{f['exceeded']} failed"
    if f["rule"] == "memory" or not f["samples"] or f.get("limit") is None:
        return ""
    if f["rule"] == "goodput":
        return f"{f['exceeded']} of {numbers.counted(f['samples'], 'request')} not good"
    if f["rule"] == "tgs":
        return f"{f['exceeded']} of {numbers.counted(f['samples'], 'window')} under"
    if f["samples"] == f["requests"]:
        if f["units"] != f["requests"]:
            return f"{f['exceeded']} of {numbers.counted(f['samples'], 'request')} over"
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


def is_floor(f: FindingDict) -> bool:
    """True for limits that may not be undercut: a rate of tokens, a share of good requests."""
    return f["rule"] in ("tgs", "goodput")


def requirement(f: FindingDict) -> str:
    """``ttft p95 ≤ 300 ms``, ``tgs ≥ 60 tokens/s``, ``tgs documented``."""
    return " ".join(part for part in (name(f), asked(f)) if part)


def asked(f: FindingDict) -> str:
    """What is asked of the metric: ``≤ 300 ms``, ``documented``; may be empty."""
    if f.get("limit") is None:
        return "documented" if f["rule"] == "tgs" else ""
    return f"{'≥' if is_floor(f) else '≤'} {limit(f)}"


def bound(f: FindingDict) -> str:
    """The bound that carries the verdict: ``P95 ≥ 381.0 ms (99 %)``; empty without a test.

    With no bound yet it says how many requests the first one needs.
    """
    if f.get("percentile") is None:
        return ""
    return " and ".join(_telling(f)) or _no_bound_yet(f)


def bound_in_short(f: FindingDict) -> list[str]:
    """:func:`bound` without its confidence, one text a side: ``P95 ≥ 381.0 ms``."""
    if f.get("percentile") is None:
        return []
    return [side.partition(" (")[0] for side in _telling(f)] or [_no_bound_yet(f).partition(":")[0]]


def _telling(f: FindingDict) -> list[str]:
    """The sides that carry the verdict; both while there is none."""
    sides = [x for x in (_side(f, "lower", "≥"), _side(f, "upper", "≤")) if x]
    if f["verdict"] not in ("pass", "fail") or is_conditional_pass(f):
        return sides
    wanted = "≤" if (f["verdict"] == "pass") != is_floor(f) else "≥"
    return [x for x in sides if wanted in x] or sides


def is_conditional_pass(f: FindingDict) -> bool:
    """True when a KV-cache plan, and not the measurement, made this a PASS."""
    return f["verdict"] == "pass" and "conditional_passes" in str(f.get("reason", ""))


def _side(f: FindingDict, key: str, sign: str) -> str:
    value = f.get(key)
    if value is None:
        return ""
    # The side that a limit may not cross is proven by a PASS, the other by a FAIL.
    proves_pass = (key == "upper") != is_floor(f)
    evidence = f.get("evidence") or {}
    sure = numbers.confidence_of(evidence.get("alpha_pass" if proves_pass else "alpha_fail"))
    if proves_pass and sure:
        sure = f"{sure}, anytime"
    figure = numbers.measured(value, f["unit"], against=f.get("limit"))
    return f"{quantity(f)} {sign} {figure}" + (f" ({sure})" if sure else "")


def _no_bound_yet(f: FindingDict) -> str:
    if is_observed(f):
        return "no bound: one look gives none"
    least = (f.get("evidence") or {}).get("min_units")
    if least is None:
        return "no bound"
    if f["units"] >= least:
        return "no bound"
    return f"no bound yet: {f['units']} of at least {numbers.counted(least, _unit(f))}"


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


def reason(f: FindingDict) -> str:
    """The finding's reason; empty where the figures beside it already say all of it."""
    text = reason_beside_mark(f)
    return "" if _FIGURES_AGAIN.fullmatch(text) else shortened(text, _LONGEST_REASON)


def reason_beside_mark(f: FindingDict) -> str:
    """The finding's reason as it stands, without the :func:`observed_mark` that is shown anyway."""
    text = str(f.get("reason") or "")
    mark = observed_mark(f)
    return text.removesuffix(mark).removesuffix("; ") if mark else text


def undocumented(f: FindingDict) -> tuple[str, ...]:
    """The TGS conditions that nobody recorded, as the reason names them."""
    if f["rule"] != "tgs":
        return ()
    found = _UNDOCUMENTED.search(str(f.get("reason", "")))
    return tuple(re.split(r"\s*,\s*", found.group(1))) if found else ()


def next_steps(f: FindingDict) -> list[str]:
    """What to do now; empty for a plain PASS or a plain FAIL."""
    steps = []
    if undocumented(f):
        steps.append(
            "document what is missing and measure again; a figure from elsewhere goes on record "
            "with record_tgs(value, prompt_lengths=, sampling=, concurrency=, memory=)"
        )
    if f["metric"] == "itl" and f.get("percentile") == 95 and f["verdict"] == "fail":
        steps.append(
            "write a KV-cache plan, a Markdown or YAML file that names cause, measures, owner and "
            "expires; give it as itl.kv_plan in sla.yaml (in a test: kv_plan='plan.md'); the "
            "finding is then conditional, not PASS"
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

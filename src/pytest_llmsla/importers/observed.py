"""Findings of a run whose requests have no place in time: observed, and never a PASS.

What a summary leaves out is an error in words, never a guess. A limit that the figures break is
a FAIL all the same: no better measurement would mend it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..finding import Finding, Limit, Verdict
from ..policy import LoadedPolicy
from ..rules.checks import Range
from ..rules.conditions import undocumented
from ..rules.tgs import recorded_entry
from ..stats import nearest_rank
from ..stats.samples import finite
from ..verdict import limits_of, ranges_of
from .base import Run, Series, Summary, Value
from .explain import explained, of_values

NEAREST = "nearest rank over the file's requests"
_NO_LENGTH = (
    "no prompt length: this file does not say how long its prompts were, and rule 1 binds the "
    "limits of a bucket to that. Save the requests themselves"
)


@dataclass(frozen=True)
class _Outcome:
    verdict: Verdict
    reason: str
    observed: float | None = None
    requests: int = 0
    samples: int = 0
    exceeded: int = 0
    percentiles: Mapping[str, float | None] | None = None
    values: Sequence[Value] = ()
    """Requests it rests on."""


def method(run: Run) -> str:
    """How the percentiles shown for ``run`` were taken."""
    return NEAREST if run.values else run.percentile_method


def observed(run: Run, loaded: LoadedPolicy) -> list[Finding]:
    """A finding for each limit of the run's level that the file says anything about."""
    level = level_of(run, loaded)
    out = []
    for limit in limits_of(loaded):
        if limit.concurrency != level or limit.rule not in _JUDGES:
            continue
        bucket = None if limit.bucket is None else ranges_of(loaded.policy)[limit.bucket]
        outcome = _JUDGES[limit.rule](run, limit, bucket, loaded)
        if outcome is not None:
            out.append(_finding(limit, outcome, bucket, run))
    return out


def level_of(run: Run, loaded: LoadedPolicy) -> int | None:
    """The level that a run is judged at; None: an open loop."""
    if run.rate is not None:
        return None
    return run.concurrency if run.concurrency is not None else loaded.policy.levels[0]


def _finding(limit: Limit, o: _Outcome, bucket: Range | None, run: Run) -> Finding:
    found = Finding.of(
        limit,
        o.verdict,
        o.reason,
        observed=o.observed,
        requests=o.requests,
        units=o.requests,
        samples=o.samples,
        exceeded=o.exceeded,
        prompt_tokens=_lengths(run, bucket),
        percentiles=o.percentiles or {},
        start_point=run.start_point,
        bucket_range="" if bucket is None else str(bucket),
        notes=(f"percentiles: {method(run)}",) * (o.observed is not None and limit.unit == "ms"),
        concurrency=limit.concurrency,
        load=limit.load,
    )
    if limit.rule == "tgs" and limit.limit is None:
        found = replace(found, percentile=None)  # a rate over the whole run, held against none
    if o.values and o.verdict == "fail":
        found = replace(found, diagnosis=of_values(found, o.values))
    return explained(found, run)


def _lengths(run: Run, bucket: Range | None) -> Mapping[str, float | None]:
    known = [v.prompt_tokens for v in _of(run.values, bucket) if v.prompt_tokens is not None]
    if known:
        return {"min": min(known), "median": nearest_rank(known, 0.5), "max": max(known)}
    s = run.summary
    if s is None:
        return {"min": None, "median": None, "max": None}
    return {"min": s.shortest, "median": None, "max": s.longest}


def _of(values: Sequence[Value], bucket: Range | None) -> list[Value]:
    """Requests of a bucket; one that failed at an unknown length counts in every bucket."""
    if bucket is None:
        return list(values)
    return [
        v
        for v in values
        if (v.prompt_tokens in bucket if v.prompt_tokens is not None else v.error is not None)
    ]


def _counted(values: Sequence[Value], bucket: Range | None) -> list[Value]:
    """Requests that a bucket's failures are a share of; of unknown length, in every bucket."""
    if bucket is None:
        return list(values)
    return [v for v in values if v.prompt_tokens is None or v.prompt_tokens in bucket]


def _tag(n: int) -> str:
    return f"observed, n={n}: not release evidence"


def _judged(value: float | None, limit: Limit, n: int, **extra: Any) -> _Outcome:
    """A percentile against its limit; None and ∞ (failed requests) break it."""
    over = value is None or not value <= (limit.limit or 0)
    shown = finite(value)
    return _Outcome("fail" if over else "inconclusive", _tag(n), shown, n, **extra)


# -- rules 1 and 2


def _latency(run: Run, limit: Limit, bucket: Range | None, loaded: LoadedPolicy) -> _Outcome | None:
    if limit.rule == "itl" and run.no_itl is not None:
        return _Outcome("error", run.no_itl)
    if run.values:
        return _of_values(run, limit, bucket, loaded.policy.workload.max_new_tokens)
    if run.summary is None or bucket is None:
        return None
    return _of_summary(run.summary, limit, bucket)


def _of_values(
    run: Run, limit: Limit, bucket: Range | None, max_new_tokens: int
) -> _Outcome | None:
    unknown = [v for v in run.values if v.prompt_tokens is None and v.error is None]
    if unknown or all(v.prompt_tokens is None for v in run.values):
        some = f" ({len(unknown)} of {len(run.values)} requests)"
        return _Outcome("error", _NO_LENGTH + some * (len(unknown) < len(run.values)))
    found = _of(run.values, bucket)
    if not found:
        return None
    good = [v for v in found if v.error is None]
    if not good:
        first = found[0].error
        return _Outcome("error", f"no request was answered: {first}", None, len(found))
    if limit.metric == "ttft":
        samples, each = [v.ttft_ms for v in good if v.ttft_ms is not None], 1
    elif limit.metric == "stall":
        samples, each = [max(v.gaps_ms) for v in good if v.gaps_ms], 1
    else:
        samples, each = [g for v in good for g in v.gaps_ms], max(max_new_tokens - 1, 1)
    unsure = next((v.unsure for v in good if v.unsure is not None), None)
    gaps = next((v.unplaced for v in good if v.unplaced is not None), None)
    wrong = unsure or ((gaps or _unplaced(good)) if limit.metric != "ttft" else None)
    if wrong is not None or not samples:
        return _Outcome("error", wrong or f"no {limit.metric} on record", None, len(found))
    pooled = [*samples, *[math.inf] * (each * (len(found) - len(good)))]
    shown = {f"p{q}": finite(nearest_rank(pooled, q / 100)) for q in (50, 95, 99)}
    return _judged(
        nearest_rank(pooled, (limit.percentile or 0) / 100),
        limit,
        len(found),
        samples=len(pooled),
        exceeded=sum(not v <= (limit.limit or 0) for v in pooled),
        percentiles=shown,
        values=found,
    )


def _unplaced(good: Sequence[Value]) -> str | None:
    """Why the gaps of these answers are not gaps between tokens; None when they are."""
    wrong = [v for v in good if v.output_tokens != len(v.gaps_ms) + 1]
    if not wrong:
        return None
    v = wrong[0]
    return (
        f"{len(v.gaps_ms) + 1} chunks brought {v.output_tokens} tokens in {len(wrong)} of "
        f"{len(good)} answers: gaps between tokens are not known"
    )


def _of_summary(summary: Summary, limit: Limit, bucket: Range) -> _Outcome | None:
    if summary.completed == 0:
        lost = f" ({summary.failed} failed)" if summary.failed else ""
        return _Outcome("error", f"no request was answered{lost}", None, summary.failed or 0)
    low, high = summary.shortest, summary.longest
    given = summary.ttft if limit.metric == "ttft" else summary.itl
    if limit.metric == "stall":
        return _Outcome("error", "largest gaps of requests are not shown by this summary")
    if low is None or high is None:
        return _Outcome("error", _NO_LENGTH + _beside(given, limit))
    if high < bucket.lo or (bucket.hi is not None and low > bucket.hi):
        return None
    if low not in bucket or high not in bucket:
        return _Outcome(
            "error",
            f"prompts of {low} to {high} tokens lie in several buckets, and this summary does not "
            f"tell them apart{_beside(given, limit)}",
        )
    if given is None:
        return _Outcome("error", f"{limit.metric} is not shown by this file")
    return _of_series(given, limit, summary)


def _beside(given: Series | None, limit: Limit) -> str:
    value = None if given is None else given.percentiles.get(limit.percentile or 0)
    return "" if value is None else f" (over all prompts: P{limit.percentile:g} {value:.1f} ms)"


def _of_series(given: Series, limit: Limit, summary: Summary) -> _Outcome:
    q, most = limit.percentile or 0.0, limit.limit or 0.0
    n = summary.completed
    # Older versions leave the count out; a TTFT is one a request.
    count = n if given.count is None and limit.metric == "ttft" else given.count
    if not n or not count:
        return _Outcome("error", "percentiles without a count of requests: nothing to judge")
    lost = summary.failed
    if lost and lost / (n + lost) > 1 - q / 100 + 1e-9:
        return _Outcome(
            "fail", f"{lost} of {n + lost} requests failed, more than P{q:g} leaves; {_tag(n)}",
            None, n + lost, count,
        )  # fmt: skip
    shown = {f"p{p:g}": given.percentiles.get(p) for p in (50.0, 95.0, 99.0)}
    exact = given.percentiles.get(q)
    if exact is not None:
        o = _judged(exact, limit, n, samples=count, percentiles=shown)
        left = f"; {lost} failed requests are not in its percentiles" if lost else ""
        return replace(o, reason=o.reason + left, requests=n)
    listed = ", ".join(f"P{p:g}" for p in sorted(given.percentiles))
    below = [(p, v) for p, v in given.percentiles.items() if p < q and v > most]
    above = [(p, v) for p, v in given.percentiles.items() if p > q and v <= most]
    if below:
        p, v = min(below)
        reason = f"P{p:g} is {v:.1f} ms already; {_tag(n)}"
        return _Outcome("fail", reason, None, n, count, 0, shown)
    if above:
        p, v = min(above)
        reason = f"P{q:g} is not in the file; P{p:g} of {v:.1f} ms keeps the limit; {_tag(n)}"
        return _Outcome("inconclusive", reason, None, n, count, 0, shown)
    return _Outcome("error", f"P{q:g} is not in the file (it has {listed})", None, n, count)


# -- failures and rule 3


def _failures(
    run: Run, limit: Limit, bucket: Range | None, loaded: LoadedPolicy
) -> _Outcome | None:
    if run.values:
        found = _counted(run.values, bucket)
        lost, n = sum(v.error is not None for v in found), len(found)
    else:
        summary = run.summary
        if summary is None or summary.completed is None or summary.failed is None:
            return _Outcome("error", "this file does not say how many requests failed")
        lost, n = summary.failed, summary.completed + summary.failed
    if not n:
        return None
    over = lost > (limit.limit or 0) * n or lost == n
    reason = f"{lost} of {n} requests failed; {_tag(n)}"
    verdict: Verdict = "fail" if over else "inconclusive"
    return _Outcome(verdict, reason, lost / n, n, n, lost, values=_counted(run.values, bucket))


def _rate(run: Run, limit: Limit, bucket: Range | None, loaded: LoadedPolicy) -> _Outcome | None:
    value = None if run.summary is None else run.summary.tokens_per_s
    missing = undocumented(conditions(run, loaded))
    n = (run.summary.completed or 0) if run.summary else len(run.values)
    if not value:
        more = f"; {missing}" if missing else ""
        return _Outcome("error", f"tokens per second are not shown by this file{more}", None, n)
    if missing:
        return _Outcome("fail", missing, value, n)
    if limit.limit is not None and value < limit.limit:
        return _Outcome("fail", _tag(n), value, n, 1, 1)
    return _Outcome("inconclusive", _tag(n), value, n, 1)


def conditions(run: Run, loaded: LoadedPolicy) -> dict[str, Any]:
    """The four conditions of rule 3 as file and policy tell them; None where neither does."""
    low, _, high = _lengths(run, None).values()
    target = loaded.policy.target
    gib, source = getattr(target, "memory_gib", None), getattr(target, "memory_source", None)
    return {
        "prompt_lengths": None if low is None or high is None else {"min": low, "max": high},
        "sampling": dict(run.sampling) or None,
        "concurrency": None if run.concurrency is None else {"asked": run.concurrency},
        "memory": None
        if gib is None or source is None
        else {"declared_gib": gib, "declared_source": source},
    }


def rate_entry(run: Run, loaded: LoadedPolicy) -> dict[str, Any] | None:
    """The tool's rate as an entry of the report's ``tgs``; None without one."""
    value = None if run.summary is None else run.summary.tokens_per_s
    if not value:
        return None
    return recorded_entry({"id": "tgs", "value": value, **conditions(run, loaded)})


_JUDGES = {"ttft": _latency, "itl": _latency, "error": _failures, "tgs": _rate}

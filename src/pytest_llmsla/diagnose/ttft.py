"""Why the first token came late: stages, prompt length, the first request, drift."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..finding import Finding
from ..timeline import Timeline
from . import series

DOMINATES = 0.5
"""Share of TTFT from which a stage is called dominating."""
NOTABLE = 0.25
COLD = 5.0
"""A first request this many times the median of the rest is called cold."""

_ADVICE = {
    "prefill": "shorten prompts, use a fused attention kernel, or reuse a prefix cache",
    "queue": "fewer requests in flight or more replicas",
    "tokenise": "use the fast tokenizer; render the chat template once",
    "cache_init": "allocate the KV cache before the request, or switch it off for short prompts",
    "first_sample": "cheaper sampling: a smaller top_k, or greedy",
    "sample": "cheaper sampling: a smaller top_k, or greedy",
    "connect": "keep connections open",
}


def explain(
    finding: Finding, timelines: Sequence[Timeline], *, ordered: bool = True
) -> tuple[str, ...]:
    """Likely causes of a TTFT finding, most telling first; empty when nothing shows.

    Args:
        finding: a finding of rule ``ttft``.
        timelines: requests of the run; those of other buckets and gates are ignored.
        ordered: False where nobody knows when each was sent.
    """
    if not series.explainable(finding):
        return ()
    mine = series.evidence_of(finding, timelines)
    ok = [t for t in mine if t.ok and t.ttft_ms is not None]
    lines = [_stages(finding, ok), _flat(finding, ok)]
    if ordered:
        lines += [_cold(ok), _drift(ok)]
    return tuple(line for line in lines if line)


def _stages(finding: Finding, ok: Sequence[Timeline]) -> str | None:
    if not finding.stages:
        return _growth_alone(ok)
    stage, share = max(finding.stages.items(), key=lambda kv: kv[1])
    if share < NOTABLE:
        return None
    if stage == "other":
        return (
            f"{share:.0%} of TTFT passes outside every known stage → other work in the process, "
            "kernel launches, waiting for the device"
        )
    growth = _growth(ok) if stage == "prefill" else None
    verb = "dominates" if share >= DOMINATES else "is the largest part"
    text = f"{stage} {verb} ({share:.0%} of TTFT)"
    if growth is not None:
        text += f" and grows with prompt length ({_growth_words(growth)})"
    return f"{text} → {_ADVICE.get(stage, f'look into {stage}')}"


def _growth_alone(ok: Sequence[Timeline]) -> str | None:
    growth = _growth(ok)
    if growth is None:
        return None
    return (
        f"TTFT grows with prompt length ({_growth_words(growth)}), so prompt processing is "
        f"likelier than waiting → {_ADVICE['prefill']}"
    )


def _growth(ok: Sequence[Timeline]) -> series.Step | None:
    step = series.thirds(_by_length(ok))
    if step is None or step.high_at < 1.5 * step.low_at or step.ratio < 1.3:
        return None
    return step


def _by_length(ok: Sequence[Timeline]) -> list[tuple[float, float]]:
    return [
        (t.prompt_tokens, t.ttft_ms)
        for t in ok
        if t.prompt_tokens is not None and t.ttft_ms is not None
    ]


def _growth_words(step: series.Step) -> str:
    return (
        f"{step.low:.1f} ms at about {step.low_at:.0f} tokens, "
        f"{step.high:.1f} ms at about {step.high_at:.0f}"
    )


def _flat(finding: Finding, ok: Sequence[Timeline]) -> str | None:
    """Slow whatever the length: said only when lengths differ enough for it to mean something."""
    pairs = sorted(_by_length(ok))
    if len(pairs) < series.LEAST or finding.limit is None:
        return None
    third = len(pairs) // 3
    short, long = pairs[:third], pairs[-third:]
    if median(k for k, _ in long) < 2 * median(k for k, _ in short):
        return None
    low, high = median(v for _, v in short), median(v for _, v in long)
    if low <= finding.limit or not 0.9 <= high / low <= 1.1:
        return None
    return (
        f"TTFT hardly depends on prompt length ({low:.1f} ms for the shortest third, {high:.1f} ms "
        "for the longest) → a fixed cost is likelier than prompt processing: waiting, cache "
        "set-up, kernel launches"
    )


def _cold(ok: Sequence[Timeline]) -> str | None:
    values = [t.ttft_ms for t in ok if t.ttft_ms is not None]
    if len(values) < 5:
        return None
    rest = median(values[1:])
    if rest <= 0 or values[0] < COLD * rest:
        return None
    return (
        f"the first measured request was cold ({values[0]:.1f} ms, median of the rest "
        f"{rest:.1f} ms) → more warm-up before what is measured (workload.warmup)"
    )


def _drift(ok: Sequence[Timeline]) -> str | None:
    return series.drift("TTFT", [t.ttft_ms for t in ok if t.ttft_ms is not None])

"""What makes a request unusable as evidence, whoever recorded it. One place, live and replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..timeline import NOT_FORCED, NS_PER_MS, Timeline

_BURST_NS = NS_PER_MS
_BURST_SHARE = 0.20
_NEVER_A_DECODE_STEP_NS = 50_000  # 20,000 tokens/s in one stream: no model decodes that fast
_TENTH = 0.10
_FEWEST_TOKENS = 3  # two gaps
_FEWEST_ANSWERS = 5


@dataclass(frozen=True)
class Range:
    """Prompt lengths of a bucket, tokens, both ends included; ``hi`` None is open."""

    name: str
    lo: int
    hi: int | None
    measured_to: int | None = None

    def __contains__(self, tokens: int) -> bool:
        return tokens >= self.lo and (self.hi is None or tokens <= self.hi)

    @property
    def top(self) -> int | None:
        """Where coverage is measured to: the edge, or ``measured_to`` of an open bucket."""
        return self.hi if self.hi is not None else self.measured_to

    def __str__(self) -> str:
        if self.hi is not None:
            return f"{self.lo}–{self.hi} tokens"
        to = "" if self.measured_to is None else f" (measured to {self.measured_to})"
        return f"{self.lo}+ tokens{to}"


def defect(t: Timeline, bucket: Range | None) -> str | None:
    """Why ``t`` counts as failed although its target said ok; None when it is sound.

    ``bucket`` None skips the length check (requests that belong to no bucket).
    """
    if not t.ok:
        return t.error or "failed without a reason"
    if not t.arrivals:
        return "no token arrived"
    if any(k < 1 for _, k in t.arrivals):
        return "an arrival without tokens is on record"
    previous = t.start_ns
    for at, _ in t.arrivals:
        if at < previous:
            return "arrival times run backwards"
        previous = at
    wrong = _impossible(t)
    if wrong is not None:
        return wrong
    if bucket is not None:
        if t.prompt_tokens is None:
            return "prompt length unknown (rule 1 binds TTFT to it)"
        if t.prompt_tokens not in bucket:
            return f"prompt of {t.prompt_tokens} tokens is outside bucket {bucket.name} ({bucket})"
    if t.max_new_tokens < 1:
        return "max_new_tokens is not on record"
    if t.tokens > t.max_new_tokens:
        return (
            f"returned {t.tokens} tokens, {t.max_new_tokens} were asked for: the engine must stop "
            "at max_new_tokens, or ask for more with workload.max_new_tokens"
        )
    return None


def _impossible(t: Timeline) -> str | None:
    """Times and conditions of an answered request that no sound measurement has."""
    if t.end_ns < t.arrivals[-1][0]:
        return "it ended before its last token arrived"
    if t.scheduled_ns is not None and t.scheduled_ns > t.start_ns:
        return "it was sent before it was due"
    if (t.ttft_ns or 0) <= 0:
        return "no time passed before its first token: the clock stands still"
    return None


def miscounted(t: Timeline, *, estimates: bool = False) -> str | None:
    """Why the number of tokens of a sound request is not known; None when it is.

    ``estimates``: the policy takes counts of events for counts of tokens.
    """
    if t.token_source is None or t.output_tokens is None:
        return "token count unknown"
    if t.output_tokens != t.tokens:
        return f"{t.tokens} tokens arrived but {t.output_tokens} were counted by {t.token_source}"
    if t.token_source == "events" and not estimates:
        return "tokens were counted as events, which may hold several" + _HOW_TO_COUNT
    return None


_HOW_TO_COUNT = (
    ". Give target.tokenizer, or a server that sends usage; itl.estimated: allow judges the "
    "estimate"
)


def misplaced(t: Timeline, *, estimates: bool = False) -> str | None:
    """Why the tokens of a sound request cannot be split into gaps; None when they can."""
    wrong = miscounted(t, estimates=estimates)
    if wrong is None and t.estimated is not None and not estimates:
        return f"which event brought which tokens is not known: {t.estimated}{_HOW_TO_COUNT}"
    return wrong


_LAG_NS = 5 * NS_PER_MS


def overloaded(ok: Sequence[Timeline]) -> str | None:
    """Why the times of these requests are those of a busy client; None when they are not.

    Arrivals that the kernel stamped stay valid however late the client read them, unless more
    than a tenth of them came in one read with another and only the last has its stamp.
    """
    late = [
        t
        for t in ok
        if t.lag_ns is not None
        and t.lag_ns > _LAG_NS
        and (t.stamp != "kernel" or t.merged > _TENTH * len(t.arrivals))
    ]
    if len(late) <= _TENTH * len(ok):
        return None
    worst = max(t.lag_ns or 0 for t in late) / NS_PER_MS
    return (
        f"client overloaded: in {len(late)} of {len(ok)} requests this process was too late to see "
        f"tokens arrive (P95 of its lag up to {worst:.0f} ms, valid: 5 ms). Run the gate on a "
        "machine or core that does nothing else"
    )


def itl_problem(
    ok: Sequence[Timeline], *, bursts_allowed: bool, force_length: bool, estimates: bool = False
) -> str | None:
    """Why ITL of these sound requests is not measurable; None when it is.

    docs/metrics.md, "Not measurable is a result". ``ok`` holds at least one request.
    """
    wrong = [reason for t in ok if (reason := misplaced(t, estimates=estimates))]
    if wrong:
        return f"{wrong[0]} ({len(wrong)} of {len(ok)} requests)"
    busy = overloaded(ok)
    if busy is not None:
        return busy
    few = [t for t in ok if _later_tokens(t) < 2]
    if len(few) > _TENTH * len(ok):
        t = few[0]
        return (
            f"too few samples: {len(few)} of {len(ok)} requests gave fewer than two gaps "
            f"(asked {t.max_new_tokens} tokens, got {t.tokens}, finish {t.finish_reason})"
        )
    short = (not_honoured(ok) or stopped_early(ok)) if force_length else None
    if short is not None:
        return short
    together = [t for t in ok if _handed_over_together(t)]
    if len(together) > _TENTH * len(ok):
        return (
            f"not streamed: in {len(together)} of {len(ok)} requests the tokens were handed over "
            "together after the answer was complete"
        )
    share = burst_share(ok)
    if share is not None and not bursts_allowed:
        return (
            f"buffered: {share:.0%} of the gaps are under 1 ms beside gaps that hold the time. "
            "Something delivers tokens in bursts; find it, or set itl.bursts: allow if the model "
            "decodes several tokens a step by design"
        )
    return None


def not_honoured(ok: Sequence[Timeline]) -> str | None:
    """Why a forced output length counts as not honoured; None when it was, or could not be."""
    short = [
        t
        for t in ok
        if t.tokens < t.max_new_tokens and not any(n.startswith(NOT_FORCED) for n in t.notes)
    ]
    if len(short) <= _TENTH * len(ok):
        return None
    t = short[0]
    return (
        f"the forced length was not honoured in {len(short)} of {len(ok)} requests "
        f"(asked {t.max_new_tokens} tokens, got {t.tokens}, finish {t.finish_reason})"
    )


def stopped_early(ok: Sequence[Timeline]) -> str | None:
    """Why not one answer had the length that was to be forced; None when one had.

    For targets that cannot force it: a few natural stops are fine, nothing but stops is not what
    was asked for. Under five answers nobody can tell.
    """
    if len(ok) < _FEWEST_ANSWERS or any(t.tokens >= t.max_new_tokens for t in ok):
        return None
    longest = max(ok, key=lambda t: t.tokens)
    return (
        f"all {len(ok)} answers stopped early (asked {longest.max_new_tokens} tokens, longest "
        f"{longest.tokens}, finish {longest.finish_reason}). Ask for fewer, or set "
        "workload.force_length: false where answers are to end by themselves"
    )


def cut_short(ok: Sequence[Timeline], *, force_length: bool) -> str | None:
    """Why answers are too short to tell a rate by; None when they are not.

    ``ok`` holds at least one request. A natural stop is fine, one after a token or two is none.
    """
    few = [t for t in ok if t.tokens < _FEWEST_TOKENS <= t.max_new_tokens]
    if len(few) > _TENTH * len(ok):
        t = few[0]
        return (
            f"too few tokens: {len(few)} of {len(ok)} requests gave fewer than {_FEWEST_TOKENS} "
            f"(asked {t.max_new_tokens} tokens, got {t.tokens}, finish {t.finish_reason})"
        )
    return (not_honoured(ok) or stopped_early(ok)) if force_length else None


def _handed_over_together(t: Timeline) -> bool:
    # Per token, so that an answer handed over in one or two large pieces counts as well.
    ttft = t.ttft_ns
    if ttft is None or _later_tokens(t) < 2:
        return False
    span = t.arrivals[-1][0] - t.arrivals[0][0]
    return span * 20 < ttft and median(t.itl_ns()) < _NEVER_A_DECODE_STEP_NS


def _later_tokens(t: Timeline) -> int:
    """Tokens after the first arrival: as many gaps, and cheaper to tell than these."""
    return t.tokens - t.arrivals[0][1] if t.arrivals else 0


def burst_share(ok: Sequence[Timeline]) -> float | None:
    """Share of chunk gaps under 1 ms when delivery is in bursts, else None.

    In bursts: more than 20 % of the gaps are under 1 ms while gaps of at least ten times their
    median (and 1 ms) hold at least half of the decode time.
    """
    number = few = 0  # counted first: as numbers of a process all gaps of a long run are too many
    for t in ok:
        each = t.chunk_gaps_ns()
        number += len(each)
        few += sum(g < _BURST_NS for g in each)
    if not number or few <= _BURST_SHARE * number:
        return None
    gaps = [g for t in ok for g in t.chunk_gaps_ns()]
    small = [g for g in gaps if g < _BURST_NS]
    edge = max(10 * median(small), _BURST_NS)
    if 2 * sum(g for g in gaps if g >= edge) < sum(gaps):
        return None
    return len(small) / len(gaps)


def itl_samples_ms(t: Timeline, *, bursts_allowed: bool) -> list[float]:
    """ITL samples of one request, ms. With bursts allowed, gaps inside a burst are spread over it.

    A burst is a run of arrivals under 1 ms apart; its k tokens after a gap g give k samples g/k.
    """
    if not bursts_allowed:
        return t.itl_ms()
    out: list[float] = []
    burst: list[int] = []
    gap = 0
    for (before, _), (at, k) in zip(t.arrivals, t.arrivals[1:], strict=False):
        if burst and at - before < _BURST_NS:
            burst.append(k)
            gap += at - before
            continue
        out.extend(_spread(gap, burst))
        burst, gap = [k], at - before
    out.extend(_spread(gap, burst))
    return out


def _spread(gap_ns: int, burst: Sequence[int]) -> list[float]:
    k = sum(burst)
    return [gap_ns / k / NS_PER_MS] * k if k else []


def covers(lengths: Sequence[int], bucket: Range) -> str | None:
    """Why measured prompt lengths do not cover their bucket; None when they do.

    At least a third must lie in the top quarter of the range (open bucket: up to its
    ``measured_to``).
    """
    top = bucket.top
    if not lengths or top is None:
        return "lengths not covered: no upper end is known" if top is None else None
    edge = top - (top - bucket.lo) / 4
    high = sum(1 for n in lengths if n >= edge)
    if 3 * high >= len(lengths):
        return None
    return (
        f"lengths not covered: {high} of {len(lengths)} prompts lie in the top quarter of "
        f"{bucket} (at least a third must); longest measured {max(lengths)}"
    )


BLOCK_TOKENS = 16
"""Prefix caches keep whole blocks: so much more than the template two prompts may share."""


def too_cached(t: Timeline, template_tokens: int, block: int = BLOCK_TOKENS) -> bool:
    """True when more of the prompt came from a prefix cache than the template explains."""
    if not t.cached_tokens or t.prompt_tokens is None:
        return False
    return t.cached_tokens > max(t.prompt_tokens / 10, template_tokens + block)

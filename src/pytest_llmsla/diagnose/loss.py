"""Where the tokens per second went that n requests at once gave less than n times one.

An estimate with its evidence, or no cause at all. A request's time is the time before its first
token and the time of its steps. What each takes more of at a level than alone, over the whole
time of a request there, is its share of what is lost; of whose making it is, the stages of the
requests and the samples of the machine tell, where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..probes.card_samples import slowed_by
from ..timeline import NS_PER_MS, Timeline
from .bandwidth import bandwidth_of
from .samples import Samples

LEAST = 0.03
"""Share of n × single from which a cause is worth a word."""
BUSY = 90.0
"""Percent of all cores from which a machine's processor is called busy."""
IDLE = 70.0
"""Percent of a card's time below which it is called waiting."""
FULL = 95.0
"""Percent of a KV cache from which it is called full."""
BOUND = 0.6
"""Share of a card's memory bandwidth from which a step is called bound by it."""

NOT_ATTRIBUTABLE = "not attributable"
_MASKS = 1 << 32  # beyond it, a figure is no mask of reasons
_QUEUES = ("queue", "client_queue")


@dataclass(frozen=True)
class Load:
    """One level: its sound measured requests, and the samples while they ran."""

    concurrency: int
    rate: float
    """Tokens per second of all requests together."""
    timelines: Sequence[Timeline]
    samples: Samples = field(default_factory=Samples)
    mode: str | None = None
    """How they share the model: threads, continuous, batch, http …"""


@dataclass(frozen=True)
class _Times:
    """Means over requests, ns; the steps' are those of one token."""

    first: float
    step: float
    tokens: float
    stages: Mapping[str, float]
    """Per request, those of the time before the first token."""
    device: float | None
    """Of a step, what the device took."""

    @property
    def whole(self) -> float:
        """One request of as many tokens."""
        return self.first + self.step * self.tokens


def attribute(
    level: Load, alone: Load, facts: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Why ``level`` gives less than its concurrency times ``alone``.

    Args:
        level: several requests at once.
        alone: the same service, one request at a time.
        facts: of the target: ``weight_bytes``, ``kv_bytes_per_token``, where known.

    Returns:
        ``cause``, ``share`` (of n × single, estimated; None where only its presence is known) and
        ``evidence`` in words, the largest first. Empty where next to nothing is lost.
    """
    whole = level.concurrency * alone.rate
    lost = 1 - level.rate / whole if whole > 0 else 0.0
    now, then = _times(level.timelines), _times(alone.timelines)
    if lost < LEAST or now is None or then is None:
        return []
    found = [*_before_first(level, now, then), *_steps(level, now, then, facts or {})]
    found = [f for f in found if f["share"] >= LEAST]
    for f in found:  # the parts of a request's time need not add up to what the level lost
        f["share"] = round(min(f["share"], lost), 3)
    found.sort(key=lambda f: -f["share"])
    found += _signs(level.samples)
    if not found:
        return [
            _cause(
                NOT_ATTRIBUTABLE, None, f"{lost:.0%} of n × single is lost, and nothing says why"
            )
        ]
    return found


def _cause(name: str, share: float | None, evidence: str) -> dict[str, Any]:
    return {"cause": name, "share": share, "evidence": evidence}


def _times(timelines: Sequence[Timeline]) -> _Times | None:
    several = [t for t in timelines if t.tokens > t.arrivals[0][1]]
    if not several:
        return None
    first = fmean(t.ttft_ns or 0 for t in several)
    later = [t.tokens - t.arrivals[0][1] for t in several]
    decoding = sum(t.arrivals[-1][0] - t.arrivals[0][0] for t in several)
    names = {name for t in several for name in t.stages}
    device = [t.stages["decode_device"] for t in several if "decode_device" in t.stages]
    return _Times(
        first=first,
        step=decoding / sum(later),
        tokens=fmean(later),
        stages={name: fmean(t.stages.get(name, 0) for t in several) for name in names},
        device=sum(device) / sum(later) if len(device) == len(several) else None,
    )


def _before_first(level: Load, now: _Times, then: _Times) -> list[dict[str, Any]]:
    """What the time before the first token grew by: waiting, and the prompts of the others."""
    share = (now.first - then.first) / now.whole
    if share < LEAST:
        return []
    queued, words = _queued(level, now, then)
    queued = min(queued, share)
    out = []
    if queued >= LEAST:
        out.append(_cause("queue", queued, words))
    if share - queued >= LEAST:
        out.append(
            _cause(
                "prefill",
                share - queued,
                f"the first token comes after {_ms(now.first)} instead of {_ms(then.first)} ms: "
                "prompts of the others are computed before or beside it",
            )
        )
    return out


def _queued(level: Load, now: _Times, then: _Times) -> tuple[float, str]:
    """Share of a request's time in which it waited for its turn, and how that is known."""
    waited = sum(now.stages.get(name, 0.0) - then.stages.get(name, 0.0) for name in _QUEUES)
    if waited > 0:
        return waited / now.whole, f"a request waits {_ms(waited)} ms for its turn (its stages)"
    waiting, running = level.samples.mean("server_waiting"), level.samples.mean("server_running")
    if not waiting:
        return 0.0, ""
    among = waiting + (running if running is not None else level.concurrency)
    return waiting / among, (
        f"{waiting:.1f} requests wait in the server on average, {among - waiting:.1f} run (its "
        "metrics)"
    )


def _steps(
    level: Load, now: _Times, then: _Times, facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What the steps grew by: on the device, and around it."""
    grown = (now.step - then.step) * now.tokens / now.whole
    if grown < LEAST:
        return []
    seen = f"a token takes {_ms(now.step)} instead of {_ms(then.step)} ms"
    if now.device is None or then.device is None:
        return [_undivided(level, now, then, grown, seen)]
    device = max(0.0, (now.device - then.device) * now.tokens / now.whole)
    device = min(device, grown)
    on = f"{seen}, on the device {_ms(now.device)} instead of {_ms(then.device)} ms"
    bound = _bound(level, now.step, facts)
    host = "lock" if level.mode == "threads" else "launches/host"
    return [
        _cause("bandwidth" if bound else "device", device, f"{on}{bound}"),
        _cause(host, grown - device, f"{on}: the rest is spent around the device's work"),
    ]


def _undivided(level: Load, now: _Times, then: _Times, grown: float, seen: str) -> dict[str, Any]:
    """The steps' growth where the device's own time is not known."""
    busy, cards = level.samples.median("system_cpu"), level.samples.named("util")
    loads = [v for c in cards if (v := level.samples.median(c)) is not None]
    if busy is not None and busy >= BUSY and not cards:
        own, server = level.samples.median("process_cpu"), level.samples.median("server_cpu")
        parts = [
            f"{name} {value:.0f} % of a core"
            for name, value in (("this process", own), ("the server", server))
            if value is not None
        ]
        words = f"{seen}, and {busy:.0f} % of all cores are busy ({', '.join(parts)})"
        return _cause("cpu", grown, words)
    waits = loads and max(loads) < IDLE
    if level.mode == "threads" and (waits or (not cards and busy is not None and busy < IDLE)):
        what = (
            f"the card is busy {max(loads):.0f} % of the time"
            if loads
            else f"{busy:.0f} % of all cores are busy"
        )
        times = now.step / then.step
        return _cause(
            "lock",
            grown,
            f"{seen} ({times:.1f} times, {level.concurrency} threads) while {what}: the threads "
            "wait for each other (the interpreter's lock)",
        )
    return _cause(NOT_ATTRIBUTABLE, grown, f"{seen}, and no probe says why")


def _bound(level: Load, step: float, facts: Mapping[str, Any]) -> str:
    """Words for a step that reads memory about as fast as the card can; empty when it does not."""
    weights, kv = facts.get("weight_bytes"), facts.get("kv_bytes_per_token")
    cards = {level.samples.about.get(c, "") for c in level.samples.named("util")}
    known = [bandwidth_of(name) for name in cards]
    if not isinstance(weights, int) or len(known) != 1 or known[0] is None:
        return ""
    context = fmean((t.prompt_tokens or 0) + t.tokens / 2 for t in level.timelines)
    cache = kv * context * level.concurrency if isinstance(kv, (int, float)) else 0.0
    # Threads read the weights each for itself; a batch reads them once for all.
    reads = weights * (level.concurrency if level.mode == "threads" else 1) + cache
    share = reads / (step / 1e9) / known[0]
    if share < BOUND:
        return ""
    return (
        f"; weights and cache ({reads / 1e9:.1f} GB a step) are read at {share:.0%} of the card's "
        "memory bandwidth"
    )


def _signs(samples: Samples) -> list[dict[str, Any]]:
    """What takes speed away by an amount that nobody knows."""
    out = []
    preempted = samples.most("server_preemptions")
    if preempted:
        out.append(
            _cause(
                "preemption",
                None,
                f"the server preempted {preempted:.0f} requests: its KV cache is short",
            )
        )
    full = samples.most("server_kv_percent")
    if full is not None and full >= FULL:
        out.append(_cause("kv cache", None, f"the server's KV cache was {full:.0f} % full"))
    for column in samples.named("slowed"):
        values = samples.columns[column]
        slow = sum(1 for v in values if v)
        if slow >= LEAST * len(values):
            clock = samples.median(column.replace("slowed", "sm_mhz"))
            at = "" if clock is None else f", usually at {clock:.0f} MHz"
            card = samples.about.get(column, column.partition("_")[0])
            masks = {int(v) for v in values if 0 < v < _MASKS}
            why = dict.fromkeys(word for mask in sorted(masks) for word in slowed_by(mask))
            by = f" ({', '.join(why)})" if why else ""
            words = f"{card}: its clock was held down in {slow} of {len(values)} samples{by}{at}"
            out.append(_cause("throttling", None, words))
    return out


def _ms(ns: float) -> str:
    return f"{ns / NS_PER_MS:.1f}"

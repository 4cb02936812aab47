"""What the server itself says of the time between two readings, as one JSON-ready line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .metric_names import (
    EVERY,
    LLAMACPP,
    LLAMACPP_DECODE_SECONDS,
    LLAMACPP_PROMPT_SECONDS,
    VLLM_CACHE_CONFIG,
    Names,
)
from .metrics import RESET, Snapshot, UnreadableError, added, histogram, restarted

OTHERS = "other traffic"
"""Prefix of the warning that requests of others were served meanwhile."""

_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Sent:
    """What we had the server do between the two snapshots, warm-up and preflight included."""

    requests: int
    output_tokens: int | None = None
    """None when the tokens of a request are not known."""
    cached_tokens: int = 0
    """Prompt tokens from a prefix cache, as answers told them."""
    silent: int = 0
    """Requests that ended without telling them."""

    def __sub__(self, earlier: Sent) -> Sent:
        """What came after ``earlier``."""
        tokens = None
        if self.output_tokens is not None and earlier.output_tokens is not None:
            tokens = self.output_tokens - earlier.output_tokens
        return Sent(
            self.requests - earlier.requests,
            tokens,
            self.cached_tokens - earlier.cached_tokens,
            self.silent - earlier.silent,
        )


def server_side(
    before: Snapshot, after: Snapshot, sent: Sent, model: str | None = None
) -> dict[str, Any]:
    """The ``server`` line of a log: the server's own figures between two snapshots.

    Keys: ``source``, ``software``, ``reason`` (why there is nothing, else None), ``ttft``,
    ``itl``, ``tpot``, ``queue``, ``prefill`` (as :func:`metrics.histogram`), ``kv_cache``,
    ``requests`` and ``tokens`` (``server``, ``ours``, ``others``), ``prefix_cache``, ``warnings``.
    """
    line: dict[str, Any] = {
        "type": "server",
        "source": after.source,
        "software": None,
        "reason": before.problem or after.problem,
        "warnings": [],
    }
    if line["reason"] is not None:
        return line
    names = _names(after)
    if names is None:
        line["reason"] = f"{after.source}: no figure of a server that is known here"
        return line
    line["software"] = names.software
    if restarted(before, after):
        line["reason"] = RESET
        line["warnings"] = [RESET]
        return line
    requests = _shares(before, after, names.requests, sent.requests)
    tokens = _shares(before, after, names.tokens, sent.output_tokens)
    line["requests"], line["tokens"] = requests, tokens
    line["prefix_cache"] = _prefix_cache(before, after, names, sent, model)
    line["warnings"] = _other_traffic(requests, tokens)
    for key, wanted in names.histograms().items():
        line[key] = histogram(before, after, wanted, model)
    if names is LLAMACPP:
        line |= _llamacpp(before, after, sent, tokens)
    line["kv_cache"] = _kv_cache(before, after, names)
    return line


def _names(snapshot: Snapshot) -> Names | None:
    """The kind of server that most of the samples belong to."""

    def found(names: Names) -> int:
        wanted = [f"{n}_count" for h in names.histograms().values() for n in h.names]
        wanted += [*names.requests, *names.tokens, *names.kv]
        return sum(len(snapshot.series(n)) > 0 for n in wanted)

    best = max(EVERY, key=found)
    return best if found(best) else None


def _shares(
    before: Snapshot, after: Snapshot, names: tuple[str, ...], ours: int | None
) -> dict[str, Any]:
    """How much of a counter's gain is ours; over all models, as they share the machine."""
    out: dict[str, Any] = {"name": None, "server": None, "ours": ours, "others": None}
    name = next((n for n in names if after.series(n)), None)
    if name is None:
        return out | {"reason": "this server publishes no counter of them"}
    try:
        gained = added(before, after, name)
    except UnreadableError as e:
        return out | {"name": name, "reason": str(e)}
    server = round(gained)
    others = None if ours is None else max(server - ours, 0)
    return out | {"name": name, "server": server, "others": others, "reason": None}


def _prefix_cache(
    before: Snapshot, after: Snapshot, names: Names, sent: Sent, model: str | None
) -> dict[str, Any]:
    """Prompt tokens that came from a prefix cache, beside what our answers told of them.

    ``hits``: by the server's counter, None with ``reason``. ``told``: by our answers.
    ``silent``: requests of ours whose answers told nothing.
    """
    found = [name for name in names.cached if after.series(name)]
    out: dict[str, Any] = {
        "names": found,
        "hits": None,
        "told": sent.cached_tokens,
        "silent": sent.silent,
        "reason": None,
    }
    if not found:
        return out | {"reason": "this server publishes no counter of them"}
    try:
        return out | {"hits": round(sum(added(before, after, name, model) for name in found))}
    except UnreadableError as e:
        return out | {"reason": str(e)}


def _other_traffic(requests: Mapping[str, Any], tokens: Mapping[str, Any]) -> list[str]:
    for what, share in (("requests", requests), ("generated tokens", tokens)):
        if share["server"] is None or share["others"] is None:
            continue
        if share["others"]:
            return [
                f"{OTHERS}: the server counted {share['server']} {what} between the two readings, "
                f"{share['ours']} of them ours; the rest took its time and is in its figures"
            ]
        return []
    if requests["reason"] == RESET or tokens["reason"] == RESET:
        return [RESET]
    return []


def _llamacpp(
    before: Snapshot, after: Snapshot, sent: Sent, tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """llama.cpp publishes sums of time alone: a mean follows only if all of it is ours.

    Its decode time runs from the first token of a request to its last, so n tokens of one request
    have n − 1 gaps in it.
    """
    none: dict[str, Any] = {"count": None, "mean_ms": None, "percentiles": {}}
    out: dict[str, Any] = {}
    gaps = None if sent.output_tokens is None else sent.output_tokens - sent.requests
    for key, name, count, what in (
        ("prefill", LLAMACPP_PROMPT_SECONDS, sent.requests, "prompt processing of a request"),
        ("itl", LLAMACPP_DECODE_SECONDS, gaps, "decode time / (tokens - requests)"),
    ):
        figure = {"name": name, **none, "what": what}
        try:
            if tokens["server"] != sent.output_tokens:
                raise UnreadableError("only sums are published, and not all they hold is ours")
            seconds = added(before, after, name)
            if not count or count < 0:
                raise UnreadableError("nothing was added between the two readings")
            figure |= {"count": count, "mean_ms": round(seconds * 1000 / count, 9)}
            figure["reason"] = "only sums are published: no percentiles"
        except UnreadableError as e:
            figure["reason"] = str(e)
        out[key] = figure
    return out


def _kv_cache(before: Snapshot, after: Snapshot, names: Names) -> dict[str, Any]:
    """Usage at both readings (a share, the fullest cache of several) and capacity in tokens.

    No request of ours runs at either: what a request uses while it runs is not in it.
    """
    name = next((n for n in names.kv if after.series(n)), None)
    out: dict[str, Any] = {"name": name, "capacity_tokens": _capacity(after, names)}
    for key, snapshot in (("before", before), ("after", after)):
        values = [] if name is None else list(snapshot.series(name).values())
        out[key] = max(values) if values and all(0 <= v <= 1 for v in values) else None
    out["reason"] = None
    if name is None:
        out["reason"] = "this server does not publish it"
    elif out["before"] is None or out["after"] is None:
        out["reason"] = f"{name} is missing at one of the readings, or no share from 0 to 1"
    return out


def _capacity(snapshot: Snapshot, names: Names) -> int | None:
    if names.capacity:
        values = snapshot.values([names.capacity]).get(names.capacity, [])
        return int(max(values)) if values and 0 < max(values) < 10**_MOST_DIGITS else None
    total = 0
    for labels in snapshot.series(VLLM_CACHE_CONFIG):
        given = dict(labels)
        blocks, size = given.get("num_gpu_blocks", ""), given.get("block_size", "")
        if not all(_count(x) for x in (blocks, size)):
            return None
        total += int(blocks) * int(size)
    return total or None


def _count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS // 2

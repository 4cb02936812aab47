"""A gated server in words: what it says of itself, its own times beside ours, how the client fared.

Reads ``target`` of report.json. Texts are visible but not yet escaped for Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import numbers, summary
from .escape import shortened

OWN_SECTION = ("server", "server_side", "transport")
"""Keys of ``target`` that are shown here and not among its other facts."""

_EVERY = ("p50", "p95", "p99")
_JUDGED = ("p95",)
_TITLES = {"ttft": "TTFT", "itl": "ITL"}
_OTHER_TIMES = {
    "tpot": "time per output token",
    "queue": "time in its queue",
    "prefill": "prefill",
}


def target(report: summary.ReportDict) -> Mapping[str, Any]:
    """The report's target without what has a section of its own."""
    given = report.get("target") or {}
    return {k: v for k, v in given.items() if k not in OWN_SECTION}


def rows(report: summary.ReportDict) -> list[str]:
    """The section on a server, one fact or figure a row; empty for other targets."""
    given = report.get("target") or {}
    if not any(given.get(key) for key in OWN_SECTION):
        return []
    out = [f"{name}: {text}" for name, text in summary.facts(_mapping(given.get("server")))]
    return [*out, *figures(report)]


def figures(report: summary.ReportDict, *, brief: bool = False) -> list[str]:
    """The same without the facts; ``brief`` for a terminal: P95 only, no names, less beside it."""
    given = report.get("target") or {}
    if not any(given.get(key) for key in OWN_SECTION):
        return []
    out = [f"clock starts: {shortened(given['start_point'])}"] if given.get("start_point") else []
    side = _mapping(given.get("server_side"))
    if side:
        out += _own_figures(side, brief)
    fared = _mapping(given.get("transport"))
    return out + (_transport(fared) if fared else [])


def identity(report: summary.ReportDict) -> str:
    """``vllm 0.32.0, model m, context 2048 tokens``; empty when the server says nothing."""
    facts = _mapping((report.get("target") or {}).get("server"))
    software = " ".join(shortened(facts[k]) for k in ("software", "version") if facts.get(k))
    parts = [software or shortened(facts.get("header") or "")]
    parts += [f"model {shortened(facts['model'])}"] if facts.get("model") else []
    parts += [shortened(facts[k]) for k in ("dtype", "quantization") if facts.get(k)]
    parts += [f"context {shortened(facts['max_context'])} tokens"] if "max_context" in facts else []
    return ", ".join(p for p in parts if p)


def warnings(report: summary.ReportDict) -> list[str]:
    """Warnings of the server's figures: requests of others, a restart."""
    side = _mapping((report.get("target") or {}).get("server_side"))
    given = side.get("warnings")
    return [shortened(w) for w in given] if isinstance(given, list) else []


def _own_figures(side: Mapping[str, Any], brief: bool) -> list[str]:
    said = side.get("reason")
    if said:
        return [f"the server's own figures: none ({shortened(said)})"]
    out = []
    beside = _mapping(side.get("beside"))
    for name, title in _TITLES.items():
        out += [f"{title}, {row}" for row in _beside(_mapping(beside.get(name)), brief)]
    if side.get("beside_note"):
        out.append(f"beware: {shortened(side['beside_note'])}")
    for name, title in () if brief else _OTHER_TIMES.items():
        figure = _mapping(side.get(name))
        if figure.get("mean_ms") is not None:
            out.append(f"the server's own {title}: {_figure(figure, brief)}")
    prefix = _mapping(side.get("prefix_cache"))
    if prefix.get("hits") is not None:
        out.append(f"prefix cache: {_prefix_cache(prefix)}")
    cache = _mapping(side.get("kv_cache"))
    if brief and cache.get("reason"):
        return out
    return [*out, f"KV cache: {_kv_cache(cache)}"]


def _beside(one: Mapping[str, Any], brief: bool) -> list[str]:
    keys = _JUDGED if brief else _EVERY
    ours, theirs = _mapping(one.get("ours")), _mapping(one.get("theirs"))
    figures = [f"mean {_ms(ours.get('mean_ms'))}"]
    figures += [f"{p.upper()} {_ms(ours.get(f'{p}_ms'))}" for p in keys]
    rows = [f"ours: {', '.join(figures)} (n={summary.text_of(ours.get('count'))})"]
    if theirs.get("mean_ms") is None:
        return [*rows, f"the server's own: none ({shortened(one.get('reason') or '?')})"]
    rows.append(f"the server's own: {_figure(theirs, brief)}")
    if one.get("reason"):
        return rows
    difference = _mapping(one.get("difference"))
    parts = [f"mean {_ms(difference.get('mean_ms'))}"]
    parts += [
        f"{p.upper()} {_interval(difference[f'{p}_ms'])}" for p in keys if difference.get(f"{p}_ms")
    ]
    return [*rows, f"ours minus the server's own: {', '.join(parts)}"]


def _figure(theirs: Mapping[str, Any], brief: bool) -> str:
    """``mean 80.0 ms, P95 within 75.0 ms to 100.0 ms (n=200, name: what)``."""
    keys = _JUDGED if brief else _EVERY
    parts = [f"mean {_ms(theirs.get('mean_ms'))}"]
    buckets = _mapping(theirs.get("percentiles"))
    parts += [f"{p.upper()} {_bucket(_mapping(buckets[p]))}" for p in keys if p in buckets]
    count = f"n={summary.text_of(theirs.get('count'))}"
    if brief:
        return f"{', '.join(parts)} ({count})"
    what = f": {shortened(theirs['what'])}" if theirs.get("what") else ""
    return f"{', '.join(parts)} ({count}, {shortened(theirs.get('name') or '')}{what})"


def _bucket(edges: Mapping[str, Any]) -> str:
    if edges.get("to_ms") is None:
        return f"over {_ms(edges.get('over_ms'))}"
    return f"within {_ms(edges.get('over_ms'))} to {_ms(edges['to_ms'])}"


def _interval(given: object) -> str:
    if not isinstance(given, list) or len(given) != 2:
        return numbers.NOTHING
    least, most = given
    if least is None:
        return f"at most {_ms(most)}"
    return f"{_ms(least)} to {_ms(most)}"


def _prefix_cache(given: Mapping[str, Any]) -> str:
    """``640 prompt tokens came from it (name); answers told 0, 38 requests told nothing``."""
    names = given.get("names")
    by = " + ".join(shortened(n) for n in names) if isinstance(names, list) else numbers.NOTHING
    silent = given.get("silent")
    told = f"answers told {summary.text_of(given.get('told'))}"
    return (
        f"{summary.text_of(given['hits'])} prompt tokens came from it ({by}); {told}"
        f"{f', {_requests(silent)} told nothing' if silent else ''}"
    )


def _kv_cache(given: Mapping[str, Any]) -> str:
    parts = []
    if given.get("reason"):
        parts.append(f"usage unknown ({shortened(given['reason'])})")
    else:
        parts += [
            f"{numbers.percent(given[key])} used {key} the requests"
            for key in ("before", "after")
            if isinstance(given.get(key), (int, float))
        ]
    if given.get("capacity_tokens"):
        parts.append(f"room for {summary.text_of(given['capacity_tokens'])} tokens")
    return ", ".join(parts) or numbers.NOTHING


def _transport(given: Mapping[str, Any]) -> list[str]:
    stamps = ", ".join(
        f"{shortened(k)} {summary.text_of(v)}" for k, v in _mapping(given.get("stamps")).items()
    )
    out = [
        f"client: {_requests(given.get('requests'))}, arrivals stamped by: "
        f"{stamps or numbers.NOTHING}; its own lag, P95 of a request, at most "
        f"{_ms(given.get('lag_p95_ms'))}"
    ]
    if given.get("retries"):
        out.append(
            f"retries: {summary.text_of(given['retries'])} in {_requests(given.get('retried'))}; "
            "the clock ran on from the first attempt"
        )
    if given.get("merged"):
        share = given.get("merged_share")
        part = f" ({numbers.percent(share, places=1)})" if isinstance(share, float) else ""
        out.append(
            f"merged reads: {summary.text_of(given['merged'])} of "
            f"{summary.text_of(given.get('arrivals'))} arrivals{part} came in one read with the "
            "one before and share its stamp"
        )
    if given.get("estimated"):
        out.append(f"estimated token counts: {_requests(given['estimated'])}")
        out += [
            f"estimated in {_requests(row.get('count'))}: {shortened(row.get('reason'))}"
            for row in given.get("estimated_reasons") or ()
            if isinstance(row, Mapping)
        ]
    told = _mapping(given.get("prefill"))
    if told:
        out.append(
            f"TTFT minus the server's own prefill of the same request: median "
            f"{_ms(told.get('after_prefill_ms'))}, prefill {_ms(told.get('median_ms'))} "
            f"(n={summary.text_of(told.get('requests'))})"
        )
    return out


def _requests(count: object) -> str:
    return numbers.counted(count, "request") if isinstance(count, int) else numbers.NOTHING


def _ms(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return numbers.NOTHING
    return numbers.measured(float(value), "ms")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

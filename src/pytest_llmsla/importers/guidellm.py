"""GuideLLM ``benchmarks.json`` or ``.yaml`` (metadata.version 2): one run a benchmark.

Requests carry the time of their first and last token, no gaps: TTFT is judged in full, ITL is a
mean per request and not shown. Percentiles are steps of the distribution (``p001`` is 0.1 %).
Incomplete requests were cut off by the tool at the end; they count as failed. The lists hold
requests of its warm-up and cool-down too, its totals do not.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from ..timeline import Timeline, TokenSource
from . import base
from . import guidellm_summary as figures
from .base import UNPLACED, Place, Run, Summary, Value

TOOL = "GuideLLM"
METHOD = "step of the cumulative distribution"
_START = "the tool's request sent, user-space clock"
_NO_ITL = (
    "GuideLLM keeps one mean inter-token latency per request and no gaps between tokens: means "
    "hide stalls, so rule 2 is not shown by this file"
)
_LOST = ("errored", "cancelled")
_KINDS = ("successful", "errored", "incomplete")


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    if not isinstance(head, Mapping) or not isinstance(head.get("benchmarks"), list):
        return False
    metadata, first = head.get("metadata"), next(iter(head["benchmarks"]), None)
    return (
        (isinstance(metadata, Mapping) and "guidellm_version" in metadata)
        or "args" in head
        or "config" in head
        or (isinstance(first, Mapping) and {"requests", "metrics"} <= first.keys())
    )


def read(path: Path, documents: list[Any]) -> list[Run]:
    """A run for each benchmark."""
    if len(documents) != 1:
        raise UsageError(f"{path}: holds {len(documents)} documents; GuideLLM writes one")
    where = Place(path)
    doc = base.mapping(documents[0], where)
    metadata = base.mapping(doc.get("metadata") or {}, where.at("metadata"))
    if metadata.get("version") != 2:
        _refuse_version(metadata, path)
    benchmarks = base.rows(doc["benchmarks"], where.at("benchmarks"))
    if not benchmarks:
        where.at("benchmarks").refuse("is empty: nothing was measured")
    version = base.text_or_none(metadata.get("guidellm_version"))
    return [
        _run(base.mapping(b, where.at("benchmarks").at(n)), where.at("benchmarks").at(n), version)
        for n, b in enumerate(benchmarks)
    ]


def _refuse_version(metadata: Mapping[str, Any], path: Path) -> NoReturn:
    found = metadata.get("version")
    later = isinstance(found, int) and found > 2
    said = metadata.get("guidellm_version") or ("" if later else "of before 0.4")
    do = (
        "Update pytest-llmsla, or measure with a GuideLLM that writes 2"
        if later
        else "Older files keep their times elsewhere and cannot be judged: measure again with "
        "GuideLLM 0.5 or later"
    )
    raise UsageError(
        f"{path}: GuideLLM {said!s:.40}, metadata.version {found!r:.40}; this version reads 2 "
        f"(GuideLLM 0.5 and later). {do}"
    )


def _run(doc: Mapping[str, Any], where: Place, version: str | None) -> Run:
    config = base.mapping(doc.get("config"), where.at("config"))
    strategy = base.mapping(config.get("strategy"), where.at("config.strategy"))
    requests = base.mapping(doc.get("requests"), where.at("requests"))
    metrics = base.mapping(doc.get("metrics"), where.at("metrics"))
    concurrency, rate = _load(strategy, where.at("config.strategy"))
    kept, asked, aside = _counts(doc, requests, metrics, where)
    rows = [
        (kind, base.mapping(row, where.at(f"requests.{kind}").at(n)), n)
        for kind in _KINDS
        for n, row in enumerate(requests.get(kind) or ())
    ]
    bodies = [_body(row) for _, row, _ in rows]
    backend = config.get("backend")
    own = [backend.get("model")] if isinstance(backend, Mapping) else []
    model = base.one_model([*own, *(b.get("model") for b in bodies)], where)
    timelines: tuple[Timeline, ...] = ()
    values: tuple[Value, ...] = ()
    summary: Summary | None = None
    notes = []
    if kept != asked:  # sample_size thinned them: what is left is no whole run
        summary = figures.summary(metrics, where.at("metrics"))
        notes.append(f"{asked - kept} of {asked} requests were thinned out (sample_size)")
    elif _came_whole(rows):
        values = tuple(_whole(row, kind, where) for kind, row, _ in rows)
    else:
        timelines = tuple(_timelines(doc, rows, bodies, where, rate is not None, aside))
        left = sum(t.warmup for t in timelines)
        if left:
            notes.append(f"{left} requests of the tool's own warm-up and cool-down: not judged")
    return Run(
        tool=TOOL,
        path=where.path,
        percentile_method=METHOD,
        version=version,
        model=model,
        started=_utc(doc.get("start_time")),
        concurrency=concurrency,
        rate=rate,
        timelines=timelines,
        values=values,
        summary=summary,
        sampling=base.sampling_of(bodies),
        no_itl=base.NOT_STREAMED if values else _NO_ITL,
        unplaced=True,
        start_point=_START,
        notes=tuple(notes),
    )


def _utc(value: object) -> str | None:
    from datetime import datetime, timezone

    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(value, timezone.utc).isoformat().replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return None


def _load(strategy: Mapping[str, Any], where: Place) -> tuple[int | None, float | None]:
    kind = strategy.get("type_")
    if kind == "synchronous":
        return 1, None
    if kind == "concurrent":
        return base.count(strategy.get("streams"), where.at("streams")), None
    if kind in ("constant", "poisson", "async"):
        return None, base.number(strategy.get("rate"), where.at("rate"))
    if kind == "throughput":
        return None, None
    raise UsageError(
        f"{where.path}: strategy {kind!r:.40} cannot be judged; synchronous, concurrent, constant, "
        "poisson and throughput can"
    )


def _counts(
    doc: Mapping[str, Any], requests: Mapping[str, Any], metrics: Mapping[str, Any], where: Place
) -> tuple[int, int, set[str]]:
    """Requests in the lists, requests that there were, and kinds whose lists hold warm-up too."""
    totals = base.mapping(metrics.get("request_totals"), where.at("metrics.request_totals"))
    scheduler = doc.get("scheduler_metrics")
    sent = scheduler.get("requests_made") if isinstance(scheduler, Mapping) else None
    kept, asked, aside = 0, 0, set[str]()
    wrong = None
    for name in _KINDS:
        rows = base.rows(requests.get(name) or [], where.at(f"requests.{name}"))
        said = base.count(totals.get(name), where.at(f"metrics.request_totals.{name}"))
        if len(rows) > said:
            aside.add(name)
            inside = sum(_measured(base.mapping(row, where.at(name)), doc, where) for row in rows)
            if inside != said:
                wrong = f"says {said} {name} requests and holds {inside}"
        made = sent.get(name) if isinstance(sent, Mapping) and name != "incomplete" else None
        made = base.count_or_none(made, where.at(f"scheduler_metrics.requests_made.{name}"))
        kept, asked = kept + len(rows), asked + max(said, len(rows), made or 0)
    if wrong is not None and kept == asked:  # thinned lists hold any part of the window
        where.refuse(wrong)
    return kept, asked, aside


def _measured(row: Mapping[str, Any], doc: Mapping[str, Any], where: Place) -> bool:
    """True for a request that lies between the tool's warm-up and its cool-down, as it counts."""
    timings = base.mapping(
        base.mapping(row.get("info"), where.at("info")).get("timings"), where.at("info.timings")
    )
    begin, end = (
        base.number_or_none(doc.get(name), where.at(name)) for name in ("start_time", "end_time")
    )

    def at(name: str, other: str) -> float | None:
        key = name if timings.get(name) is not None else other
        return base.number_or_none(timings.get(key), where.at(f"info.timings.{key}"))

    started, ended = at("request_start", "resolve_start"), at("request_end", "resolve_end")
    if begin is None or end is None or ended is None:
        return True
    return ended >= begin and (ended if started is None else started) <= end


def _came_whole(rows: Sequence[tuple[str, Mapping[str, Any], int]]) -> bool:
    """True where answers came and not one of them has the time of a token."""
    good = [row for kind, row, _ in rows if kind == "successful"]
    infos = [row.get("info") for row in good]
    timings = [info.get("timings") for info in infos if isinstance(info, Mapping)]
    known = [t for t in timings if isinstance(t, Mapping)]
    return bool(good) and all(t.get("first_token_iteration") is None for t in known)


def _whole(row: Mapping[str, Any], kind: str, where: Place) -> Value:
    prompt = _count(row, "prompt_tokens", "input_metrics", where) or None
    tokens = base.count_or_none(row.get("output_tokens"), where.at("output_tokens"))
    if kind == "successful":
        return Value(prompt, tokens, None, unsure=base.NOT_STREAMED)
    return Value(prompt, None, None, error=_why(row, kind))


def _why(row: Mapping[str, Any], kind: str) -> str:
    info = row.get("info")
    said = info.get("error") if isinstance(info, Mapping) else None
    return base.text_or_none(said) or f"{kind}, without a reason on record"


def _timelines(
    doc: Mapping[str, Any],
    rows: Sequence[tuple[str, Mapping[str, Any], int]],
    bodies: Sequence[Mapping[str, Any]],
    where: Place,
    open_loop: bool,
    aside: Container[str],
) -> Iterator[Timeline]:
    for number, ((kind, row, n), body) in enumerate(zip(rows, bodies, strict=True)):
        at = where.at(f"requests.{kind}").at(n)
        t = _timeline(number, row, body, at, kind, open_loop)
        if t is not None:
            warmup = kind in aside and not _measured(row, doc, where)
            yield replace(t, warmup=True) if warmup else t


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        args = json.loads(row.get("request_args") or "{}")
    except (TypeError, ValueError):
        return {}
    body = args.get("body") if isinstance(args, dict) else None
    return body if isinstance(body, dict) else {}


def _timeline(
    n: int,
    row: Mapping[str, Any],
    body: Mapping[str, Any],
    where: Place,
    kind: str,
    open_loop: bool,
) -> Timeline | None:
    info = base.mapping(row.get("info"), where.at("info"))
    timings = base.mapping(info.get("timings"), where.at("info.timings"))

    def at(name: str) -> int | None:
        place = where.at(f"info.timings.{name}")
        value = base.number_or_none(timings.get(name), place)
        return None if value is None else base.ns(value, place)

    start, target = at("request_start"), at("targeted_start")
    prompt = _count(row, "prompt_tokens", "input_metrics", where) or None
    # Its list and its status say the same; where they do not, it is no success.
    if kind != "successful" or info.get("error") or info.get("status") in _LOST:
        begun = start if start is not None else target
        if begun is None:
            return None  # it was queued and never sent
        return base.failed(n, _why(row, kind), start_ns=begun, prompt_tokens=prompt)
    first, last = at("first_token_iteration"), at("last_token_iteration")
    if start is None or first is None or last is None:
        where.refuse("is successful without the times of its start, first and last token")
    if not start < first <= last:
        where.refuse("has times that run backwards")
    said = base.number_or_none(row.get("time_to_first_token_ms"), where)
    base.agree(where, "a TTFT of", said, (first - start) / 1e6, " ms")
    tokens = _count(row, "output_tokens", "output_metrics", where)
    if tokens == 0:
        return base.failed(n, base.NO_TOKEN, start_ns=start, prompt_tokens=prompt)
    # Of an unknown number of tokens the last is one, where it is not the first.
    rest = int(last > first) if tokens is None else tokens - 1
    arrivals = ((first, 1), (last, rest)) if rest else ((first, 1),)
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start,
        end_ns=last,
        arrivals=arrivals,
        prompt_tokens=prompt,
        output_tokens=tokens,
        max_new_tokens=base.asked_of(body, where.at("request_args.body")),
        token_source=_source(row),
        scheduled_ns=target if open_loop else None,
        late_ns=max(start - target, 0) if open_loop and target is not None else None,
        cached_tokens=_count(row, "cached_tokens", "input_metrics", where),
        stamp="user",
        estimated=UNPLACED,
        prompt=json.dumps([body.get("messages"), body.get("prompt")]) if body else None,
    )


def _count(row: Mapping[str, Any], name: str, usage: str, where: Place) -> int | None:
    """A count of a request, where versions without a figure of their own keep it in its usage."""
    counted, inside = row.get(usage), name if name == "cached_tokens" else "total_tokens"
    inner = counted.get(inside) if isinstance(counted, Mapping) else None
    found = row[name] if row.get(name) is not None else inner
    return base.count_or_none(found, where.at(name))


def _source(row: Mapping[str, Any]) -> TokenSource:
    """Where nobody counted, the tool takes its events for tokens."""
    counted = row.get("output_metrics")
    known = not isinstance(counted, Mapping) or counted.get("total_tokens") is not None
    return "usage_final" if known else "events"

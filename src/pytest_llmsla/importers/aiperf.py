"""AIPerf and GenAI-Perf: ``profile_export.jsonl`` (requests) and the summary JSON beside it.

``unit`` beside each figure is authoritative. ``inter_chunk_latency`` holds the gaps of a request;
``inter_token_latency`` is a mean per request and no ITL. Chunks without content are not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import UsageError
from ..timeline import DISPUTED, NS_PER_MS, Arrivals, Timeline
from . import aiperf_summary as figures
from . import base, documents
from .base import UNPLACED, Place, Run, Value
from .chunks import Placed, place

METHOD = "linear interpolation (numpy)"
_START = "the tool's request sent, user-space clock"
# From its last token to its end a request takes less than both together: a latency of 500 ms that
# is written as 0.5 leaves more, and a server that is slow to close a short answer does not.
_UNIT = 100
_ENDING_MS = 200
_BESIDE = "_aiperf.json"  # profile_export.jsonl → profile_export_aiperf.json


def recognises(head: object) -> bool:
    """True for a line of requests and for the summary."""
    return isinstance(head, Mapping) and (
        _is_request(head) or _is_summary(head) or _other(head) is not None
    )


def _is_request(head: Mapping[str, Any]) -> bool:
    metadata = head.get("metadata")
    known = isinstance(metadata, Mapping) and "aggregation_type" not in metadata
    return known and "metrics" in head and "benchmarks" not in head


def _other(head: Mapping[str, Any]) -> str | None:
    """What to give instead, where a file of these tools is neither of the two."""
    if "experiments" in head and "service_kind" in head:
        return "is Perf Analyzer's raw export, whose tokens nobody counted; give the summary JSON"
    metadata = head.get("metadata")
    several = isinstance(metadata, Mapping) and "aggregation_type" in metadata
    if several or {"combined", "per_run"} <= head.keys():
        return "is made of several runs; give the profile_export.jsonl of each"
    return None


def _is_summary(head: Mapping[str, Any]) -> bool:
    latency = head.get("request_latency")
    named = "aiperf_version" in head and "error_summary" in head  # of failures alone: no latency
    return named or (isinstance(latency, Mapping) and "unit" in latency and "avg" in latency)


def read(path: Path, docs: list[Any]) -> list[Run]:
    """The one run of the file."""
    where = Place(path)
    if (other := _other(base.mapping(docs[0], where))) is not None:
        raise UsageError(f"{path}: {other}")
    if _is_request(base.mapping(docs[0], where)):
        return [_requests(path, docs)]
    if len(docs) != 1:
        raise UsageError(f"{path}: holds {len(docs)} documents; a summary is one")
    doc = base.mapping(docs[0], where)
    figures.known(doc, path)
    config = figures.config_of(doc)
    return [
        Run(
            tool=figures.tool(doc),
            path=path,
            percentile_method=METHOD,
            version=base.text_or_none(doc.get("aiperf_version")),
            model=figures.model(config, where),
            started=base.utc_or_none(doc.get("start_time")),
            concurrency=figures.load(config, where)[0],
            rate=figures.load(config, where)[1],
            summary=figures.summary(doc, where),
            sampling=figures.sampling(config),
            no_itl=figures.no_itl(doc, where),
            start_point=_START,
            notes=figures.cancelled(doc),
        )
    ]


# -- the requests


def _requests(path: Path, docs: list[Any]) -> Run:
    beside = path.with_name(f"{path.stem}{_BESIDE}")
    if not beside.is_file():
        raise UsageError(
            f"{path}: does not say how many requests were in flight, which model and which "
            f"sampling; keep {beside.name}, which AIPerf writes, beside it"
        )
    where = Place(beside)
    doc = base.mapping(documents.documents(beside)[0], where)
    figures.known(doc, beside)
    config = figures.config_of(doc)
    if not config:
        raise UsageError(
            f"{beside}: has no input_config, so how many requests were in flight is not on record"
        )
    concurrency, rate = figures.load(config, where)
    if not figures.has_load(config, where):
        raise UsageError(
            f"{beside}: input_config does not say how many requests were in flight, or a rate, so "
            "which load was measured is unknown. Measure with --concurrency or --request-rate"
        )
    values: tuple[Value, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    gaps = True
    _refuse_twice(docs, path)
    if _came_whole(docs, config):
        values = tuple(
            _whole(row, Place(path, f"line {n + 1}"))
            for n, row in enumerate(docs)
            if not _warmup(_part(row, "metadata") or {})
        )
    else:
        gaps = any("inter_chunk_latency" in (_part(row, "metrics") or ()) for row in docs)
        asked = figures.asked(config, where) or 0
        timelines = tuple(
            _timeline(n, row, path, asked=asked, open_loop=rate is not None, spaced=gaps)
            for n, row in enumerate(docs)
        )
        _agree(doc, [t for t in timelines if not t.warmup], where)
        if rate is not None:
            _refuse_waits(docs, path, figures.cap(config, where), rate, where)
    return Run(
        tool="AIPerf",
        path=path,
        percentile_method=METHOD,
        version=base.text_or_none(doc.get("aiperf_version")),
        model=figures.model(config, where),
        started=base.utc_or_none(doc.get("start_time")),
        concurrency=concurrency,
        rate=rate,
        timelines=timelines,
        values=values,
        sampling=figures.sampling(config),
        no_itl=base.NOT_STREAMED if values else None if gaps else figures.MEAN_ITL,
        unplaced=not gaps,
        start_point=_START,
        notes=figures.cancelled(doc),
        partial=next(iter(figures.cancelled(doc)), None),
        beside=(beside,),
    )


def _warmup(metadata: Mapping[str, Any]) -> bool:
    return "warmup" in (metadata.get("benchmark_phase"), metadata.get("phase_kind"))


def _part(row: object, name: str) -> Mapping[str, Any] | None:
    found = row.get(name) if isinstance(row, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _came_whole(docs: list[Any], config: Mapping[str, Any]) -> bool:
    """True where answers came and not one of them has the time of a token."""
    good = [m for row in docs if (m := _part(row, "metrics")) and row.get("error") is None]
    none = not any("time_to_first_token" in m for m in good)
    return none and (bool(good) or not figures.streamed(config))


def _whole(given: object, where: Place) -> Value:
    row = base.mapping(given, where)
    metrics = base.mapping(row.get("metrics") or {}, where.at("metrics"))
    prompt, _ = _prompt_tokens(metrics, where)
    error = _error(row)
    if error is not None:
        return Value(prompt, None, None, error=error)
    return Value(prompt, _tokens(metrics, where), None, unsure=base.NOT_STREAMED)


def _error(row: Mapping[str, Any]) -> str | None:
    """Why a request failed, None: it did not."""
    error = row.get("error")
    if error is None and (_part(row, "metadata") or {}).get("was_cancelled") is not True:
        return None
    why = error.get("message") or error.get("type") if isinstance(error, Mapping) else error
    return str(why or "cancelled").strip().splitlines()[0][:300] or "failed"


def _refuse_twice(docs: list[Any], path: Path) -> None:
    """One request in two lines would count twice, whatever its times."""
    seen: dict[str, int] = {}
    for n, row in enumerate(docs, 1):
        name = (_part(row, "metadata") or {}).get("x_request_id")
        if not isinstance(name, str):
            continue
        if name in seen:
            raise UsageError(
                f"{path}: line {n} is of the request of line {seen[name]} (x_request_id "
                f"{name!r:.60}): the same evidence would count twice. Give each run once"
            )
        seen[name] = n


def _refuse_waits(
    docs: Sequence[Any], path: Path, most: int | None, rate: float, where: Place
) -> None:
    """A request that waited for a place among ``most`` was issued late, and nobody knows how.

    A failed request held its place as long as any other. A warm-up held one of the measured
    ones only while these were sent.
    """
    if most is None:
        return
    spans = [_span(row, Place(path, f"line {n}")) for n, row in enumerate(docs, 1)]
    begin = min((start for start, _, warmup in spans if not warmup), default=0)
    steps = sorted(
        step
        for start, end, warmup in spans
        if not warmup or end > begin
        for step in ((max(start, begin), 1), (end, -1))
    )
    flight = max(itertools.accumulate(step for _, step in steps), default=0)
    if flight >= most:
        raise UsageError(
            f"{where.path}: requests were to be sent at {rate:g}/s but at most {most} at once, "
            f"and {flight} were: how long others waited for a place is not on record, and is "
            "part of their TTFT. Measure with a higher concurrency, or without one"
        )


def _span(row: Mapping[str, Any], where: Place) -> tuple[int, int, bool]:
    """When a request was sent and when it ended, ns, however it ended; True for a warm-up."""
    metadata = _part(row, "metadata") or {}
    start, end = (
        base.count(metadata.get(name), where.at(f"metadata.{name}"))
        for name in ("request_start_ns", "request_end_ns")
    )
    if end < start:
        where.refuse("has times that run backwards")
    return start, end, _warmup(metadata)


def _timeline(
    n: int,
    given: object,
    path: Path,
    *,
    asked: int,
    open_loop: bool,
    spaced: bool,
) -> Timeline:
    """``spaced``: the file has gaps between chunks; else only first and last token have a time."""
    where = Place(path, f"line {n + 1}")
    row = base.mapping(given, where)
    metadata = base.mapping(row.get("metadata"), where.at("metadata"))
    metrics = base.mapping(row.get("metrics") or {}, where.at("metrics"))
    start = base.count(metadata.get("request_start_ns"), where.at("metadata.request_start_ns"))
    warmup = _warmup(metadata)
    prompt, notes = _prompt_tokens(metrics, where)
    error = _error(row)
    if error is not None:
        return base.failed(n, error, start_ns=start, prompt_tokens=prompt, warmup=warmup)
    ttft = _one(metrics, "time_to_first_token", where)
    gaps = _many(metrics, "inter_chunk_latency", where)
    whole = _one(metrics, "request_latency", where)
    if ttft is None or whole is None:
        return base.failed(n, base.NO_FIRST, start_ns=start, prompt_tokens=prompt, warmup=warmup)
    if not ttft:
        where.at("metrics.time_to_first_token").refuse("is 0: its first token was not timed")
    end = base.count(metadata.get("request_end_ns"), where.at("metadata.request_end_ns"))
    base.spaced(where, round(ttft * NS_PER_MS), gaps, round(whole * NS_PER_MS))
    if (end - start) / NS_PER_MS < whole - 1:
        where.refuse("took less time than its tokens took to arrive")
    if (end - start) / NS_PER_MS > _UNIT * whole + _ENDING_MS:
        where.refuse(
            f"took {(end - start) / NS_PER_MS:.0f} ms from start to end, but says a "
            f"request_latency of {whole:g} ms: are these seconds?"
        )
    tokens = _tokens(metrics, where)
    if tokens == 0:
        return base.failed(n, base.NO_TOKEN, start_ns=start, prompt_tokens=prompt, warmup=warmup)
    first, last = start + round(ttft * NS_PER_MS), start + round(whole * NS_PER_MS)
    if spaced or not tokens or tokens < 2:
        placed = place(start, first - start, gaps, tokens, opens_with_role=False)
    else:
        placed = Placed(Arrivals(((first, 1), (max(first, last), tokens - 1))), UNPLACED)
    issued = base.count_or_none(metadata.get("credit_issued_ns"), where.at("credit_issued_ns"))
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start,
        end_ns=max(last, placed.arrivals[-1][0]),
        arrivals=placed.arrivals,
        prompt_tokens=prompt,
        output_tokens=tokens,
        max_new_tokens=asked,
        token_source="usage_final" if "usage_completion_tokens" in metrics else "tokenizer",
        scheduled_ns=min(issued or start, start) if open_loop else None,
        late_ns=max(start - issued, 0) if open_loop and issued else None,
        cached_tokens=_count(metrics, "usage_prompt_cache_read_tokens", where),
        stamp="user",
        estimated=placed.estimated,
        warmup=warmup,
        notes=notes,
    )


def _prompt_tokens(metrics: Mapping[str, Any], where: Place) -> tuple[int | None, tuple[str, ...]]:
    """The server's count, else the tool's own; a note where the two are far apart."""
    own = _count(metrics, "input_sequence_length", where) or None
    theirs = _count(metrics, "usage_prompt_tokens", where) or None
    if own is None or theirs is None:
        return (own if theirs is None else theirs), ()
    return theirs, (f"{DISPUTED}: {own} tokens by the tool, {theirs} by the server",) * (
        theirs < own * 0.5
    )


def _tokens(metrics: Mapping[str, Any], where: Place) -> int | None:
    for name in ("usage_completion_tokens", "output_sequence_length", "output_token_count"):
        if (found := _count(metrics, name, where)) is not None:
            return found
    return None


def _count(metrics: Mapping[str, Any], name: str, where: Place) -> int | None:
    if metrics.get(name) is None:
        return None
    at = where.at(f"metrics.{name}")
    return base.count_or_none(base.mapping(metrics[name], at).get("value"), at)


def _one(metrics: Mapping[str, Any], name: str, where: Place) -> float | None:
    if metrics.get(name) is None:
        return None
    at = where.at(f"metrics.{name}")
    given = base.mapping(metrics[name], at)
    ms = base.number(given.get("value"), at) * figures.factor(given.get("unit"), at)
    base.span_ns(ms / 1e3, at)  # refuses one of years
    return ms


def _many(metrics: Mapping[str, Any], name: str, where: Place) -> list[int]:
    """A metric's list, ns."""
    if metrics.get(name) is None:
        return []
    at = where.at(f"metrics.{name}")
    given = base.mapping(metrics[name], at)
    return base.spans_ns(given.get("value"), at, figures.factor(given.get("unit"), at) * NS_PER_MS)


def _agree(doc: Mapping[str, Any], made: list[Timeline], where: Place) -> None:
    ok = [t for t in made if t.ok]
    done = figures.scalar(doc, "request_count", where)
    told = base.answered(made)
    if done is None and told:
        where.refuse("has no request_count, so whether lines are missing is unknown")
    base.same_count(where, "request_count", None if done is None else round(done), told)
    lost = figures.failed(doc, where)
    stopped = figures.scalar(doc, "cancelled_request_count", where) or 0
    if lost is not None and len(made) - told != round(lost + stopped):  # some versions: in both
        base.same_count(where, "failed requests", round(lost), len(made) - told)
    if told != len(ok):
        return  # its figures are of empty answers too
    ttft = figures.series(doc, "time_to_first_token", where)
    mean = fmean(t.ttft_ms or 0 for t in ok) if ok else None
    base.agree(where, "a mean TTFT of", ttft.mean if ttft else None, mean, " ms")
    base.agree_percentiles(where, "TTFT", ttft, [t.ttft_ms or 0 for t in ok])
    gaps = figures.series(doc, "inter_chunk_latency", where)
    if all(t.estimated is None for t in ok):
        base.agree_percentiles(where, "ITL", gaps, [g for t in ok for g in t.itl_ms()])

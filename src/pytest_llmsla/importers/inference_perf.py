"""inference-perf: ``per_request_lifecycle_metrics.json``, and the summaries of stage and run.

Seconds. Token times are of the answer tokenised again: tokens of one chunk share its time, so
equal times are one arrival of several tokens. The load is only in the stage's own file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..timeline import NS_PER_MS, Arrivals, Timeline
from . import base, documents
from .base import Place, Run, Series, Summary, Value

TOOL = "inference-perf"
METHOD = "linear interpolation (numpy)"
_START = "the tool's request sent, user-space clock"
_WHOLE = "summary_lifecycle_metrics.json"
_STAGES = "stage_*_lifecycle_metrics.json"
_PERCENTILE = re.compile(r"^p(\d+(?:\.\d+)?)$")
_RETOKENISED = (
    "its ITL is of the answer tokenised again: tokens of one chunk count as gaps of 0, so this "
    "summary does not show rule 2. Give per_request_lifecycle_metrics.json"
)


def recognises(head: object) -> bool:
    """True for the list of requests and for a summary."""
    if isinstance(head, list):
        return bool(head) and isinstance(head[0], Mapping) and {
            "start_time", "end_time", "info"
        } <= head[0].keys()  # fmt: skip
    return isinstance(head, Mapping) and {"load_summary", "successes", "failures"} <= head.keys()


def read(path: Path, docs: list[Any]) -> list[Run]:
    """The one run of the file."""
    if len(docs) != 1:
        raise UsageError(f"{path}: holds {len(docs)} documents; inference-perf writes one")
    if isinstance(docs[0], list):
        return [_requests(path, docs[0])]
    where = Place(path)
    doc = base.mapping(docs[0], where)
    concurrency, rate = _load(doc, where)
    return [
        Run(
            tool=TOOL,
            path=path,
            percentile_method=METHOD,
            concurrency=concurrency,
            rate=rate,
            summary=_summary(doc, where),
            no_itl=_RETOKENISED,
            start_point=_START,
            notes=_from_cache(doc, where),
            beside=_whole_run(path, doc),
        )
    ]


# -- a summary


def _whole_run(path: Path, doc: Mapping[str, Any]) -> tuple[Path, ...]:
    """The summary of the run beside that of its only stage: the same requests, without a load."""
    whole = path.with_name(_WHOLE)
    if [path] != list(path.parent.glob(_STAGES)) or not whole.is_file():
        return ()
    head = documents.documents(whole)[0]
    same = isinstance(head, Mapping) and all(
        _part(head, name).get("count") == _part(doc, name).get("count")
        for name in ("successes", "failures")
    )
    return (whole,) if same else ()


def _part(doc: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = doc.get(name)
    return found if isinstance(found, Mapping) else {}


def _load(doc: Mapping[str, Any], where: Place) -> tuple[int | None, float | None]:
    load = base.mapping(doc.get("load_summary"), where.at("load_summary"))
    concurrency = base.count_or_none(load.get("concurrency"), where.at("load_summary.concurrency"))
    if concurrency:
        return concurrency, None
    rate = base.number_or_none(load.get("requested_rate"), where.at("load_summary.requested_rate"))
    return None, rate or None


def _summary(doc: Mapping[str, Any], where: Place) -> Summary:
    good = base.mapping(doc.get("successes"), where.at("successes"))
    bad = base.mapping(doc.get("failures"), where.at("failures"))
    done = base.count(good.get("count"), where.at("successes.count"))
    lost = base.count(bad.get("count"), where.at("failures.count"))
    load = base.mapping(doc.get("load_summary"), where.at("load_summary"))
    sent = base.count_or_none(load.get("count"), where.at("load_summary.count"))
    if sent is not None and sent != done + lost:
        where.refuse(f"says {sent} requests were sent, {done} succeeded and {lost} failed")
    latency = base.mapping(good.get("latency") or {}, where.at("successes.latency"))
    lengths = good.get("prompt_len") or good.get("prompt_tokens") or {}
    known = lengths if isinstance(lengths, Mapping) and "min" in lengths else {}
    throughput = base.mapping(good.get("throughput") or {}, where.at("successes.throughput"))
    return Summary(
        completed=done,
        failed=lost,
        ttft=_series(latency, "time_to_first_token", where, done),
        itl=None,
        shortest=base.count_or_none(known.get("min"), where.at("prompt_len.min")),
        longest=base.count_or_none(known.get("max"), where.at("prompt_len.max")),
        tokens_per_s=base.number_or_none(throughput.get("output_tokens_per_sec"), where),
    )


def _series(latency: Mapping[str, Any], name: str, where: Place, samples: int) -> Series | None:
    if latency.get(name) is None:
        return None
    at = where.at(f"successes.latency.{name}")
    stats = base.mapping(latency[name], at)
    found = {
        float(m.group(1)): base.number(v, at.at(k)) * 1000
        for k, v in stats.items()
        if (m := _PERCENTILE.match(str(k))) and v is not None
    }
    if stats.get("median") is not None:
        found.setdefault(50.0, base.number(stats["median"], at.at("median")) * 1000)
    least, most, mean = (
        None if stats.get(k) is None else base.number(stats[k], at.at(k)) * 1000
        for k in ("min", "max", "mean")
    )
    return base.series(found, at, samples=samples, least=least, most=most, mean=mean)


def _from_cache(doc: Mapping[str, Any], where: Place) -> tuple[str, ...]:
    """A note where the server answered prompts from its prefix cache."""
    good = base.mapping(doc.get("successes"), where.at("successes"))
    tokens = good.get("prompt_tokens")
    found = tokens.get("cached") if isinstance(tokens, Mapping) else None
    cached = base.number_or_none(found, where.at("successes.prompt_tokens.cached"))
    if not cached:
        return ()
    return (f"{cached:.0f} prompt tokens came from a prefix cache: TTFT is not of new prompts",)


# -- the requests


def _requests(path: Path, given: list[Any]) -> Run:
    stages = sorted(path.parent.glob(_STAGES))
    if len(stages) != 1:
        raise UsageError(
            f"{path}: which load its requests were under is in {_STAGES} beside it, and there are "
            f"{len(stages)} of them; with one, its requests can be judged. Run one stage at a time"
        )
    where = Place(stages[0])
    stage = base.mapping(documents.documents(stages[0])[0], where)
    concurrency, rate = _load(stage, where)
    if concurrency is None and rate is None:
        where.at("load_summary").refuse(
            "has neither a concurrency nor a requested_rate: which load was measured is unknown"
        )
    late = _most_late(stage, where) if rate is not None else 0
    rows = [base.mapping(row, Place(path).at(n)) for n, row in enumerate(given)]
    made: list[Timeline] = []
    values: tuple[Value, ...] = ()
    if _came_whole(rows):
        values = tuple(_whole(row, Place(path).at(n)) for n, row in enumerate(rows))
    else:
        made = [_timeline(n, row, Place(path).at(n)) for n, row in enumerate(rows)]
    summary = _summary(stage, where)
    ok = base.answered(made) + sum(v.error is None for v in values)
    base.same_count(where, "successes", summary.completed, ok)
    base.same_count(where, "failures", summary.failed, len(rows) - ok)
    sound = [ms for t in made if t.ok and (ms := t.ttft_ms) is not None]
    base.agree_percentiles(where, "TTFT", summary.ttft, sound)
    if rate is not None:
        made = [replace(t, scheduled_ns=t.start_ns - late, late_ns=late) for t in made]
    bodies = [_body(row) for row in rows]
    return Run(
        tool=TOOL,
        path=path,
        percentile_method=METHOD,
        model=base.one_model((b.get("model") for b in bodies), Place(path)),
        concurrency=concurrency,
        rate=rate,
        timelines=tuple(made),
        values=values,
        no_itl=base.NOT_STREAMED if values else None,
        sampling=base.sampling_of(bodies),
        start_point=_START,
        notes=(
            f"TTFT is taken from {late / NS_PER_MS:.1f} ms before a request was sent, the latest "
            "that the tool was with any: it does not keep when each was due",
        )
        if late
        else (),
        beside=(stages[0], *path.parent.glob(_WHOLE)),
    )


def _most_late(stage: Mapping[str, Any], where: Place) -> int:
    load = base.mapping(stage.get("load_summary"), where)
    delay = load.get("schedule_delay")
    at = where.at("load_summary.schedule_delay.max")
    if not isinstance(delay, Mapping) or delay.get("max") is None:
        at.refuse("is missing: how late requests of an open loop were sent is part of their TTFT")
    return base.span_ns(max(base.number(delay["max"], at), 0.0), at)


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = json.loads(row.get("request") or "{}")
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _response(row: Mapping[str, Any], where: Place) -> Mapping[str, Any]:
    """What is known of the answer; older versions keep it among the rest of ``info``."""
    info = base.mapping(row.get("info") or {}, where.at("info"))
    return base.mapping(info.get("response_metrics") or info, where.at("info.response_metrics"))


def _came_whole(rows: list[Mapping[str, Any]]) -> bool:
    """True where answers with tokens came and not one of them has the time of a token."""
    good = [_response(row, Place(Path())) for row in rows if not row.get("error")]
    told = [r for r in good if r.get("output_tokens")]
    return bool(told) and not any(r.get("output_token_times") for r in good)


def _whole(row: Mapping[str, Any], where: Place) -> Value:
    prompt = base.prompt_tokens(_prompt(row, where), where.at("info.input_tokens"))
    error = _error(row, where)
    if error is not None:
        return Value(prompt, None, None, error=error)
    tokens = base.count_or_none(
        _response(row, where).get("output_tokens"), where.at("info.output_tokens")
    )
    return Value(prompt, tokens, None, unsure=base.NOT_STREAMED)


def _error(row: Mapping[str, Any], where: Place) -> str | None:
    """Why a request failed, None: it did not."""
    if "error" not in row:
        where.refuse("does not say whether it failed (error)")
    error = row["error"]
    if not error:
        return None
    return str(error.get("error_msg") or error if isinstance(error, Mapping) else error)[:300]


def _timeline(n: int, row: Mapping[str, Any], where: Place) -> Timeline:
    start = base.ns(base.number(row.get("start_time"), where.at("start_time")), where)
    end = base.ns(base.number(row.get("end_time"), where.at("end_time")), where)
    response = _response(row, where)
    prompt = base.prompt_tokens(_prompt(row, where), where.at("info.input_tokens"))
    error = _error(row, where)
    if error is not None:
        return base.failed(n, error, start_ns=start, prompt_tokens=prompt)
    at = where.at("info.output_token_times")
    times = [
        base.ns(base.number(t, at.at(i)), at)
        for i, t in enumerate(base.rows(response.get("output_token_times") or [], at))
    ]
    if not times:
        return base.failed(n, base.NO_TOKEN, start_ns=start, prompt_tokens=prompt)
    if times != sorted(times) or not start < times[0] or times[-1] > end + NS_PER_MS:
        at.refuse("are not in order between start_time and end_time")
    arrivals = Arrivals((t, sum(1 for _ in same)) for t, same in groupby(times))
    body = _body(row)
    said = _usage(row, where).get("completion_tokens")
    tokens = said if said is not None else response.get("output_tokens")
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start,
        end_ns=times[-1],
        arrivals=arrivals,
        prompt_tokens=prompt,
        output_tokens=base.count_or_none(tokens, where.at("info.output_tokens")),
        max_new_tokens=base.asked_of(body, where.at("request")),
        token_source="usage_final" if said is not None else "tokenizer",
        cached_tokens=_cached(row, where),
        stamp="user",
        prompt=json.dumps([body.get("messages"), body.get("prompt")]) if body else None,
    )


def _usage(row: Mapping[str, Any], where: Place) -> Mapping[str, Any]:
    """The server's own counts; empty: it told none."""
    found = _response(row, where).get("server_usage")
    return found if isinstance(found, Mapping) else {}


def _cached(row: Mapping[str, Any], where: Place) -> int | None:
    """Prompt tokens that came from a prefix cache, where the server says so."""
    details = _usage(row, where).get("prompt_tokens_details")
    found = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return base.count_or_none(found, where.at("server_usage cached_tokens"))


def _prompt(row: Mapping[str, Any], where: Place) -> object:
    """Prompt tokens: the server's count, else the tool's in the newest form and the older ones."""
    if (said := _usage(row, where).get("prompt_tokens")) is not None:
        return said
    info = base.mapping(row.get("info") or {}, where.at("info"))
    if info.get("input_tokens") is not None:
        return info["input_tokens"]
    asked = info.get("request_metrics")
    text = asked.get("text") if isinstance(asked, Mapping) else None
    return text.get("input_tokens") if isinstance(text, Mapping) else None

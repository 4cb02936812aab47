"""``vllm bench serve --save-result``: one JSON object a run, with or without ``--save-detailed``.

Seconds in the lists, milliseconds in the summary. The lists hold failed requests too (TTFT and
output length 0, often without an error text). ITL is pooled over chunks; percentiles interpolate
linearly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import UsageError
from ..timeline import FIRST_UNSURE, Timeline
from . import base
from .base import Place, Run, Series, Summary, Value
from .chunks import place, usual

TOOL = "vllm bench serve"
METHOD = "linear interpolation (numpy)"
_START = "the tool's request function entered, user-space clock"
_PERCENTILE = re.compile(r"^p(\d+(?:\.\d+)?)_(ttft|itl)_ms$")
_LENGTHS, _WHOLE = "input_lens", "latencies"
_ANSWERS = (_LENGTHS, "output_lens", "ttfts", "itls")


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    return (
        isinstance(head, Mapping)
        and "completed" in head
        and "total_input_tokens" in head
        and not is_sglang(head)
        and ("endpoint_type" in head or "backend" in head)
        and ("ttfts" in head or "mean_ttft_ms" in head or "mean_e2el_ms" in head)
    )


def is_sglang(head: Mapping[str, Any]) -> bool:
    """True for SGLang's variant of the same object."""
    return "total_output_tokens_retokenized" in head or "mean_e2e_latency_ms" in head


def read(path: Path, documents: list[Any]) -> list[Run]:
    """A run for each object of the file (``--append-result`` writes several)."""
    return [
        run_of(base.mapping(doc, Place(path)), path, TOOL, number, several=len(documents) > 1)
        for number, doc in enumerate(documents, 1)
    ]


def run_of(doc: Mapping[str, Any], path: Path, tool: str, number: int, *, several: bool) -> Run:
    """One object as a run; SGLang's is read by the same code."""
    where = Place(path, f"object {number}" if several else "")
    routes = (str(doc.get(name)).lower() for name in ("endpoint_type", "backend"))
    chat = any("chat" in route for route in routes) and not is_sglang(doc)
    concurrency, rate = _load(doc, where)
    timelines: tuple[Timeline, ...] = ()
    values: tuple[Value, ...] = ()
    summary = None
    if "ttfts" in doc or "itls" in doc:
        if "start_times" in doc and not _came_whole(doc, where):
            timelines = _timelines(doc, where, chat=chat, open_loop=rate is not None)
        else:
            values = _values(doc, where, chat=chat)
            lost = sum(v.error is not None for v in values)
            summary = Summary(len(values) - lost, lost, tokens_per_s=_rate(doc, where))
    else:
        summary = _summary(doc, where)
    notes = ["prompt lengths are the tool's own counts unless the server told its own"]
    if not timelines:
        notes = []
    return Run(
        tool=tool,
        path=path,
        percentile_method=METHOD,
        model=base.text_or_none(doc.get("model_id")),
        concurrency=concurrency,
        rate=rate,
        timelines=timelines,
        values=values,
        summary=summary,
        no_itl=base.NOT_STREAMED if any(v.unsure == base.NOT_STREAMED for v in values) else None,
        start_point=_START,
        notes=tuple(notes),
    )


def _load(doc: Mapping[str, Any], where: Place) -> tuple[int | None, float | None]:
    """Requests in flight, and the rate of an open loop."""
    if doc.get("ramp_up_strategy") is not None:
        raise UsageError(
            f"{where.path}: its rate rose during the run (ramp_up_strategy), so no one load was "
            "measured. Measure at a constant rate, or at a number in flight"
        )
    most = base.count_or_none(doc.get("max_concurrency"), where.at("max_concurrency"))
    if most == 0:
        where.at("max_concurrency").refuse("is 0")
    rate = doc.get("request_rate")
    if rate is None and "start_times" in doc:  # no other list is enough for a full verdict
        where.refuse("has no request_rate, so whether its requests came in at a rate is unknown")
    if rate is None or rate == "inf" or rate == float("inf"):
        return most, None
    if isinstance(rate, str):
        raise UsageError(
            f"{where.path}: request_rate is {rate!r:.40}; a constant rate, or inf, can be judged"
        )
    given = base.number(rate, where.at("request_rate"))
    if not given:
        where.at("request_rate").refuse("is 0")
    if most is not None and "queue_times" not in doc:
        raise UsageError(
            f"{where.path}: requests were to be sent at {given:g}/s but at most {most} at once, "
            "and how long each waited inside the client (queue_times) is not on record; that wait "
            "is part of its TTFT. Measure without max_concurrency, or with a version that "
            "records it"
        )
    return None, given


def _lists(doc: Mapping[str, Any], where: Place, *names: str) -> dict[str, list[Any]]:
    lists = {}
    for name in names:
        if name == _LENGTHS and doc.get(name) is None:
            continue
        if name not in doc:
            where.refuse(f"has no {name}, which the other lists need")
        lists[name] = base.rows(doc[name], where.at(name))
    size = base.same_length(where, **lists)
    lists.setdefault(_LENGTHS, [None] * size)  # rule 1 says what it means
    base.same_count(where, "num_prompts", _count(doc, "num_prompts", where), size)
    done, lost = _count(doc, "completed", where), _count(doc, "failed", where)
    if done is not None and lost is not None:
        base.same_count(where, "completed and failed together", done + lost, size)
    empty = sum(1 for n in lists["output_lens"] if not n)
    if lost is not None and lost > empty:
        where.refuse(f"says {lost} failed, but its lists show {empty} without output")
    if done is not None and not size - empty <= done <= size:
        where.refuse(
            f"says {done} completed, but its lists hold {size} requests, {size - empty} of them "
            "with output"
        )
    return lists


def _came_whole(doc: Mapping[str, Any], where: Place) -> bool:
    return _not_streamed(_lists(doc, where, *_ANSWERS))


def _usual(lists: Mapping[str, list[Any]], where: Place) -> int:
    """What an answer of two chunks is compared with: the gaps of the longer ones, ns."""
    rows = enumerate(zip(lists["itls"], lists["output_lens"], strict=True))
    return usual(base.spans_ns(gaps, where.at(f"itls[{n}]")) for n, (gaps, k) in rows if k)


def _not_streamed(lists: Mapping[str, list[Any]]) -> bool:
    """True where answers came and not one has a time of a token: some backends write 0 then."""
    rows = zip(lists["ttfts"], lists["itls"], lists["output_lens"], strict=True)
    good = [(ttft, gaps) for ttft, gaps, tokens in rows if tokens]
    return bool(good) and all(ttft == 0 and not gaps for ttft, gaps in good)


def _errors(doc: Mapping[str, Any], size: int, where: Place) -> list[Any]:
    given = doc.get("errors")
    return [""] * size if given is None else base.rows(given, where.at("errors"))


def _count(doc: Mapping[str, Any], name: str, where: Place) -> int | None:
    return base.count_or_none(doc.get(name), where.at(name))


def _timelines(
    doc: Mapping[str, Any], where: Place, *, chat: bool, open_loop: bool
) -> tuple[Timeline, ...]:
    names = (*_ANSWERS, "start_times")
    lists = _lists(doc, where, *names)
    size = len(lists["ttfts"])
    errors = _errors(doc, size, where)
    gap = _usual(lists, where) if chat else 0
    queued = base.rows(doc.get("queue_times", [0.0] * size), where.at("queue_times"))
    whole = base.rows(doc.get(_WHOLE) or [None] * size, where.at(_WHOLE))
    base.same_length(
        where, ttfts=lists["ttfts"], errors=errors, queue_times=queued, latencies=whole
    )
    out = []
    for n in range(size):
        row = {name: lists[name][n] for name in names} | {_WHOLE: whole[n]}
        wait = base.span_ns(base.number(queued[n], where.at(f"queue_times[{n}]")), where)
        t = _timeline(n, row, errors[n], where, chat=chat, usual_ns=gap)
        if open_loop:
            t = replace(t, scheduled_ns=t.start_ns - wait)
        out.append(t)
    _agree_with_summary(doc, out, where)
    return tuple(out)


def _timeline(
    n: int, row: Mapping[str, Any], error: object, where: Place, *, chat: bool, usual_ns: int
) -> Timeline:
    def cell(name: str) -> Place:
        return where.at(f"{name}[{n}]")

    start = base.ns(base.number(row["start_times"], cell("start_times")), cell("start_times"))
    prompt = base.prompt_tokens(row["input_lens"], cell("input_lens"))
    tokens = base.count_or_none(row["output_lens"], cell("output_lens"))
    ttft = base.span_ns(base.number(row["ttfts"], cell("ttfts")), cell("ttfts"))
    gaps = base.spans_ns(row["itls"], cell("itls"))
    if error or not tokens:
        why = str(error).strip() or "no output token, and no error text on record"
        return base.failed(n, why.splitlines()[-1][:300], start_ns=start, prompt_tokens=prompt)
    if ttft == 0 and not gaps:  # some of its clients report the length that was asked for
        why = f"no time of a first token, but {tokens} output tokens on record"
        return base.failed(n, why, start_ns=start, prompt_tokens=prompt)
    if ttft == 0:
        cell("ttfts").refuse(f"is 0 with {tokens} output tokens: its first token was not timed")
    if row.get(_WHOLE) is not None:
        whole = base.span_ns(base.number(row[_WHOLE], cell(_WHOLE)), cell(_WHOLE))
        base.spaced(cell(_WHOLE), ttft, gaps, whole)
    placed = place(start, ttft, gaps, tokens, opens_with_role=chat, usual_ns=usual_ns)
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start,
        end_ns=placed.arrivals[-1][0],
        arrivals=placed.arrivals,
        prompt_tokens=prompt,
        output_tokens=tokens,
        token_source="usage_final",
        stamp="user",
        estimated=placed.estimated,
    )


def _agree_with_summary(doc: Mapping[str, Any], made: list[Timeline], where: Place) -> None:
    """The summary is made of the lists: where it says otherwise, one of them was changed."""
    tokens = sum(n or 0 for n in doc["output_lens"])
    base.same_count(where, "total_output_tokens", _count(doc, "total_output_tokens", where), tokens)
    lost = _count(doc, "failed", where)
    sound = [t for t in made if t.ok]
    if lost is not None and lost != len(made) - len(sound):
        return  # it counts answers without a token as completed; its means hold them
    mean = base.number_or_none(doc.get("mean_ttft_ms"), where.at("mean_ttft_ms"))
    ttfts = doc["ttfts"]
    used = [ttfts[int(t.id)] for t in sound]
    base.agree(where, "a mean TTFT of", mean, fmean(used) * 1000 if used else None, " ms")
    gaps = [g for t in sound for g in doc["itls"][int(t.id)]]
    mean = base.number_or_none(doc.get("mean_itl_ms"), where.at("mean_itl_ms"))
    base.agree(where, "a mean ITL of", mean, fmean(gaps) * 1000 if gaps else None, " ms")
    for name, values in (("ttft", used), ("itl", gaps)):
        if values:
            said = _series(doc, name, where, None)
            base.agree_percentiles(where, name.upper(), said, [v * 1000 for v in values])
    took = base.number_or_none(doc.get("duration"), where.at("duration"))
    if took is not None and sound:
        span = max(t.end_ns for t in sound) - min(t.start_ns for t in sound)
        if span > (took * 1.02 + 0.1) * 1e9:
            where.refuse(f"says a duration of {took:g} s, but its requests span {span / 1e9:g} s")


def _values(doc: Mapping[str, Any], where: Place, *, chat: bool) -> tuple[Value, ...]:
    lists = _lists(doc, where, *_ANSWERS)
    size = len(lists["ttfts"])
    errors = _errors(doc, size, where)
    base.same_length(where, ttfts=lists["ttfts"], errors=errors)
    gap = _usual(lists, where) if chat else 0
    whole = _not_streamed(lists)
    out = []
    for n in range(size):
        row = {name: lists[name][n] for name in lists}
        if whole and lists["output_lens"][n] and not errors[n]:
            out.append(_whole(row, where, n))
            continue
        t = _timeline(n, {**row, "start_times": 0}, errors[n], where, chat=chat, usual_ns=gap)
        hidden = t.estimated is not None and FIRST_UNSURE in t.estimated
        out.append(
            Value(
                prompt_tokens=t.prompt_tokens,
                output_tokens=t.output_tokens,
                ttft_ms=None if hidden else t.ttft_ms,
                gaps_ms=() if t.estimated is not None else tuple(t.itl_ms()),
                error=t.error,
                unsure=t.estimated if hidden else None,
                unplaced=t.estimated,
            )
        )
    return tuple(out)


def _whole(row: Mapping[str, Any], where: Place, n: int) -> Value:
    prompt = base.prompt_tokens(row["input_lens"], where.at(f"input_lens[{n}]"))
    tokens = base.count_or_none(row["output_lens"], where.at(f"output_lens[{n}]"))
    return Value(prompt, tokens, None, unsure=base.NOT_STREAMED)


def _summary(doc: Mapping[str, Any], where: Place) -> Summary:
    done = _count(doc, "completed", where)
    lost = _count(doc, "failed", where)
    asked = _count(doc, "num_prompts", where)
    if lost is None and asked is not None and done is not None:
        lost = asked - done
    if asked is not None and done is not None and lost is not None and done + lost != asked:
        where.refuse(f"says {done} completed and {lost} failed of {asked} requests")
    tokens = _count(doc, "total_output_tokens", where)
    gaps = None if tokens is None or done is None else max(tokens - done, 0)
    return Summary(
        completed=done,
        failed=lost,
        # With nothing answered the tool writes zeros.
        ttft=_series(doc, "ttft", where, done) if done != 0 else None,
        itl=_series(doc, "itl", where, gaps) if done != 0 else None,
        tokens_per_s=_rate(doc, where),
    )


def _rate(doc: Mapping[str, Any], where: Place) -> float | None:
    return base.number_or_none(doc.get("output_throughput"), where.at("output_throughput"))


def _series(doc: Mapping[str, Any], name: str, where: Place, samples: int | None) -> Series | None:
    found = {}
    for key, value in doc.items():
        if (m := _PERCENTILE.match(key)) and m.group(2) == name and value is not None:
            found[float(m.group(1))] = base.number(value, where.at(key))
    if (median := doc.get(f"median_{name}_ms")) is not None:
        found.setdefault(50.0, base.number(median, where.at(f"median_{name}_ms")))
    mean = base.number_or_none(doc.get(f"mean_{name}_ms"), where.at(f"mean_{name}_ms"))
    return base.series(found, where.at(f"{name}"), samples=samples, mean=mean)

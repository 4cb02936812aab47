"""servebench ``run.json`` (schema_version 1): levels of requests with the time of every chunk.

Seconds. A chunk counts only with content; the token count is the server's usage, a tokenizer's,
or the number of chunks, and the file says which.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import UsageError
from ..timeline import NS_PER_MS, Timeline, TokenSource
from . import base
from .base import Place, Run
from .chunks import place

TOOL = "servebench"
METHOD = "linear interpolation (numpy)"
_START = "the tool's request function entered, user-space clock"
_SOURCES: Mapping[str, TokenSource] = {
    "usage": "usage_final",
    "tokenizer": "tokenizer",
    "chunks": "events",
}


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    return isinstance(head, Mapping) and isinstance(head.get("levels"), list) and "config" in head


def read(path: Path, documents: list[Any]) -> list[Run]:
    """A run for each level of each object."""
    return [run for doc in documents for run in _runs(base.mapping(doc, Place(path)), path)]


def _runs(doc: Mapping[str, Any], path: Path) -> list[Run]:
    where = Place(path)
    version = doc.get("schema_version")
    if isinstance(version, bool) or version != 1:
        raise UsageError(
            f"{path}: servebench schema_version {doc.get('schema_version')!r:.40}; this version "
            "reads 1"
        )
    config = base.mapping(doc.get("config"), where.at("config"))
    environment = base.mapping(doc.get("environment") or {}, where.at("environment"))
    out = []
    for n, level in enumerate(base.rows(doc["levels"], where.at("levels"))):
        at = where.at("levels").at(n)
        out.append(_level(base.mapping(level, at), config, environment, at))
    if not out:
        where.at("levels").refuse("is empty: nothing was measured")
    return out


def _level(
    level: Mapping[str, Any],
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    where: Place,
) -> Run:
    if level.get("repeat_count", 1) != 1:
        raise UsageError(
            f"{where.path}: {where.name} holds repeats, each of whose clocks begins at 0, so which "
            "requests were in flight together cannot be told. Measure with --repeat 1, one file a "
            "repeat"
        )
    mode = level.get("mode")
    value = base.number(level.get("value"), where.at("value"))
    if mode not in ("concurrency", "rate") or not value:
        where.at("mode").refuse(f"is {mode!r:.40} with value {value:g}")
    lag = base.number_or_none(level.get("client_lag_p99_ms"), where.at("client_lag_p99_ms"))
    asked = base.count_or_none(config.get("output_len"), where.at("config.output_len"))
    forced = config.get("ignore_eos") is True
    timelines = tuple(
        _timeline(
            n,
            base.mapping(row, where.at("requests").at(n)),
            where.at("requests").at(n),
            lag_ns=None if lag is None else round(lag * NS_PER_MS),
            asked=asked if forced else None,
            open_loop=mode == "rate",
        )
        for n, row in enumerate(base.rows(level.get("requests"), where.at("requests")))
    )
    _agree(level, timelines, where)
    temperature = config.get("temperature")
    known = (
        isinstance(temperature, (int, float))
        and not isinstance(temperature, bool)
        and 0 <= temperature < math.inf
    )
    return Run(
        tool=TOOL,
        path=where.path,
        percentile_method=METHOD,
        version=base.text_or_none(environment.get("servebench_version")),
        model=base.text_or_none(config.get("model")),
        started=base.utc_or_none(environment.get("timestamp")),
        concurrency=base.count(value, where.at("value")) if mode == "concurrency" else None,
        rate=value if mode == "rate" else None,
        timelines=timelines,
        sampling={"temperature": temperature} if known else {},
        start_point=_START,
        environment=dict(environment),
    )


def _timeline(
    n: int,
    row: Mapping[str, Any],
    where: Place,
    *,
    lag_ns: int | None,
    asked: int | None,
    open_loop: bool,
) -> Timeline:
    start = base.ns(base.number(row.get("start"), where.at("start")), where.at("start"))
    prompt = base.prompt_tokens(row.get("prompt_tokens"), where.at("prompt_tokens"))
    if row.get("ok") is not True or row.get("error"):
        why = base.text_or_none(row.get("error")) or "failed without a reason"
        return base.failed(n, why, start_ns=start, prompt_tokens=prompt)
    chunks = base.spans_ns(row.get("chunk_times"), where.at("chunk_times"))
    if not chunks or chunks[0] == 0:
        where.at("chunk_times").refuse("has no time of a first token, but the request is ok")
    if any(b < a for a, b in itertools.pairwise(chunks)):
        where.at("chunk_times").refuse("run backwards")
    ttft = base.number(row.get("ttft"), where.at("ttft"))
    base.agree(where, "a TTFT of", ttft, chunks[0] / 1e9, " s")
    whole = base.number_or_none(row.get("e2e"), where.at("e2e"))
    if whole is not None and whole * 1e9 < chunks[-1] - NS_PER_MS:
        where.at("e2e").refuse(f"is {whole:g} s, before its last chunk")
    tokens = base.count_or_none(row.get("output_tokens"), where.at("output_tokens"))
    if tokens == 0:
        return base.failed(n, base.NO_TOKEN, start_ns=start, prompt_tokens=prompt)
    gaps = [b - a for a, b in itertools.pairwise(chunks)]
    placed = place(start, chunks[0], gaps, tokens, opens_with_role=False)
    return Timeline(
        id=f"{n}",
        bucket="",
        start_ns=start,
        end_ns=placed.arrivals[-1][0],
        arrivals=placed.arrivals,
        prompt_tokens=prompt,
        output_tokens=tokens,
        max_new_tokens=asked or 0,
        token_source=_SOURCES.get(str(row.get("token_source"))),
        finish_reason="ended",  # it fails a stream that ends without a finish reason or [DONE]
        scheduled_ns=start if open_loop else None,
        stamp="user",
        estimated=placed.estimated,
        lag_ns=lag_ns,
    )


def _agree(level: Mapping[str, Any], made: tuple[Timeline, ...], where: Place) -> None:
    where = where.at("summary")
    summary = base.mapping(level.get("summary") or {}, where)
    ok = [t for t in made if t.ok]
    done = base.answered(made)
    for name, n in (("completed", done), ("failed", len(made) - done)):
        base.same_count(where, name, base.count_or_none(summary.get(name), where.at(name)), n)
    ttft = summary.get("ttft")
    if isinstance(ttft, Mapping) and ok and len(ok) == done:
        said = base.number_or_none(ttft.get("p50"), where.at("ttft.p50"))
        base.agree(where, "a median TTFT of", said, median(t.ttft_ms or 0 for t in ok) / 1e3, " s")

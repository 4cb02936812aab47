"""LLMPerf: ``*_individual_responses.json`` (a list of requests) and ``*_summary.json``.

Seconds. Its inter_token_latency_s is a mean per request. Requests have no time of day in most
versions, so which were in flight together is not known: observed only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import base, documents
from .base import Place, Run, Series, Summary, Value

TOOL = "LLMPerf"
METHOD = "linear interpolation (pandas)"
_NO_ITL = (
    "inter_token_latency_s is a mean per request here, which hides stalls: rule 2 is not shown "
    "by this file"
)
_REQUESTS, _SUMMARY = "_individual_responses.json", "_summary.json"
_SENT = "additional_sampling_params"
_DIGITS = 20  # of a number over 64 bits
_QUANTILE = re.compile(r"^results_ttft_s_quantiles_p(\d+)$")


def recognises(head: object) -> bool:
    """True for the list of requests and for the summary."""
    if isinstance(head, list):
        return bool(head) and isinstance(head[0], Mapping) and {
            "ttft_s", "end_to_end_latency_s"
        } <= head[0].keys()  # fmt: skip
    return isinstance(head, Mapping) and any(str(k).startswith("results_ttft_s_") for k in head)


def read(path: Path, docs: list[Any]) -> list[Run]:
    """The one run of the file."""
    if len(docs) != 1:
        raise UsageError(f"{path}: holds {len(docs)} documents; LLMPerf writes one")
    where, doc = Place(path), docs[0]
    if isinstance(doc, list):
        values = tuple(
            _value(base.mapping(row, where.at(n)), where.at(n)) for n, row in enumerate(doc)
        )
        return [_with_summary(values, path)]
    return [_of_summary(base.mapping(doc, where), path)]


def _of_summary(given: Mapping[str, Any], path: Path) -> Run:
    where = Place(path)
    return Run(
        tool=TOOL,
        path=path,
        percentile_method=METHOD,
        version=base.text_or_none(given.get("version")),
        model=base.text_or_none(given.get("model")),
        concurrency=_count(given, "num_concurrent_requests", where),
        summary=_summary(given, where),
        sampling=_sampling(given),
        no_itl=_NO_ITL,
    )


def _with_summary(values: tuple[Value, ...], path: Path) -> Run:
    """The requests; level, model and sampling are in the summary that is written beside them."""
    beside = path.with_name(path.name.replace(_REQUESTS, _SUMMARY))
    if beside == path or not beside.is_file():
        return Run(tool=TOOL, path=path, percentile_method=METHOD, values=values, no_itl=_NO_ITL)
    head = documents.documents(beside)[0]
    if not isinstance(head, Mapping) or not recognises(head):
        Place(beside).refuse("is no summary of LLMPerf")
    run, where = _of_summary(head, beside), Place(beside)
    lost = sum(v.error is not None for v in values)
    empty = sum(v.error == base.NO_TOKEN for v in values)  # the tool counts them as completed
    said = run.summary
    if said is not None:
        base.same_count(where, "completed requests", said.completed, len(values) - lost + empty)
        base.same_count(where, "failed requests", said.failed, lost - empty)
        said = Summary(len(values) - lost, lost, tokens_per_s=said.tokens_per_s)
    return replace(run, path=path, values=values, summary=said, beside=(beside,))


def _sampling(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling as sent: an object, or its keys among those of the summary."""
    given = doc.get(_SENT)
    nested = dict(given) if isinstance(given, Mapping) else {}
    flat = {k[len(_SENT) + 1 :]: v for k, v in doc.items() if str(k).startswith(f"{_SENT}_")}
    return base.known({k: v for k, v in {**nested, **flat}.items() if v is not None})


def _value(row: Mapping[str, Any], where: Place) -> Value:
    prompt = base.prompt_tokens(row.get("number_input_tokens"), where.at("number_input_tokens"))
    if "error_code" not in row:
        where.refuse("does not say whether it failed (error_code)")
    # A stream may report an error without a code, and the tool then keeps its text alone.
    if row["error_code"] is not None or row.get("error_msg"):
        told = (row["error_code"], row.get("error_msg"))
        why = " ".join(str(part) for part in told if part is not None and part != "")
        return Value(prompt, None, None, error=why[:300])
    ttft = base.number(row.get("ttft_s"), where.at("ttft_s")) * 1000
    whole = base.number(row.get("end_to_end_latency_s"), where.at("end_to_end_latency_s")) * 1000
    tokens = base.count_or_none(row.get("number_output_tokens"), where.at("number_output_tokens"))
    if not ttft or not tokens:
        return Value(prompt, tokens, None, error=base.NO_TOKEN)
    if ttft > whole * (1 + 1e-6):
        where.at("ttft_s").refuse(f"is {ttft:g} ms of {whole:g} ms in all")
    return Value(prompt, tokens, ttft)


def _count(doc: Mapping[str, Any], name: str, where: Place) -> int | None:
    """A whole number; LLMPerf writes some as text."""
    value = doc.get(name)
    if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS:
        value = int(value)
    return base.count_or_none(value, where.at(name))


def _summary(doc: Mapping[str, Any], where: Place) -> Summary:
    done = _count(doc, "results_num_completed_requests", where)
    found = {
        float(m.group(1)): base.number(v, where.at(k)) * 1000
        for k, v in doc.items()
        if done != 0 and (m := _QUANTILE.match(k)) and v is not None  # of none it writes NaN
    }
    lost = _count(doc, "results_number_errors", where)
    begun = _count(doc, "results_num_requests_started", where)
    if begun is not None and done is not None and lost is not None and begun != done + lost:
        where.refuse(f"says {begun} requests began, {done} completed and {lost} failed")
    rate = doc.get("results_mean_output_throughput_token_per_s")
    return Summary(
        completed=done,
        failed=lost,
        ttft=_ttft(found, doc, where, done) if found else None,
        shortest=_count(doc, "results_number_input_tokens_min", where) if done != 0 else None,
        longest=_count(doc, "results_number_input_tokens_max", where) if done != 0 else None,
        tokens_per_s=base.number_or_none(rate, where),
    )


def _ttft(
    found: Mapping[float, float], doc: Mapping[str, Any], where: Place, samples: int | None
) -> Series | None:
    def edge(name: str) -> float | None:
        value = base.number_or_none(doc.get(f"results_ttft_s_{name}"), where.at(name))
        return None if value is None else value * 1000

    return base.series(
        found,
        where.at("results_ttft_s"),
        samples=samples,
        mean=edge("mean"),
        least=edge("min"),
        most=edge("max"),
    )

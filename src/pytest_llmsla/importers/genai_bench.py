"""genai-bench: one JSON a level, ``{aggregated_metrics, individual_request_metrics}``.

``_time_unit`` says seconds or milliseconds. Requests have no time of day, so which were in flight
together is not known: observed only. Its error_rate may be 0 beside errors; failures are counted
from the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import base
from .base import Place, Run, Summary, Value

TOOL = "genai-bench"
METHOD = "linear interpolation (numpy)"
_NO_ITL = "tpot is a mean per request here, which hides stalls: rule 2 is not shown by this file"
_IN_MS = {"s": 1e3, "ms": 1.0}


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    return isinstance(head, Mapping) and {
        "aggregated_metrics", "individual_request_metrics"
    } <= head.keys()  # fmt: skip


def read(path: Path, documents: list[Any]) -> list[Run]:
    """The one run of the file."""
    if len(documents) != 1:
        raise UsageError(f"{path}: holds {len(documents)} documents; genai-bench writes one")
    where = Place(path)
    doc = base.mapping(documents[0], where)
    total = base.mapping(doc["aggregated_metrics"], where.at("aggregated_metrics"))
    unit = doc.get("_time_unit", "s")
    if not isinstance(unit, str) or unit not in _IN_MS:
        where.at("_time_unit").refuse(f"is {unit!r:.40}; valid: s, ms")
    at = where.at("individual_request_metrics")
    values = tuple(
        _value(base.mapping(row, at.at(n)), at.at(n), _IN_MS[unit])
        for n, row in enumerate(base.rows(doc["individual_request_metrics"], at))
    )
    lost = sum(v.error is not None for v in values)
    empty = sum(v.error == base.NO_TOKEN for v in values)  # the tool counts them as completed
    done = len(values) - lost + empty
    at = where.at("aggregated_metrics")
    for name, n in (("num_error_requests", lost - empty), ("num_completed_requests", done)):
        base.same_count(at, name, base.count_or_none(total.get(name), at.at(name)), n)
    rate = base.number_or_none(total.get("mean_output_throughput_tokens_per_s"), at)
    open_loop = total.get("arrival_requests_per_second") is not None
    level = _level(total, at, open_loop=open_loop)
    return [
        Run(
            tool=TOOL,
            path=path,
            percentile_method=METHOD,
            concurrency=None if open_loop or level is None else int(level),
            rate=level if open_loop else None,
            values=values,
            summary=Summary(len(values) - lost, lost, tokens_per_s=rate),
            no_itl=_NO_ITL,
        )
    ]


def _level(total: Mapping[str, Any], where: Place, *, open_loop: bool) -> float | None:
    """Requests in flight, or requests/s of an open loop; None: not on record."""
    given, at = total.get("num_concurrency"), where.at("num_concurrency")
    level = base.number_or_none(given, at) if open_loop else base.count_or_none(given, at)
    if level == 0:
        at.refuse("is 0")
    return level


def _value(row: Mapping[str, Any], where: Place, factor: float) -> Value:
    prompt = base.prompt_tokens(row.get("num_input_tokens"), where.at("num_input_tokens"))
    if "error_code" not in row:
        where.refuse("does not say whether it failed (error_code)")
    if row["error_code"] is not None or row.get("error_message"):
        why = f"{row.get('error_code')} {row.get('error_message') or ''}".strip()
        return Value(prompt, None, None, error=why[:300])
    ttft = base.number(row.get("ttft"), where.at("ttft")) * factor
    whole = base.number(row.get("e2e_latency"), where.at("e2e_latency")) * factor
    if not 0 < ttft <= whole * (1 + 1e-6):
        where.at("ttft").refuse(f"is {ttft:g} ms of {whole:g} ms in all")
    tokens = base.count_or_none(row.get("num_output_tokens"), where.at("num_output_tokens"))
    if tokens == 0:
        return Value(prompt, 0, None, error=base.NO_TOKEN)
    return Value(prompt, tokens, ttft)

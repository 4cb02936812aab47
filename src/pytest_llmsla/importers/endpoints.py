"""MLCommons endpoints ``result_summary.json``: a summary, in nanoseconds.

``tpot`` is a mean per request. Percentiles take the lower neighbour. A sample that failed is
completed too, as the tool counts. A run that was interrupted says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import base
from .base import Place, Run, Series, Summary

TOOL = "MLCommons endpoints"
METHOD = "lower of the two neighbours"
_NO_ITL = "tpot is a mean per request here, which hides stalls: rule 2 is not shown by this file"
_KEYS = ("n_samples_issued", "n_samples_completed", "n_samples_failed")


def recognises(head: object) -> bool:
    """True for the object that this tool writes."""
    return isinstance(head, Mapping) and set(_KEYS) <= head.keys()


def read(path: Path, documents: list[Any]) -> list[Run]:
    """The one run of the file."""
    if len(documents) != 1:
        raise UsageError(f"{path}: holds {len(documents)} documents; a summary is one")
    where = Place(path)
    doc = base.mapping(documents[0], where)
    issued, done, lost = (base.count(doc[k], where.at(k)) for k in _KEYS)
    whole = doc.get("complete") is True and doc.get("state") == "complete"
    good = _answered(issued, done, lost, where, whole=whole)
    concurrency, rate = _load(doc, where)
    lengths = base.mapping(doc.get("input_sequence_lengths") or {}, where)
    return [
        Run(
            tool=TOOL,
            path=path,
            percentile_method=METHOD,
            version=base.text_or_none(doc.get("version")),
            concurrency=concurrency,
            rate=rate,
            summary=Summary(
                completed=good,
                failed=issued - good,  # issued and never answered is no success
                ttft=_series(doc.get("ttft"), where.at("ttft"), good),
                shortest=base.count_or_none(lengths.get("min"), where),
                longest=base.count_or_none(lengths.get("max"), where),
                tokens_per_s=base.number_or_none(doc.get("tps"), where.at("tps")),
            ),
            no_itl=_NO_ITL,
            notes=() if whole else (f"the run is not complete (state {doc.get('state')!r:.40})",),
        )
    ]


def _answered(issued: int, done: int, lost: int, where: Place, *, whole: bool) -> int:
    """Samples that were answered. Failed ones are among the completed; earlier they were not."""
    apart = done + lost == issued
    if done > issued or (whole and not apart and (done != issued or lost > done)):
        where.refuse(f"says {issued} were issued, {done} completed and {lost} failed")
    return done if apart else max(done - lost, 0)


def _load(doc: Mapping[str, Any], where: Place) -> tuple[int | None, float | None]:
    """Requests in flight, and the rate of an open loop, where ``run_config`` tells them."""
    config = doc.get("run_config")
    pattern = config.get("load_pattern") if isinstance(config, Mapping) else None
    if not isinstance(pattern, Mapping):
        return None, None
    at = where.at("run_config.load_pattern")
    if pattern.get("type") == "poisson":
        rate = base.number(pattern.get("target_qps"), at.at("target_qps"))
        if not rate:
            at.at("target_qps").refuse("is 0")
        return None, rate
    flight = base.count_or_none(pattern.get("target_concurrency"), at.at("target_concurrency"))
    return flight or None, None


def _series(value: object, where: Place, done: int) -> Series | None:
    stats = base.mapping(value or {}, where)
    if stats.get("percentiles") is None:
        return None  # of no sample it has at most an empty map of early-stopping estimates
    given = base.mapping(stats.get("percentiles"), where.at("percentiles"))
    found: dict[float, float] = {}
    for key, ns in given.items():
        try:
            level = float(key)
        except ValueError:
            raise UsageError(f"{where.path}: percentile {key!r:.40} is no number") from None
        if ns is not None:
            found[level] = base.number(ns, where.at(f"percentiles.{key}")) / 1e6
    least, most, mean = (
        None if stats.get(k) is None else base.number(stats[k], where.at(k)) / 1e6
        for k in ("min", "max", "avg")
    )
    return base.series(found, where, samples=done, least=least, most=most, mean=mean)

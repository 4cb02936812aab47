"""MLCommons endpoints ``result_summary.json``: a summary, in nanoseconds.

``tpot`` is a mean per request. Percentiles take the lower neighbour. A run that was interrupted
says so.
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
    if whole and issued != done + lost:
        where.refuse(f"says {issued} were issued, {done} completed and {lost} failed")
    lengths = base.mapping(doc.get("input_sequence_lengths") or {}, where)
    return [
        Run(
            tool=TOOL,
            path=path,
            percentile_method=METHOD,
            version=base.text_or_none(doc.get("version")),
            summary=Summary(
                completed=done,
                failed=issued - done,  # issued and never answered is no success
                ttft=_series(doc.get("ttft"), where.at("ttft"), done),
                shortest=base.count_or_none(lengths.get("min"), where),
                longest=base.count_or_none(lengths.get("max"), where),
                tokens_per_s=base.number_or_none(doc.get("tps"), where.at("tps")),
            ),
            no_itl=_NO_ITL,
            notes=() if whole else (f"the run is not complete (state {doc.get('state')!r:.40})",),
        )
    ]


def _series(value: object, where: Place, done: int) -> Series | None:
    stats = base.mapping(value or {}, where)
    if not stats:
        return None
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

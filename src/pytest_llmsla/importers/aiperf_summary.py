"""AIPerf's and GenAI-Perf's summary JSON: metrics by tag with their unit, and the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import base
from .base import Place, Series, Summary

_IN_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_BY_RATE = ("poisson", "gamma", "constant")
_HELD = "prefill_concurrency"
_RISING = re.compile(r"(^|_)ramp(_|$)|^rate_series$")
_PERCENTILE = re.compile(r"^p(\d+(?:\.\d+)?)$")
MEAN_ITL = (
    "inter_token_latency is a mean per request here, which hides stalls, and there is no "
    "inter_chunk_latency: rule 2 is not shown by this file"
)


def tool(doc: Mapping[str, Any]) -> str:
    """Which of the two wrote it, as far as it says."""
    return "AIPerf" if "aiperf_version" in doc or "schema_version" in doc else "GenAI-Perf/AIPerf"


def known(doc: Mapping[str, Any], path: Path) -> None:
    """Refuse a schema version that this code does not read."""
    version = doc.get("schema_version")
    if version is not None and not str(version).startswith("1."):
        raise UsageError(f"{path}: AIPerf schema_version {version!r:.40}; this version reads 1.x")


def cancelled(doc: Mapping[str, Any]) -> tuple[str, ...]:
    """A note where the run was not ended as planned."""
    return ("the run was cancelled: what it would have measured is missing",) * bool(
        doc.get("was_cancelled") or doc.get("is_complete") is False
    )


def summary(doc: Mapping[str, Any], where: Place) -> Summary:
    """What the summary says of the run."""
    lengths = base.mapping(doc.get("input_sequence_length") or {}, where)
    done = scalar(doc, "request_count", where)
    lost = failed(doc, where)
    gaps = "inter_chunk_latency"
    return Summary(
        completed=None if done is None else round(done),
        failed=None if lost is None else round(lost),
        ttft=series(doc, "time_to_first_token", where),
        itl=series(doc, gaps, where)
        or series(doc, "inter_token_latency", where, per_request_mean=True),
        shortest=base.count_or_none(lengths.get("min"), where.at("input_sequence_length.min")),
        longest=base.count_or_none(lengths.get("max"), where.at("input_sequence_length.max")),
        tokens_per_s=scalar(doc, "output_token_throughput", where),
    )


def no_itl(doc: Mapping[str, Any], where: Place) -> str | None:
    """Why the summary shows no inter-token latency; None where a gap is one token's."""
    if not streamed(config_of(doc)):
        return base.NOT_STREAMED
    gaps = series(doc, "inter_chunk_latency", where)
    if gaps is None:
        return MEAN_ITL
    if gaps.count is None:
        return (
            "how many gaps inter_chunk_latency is of is not on record, so whether they are those "
            "between tokens is unknown: rule 2 is not shown by this file"
        )
    tokens, done = scalar(doc, "total_output_tokens", where), scalar(doc, "request_count", where)
    if tokens is None or done is None or gaps.count != round(tokens) - round(done):
        return (
            f"inter_chunk_latency is of {gaps.count} gaps between chunks, which are not the gaps "
            "between tokens of this run: rule 2 is not shown by this file"
        )
    return None


def failed(doc: Mapping[str, Any], where: Place) -> float | None:
    """Failed requests by their count, else by the error summary's; None: not told."""
    counted = scalar(doc, "error_request_count", where)
    return _listed(doc, where) if counted is None else counted


def _listed(doc: Mapping[str, Any], where: Place) -> float | None:
    errors = doc.get("error_summary")
    if not isinstance(errors, list):
        return None
    at = where.at("error_summary")
    rows = [base.mapping(e, at.at(n)) for n, e in enumerate(errors)]
    return sum(base.count(row.get("count"), at) for row in rows)


def scalar(doc: Mapping[str, Any], name: str, where: Place) -> float | None:
    """A metric's single figure, in its own unit; None: not there."""
    found = doc.get(name)
    if found is None:
        return None
    return base.number_or_none(base.mapping(found, where.at(name)).get("avg"), where.at(name))


def series(
    doc: Mapping[str, Any], name: str, where: Place, *, per_request_mean: bool = False
) -> Series | None:
    """A metric's percentiles in ms; None: not there."""
    if doc.get(name) is None:
        return None
    at = where.at(name)
    stats = base.mapping(doc[name], at)
    times = factor(stats.get("unit"), at)
    found = {
        float(m.group(1)): base.number(value, at.at(key)) * times
        for key, value in stats.items()
        if (m := _PERCENTILE.match(str(key))) and value is not None
    }
    least, most, mean = (
        None if stats.get(k) is None else base.number(stats[k], at.at(k)) * times
        for k in ("min", "max", "avg")
    )
    return base.series(
        found,
        at,
        samples=base.count_or_none(stats.get("count"), at.at("count")),
        mean=mean,
        least=least,
        most=most,
        per_request_mean=per_request_mean,
    )


def factor(unit: object, where: Place) -> float:
    """What turns a unit of time into ms; refuses anything else."""
    if not isinstance(unit, str) or unit not in _IN_MS:
        where.at("unit").refuse(f"is {unit!r:.40}; valid: {', '.join(_IN_MS)}")
    return _IN_MS[unit]


# -- the configuration


def config_of(doc: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration that the run recorded; empty: none."""
    found = doc.get("input_config")
    return found if isinstance(found, Mapping) else {}


def _at(config: object, *keys: object) -> Any:
    for key in keys:
        if isinstance(config, Mapping):
            config = config.get(key)
        elif isinstance(config, list) and isinstance(key, int) and key < len(config):
            config = config[key]
        else:
            return None
    return config


def model(config: Mapping[str, Any], where: Place) -> str | None:
    """The model that was asked for, None: not on record; refuses several."""
    items = _at(config, "models", "items")
    named = [_at(item, "name") for item in items] if isinstance(items, list) else []
    for keys in (("endpoint", "model_names"), ("model_names",), ("model",)):
        found = _at(config, *keys)
        named += found if isinstance(found, list) else [found]
    return base.one_model(named, where)


def streamed(config: Mapping[str, Any]) -> bool:
    """False where the run was told not to stream."""
    told = (_at(config, "endpoint", "streaming"), config.get("streaming"))
    return not any(flag is False for flag in told)


def _phase(config: Mapping[str, Any], where: Place) -> Mapping[str, Any]:
    phases = config.get("phases")
    if isinstance(phases, list):
        measured = [p for p in phases if isinstance(p, Mapping) and not _warmup(p)]
        if len(measured) > 1:
            raise UsageError(
                f"{where.path}: input_config.phases holds {len(measured)} measured phases, each "
                "with a load of its own, and one figure for all of them. Measure one phase a run"
            )
        return measured[0] if measured else {}
    for keys in (("loadgen",), ("perf_analyzer", "stimulus")):
        if isinstance(found := _at(config, *keys), Mapping):
            return found
    return config


def has_load(config: Mapping[str, Any], where: Place) -> bool:
    """True where a phase, or the configuration itself, can say how requests were sent."""
    phase = _phase(config, where)
    known = {"concurrency", "request_rate", "rate"} & phase.keys()
    return bool(known or (phase and phase is not config))


def _warmup(phase: Mapping[str, Any]) -> bool:
    """True for a phase that is not measured; older ones are known by their name alone."""
    return "warmup" in (phase.get("kind"), phase.get("name")) or (
        phase.get("exclude_from_results") is True
    )


def cap(config: Mapping[str, Any], where: Place) -> int | None:
    """Most requests that an open loop lets in flight; None: any number."""
    at = where.at("input_config concurrency")
    return base.count_or_none(_phase(config, where).get("concurrency"), at)


def load(config: Mapping[str, Any], where: Place) -> tuple[int | None, float | None]:
    """Requests in flight, or the rate of an open loop; both None: not on record."""
    phase = _phase(config, where)
    kind = phase.get("type")
    # Keys of a warm-up stand among those of the load, in files without phases.
    keys = [str(k) for k, v in phase.items() if v and not str(k).startswith("warmup_")]
    rising = next((k for k in keys if _RISING.search(k)), None)
    if rising is not None:
        raise UsageError(
            f"{where.path}: its load changed during the run (input_config {rising}), so no one "
            "load was measured. Measure at a constant number in flight or rate"
        )
    if phase.get(_HELD) is not None:
        raise UsageError(
            f"{where.path}: its requests were held back inside the tool while {phase[_HELD]!r:.20} "
            f"others waited for their first token (input_config {_HELD}): how long is not on "
            f"record, and is part of their TTFT. Measure without {_HELD}"
        )
    planned = _at(config, "input", "fixed_schedule") is True
    if planned or (isinstance(kind, str) and any(k in kind for k in ("schedule", "trace", "user"))):
        raise UsageError(
            f"{where.path}: its requests were sent by a schedule of their own, which is neither a "
            "number in flight nor a rate. Measure with --concurrency or --request-rate"
        )
    rate = phase.get("request_rate", phase.get("rate"))
    if rate is not None:
        return None, base.number(rate, where.at("input_config rate"))
    if kind in _BY_RATE:
        where.at("input_config.phases").refuse(f"is of type {kind} and has no rate")
    return base.count_or_none(phase.get("concurrency"), where.at("input_config concurrency")), None


def asked(config: Mapping[str, Any], where: Place) -> int | None:
    """Output tokens asked for; None: not on record, or not the same for all."""
    length = _at(config, "datasets", 0, "prompts", "osl")
    length = _at(config, "input", "prompt", "output_tokens") if length is None else length
    if not isinstance(length, Mapping) or length.get("stddev"):
        return None
    mean = length.get("mean")
    if isinstance(mean, bool) or not isinstance(mean, (int, float)) or mean < 0:
        return None
    mean = base.number(mean, where.at("input_config osl mean"))
    return int(mean) if mean.is_integer() else None


def sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters as sent; empty: not on record."""
    out: dict[str, Any] = {}
    for keys in (("endpoint", "extra"), ("input", "extra"), ("extra_inputs",)):
        pairs = _pairs(_at(config, *keys))
        out |= {k: pairs[k] for k in base.SAMPLING if pairs.get(k) is not None}
    return base.known(out)


def _pairs(given: object) -> dict[Any, Any]:
    """An object, a list of pairs, or a list of ``name:value``, as versions write them."""
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list):
        return {}
    found = [str(x).partition(":")[::2] if isinstance(x, str) else x for x in given]
    pairs = [x for x in found if isinstance(x, (list, tuple)) and len(x) == 2]
    return {str(k): _value(v) for k, v in pairs}


def _value(text: object) -> object:
    """A number that was written as text."""
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text

"""Optional memory limits. The limit's name says which number; unreadable is ``error``, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..finding import Finding, Limit, Verdict
from .parts import DIFFER, Part, in_words

FIGURES = ("allocated_peak", "reserved_peak", "device_used_peak", "rss_peak")
"""The four named figures, GiB. They are never mixed: docs/metrics.md."""

_LARGEST_GIB = 2.0**40
_CARDS = ("cuda", "accelerator")
"""Devices with a memory of their own."""


def peaks(resources: Iterable[Mapping[str, Any]], answered: int = 0) -> dict[str, float | None]:
    """The largest reading of each figure over the measured window, GiB; None when unknown.

    A peak over some of the readings would be too small: a figure that one reading lacks, or that
    was read fewer times than ``answered`` (requests that got an answer), is unknown. So is one
    that is not above 0.
    """
    lines = _measured(resources)
    read, covered = [line.get("memory") or {} for line in lines], _covered(lines)
    out: dict[str, float | None] = {}
    for name in FIGURES:
        values = [reading(memory.get(name)) for memory in read]
        known = [v for v in values if v is not None]
        whole = known and len(known) == len(values) and covered >= answered
        out[name] = max(known) if whole else None
    return out


def _measured(resources: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in resources if line.get("phase") == "measured"]


def _covered(lines: Sequence[Mapping[str, Any]]) -> int:
    """Answers that the readings cover: one each, or as many as a reading says came before it.

    Under load memory is read now and then and at the end; a peak read at the end covers all.
    """
    said = [line.get("answered") for line in lines]
    return max([len(lines), *(n for n in said if isinstance(n, int) and not isinstance(n, bool))])


def reading(value: object) -> float | None:
    """A figure as read, GiB; None where it is none: not a number, not above 0, or damage."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < _LARGEST_GIB else None


def declared(resources: Iterable[Mapping[str, Any]], answered: int = 0) -> dict[str, Any]:
    """``declared_gib`` and ``declared_source`` as the policy's author wrote them, else empty.

    Both, the same in every reading, and in as many as there are answers: a figure without its
    source, or with two values, is none.
    """
    lines = _measured(resources)
    read = [line.get("memory") or {} for line in lines]
    said = {(reading(m.get("declared")), m.get("declared_source")) for m in read if _sound(m)}
    if len(said) != 1 or _covered(lines) < answered or not all(map(_sound, read)):
        return {}
    value, source = said.pop()
    return {"declared_gib": value, "declared_source": source}


def _sound(memory: Mapping[str, Any]) -> bool:
    source = memory.get("declared_source")
    given = isinstance(source, str) and source.strip() != ""
    return given and reading(memory.get("declared")) is not None


def reasons(resources: Iterable[Mapping[str, Any]], answered: int = 0) -> dict[str, str]:
    """Why a figure is unknown: as the probe said it last, else what its readings lack."""
    out: dict[str, str] = {}
    lines = _measured(resources)
    read, covered = [line.get("memory") or {} for line in lines], _covered(lines)
    for name in FIGURES:
        known = sum(1 for memory in read if reading(memory.get(name)) is not None)
        if covered < answered:
            out[name] = f"read after {covered} of {answered} requests"
        elif known < len(read):
            wrong = next(m.get(name) for m in read if reading(m.get(name)) is None)
            given = "" if wrong is None else f" (one is {wrong!r:.40})"
            out[name] = f"{len(read) - known} of {len(read)} readings lack it{given}"
    for memory in read:
        for name in FIGURES:
            why = memory.get(f"{name}_reason", memory.get("problem"))
            if isinstance(why, str) and name in out:
                out[name] = why
    return out


def condition(parts: Sequence[Part]) -> dict[str, Any] | None:
    """The memory condition of a TGS figure: what was measured, and beside it what was declared.

    Each figure under its own name, never mixed. Where nothing is known the reasons stay, which
    document nothing; so does what each part of a resumed run took, where that is not the same.
    """
    told = [
        _of_part(part.resources, len(part.ok) - _unread(part, last=part is parts[-1]))
        for part in parts
    ]
    return told[0] if len(told) == 1 else _of_all(told)


_ALIKE = 1.25
"""Largest ratio of one figure between parts: no process is quite as large as another."""


def _unread(part: Part, *, last: bool) -> int:
    """Answers that need no reading after them: in a part that was killed there was no time for it,
    and what it had taken until then stands beside what the part after it took."""
    return 0 if last else max(1, len(part.ok) // 10)


def _of_all(told: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """One condition of those of several parts; None where there is no part."""
    if not told:
        return None
    figures = [{k: v for k, v in (one or {}).items() if k.endswith("_gib")} for one in told]
    shared = {k: [f[k] for f in figures] for k in figures[0] if all(k in f for f in figures)}
    if not shared:
        lacking = next((n for n, f in enumerate(figures) if not f), 0)
        why = "; ".join(v for k, v in (told[lacking] or {}).items() if k.endswith("_reason"))
        text = f"part {lacking + 1} of this run has no figure that each other part has"
        return {"memory_reason": f"{text}: {why}" if why else text}
    last = told[-1] or {}
    named = [{k: (one or {}).get(k) for k in ("device", "declared_source")} for one in told]
    apart = any(max(values) > _ALIKE * min(values) for values in shared.values())
    if apart or any(one != named[0] for one in named):
        return {DIFFER: in_words([_brief(one or {}, shared) for one in told])}
    rest = {k: v for k, v in last.items() if not k.endswith("_gib")}
    return {**{k: max(values) for k, values in shared.items()}, **rest}


def _brief(told: Mapping[str, Any], names: Iterable[str]) -> str:
    said = [f"{name} {told[name]:.3g}" for name in names]
    said += [str(told[key]) for key in ("device", "declared_source") if told.get(key)]
    return ", ".join(said)


def _of_part(resources: Sequence[Mapping[str, Any]], answered: int) -> dict[str, Any] | None:
    figures = peaks(resources, answered)
    known: dict[str, Any] = {f"{n}_gib": value for n, value in figures.items() if value is not None}
    why = reasons(resources, answered)
    missing = {f"{name}_reason": why[name] for name in FIGURES if name in why}
    read = [line["memory"] for line in resources if line.get("memory")]
    last: Mapping[str, Any] = read[-1] if read else {}
    device = str(last.get("device", ""))
    if on_card(resources) and not known.keys() & {
        "allocated_peak_gib",
        "device_used_peak_gib",
    }:
        known = {}  # host memory says nothing about a model on a card
    known |= declared(resources, answered)
    if not known:
        return missing or None
    return {**known, **missing, "methods": dict(last.get("methods") or {}), "device": device}


def on_card(resources: Iterable[Mapping[str, Any]]) -> bool:
    """True when the last reading is of a device with memory of its own."""
    read = [line["memory"] for line in resources if line.get("memory")]
    return bool(read) and str(read[-1].get("device", "")).startswith(_CARDS)


Readings = Sequence[tuple[Sequence[Mapping[str, Any]], int]]
"""Per level of load and part of the run: its ``resources`` lines, and how many of its requests were
answered."""


def finding(limit: Limit, levels: Readings, requests: int) -> Finding | None:
    """Judge one memory limit on the measured peak; None when nothing was measured.

    ``requests`` were measured, over all levels. A level that measured nothing is left out.
    """
    if not requests:
        return None
    asked = [(lines, answered) for lines, answered in levels if answered]
    read = [peaks(lines, answered)[limit.metric] for lines, answered in asked]
    known = [v for v in read if v is not None]
    value = max(known) if known and len(known) == len(read) else None
    verdict: Verdict = "fail"
    reason = f"highest reading over {requests} requests"
    if not asked:
        verdict, reason = "error", "no request was answered, so none used memory as it does"
    elif value is None:
        lines, answered = next(a for a, v in zip(asked, read, strict=True) if v is None)
        why = reasons(lines, answered).get(limit.metric, "no reading on record")
        verdict, reason = "error", f"{limit.metric} is not readable: {why}"
    elif limit.limit is not None and value <= limit.limit:
        verdict = "pass"
    return Finding.of(
        limit,
        verdict,
        reason,
        observed=value,
        requests=requests,
        units=requests,
        samples=requests,
        exceeded=int(verdict == "fail"),
    )

"""What ``llmsla capacity`` came to: in words, as JSON and as an exit code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..load.search import Capacity
from ..reports import numbers
from ..reports.escape import visible

_TOO_MUCH = 0.2  # risk of a wrong PASS somewhere, above which a stricter preset is advised


@dataclass(frozen=True)
class Row:
    """One level as it was measured."""

    level: float
    verdict: str
    reason: str
    ttft: str
    itl: str
    tokens_per_s: float | None
    requests: int


@dataclass(frozen=True)
class Searched:
    """What a search came to, and where it is on record."""

    unit: str
    capacity: Capacity
    rows: tuple[Row, ...]
    alpha_pass: float
    folder: Path
    at_least: float | None
    remarks: tuple[str, ...]
    """Where what was searched is not the policy's own load."""
    complete: bool = True
    """False: ended before its end; ``capacity`` is what the levels judged until then come to."""
    ended_at: float | None = None
    """The level that was being measured then, which is not judged."""


def write(done: Searched) -> None:
    """Write capacity.json and capacity.md into the search's folder.

    Raises:
        OSError: they cannot be written.
    """
    (done.folder / "capacity.json").write_text(
        json.dumps(_json(done), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (done.folder / "capacity.md").write_text(describe(done) + "\n", encoding="utf-8")


def describe(done: Searched) -> str:
    """The result in words, and one line a level."""
    capacity, unit = done.capacity, done.unit
    lines = _head(done) if done.complete else _head_so_far(done)
    if done.at_least is not None:
        shown = done.complete and capacity.highest is not None and capacity.highest >= done.at_least
        lines.append(
            f"  asked for: at least {done.at_least:g} {unit}: {'shown' if shown else 'NOT SHOWN'}"
        )
    if not capacity.tried:
        return "\n".join(lines)
    lines.append(
        "  the levels are in order: nothing passes above one that does not"
        if capacity.monotone
        else "  NOT IN ORDER: a level passed above one that did not, so one number does not tell "
        "this service's capacity; what is told is the highest below the first that did not pass"
    )
    lines += [f"  {remark}" for remark in done.remarks]
    n = len(capacity.tried)
    lines.append(
        f"  risk that any of {n} levels passed wrongly: at most "
        f"{numbers.percent(min(1.0, n * done.alpha_pass))} ({n} × "
        f"{numbers.percent(done.alpha_pass)}); for this window on this machine"
    )
    if n * done.alpha_pass > _TOO_MUCH:
        lines.append("  for less risk: evidence.preset normal or strict")
    lines += [
        "",
        f"| {unit} | verdict | TTFT, nearest its limit | ITL, nearest its limit | "
        "tokens/s | requests a bucket | why |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.level:g} | {r.verdict.upper()} | {r.ttft} | {r.itl} | "
        f"{'-' if r.tokens_per_s is None else f'{r.tokens_per_s:.1f}'} | {r.requests} | "
        f"{_cell(r.reason)} |"
        for r in done.rows
    ]
    return "\n".join(lines)


def _head(done: Searched) -> list[str]:
    """What a whole search came to."""
    capacity, unit = done.capacity, done.unit
    if capacity.highest is None:
        lowest = capacity.tried[0]
        return [
            f"capacity: none shown; {lowest.level:g} {unit}: {lowest.verdict.upper()} "
            f"{lowest.reason}".rstrip()
        ]
    first = f"capacity: {capacity.highest:g} {unit}: every limit passes there and below"
    if capacity.next_tried is None:
        return [first, "  that is the end of the range: the service may hold more"]
    return [first, _next(done)]


def _head_so_far(done: Searched) -> list[str]:
    """What a search that was ended had come to: never a capacity."""
    capacity, unit = done.capacity, done.unit
    at = "" if done.ended_at is None else f" while {done.ended_at:g} {unit} were measured"
    lines = [f"capacity: NOT KNOWN: the search is not complete, it was ended{at}"]
    if not capacity.tried:
        return [*lines, "  no level was judged"]
    if capacity.highest is None:
        lines.append("  so far: no level passed")
    else:
        lines.append(f"  so far: {capacity.highest:g} {unit} is the highest that passed")
    return lines if capacity.next_tried is None else [*lines, _next(done)]


def _next(done: Searched) -> str:
    """The lowest level that did not pass."""
    verdict = str(done.capacity.next_verdict)
    words = "fails" if verdict == "fail" else f"is {verdict}: not shown, not refuted"
    return f"  {done.capacity.next_tried:g} {done.unit} {words}"


def _cell(text: str) -> str:
    return visible(text).replace("|", "\\|")


def exit_code(done: Searched) -> int:
    """0: a capacity is shown, and it is at least what was asked for; else as a gate's.

    A search that was ended has not measured what it was asked for: 3, whatever passed.
    """
    if not done.complete:
        return 3
    highest, least = done.capacity.highest, done.at_least
    if highest is not None and (least is None or highest >= least):
        return 0
    if least is not None and any(
        t.verdict == "fail" and t.level <= least for t in done.capacity.tried
    ):
        return 1
    verdict = done.capacity.next_verdict
    return {"fail": 1, "error": 3}.get(str(verdict), 2 if verdict else 1)


def _json(done: Searched) -> dict[str, Any]:
    capacity = done.capacity
    return {
        "schema": "llmsla-capacity/1",
        "complete": done.complete,
        "ended_at": done.ended_at,
        "unit": done.unit,
        "highest": capacity.highest,
        "next_tried": capacity.next_tried,
        "next_verdict": capacity.next_verdict,
        "monotone": capacity.monotone,
        "alpha_pass": done.alpha_pass,
        "at_least": done.at_least,
        "remarks": list(done.remarks),
        "levels": [asdict(r) for r in done.rows],
    }

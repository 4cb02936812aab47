"""``llmsla capacity``: the highest load at which every limit of a policy still passes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..finding import Finding, Limit, worst
from ..gate import check_trace
from ..load.search import Tried, search, summary
from ..policy import LoadedPolicy, Policy, policy_from_mapping
from ..reports import numbers
from ..rules.limits import SEARCH
from ..session import Progress, Session
from .capacity_result import Row, Searched, describe, exit_code, write

__all__ = ["FOLDER", "Row", "Searched", "describe", "exit_code", "find", "progress_of"]

FOLDER = SEARCH.rstrip("/")
"""Below the report folder: a search fails levels on purpose, and is no run to sign off."""

_TELL_EVERY_S = 10.0


def find(
    loaded: LoadedPolicy,
    *,
    lowest: float,
    highest: float,
    rate: bool,
    progress: Progress,
    at_least: float | None = None,
    report_dir: Path | None = None,
) -> Searched:
    """Search ``lowest`` … ``highest`` requests in flight, or requests/s with ``rate``.

    Each level is a gate of its own, with every limit of the policy and the same sequential test.
    A search that is ended (Ctrl-C) comes back with the levels that were judged until then, and is
    not complete.

    Raises:
        UsageError: a range that is none, or a preset that decides nothing.
        TargetError: the target cannot be loaded.
    """
    policy = loaded.policy
    _refuse(loaded, lowest, highest, rate=rate, at_least=at_least)
    folder = _folder(report_dir or Path(policy.report.dir))
    unit = "requests/s" if rate else "requests in flight"
    session = Session(folder, progress=progress, run_dir=folder)
    rows: dict[float, Row] = {}
    judged: list[Tried] = []
    at: float | None = None

    def attempt(level: float) -> Tried:
        nonlocal at
        at = level
        progress.say(f"level {level:g} {unit}")
        found, entries = _measure(session, _at(loaded, level, rate=rate), level, rate=rate)
        tried = _tried(level, found)
        rows[level] = _row(tried, found, entries)
        judged.append(tried)
        progress.say(f"level {level:g} {unit}: {tried.verdict.upper()} {tried.reason}".rstrip())
        return tried

    complete = False
    try:
        search(attempt, lowest=lowest, highest=highest, whole=not rate)
        complete = True
    except KeyboardInterrupt:
        progress.say("interrupted: the search ends here, with the levels judged so far")
    finally:
        session.close("ended" if complete else "interrupted")
    # One that was ended between two levels has judged them all.
    ended_at = at if not complete and at not in rows else None
    capacity = summary(judged)
    done = Searched(
        unit,
        capacity,
        tuple(rows[t.level] for t in capacity.tried),
        policy.alpha_pass or 0.0,
        folder,
        at_least,
        tuple(_remarks(policy, [t.level for t in capacity.tried], rate=rate)),
        complete=complete,
        ended_at=ended_at,
    )
    write(done)
    return done


def _folder(report_dir: Path) -> Path:
    """A new folder for this search.

    Raises:
        UsageError: none can be made there.
    """
    stem = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for n in range(1000):
        path = report_dir / FOLDER / (stem if n == 0 else f"{stem}-{n:03d}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as e:
            raise UsageError(
                f"cannot write {path}: {e.strerror or e}; give another folder with --report"
            ) from e
        return path
    raise UsageError(f"{report_dir / FOLDER}: no free folder name; give another --report")


def _refuse(
    loaded: LoadedPolicy, lowest: float, highest: float, *, rate: bool, at_least: float | None
) -> None:
    """Raise UsageError for what no search can answer, before anything is measured."""
    policy = loaded.policy
    if policy.alpha_pass is None:
        raise UsageError(
            "evidence.preset is observed, which passes nothing: a capacity is the highest load "
            "that passes. Use fast, normal or strict"
        )
    if not (math.isfinite(lowest) and math.isfinite(highest) and 0 < lowest <= highest):
        raise UsageError(f"levels from {lowest:g} to {highest:g}: valid is 0 < lowest <= highest")
    if not rate and (lowest != int(lowest) or highest != int(highest)):
        raise UsageError(f"requests in flight from {lowest:g} to {highest:g}: valid: whole numbers")
    if at_least is not None and not lowest <= at_least <= highest:
        raise UsageError(
            f"--at-least {at_least:g} is none of the levels that are tried, {lowest:g} to "
            f"{highest:g}: give one among them, or another --min or --max"
        )
    if rate and isinstance(policy.tgs.min_tokens_per_s, Mapping):
        raise UsageError(
            f"{loaded.source('tgs.min_tokens_per_s')} gives floors by concurrency, and at a rate "
            "nobody says how many are in flight, so none of them would be judged: give one number, "
            "or search without --rate"
        )
    for level in (lowest, highest):
        check_trace(_at(loaded, level, rate=rate))


def _remarks(policy: Policy, levels: Sequence[float], *, rate: bool) -> Iterator[str]:
    """What a reader has to know of the load that was searched."""
    load, floors = policy.load, policy.tgs.min_tokens_per_s
    if rate and load.kind == "trace":
        yield f"requests came as in the trace {load.trace}, its times stretched to each rate"
    elif rate and not load.open:
        yield "the policy's load is a closed loop; rates were searched with Poisson arrivals"
    elif not rate and load.open:
        yield (
            f"the policy's load is {load.words}; what was searched is a closed loop of so many "
            "requests in flight. For rates of the policy's own arrivals: --rate"
        )
    bare = [x for x in levels if isinstance(floors, Mapping) and int(x) not in floors]
    if bare:
        yield (
            "tgs.min_tokens_per_s names no floor for "
            f"{', '.join(f'{x:g}' for x in bare)} in flight: none was judged there"
        )


def _at(loaded: LoadedPolicy, level: float, *, rate: bool) -> LoadedPolicy:
    """The policy with nothing but its load changed.

    Raises:
        UsageError: nothing could pass at that level.
    """
    mapping = loaded.policy.model_dump(mode="json")
    load, tgs = mapping["workload"]["load"], mapping["tgs"]
    if rate:
        tgs["concurrency"] = [1]
        load["rate"] = level
        if load["kind"] == "closed":
            load["kind"] = "poisson"
    else:
        tgs["concurrency"] = [int(level)]
        tgs["min_tokens_per_s"] = loaded.policy.min_rate(int(level))
        of_open = ("rate", "burstiness", "trace", "trace_unit", "max_in_flight")
        load.update(kind="closed", **dict.fromkeys(of_open))
        load.pop("trace_sha256", None)
    return policy_from_mapping(mapping, f"{loaded.where} at {level:g}", base=loaded.base)


def _measure(
    session: Session, loaded: LoadedPolicy, level: float, *, rate: bool
) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Findings of one level, one for every limit or it cannot pass; and its TGS entries."""
    gate = session.gate(f"{SEARCH}{'rate' if rate else 'concurrency'}-{level:g}", loaded)
    gate.measure(to_first_fail=True)
    found = gate.findings()
    missing = {x.id: x for x in gate.limits if x.id not in {f.id for f in found}}
    return [*found, *map(_unmeasured, missing.values())], gate.tgs_entries()


def _unmeasured(limit: Limit) -> Finding:
    """A limit that no request of its level was about: the level ended before one was sent."""
    return Finding.of(limit, "inconclusive", "nothing of it was measured")


def _tried(level: float, found: list[Finding]) -> Tried:
    if not found:
        return Tried(level, "error", "nothing was measured")
    verdict = worst(f.verdict for f in found)
    bad = [f for f in found if f.verdict == verdict and verdict != "pass"]
    words = "; ".join(f"{_short(f)}: {f.reason}" for f in bad[:2])
    return Tried(level, verdict, words)


def _short(f: Finding) -> str:
    percentile = "" if f.percentile is None else f" p{f.percentile:g}"
    return f"{f.metric}{percentile}{'' if f.bucket is None else f', {f.bucket}'}"


def _row(tried: Tried, found: list[Finding], entries: list[dict[str, Any]]) -> Row:
    measured = [e for e in entries if e["kind"] in ("steady", "concurrent")]
    return Row(
        level=tried.level,
        verdict=tried.verdict,
        reason=tried.reason,
        ttft=_nearest(found, "ttft"),
        itl=_nearest(found, "itl"),
        tokens_per_s=measured[0]["tokens_per_s"] if measured else None,
        requests=max((f.requests for f in found), default=0),
    )


def _nearest(found: list[Finding], metric: str) -> str:
    """Of a metric's limits, the one that is nearest to being broken, or furthest beyond."""
    mine = [
        f for f in found if f.metric == metric and f.observed is not None and f.limit is not None
    ]
    if not mine:
        return "-"
    f = max(mine, key=lambda f: (f.observed or 0.0) / (f.limit or 1.0))
    seen = numbers.measured(f.observed, "ms", against=f.limit)
    return f"{seen} of {numbers.limit(f.limit, 'ms')} ({_short(f)})"


def progress_of(say: Callable[[str], None]) -> Progress:
    """A progress that writes plain lines."""
    return _Lines(say)


class _Lines:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told = time.monotonic()

    def say(self, text: str) -> None:
        """Something that takes time begins."""
        self._say(text)

    def phase(self, gate: str | None, bucket: str, name: str) -> None:
        """A bucket's phase: the levels are told already."""

    def request(
        self, gate: str | None, bucket: str, *, warmup: bool, state: Mapping[str, Any]
    ) -> None:
        """A request ended; told every ten seconds."""
        if time.monotonic() - self._told < _TELL_EVERY_S:
            return
        self._told = time.monotonic()
        if warmup:
            self._say(f"  {bucket}: warm-up, {state['warmups']} requests")
        else:
            self._say(f"  {bucket}: {state['requests']} of at most {state['budget']} requests")

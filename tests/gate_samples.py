"""Bare integers for tests of the core: policies, timelines, logs, engines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_llmsla.finding import Finding
from pytest_llmsla.log import SCHEMA, RunWriter
from pytest_llmsla.log.request_lines import to_line
from pytest_llmsla.policy import LoadedPolicy, policy_from_mapping
from pytest_llmsla.session import Gate, Session
from pytest_llmsla.timeline import Timeline
from pytest_llmsla.verdict import Gatekeeper, limits_of

MS = 1_000_000
TOKENS = 8
SAMPLING = {"greedy": False, "temperature": 0.8, "top_p": 0.9, "seed": 0}

SHORT: Mapping[str, Any] = {"name": "short", "prompt_max": 128, "ttft_ms": 300}
LONG: Mapping[str, Any] = {"name": "long", "prompt_max": 512, "ttft_ms": 450}


def policy(*buckets: Mapping[str, Any], base: Path | None = None, **groups: Any) -> LoadedPolicy:
    """A policy with bucket ``short`` (default) on a script; ``groups`` are keys of sla.yaml."""
    raw: dict[str, Any] = {
        "version": 1,
        "service": "service",
        "target": {"kind": "scripted", "script": {"ttft_ms": 100, "itl_ms": 20}},
        "workload": {"max_new_tokens": TOKENS},
        "buckets": [dict(b) for b in buckets or (SHORT,)],
        "itl": {"p95_ms": 50},
    }
    for name, value in groups.items():
        both = isinstance(value, Mapping) and isinstance(raw.get(name), Mapping)
        raw[name] = {**raw[name], **value} if both and name != "target" else value
    return policy_from_mapping(raw, "test policy", base=base)


def timeline(
    n: int = 0,
    *,
    ttft: float = 100,
    gaps: Iterable[float] = (20,) * (TOKENS - 1),
    prompt: int | None = 120,
    bucket: str = "short",
    **fields: Any,
) -> Timeline:
    """Request ``n``: TTFT and gaps in ms, one token an arrival, one request after the other."""
    start = n * 10_000_000 * MS
    at, arrivals = start + round(ttft * MS), []
    arrivals.append((at, 1))
    for gap in gaps:
        at += round(gap * MS)
        arrivals.append((at, 1))
    given: dict[str, Any] = {
        "id": f"r{n:06d}",
        "bucket": bucket,
        "start_ns": start,
        "end_ns": at,
        "arrivals": tuple(arrivals),
        "prompt_tokens": prompt,
        "output_tokens": len(arrivals),
        "max_new_tokens": TOKENS,
        "token_source": "model",
        "finish_reason": "length",
        "unit": n,
        "sampling": SAMPLING,
    }
    return Timeline(**{**given, **fields})


def broken(n: int = 0, error: str = "RuntimeError: boom", **fields: Any) -> Timeline:
    """Request ``n`` that failed before its first token."""
    given: dict[str, Any] = {
        "status": "error",
        "error": error,
        "arrivals": (),
        "output_tokens": None,
        "token_source": None,
        "finish_reason": None,
        **fields,
    }
    return timeline(n, **given)


def reading(gib: float | None = 1.5, **memory: Any) -> dict[str, Any]:
    """A ``resources`` line as written after a measured request."""
    return {
        "type": "resources",
        "t_ns": 0,
        "gate": None,
        "bucket": "short",
        "purpose": None,
        "phase": "measured",
        "memory": {"rss_peak": gib, "device": "cpu", "methods": {"rss_peak": "kernel"}, **memory},
    }


def judged(
    loaded: LoadedPolicy, timelines: Iterable[Timeline], *, gate: str | None = None, **kwargs: Any
) -> Gatekeeper:
    """A judge that has seen ``timelines``, each with a memory reading."""
    keeper = Gatekeeper(loaded, gate=gate, **kwargs)
    for t in timelines:
        keeper.add(t)
        if not t.warmup:
            keeper.resources(reading())
    keeper.end("requests")
    return keeper


def only(keeper: Gatekeeper, limit_id: str) -> Finding:
    """The finding of a limit that has one."""
    found = keeper.finding(limit_id)
    assert found is not None, f"{limit_id} has no finding"
    return found


def verdicts(keeper: Gatekeeper) -> dict[str, str]:
    """Verdict by limit id."""
    return {f.id: f.verdict for f in keeper.findings()}


def log_lines_of(
    loaded: LoadedPolicy, timelines: Iterable[Timeline], *, ended: bool = True
) -> list[dict[str, Any]]:
    """The lines of a whole log: every request with its start and a memory reading."""
    dumped = loaded.policy.model_dump(mode="json")
    run = {
        "type": "run",
        "schema": SCHEMA,
        "policy": dumped,
        "policy_sha256": loaded.sha256,
        "sources": {limit.id: limit.source for limit in limits_of(loaded)},
    }
    lines: list[dict[str, Any]] = [
        run,
        {"type": "target", "gate": None, "kind": "scripted", "start_point": "here"},
        {"type": "segment", "segment": 0, "t0_utc": "2025-01-01T00:00:00.000Z"},
    ]
    for t in timelines:
        same = ("id", "bucket", "unit", "max_new_tokens", "start_ns", "warmup", "attempt")
        lines.append({"type": "start", **{name: getattr(t, name) for name in same}})
        lines.append(to_line(t))
        if not t.warmup:
            lines.append(reading())
    if ended:
        measuring = [{"gate": None, "reason": "requests"}]
        end = {"type": "end", "reason": "ended", "utc": "2025-01-01T01:00:00.000Z"}
        lines.append({**end, "measuring": measuring})
    return lines


def write_log(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write ``lines`` as a timelines.jsonl."""
    path.unlink(missing_ok=True)
    writer = RunWriter(path)
    for line in lines:
        writer.line(line)
    writer.close()
    return path


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> ModuleType:
    """A module of a user's own, importable by ``target.entry`` under its ``__name__``."""
    name = "engine_" + "".join(c if c.isalnum() else "_" for c in folder.name)
    (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return import_module(name)


def python_policy(
    module: ModuleType,
    *buckets: Mapping[str, Any],
    timeouts: Mapping[str, float] | None = None,
    kind: str = "python",
    **groups: Any,
) -> LoadedPolicy:
    """A policy on ``module.made``."""
    target: dict[str, Any] = {"kind": kind, "entry": f"{module.__name__}:made"}
    if timeouts is not None:
        target["timeouts"] = dict(timeouts)
    return policy(*buckets, target=target, **groups)


def run_gate(folder: Path, loaded: LoadedPolicy) -> tuple[Session, Gate]:
    """Measure a sla.yaml's gate to its end; the session is closed."""
    session = Session(folder / "out", release=loaded)
    gate = session.gate(None, loaded)
    gate.measure()
    session.close()
    return session, gate


def plain_json(value: object) -> Any:
    """``value`` after a way through JSON."""
    return json.loads(json.dumps(value, allow_nan=False))

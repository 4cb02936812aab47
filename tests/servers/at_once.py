"""A gate of a real server at one and at four requests at once, and what it must show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_gate import GENEROUS, LONGEST, TIGHT, Gate, policy, quiet_gate

LEVELS = (1, 4)
_BOTH = {"short/ttft_p95", "short/itl_p95", "short/error_rate", "tgs/concurrency-1"}
_FOUR = {f"short/concurrency-4/{metric}" for metric in ("ttft_p95", "itl_p95", "error_rate")}
EVERY = _BOTH | _FOUR | {"tgs/concurrency-4"}


def gate_at_once(
    folder: Path,
    spec: Mapping[str, Any],
    limits: Mapping[str, float],
    *,
    itl: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    tokens: int = 8,
) -> Gate:
    """A short gate at both levels; requests are long enough to overlap."""
    levels = {"concurrency": list(LEVELS)}
    contents = policy(spec, limits=limits, itl=itl, tokens=tokens, tgs=levels)
    return quiet_gate(folder, contents, env=env)


def assert_holds_and_breaks(
    folder: Path,
    spec: Mapping[str, Any],
    *,
    itl: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    tokens: int = 8,
) -> None:
    """Generous limits pass at both levels, tight ones fail at both; four were in flight."""
    how: dict[str, Any] = {"itl": itl, "env": env, "tokens": tokens}
    generous = gate_at_once(folder / "generous", spec, GENEROUS, **how)
    assert generous.exit == 0, generous.said
    assert generous.report["verdict"] == "pass", generous.said
    assert generous.verdicts() == dict.fromkeys(EVERY, "pass"), generous.said
    assert_four_at_once(generous)
    tight = gate_at_once(folder / "tight", spec, TIGHT, **how)
    assert tight.exit == 1, tight.said
    found = tight.verdicts()
    for place in ("short", "short/concurrency-4"):
        assert found[f"{place}/ttft_p95"] == "fail", tight.said
        assert found[f"{place}/itl_p95"] == "fail", tight.said
        assert found[f"{place}/error_rate"] != "fail", tight.said


def assert_four_at_once(done: Gate) -> None:
    """The record shows four in flight, every token of each, hardly any wait for a connection;
    TGS has all of its conditions at both levels."""
    four = [line for line in done.requests if line.get("concurrency") == 4]
    measured = [line for line in four if not line.get("warmup")]
    assert measured, done.said
    waits = 0
    for line in four:
        assert line["status"] == "ok", line
        assert sum(tokens for _, tokens in line["arrivals"]) == line["output_tokens"]
        waits += any("waited" in note for note in line.get("notes", ()))
    assert waits <= len(four) // 4, done.said
    begins = sorted(line["start_ns"] for line in measured)
    inside = [n for n in begins if begins[0] < n < begins[-1]]
    flying = [sum(a["start_ns"] <= n < a["end_ns"] for a in four) for n in inside]
    assert max(flying, default=4) <= 4
    entries = {t["finding"]: t for t in done.report["tgs"] if t.get("finding")}
    for level in LEVELS:
        entry = entries[f"tgs/concurrency-{level}"]
        assert entry["documented"] is True, entry
        assert entry["tokens_per_s"] > 0
    conditions = entries["tgs/concurrency-4"]["conditions"]
    assert conditions["concurrency"]["asked"] == 4
    assert 3.6 <= conditions["concurrency"]["actual"] <= 4
    assert conditions["prompt_lengths"]["max"] <= LONGEST
    assert conditions["sampling"]
    assert entries["tgs/concurrency-4"]["mode"] == "http"

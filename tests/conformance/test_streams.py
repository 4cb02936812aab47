"""Scripted streams through real sockets: every number a correct client must report, exactly.

Client and server share a clock that only the script moves (tests/streams): a time of the script is
the very time that is measured. Each case runs in every way a server may frame its answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.stats import nearest_rank
from pytest_llmsla.timeline import NS_PER_MS, Timeline
from streams.runner import Case, Ran, judge, load, mixed, run, with_ids
from streams.script import Wire

GIVEN = load(Path(__file__).parent / "streams.yaml")
STREAMS = Path(__file__).parents[1] / "streams"
FILES = ("more.yaml", "hostile.yaml", "honest.yaml")
CASES = dict(GIVEN) | {i: case for name in FILES for i, case in load(STREAMS / name).items()}
WIRES = {
    "until close": Wire("close"),
    "until close, late headers": Wire("close", early_headers=False),
    "chunked": Wire("chunked"),
    "chunked, late headers": Wire("chunked", early_headers=False),
}
# A refusal that is sent again counts from its first attempt: headers 20 ms earlier, or the end of
# its body 2 ms later, are part of the answer.
TOLERANCE_MS = {"A5c": 2.0, "D8e": 2.0, "X59": 2.0}


def close(found: float | None, wanted: float | None, tolerance: float = 1e-6) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if math.isinf(wanted):
        return found == wanted
    return abs(found - wanted) <= tolerance


def all_close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(found) == len(wanted) and all(map(close, found, wanted))


def after_ms(t: Timeline, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - t.start_ns) / NS_PER_MS


def figures(t: Timeline) -> dict[str, Any]:
    """What a timeline reports, under the names of the cases."""
    last = after_ms(t, t.arrivals[-1][0] if t.arrivals else None)
    itl = t.itl_ms()
    return {
        "ttft_ms": t.ttft_ms,
        "itl_ms": itl,
        "itl_n": len(itl),
        "itl_p95_ms": nearest_rank(itl, 0.95),
        "chunk_gap_ms": [gap / NS_PER_MS for gap in t.chunk_gaps_ns()],
        "output_tokens": t.output_tokens,
        "count_source": t.token_source,
        "first_visible_ms": after_ms(t, t.first_visible_ns),
        "last_token_ms": last,
        "tokens_per_s": None if not last or not t.output_tokens else t.output_tokens * 1000 / last,
        "prompt_tokens": t.prompt_tokens,
        "cached_tokens": t.cached_tokens,
        "text": t.text,
    }


def differs(name: str, found: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, list):
        return not all_close(found, wanted)
    if isinstance(wanted, float | int) and not isinstance(wanted, bool):
        return not close(found, wanted, tolerance if name != "tokens_per_s" else 0.02)
    return bool(found != wanted)


def check_request(case: Case, ran: Ran) -> None:
    """One request against what is expected of each."""
    expect, t = case["expect"], ran.t
    tolerance = TOLERANCE_MS.get(case["id"], 1e-6)
    allowed = expect["status"] if isinstance(expect["status"], list) else [expect["status"]]
    assert t.status in allowed, t.error
    message = (t.error or "").lower()
    for words in expect.get("error_contains", ()):
        assert any(w.lower() in message for w in words.split("|")), message
    if "finished_ms" in expect:
        assert close(ran.finished_ms, expect["finished_ms"])
    if t.status == "error":
        assert t.error
        assert expect.get("posts", ran.posts) == ran.posts or len(allowed) > 1
        return
    assert expect.get("posts", ran.posts) == ran.posts
    found = figures(t)
    wrong = {
        name: (found[name], wanted)
        for name, wanted in expect.items()
        if name in found and differs(name, found[name], wanted, tolerance)
    }
    assert wrong == {}
    assert (t.estimated is not None) is expect.get("estimated", False), t.estimated


def check_verdicts(case: Case, ran: Sequence[Ran]) -> None:
    """The product's verdicts on the samples of a case."""
    wanted: Mapping[str, str] = case["expect"].get("verdict") or {}
    timelines = with_ids(ran)
    if not any(t.ok for t in timelines):
        wanted = dict.fromkeys(wanted, "error")
    findings = judge(case, timelines)
    found = {name: findings[name].verdict for name in wanted}
    assert found == dict(wanted), {name: findings[name].reason for name in wanted}
    for name, every in (case["expect"].get("verdict_contains") or {}).items():
        for words in every:
            assert any(w in findings[name].reason.lower() for w in words.split("|"))


def check_pool(case: Case, ran: Sequence[Ran]) -> None:
    """All requests of a case together."""
    expect = {**case["expect"], **case["expect"].get("pooled", {})}
    ok, failed = [r.t for r in ran if r.t.ok], sum(not r.t.ok for r in ran)
    ttft = [t.ttft_ms or math.nan for t in ok]
    itl = [ms for t in ok for ms in t.itl_ms()]
    pool = {
        "n_ok": len(ok),
        "n_error": failed,
        "ttft_ok_ms": ttft,
        "ttft_p50_ms": mixed(ttft, failed, 0.50),
        "ttft_p95_ms": mixed(ttft, failed, 0.95),
        "itl_n": len(itl),
        "itl_p95_ms": nearest_rank(itl, 0.95),
        "output_tokens": sum(t.output_tokens or 0 for t in ok),
        "error_rate": failed / len(ran),
    }
    wrong = {
        name: (pool[name], wanted)
        for name, wanted in expect.items()
        if name in pool and differs(name, pool[name], wanted, 1e-6)
    }
    assert wrong == {}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("case_id", CASES)
def test_a_stream_gives_the_numbers_of_its_script(case_id: str, wire: str) -> None:
    """Times, gaps, counts, text, failures and verdicts, to the nanosecond, every time."""
    case = CASES[case_id]
    ran = run(case, WIRES[wire], CASES)
    if "mix" not in case:
        for each in ran:
            check_request(case, each)
    if len(ran) > 1:
        check_pool(case, ran)
    check_verdicts(case, ran)

"""Every field of every kind of line, replaced by what it should not be: refused or not a PASS."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gate_samples import log_lines_of, plain_json, policy, timeline
from pytest_llmsla.errors import UsageError
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.log.other_lines import OTHER_TYPES
from pytest_llmsla.reports import markdown, terminal
from pytest_llmsla.reports.json_report import dumps
from pytest_llmsla.timeline import PEAK

FAST = policy(evidence={"preset": "fast"}, memory={"rss_peak_gib": 4})
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    7,
    10**400,
    0.5,
    "",
    "<b>|`\u0000\ud800",
    [1],
    [[1, 2]],
    {"a": 1},
)


def every_kind_of_line() -> list[dict[str, Any]]:
    """A run that fails: slow requests, warm-up, peak, a test's own gate, a figure, a problem."""
    slow = [
        timeline(0, warmup=True, unit=0),
        *(
            timeline(n, ttft=900, unit=n - 1, stages={"prefill": 5}, notes=("a note",))
            for n in range(1, 8)
        ),
    ]
    lines = log_lines_of(FAST, slow)
    peak = log_lines_of(FAST, [timeline(9, bucket=PEAK, purpose=PEAK, unit=0)], ended=False)[3:]
    peak[0]["purpose"] = peak[2]["purpose"] = PEAK
    dumped = FAST.policy.model_dump(mode="json")
    gate = {"type": "gate", "gate": "t.py::t", "policy": dumped, "policy_sha256": FAST.sha256}
    own = log_lines_of(FAST, [timeline(11, id="own", unit=0, gate="t.py::t")], ended=False)[3:]
    for line in own:
        line["gate"] = "t.py::t"
    figure = {"type": "tgs", "id": "t.py::t/tgs", "value": 12.5, "sampling": {}, "concurrency": 4}
    problem = {"type": "problem", "gate": None, "bucket": "short", "reason": "stopped"}
    lines[0] |= {"host": {"hostname": "h", "cpu": {"model": "c"}}, "started": "2025", "pid": 1}
    lines[1] |= {"model": "m", "warnings": [{"code": "c", "message": "m"}], "template_tokens": 3}
    lines[-1] |= {"prompt_notes": ["a note"]}
    said = {
        "type": "outcomes",
        "outcomes": {"short/ttft_p95": {"status": "failed", "reason": "slow", "reruns": 1}},
        "missing": [["worker", "died"]],
        "signoff": False,
        "compared": {"verdict": "fail", "reason": "slower"},
    }
    resume = {
        "type": "resume",
        "from": "runs/1",
        "sha256": "0" * 64,
        "requests": 3,
        "utc": "2025",
        "host": {},
    }
    own_words = {
        "type": "server",
        "gate": None,
        "server": {
            "source": "/metrics",
            "software": "vllm",
            "reason": None,
            "warnings": ["other traffic: 3 requests"],
            "ttft": {
                "name": "vllm:time_to_first_token_seconds",
                "count": 7,
                "mean_ms": 890.0,
                "percentiles": {"p95": {"above_ms": 750.0, "up_to_ms": 1000.0}},
                "reason": None,
            },
            "requests": {"name": "n", "server": 10, "ours": 7, "others": 3, "reason": None},
            "kv_cache": {"name": "k", "before": 0.1, "after": 0.2, "reason": None},
        },
    }
    level = {
        "type": "level",
        "gate": None,
        "concurrency": 1,
        "asked": {"kind": "closed"},
        "mode": "threads",
        "t_ns": 0,
    }
    lines[3:3] = [resume, level]
    return [*lines[:-1], *peak, gate, *own, figure, problem, own_words, lines[-1], said]


LINES = every_kind_of_line()
KINDS = tuple(dict.fromkeys(str(line["type"]) for line in LINES))


def first(kind: str) -> int:
    return next(i for i, line in enumerate(LINES) if line["type"] == kind)


def outcome(path: Path, lines: list[dict[str, Any]]) -> str:
    """``refused``, or the verdict of a report that could be made in every form."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    try:
        log = read_run(path)
        report = build_report(log, judge_log(log))
    except UsageError:
        return "refused"
    dumps(report)
    plain_json(report)
    markdown.render(report)
    terminal.render(report)
    return str(report["verdict"])


def test_the_run_that_is_damaged_below_is_read_and_fails(tmp_path: Path) -> None:
    """Undamaged it is sound, and a FAIL."""
    assert set(KINDS) == {"run", "start", "request", *OTHER_TYPES}
    assert outcome(tmp_path / "t.jsonl", LINES) == "fail"


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a line, two levels deep; a policy counts as one."""
    if isinstance(value, dict) and len(at) < 2 and at != ("policy",):
        for key, inner in value.items():
            yield (*at, key)
            yield from paths(inner, (*at, key))


def changed(line: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(line)
    here = out
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_a_line_can_be_odd_and_pass(tmp_path: Path, kind: str) -> None:
    """Each place gets each odd value: a usage error or a report, and never a PASS."""
    at = first(kind)
    for path in paths(LINES[at]):
        for value in ODD:
            lines = [*LINES[:at], changed(LINES[at], path, value), *LINES[at + 1 :]]
            assert outcome(tmp_path / "t.jsonl", lines) != "pass", (path, value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_a_line_can_be_gone_and_pass(tmp_path: Path, kind: str) -> None:
    """Each key taken out, and the whole line as well."""
    at = first(kind)
    for key in LINES[at]:
        line = {k: v for k, v in LINES[at].items() if k != key}
        assert outcome(tmp_path / "t.jsonl", [*LINES[:at], line, *LINES[at + 1 :]]) != "pass", key
    assert outcome(tmp_path / "t.jsonl", [*LINES[:at], *LINES[at + 1 :]]) != "pass"

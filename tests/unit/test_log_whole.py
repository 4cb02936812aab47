"""A line cut out of a log, put in twice or moved: no PASS comes of it, and none stays one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gate_samples import log_lines_of, plain_json, policy, reading, timeline, write_log
from pytest_llmsla.errors import UsageError
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import RunWriter, read_run
from pytest_llmsla.resume import earlier_run

Lines = list[dict[str, Any]]
FAST = policy(evidence={"preset": "fast"}, memory={"rss_peak_gib": 2})
GATE = "t.py::t"
PARTS = 19


def outcome(path: Path, lines: Sequence[Mapping[str, Any]], *, quick: bool = False) -> str:
    """``refused``, or the verdict; the lines as they are, none of them mended.

    ``quick``: ``lacking`` where a line is; that this is no PASS is shown once.
    """
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    try:
        log = read_run(path)
        if log.lacking and quick:
            return "lacking"
        return str(build_report(log, judge_log(log))["verdict"])
    except UsageError:
        return "refused"


def nothing(lines: Lines) -> None:
    """As it is."""


def whole(path: Path, edit: Callable[[Lines], object] = nothing, *, own: bool = False) -> Lines:
    """The lines of a run that is complete, as its writer leaves them; ``edit``: what else was.

    Two parts of a resumed run, warm-up, memory, what a test runner said; ``own``: and a gate of
    a test's own.
    """
    every = [timeline(0, warmup=True, unit=0)]
    every += [timeline(n, unit=n - 1) for n in range(1, PARTS + 1)]
    lines = log_lines_of(FAST, every, ended=False)
    host = {"cpu": {"model": "c"}, "settings": {"LLMSLA": "1"}}
    lines[0] |= {"version": "0.1.0", "host": host, "started": "2025", "pid": 1}
    lines.append({"type": "resume", "from": "a", "sha256": "0" * 64, "requests": 21, "host": host})
    lines.append(dict(lines[1]))
    lines.append({"type": "segment", "segment": 1, "t0_utc": "2025-01-01T00:00:00.000Z"})
    later = [timeline(n, id=f"s{n}", unit=n, attempt=2, segment=1) for n in range(PARTS + 1)]
    lines += log_lines_of(FAST, later, ended=False)[3:]
    if own:
        lines += of_a_test(lines[1])
    measuring = [{"gate": key, "reason": "decided"} for key in (None, GATE)[: 1 + own]]
    lines.append(
        {"type": "end", "reason": "ended", "measuring": measuring, "outcomes_follow": True}
    )
    names = ["short/ttft_p95", f"{GATE}/short/ttft_p95"][: 1 + own]
    said = {name: {"status": "passed"} for name in names}
    lines.append({"type": "outcomes", "outcomes": said, "missing": [], "signoff": False})
    edit(lines)
    write_log(path, lines)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def of_a_test(target: Mapping[str, Any]) -> Lines:
    """A gate of its own, with its target and its requests."""
    dumped = FAST.policy.model_dump(mode="json")
    gate = {"type": "gate", "gate": GATE, "policy": dumped, "policy_sha256": FAST.sha256}
    own = [timeline(100 + n, id=f"o{n}", unit=n, gate=GATE, segment=1) for n in range(38)]
    lines = [gate, dict(target), *log_lines_of(FAST, own, ended=False)[3:]]
    return [{**line, "gate": GATE} for line in lines]


def at(lines: Lines, kind: str, which: int = 0) -> int:
    return [n for n, line in enumerate(lines) if line["type"] == kind][which]


def before_end(*more: dict[str, Any]) -> Callable[[Lines], object]:
    return lambda lines: lines.__setitem__(slice(at(lines, "end"), at(lines, "end")), more)


def changed(kind: str, which: int = 0, **values: Any) -> Callable[[Lines], object]:
    return lambda lines: lines[at(lines, kind, which)].update(values)


def no_pass_in_the_middle(lines: Lines) -> None:
    """A request that failed, and the reading after it."""
    n = at(lines, "request", 7)
    lines[n] |= {"status": "error", "error": "boom", "arrivals": [], "output_tokens": None}


OTHER_HOST = {"cpu": {"model": "another"}, "settings": {"LLMSLA": "1"}}
SPOILT: Mapping[str, Callable[[Lines], object]] = {
    "a problem": before_end(
        {"type": "problem", "gate": None, "bucket": "short", "reason": "stopped"}
    ),
    "an undocumented rate": before_end({"type": "tgs", "id": "x/tgs", "value": 5.0}),
    "too much memory": changed("resources", 30, memory=reading(3.0)["memory"]),
    "a failed request": no_pass_in_the_middle,
    "a lost request": lambda lines: lines.pop(at(lines, "request", 9)),
    "an interruption": changed("end", reason="interrupted"),
    "another machine": changed("resume", host=OTHER_HOST),
    "another target": changed("target", 1, revision="other"),
    "a test that failed": changed(
        "outcomes", outcomes={"short/ttft_p95": {"status": "failed"}, "x": {"status": "skipped"}}
    ),
    "a slower run": changed("outcomes", compared={"verdict": "fail", "reason": "slower"}),
}


def test_the_run_below_passes_as_it_is_and_not_when_spoilt(tmp_path: Path) -> None:
    """What is tried below begins with these verdicts."""
    path = tmp_path / "t.jsonl"
    assert outcome(path, whole(path)) == outcome(path, whole(path, own=True)) == "pass"
    for name, edit in SPOILT.items():
        assert outcome(path, whole(path, edit)) in ("fail", "error", "inconclusive"), name


def telling(lines: Lines, told: int) -> list[int]:
    """The first and the last line of each kind, and the one that tells why it does not pass."""
    kinds = dict.fromkeys(line["type"] for line in lines)
    return sorted({told, *(at(lines, kind, which) for kind in kinds for which in (0, -1))})


def edits(lines: Lines, told: int) -> dict[str, Lines]:
    """Each line cut out, put in twice, and moved: to the next place, the front and the end."""
    out = {}
    for n in telling(lines, told):
        rest = [*lines[:n], *lines[n + 1 :]]
        name = f"{n} {lines[n]['type']}"
        out[f"{name} gone"] = rest
        out[f"{name} twice"] = [*lines[: n + 1], *lines[n:]]
        for to in {1, n + 1, at(rest, "request", -1), len(rest) - 2, len(rest)} - {n}:
            out[f"{name} to {to}"] = [*rest[:to], lines[n], *rest[to:]]
    return out


@pytest.mark.parametrize("name", SPOILT)
def test_no_line_moved_cut_or_doubled_makes_a_pass(tmp_path: Path, name: str) -> None:
    """Of a run that does not pass, for each one reason."""
    path = tmp_path / "t.jsonl"
    lines = whole(path, SPOILT[name])
    sound = whole(path)
    told = next(n for n, line in enumerate(lines) if n >= len(sound) or line != sound[n])
    tried = edits(lines, told)
    passed = [edit for edit, after in tried.items() if outcome(path, after, quick=True) == "pass"]
    assert passed == []


def test_no_line_of_a_run_that_passes_can_be_gone_or_double(tmp_path: Path) -> None:
    """Each single line, of every kind."""
    path = tmp_path / "t.jsonl"
    lines = whole(path, own=True)
    kept = [
        n
        for n in range(len(lines))
        if outcome(path, [*lines[:n], *lines[n + 1 :]], quick=True) == "pass"
    ]
    assert kept == []
    double = [
        n
        for n in range(len(lines) - 1)
        if outcome(path, [*lines[: n + 1], *lines[n:]], quick=True) == "pass"
    ]
    assert double == []


@pytest.mark.parametrize(
    "kind", ["run", "gate", "target", "segment", "resume", "end", "outcomes", "start", "request"]
)
def test_no_kind_of_line_can_be_gone(tmp_path: Path, kind: str) -> None:
    """All of one kind at once, also where the counts of the end are made to agree."""
    path = tmp_path / "t.jsonl"
    lines = [line for line in whole(path, own=True) if line["type"] != kind]
    assert outcome(path, lines) != "pass"
    if kind in ("gate", "target", "segment"):
        recounted = copy.deepcopy(lines)
        for section in recounted[at(recounted, "end")]["lines"]:
            section.pop(kind, None)
        assert outcome(path, recounted) != "pass"


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [
        ("run", "host", "the machine and its settings"),
        ("run", "policy_sha256", "the sha256 of the policy"),
        ("gate", "policy_sha256", f"the sha256 of the policy of {GATE}"),
        ("end", "lines", "how many lines it has"),
    ],
)
def test_what_every_run_writes_must_be_there(
    tmp_path: Path, kind: str, key: str, words: str
) -> None:
    """Named in the report."""
    path = tmp_path / "t.jsonl"
    lines = whole(path, own=True)
    del lines[at(lines, kind)][key]
    assert outcome(path, lines) == "inconclusive"
    log = read_run(path)
    rows = build_report(log, judge_log(log))["not_measured"]
    assert any(row["id"] == "log" and words in row["reason"] for row in rows)


def test_a_log_of_another_hand_needs_a_schema_and_a_policy(tmp_path: Path) -> None:
    """It names no version of this program; lines it does count are held to."""
    path = tmp_path / "t.jsonl"
    every = [timeline(n) for n in range(40)]
    lines = plain_json(log_lines_of(FAST, every))
    bare = [{k: lines[0][k] for k in ("type", "schema", "policy")}, *lines[3:]]
    assert outcome(path, bare) == "pass"
    bare[-1]["lines"] = [{"run": 1, "start": 40, "request": 41, "resources": 40}]
    assert outcome(path, bare) == "inconclusive"


def test_what_was_cut_out_does_not_come_back_by_going_on(tmp_path: Path) -> None:
    """A run whose problem was deleted is not continued: its new end would count it as whole."""
    path = tmp_path / "t.jsonl"
    lines = whole(path, SPOILT["a problem"])
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in lines if line["type"] != "problem"), "utf-8"
    )
    with pytest.raises(
        UsageError, match="0 'problem' lines after clock segment 2 begins instead of 1"
    ):
        earlier_run(path)


@pytest.mark.parametrize("lines_said", [0, False, {}, "3", [3], [{"run": 0}], [{"run": "1"}]])
def test_counts_that_are_none_are_a_damaged_line(tmp_path: Path, lines_said: object) -> None:
    """Refused with the line's number, not taken for no counts at all."""
    path = tmp_path / "t.jsonl"
    lines = whole(path)
    lines[at(lines, "end")]["lines"] = lines_said
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    with pytest.raises(UsageError, match="lines"):
        read_run(path)


def test_an_interruption_between_a_line_and_its_count(tmp_path: Path) -> None:
    """A signal may come right after the line was written: the end counts what stands there."""
    path = tmp_path / "t.jsonl"
    writer = RunWriter(path)
    writer.line({"type": "run"})
    writer.segment(0)
    with path.open("a", encoding="utf-8") as f:
        f.write('{"type":"start"}\n')
    writer.line({"type": "end", "reason": "interrupted"})
    writer.close()
    end = json.loads(path.read_text("utf-8").splitlines()[-1])
    assert end["lines"] == [{"run": 1}, {"segment": 1, "start": 1}]

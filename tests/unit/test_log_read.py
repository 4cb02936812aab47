"""Reading a log back: what was cut, lost, doubled, moved or edited never helps to pass."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate_samples import broken, log_lines_of, policy, reading, timeline, write_log
from pytest_llmsla.errors import UsageError
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import RunLog, RunWriter, read_run
from pytest_llmsla.log.request_lines import IN_FLIGHT
from pytest_llmsla.timeline import PEAK

FAST = policy(evidence={"preset": "fast"})
REQUESTS = 38
"""What a clean P95 takes under ``fast``."""

Line = dict[str, Any]


def lines_of(*timelines: Any, ended: bool = True) -> list[Line]:
    every = timelines or tuple(timeline(n) for n in range(REQUESTS))
    return log_lines_of(FAST, every, ended=ended)


def read(folder: Path, lines: list[Line]) -> RunLog:
    return read_run(write_log(folder / "timelines.jsonl", lines))


def report(log: RunLog) -> dict[str, Any]:
    return build_report(log, judge_log(log))


def test_a_whole_clean_log_passes(tmp_path: Path) -> None:
    """The log that all the damage below is done to is a complete PASS."""
    made = report(read(tmp_path, lines_of()))
    assert (made["verdict"], made["complete"]) == ("pass", True)
    assert {f["verdict"] for f in made["findings"]} == {"pass"}


def test_a_log_cut_at_any_byte_is_refused_or_incomplete(tmp_path: Path) -> None:
    """Every cut raises a usage error or gives a report that is no PASS; nothing else is raised."""
    path = write_log(tmp_path / "timelines.jsonl", lines_of())
    whole = path.read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {*range(0, ends[1], 9), *range(ends[-3], len(whole) - 1)}
    cuts |= {end + offset for end in ends for offset in (-1, 0, 1, 40)}
    refused = 0
    made: dict[tuple[int, bool], str] = {}  # verdict by what was read: most cuts read alike
    for cut in sorted(c for c in cuts if c < len(whole) - 1):
        path.write_bytes(whole[:cut])
        try:
            log = read_run(path)
            seen = (len(log.timelines) + len(log.resources), log.truncated)
            if seen not in made:
                made[seen] = report(log)["verdict"]
        except UsageError:
            refused += 1
            continue
        assert made[seen] != "pass", cut
    assert refused > 50  # inside the first line there is nothing to judge by
    assert len(made) > REQUESTS


def test_the_last_line_break_alone_is_nothing_lost(tmp_path: Path) -> None:
    """A whole last line without its line break is a whole log."""
    path = write_log(tmp_path / "timelines.jsonl", lines_of())
    path.write_bytes(path.read_bytes()[:-1])
    log = read_run(path)
    assert (log.truncated, report(log)["verdict"]) == (False, "pass")


def test_a_log_without_its_end_line_is_incomplete(tmp_path: Path) -> None:
    """Whoever kills a run after its last good request gets no sign-off from it."""
    made = report(read(tmp_path, lines_of(ended=False)))
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert any("no 'end' line" in missing["reason"] for missing in made["not_measured"])


def request_at(lines: list[Line], n: int) -> int:
    return [i for i, line in enumerate(lines) if line["type"] == "request"][n]


def test_a_start_without_its_request_is_a_failed_request(tmp_path: Path) -> None:
    """A request that hung when the run was killed counts, with the prompt length it had."""
    lines = lines_of()
    del lines[request_at(lines, 20)]
    log = read(tmp_path, lines)
    lost = next(t for t in log.timelines if not t.ok)
    assert (log.in_flight, lost.id, lost.error) == (1, "r000020", IN_FLIGHT)
    assert report(log)["verdict"] == "fail"


def test_a_lost_request_belongs_to_the_clock_it_began_on(tmp_path: Path) -> None:
    """Its place in the order is that of its own segment, not of the first."""
    first, second = timeline(0), timeline(1, segment=1, unit=2)
    lines = lines_of(first, second)
    segment = {"type": "segment", "segment": 1, "t0_utc": "2025-01-01T00:10:00.000Z"}
    at = next(i for i, line in enumerate(lines) if line.get("id") == "r000001")
    lines.insert(at, segment)
    begun = {**lines[at + 1], "id": "r000002", "unit": 1, "start_ns": 5}
    log = read(tmp_path, [*lines[:-1], begun, lines[-1]])
    assert [(t.id, t.segment) for t in log.timelines] == [
        ("r000000", 0),
        ("r000002", 1),
        ("r000001", 1),
    ]


def test_requests_in_any_order_of_lines_judge_alike(tmp_path: Path) -> None:
    """Lines moved about change nothing: the order is that of the starts."""
    timelines = [timeline(n, ttft=100 + 7 * (n % 5)) for n in range(REQUESTS)]
    straight = report(read(tmp_path, lines_of(*timelines)))
    lines = lines_of(*timelines)
    at = [i for i, line in enumerate(lines) if line["type"] in ("request", "start")]
    moved = list(lines)
    for i, j in zip(at, reversed(at), strict=True):
        moved[i] = lines[j]
    assert report(read(tmp_path, moved))["findings"] == straight["findings"]


def flip(name: str, value: Any) -> Callable[[Line], Line]:
    return lambda line: {**line, name: value}


REFUSED: dict[str, Callable[[list[Line]], list[Line]]] = {
    "a request twice": lambda x: [*x[:-1], x[request_at(x, 3)], x[-1]],
    "a start twice": lambda x: [*x[:-1], x[request_at(x, 3) - 1], x[-1]],
    "a request and its start cut out": lambda x: (
        x[: request_at(x, 9) - 1] + x[request_at(x, 9) + 1 :]
    ),
    "another bucket than it began with": lambda x: edit(x, 9, flip("bucket", "long")),
    "warm-up only at its end": lambda x: edit(x, 9, flip("warmup", True)),
    "another unit than it began with": lambda x: edit(x, 9, flip("unit", 99)),
    "another attempt than it began with": lambda x: edit(x, 9, flip("attempt", 2)),
    "another length than it began with": lambda x: edit(x, 9, flip("max_new_tokens", 64)),
    "a purpose it did not begin with": lambda x: edit(x, 9, flip("purpose", PEAK)),
    "of a gate that is not declared": lambda x: edit(x, 9, flip("gate", "t.py::t"), 2),
    "a gate declared twice": lambda x: [*x[:-1], *[GATE] * 2, x[-1]],
    "a gate without a policy": lambda x: [
        *x[:-1],
        {"type": "gate", "gate": "t.py::t"},
        x[-1],
    ],
    "a reading of an undeclared gate": lambda x: [
        *x[:-1],
        {**reading(), "gate": "t.py::t"},
        x[-1],
    ],
    "a problem of an undeclared gate": lambda x: [
        *x[:-1],
        {"type": "problem", "gate": "t.py::t", "bucket": None, "reason": "gone"},
        x[-1],
    ],
    "something after the end": lambda x: [*x, reading()],
    "two runs in one file": lambda x: [*x, *x],
    "a type that is unknown": lambda x: [*x[:-1], {"type": "result"}, x[-1]],
    "a type that is a list": lambda x: [*x[:-1], {"type": ["end"]}, x[-1]],
    "a policy that is none": lambda x: [{**x[0], "policy": {"version": 1}}, *x[1:]],
    "sources that are none": lambda x: [{**x[0], "sources": "none"}, *x[1:]],
}
GATE: Line = {"type": "gate", "gate": "t.py::t", "policy": FAST.policy.model_dump(mode="json")}


def edit(lines: list[Line], n: int, how: Callable[[Line], Line], count: int = 1) -> list[Line]:
    """Change the n-th request line (``count`` 2: its start line as well)."""
    at = request_at(lines, n)
    out = list(lines)
    for i in range(at + 1 - count, at + 1):
        out[i] = how(out[i])
    return out


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_refused_with_words(tmp_path: Path, name: str) -> None:
    """A log that contradicts itself is a usage error that names the file, not a verdict."""
    with pytest.raises(UsageError, match=r"timelines\.jsonl"):
        report(read(tmp_path, REFUSED[name](lines_of())))


def test_a_failed_request_cannot_be_flipped_to_ok(tmp_path: Path) -> None:
    """The error that a failed request carries contradicts the status it was given."""
    timelines = [timeline(n) for n in range(REQUESTS - 1)] + [broken(REQUESTS - 1)]
    lines = lines_of(*timelines)
    with pytest.raises(UsageError, match="boom"):
        read(tmp_path, edit(lines, REQUESTS - 1, flip("status", "ok")))


def test_a_failed_request_flipped_whole_still_has_no_token(tmp_path: Path) -> None:
    """With its error taken out as well it is a request without a token, so it fails."""
    timelines = [timeline(n) for n in range(REQUESTS - 1)] + [broken(REQUESTS - 1)]
    lines = edit(lines_of(*timelines), REQUESTS - 1, lambda x: {**x, "status": "ok", "error": None})
    made = report(read(tmp_path, lines))
    assert made["verdict"] == "fail"
    assert any("no token arrived" in e["reason"] for e in made["errors"])


def test_a_policy_changed_in_the_log_signs_nothing_off(tmp_path: Path) -> None:
    """Limits raised in the file no longer match the sha256 beside them."""
    slow = [timeline(n, ttft=400) for n in range(REQUESTS)]
    lines = lines_of(*slow)
    dumped = json.loads(json.dumps(lines[0]["policy"]))
    dumped["buckets"][0]["ttft_ms"] = 1000.0
    made = report(read(tmp_path, [{**lines[0], "policy": dumped}, *lines[1:]]))
    assert (made["verdict"], made["complete"]) == ("inconclusive", False)
    assert any("sha256" in missing["reason"] for missing in made["not_measured"])


def test_a_run_line_alone_measured_nothing(tmp_path: Path) -> None:
    """Every limit of the policy is listed as not measured."""
    for lines in (lines_of()[:1], [lines_of()[0], {"type": "end", "reason": "ended"}]):
        made = report(read(tmp_path, lines))
        assert made["verdict"] == "inconclusive"
        assert {m["id"] for m in made["not_measured"]} >= {
            "short/ttft_p95",
            "short/itl_p95",
            "short/error_rate",
            "tgs/concurrency-1",
        }


def test_only_schema_and_requests_lack_their_policy(tmp_path: Path) -> None:
    """Requests of an unknown policy are refused; nobody can say what they had to keep."""
    lines = lines_of()
    run = {k: v for k, v in lines[0].items() if not k.startswith("policy")}
    with pytest.raises(UsageError, match="--sla"):
        report(read(tmp_path, [run, *lines[1:]]))


def test_requests_of_other_buckets_help_nobody(tmp_path: Path) -> None:
    """A bucket that the policy does not have is not judged, and no limit passes by it."""
    lines = lines_of(*[timeline(n, bucket="else") for n in range(REQUESTS)])
    made = report(read(tmp_path, lines))
    assert (made["verdict"], made["findings"]) == ("inconclusive", [])


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", b"[]\n", b'"run"\n', b"{}\n"])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, binary and foreign files are usage errors."""
    path = tmp_path / "timelines.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_run(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """So is one that cannot be read."""
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path)


# -- writing


def test_every_line_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    """A run that is killed at any moment has lost no request that ended before."""
    path = tmp_path / "run" / "timelines.jsonl"
    writer = RunWriter(path)
    writer.line(lines_of()[0])
    assert writer.segment(1000) == 0
    for n in range(3):
        writer.start({"id": f"r{n:06d}", "bucket": "short", "unit": n, "max_new_tokens": 8})
        assert read_run(path).in_flight == 1
        writer.request(timeline(n))
        log = read_run(path)
        assert (len(log.timelines), log.in_flight) == (n + 1, 0)
    writer.close()
    writer.close()


def test_times_count_from_their_segment(tmp_path: Path) -> None:
    """A second clock starts a second segment, and each request is told apart by it."""
    path = tmp_path / "timelines.jsonl"
    writer = RunWriter(path)
    writer.line(lines_of()[0])
    writer.segment(timeline(0).start_ns - 7)
    writer.request(timeline(0))
    writer.segment(timeline(1).start_ns - 9)
    writer.request(timeline(1))
    writer.close()
    assert [(t.segment, t.start_ns) for t in read_run(path).timelines] == [(0, 7), (1, 9)]


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    """Whole lines only, whoever writes them."""
    path = tmp_path / "timelines.jsonl"
    writer = RunWriter(path)
    writer.line(lines_of()[0])
    threads = [
        threading.Thread(target=lambda: [writer.line(reading(note="x" * 2000)) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len(read_run(path).resources) == 200


def test_a_log_written_by_hand_to_the_published_shape_is_read(tmp_path: Path) -> None:
    """A segment without a number opens the next one; a start line may be id and bucket alone."""
    lines = [
        {"type": "run", "schema": "llmsla-timelines/1"},
        {"type": "segment", "t0_utc": "2026-11-29T10:00:00Z"},
        {"type": "start", "id": "a", "bucket": "short"},
        hand_made("a", start_ns=5),
        {"type": "segment", "t0_utc": "2026-11-29T11:00:00Z"},
        hand_made("b", start_ns=1),
        {"type": "end", "reason": "decided"},
    ]
    path = tmp_path / "timelines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    log = read_run(path)
    assert [(t.id, t.segment) for t in log.timelines] == [("a", 0), ("b", 1)]
    assert log.in_flight == 0


def hand_made(name: str, *, start_ns: int) -> dict[str, Any]:
    return {
        "type": "request",
        "id": name,
        "bucket": "short",
        "unit": {"a": 0, "b": 1}[name],
        "prompt_tokens": 10,
        "max_new_tokens": 2,
        "start_ns": start_ns,
        "arrivals": [[start_ns + 1, 1], [start_ns + 2, 1]],
        "end_ns": start_ns + 2,
        "output_tokens": 2,
        "token_source": "model",
        "finish_reason": "length",
        "status": "ok",
        "error": None,
    }

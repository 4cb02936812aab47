"""Engines that break, stop early, hang back or mislabel themselves: from sla.yaml to the report."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gate_samples import LONG, SHORT, engine, plain_json, policy, python_policy, run_gate
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.session import finish

FAST = {"preset": "fast"}


class Made:
    """The report of one gate, in its three forms."""

    def __init__(self, folder: Path, loaded: LoadedPolicy) -> None:
        session, self.gate = run_gate(folder, loaded)
        self.report = finish(session.run_dir)
        self.markdown = (session.run_dir / "report.md").read_text(encoding="utf-8")
        log = read_run(session.run_dir / "timelines.jsonl")
        again = build_report(log, judge_log(log))
        assert plain_json(again["findings"]) == self.report["findings"]

    @property
    def verdict(self) -> str:
        return str(self.report["verdict"])

    def finding(self, limit_id: str) -> dict[str, Any]:
        return next(f for f in self.report["findings"] if f["id"] == limit_id)

    def verdicts(self) -> dict[str, str]:
        return {f["id"]: f["verdict"] for f in self.report["findings"]}


WORDS = """
class Engine:
    def count(self, prompt, system):
        return len(prompt.split())
    def generate(self, prompt, *, max_new_tokens, sampling):
{body}
def made():
    return Engine()
"""

SCRIPT = """
from pytest_llmsla.targets.scripted import Script
{body}
def made():
    return play
"""


def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, *buckets: Any) -> Made:
    """A gate on a python engine whose generate has ``body``."""
    indented = "".join(f"        {line}\n" for line in body.strip("\n").splitlines())
    module = engine(tmp_path, monkeypatch, WORDS.format(body=indented))
    return Made(tmp_path, python_policy(module, *buckets, evidence=FAST))


def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, *buckets: Any, **groups: Any
) -> Made:
    """A gate on a script whose ``play`` is in ``body``."""
    module = engine(tmp_path, monkeypatch, SCRIPT.format(body=body))
    groups = {"evidence": FAST, **groups}
    return Made(tmp_path, python_policy(module, *buckets, kind="scripted", **groups))


# -- pieces of text


@pytest.mark.parametrize("piece", ["'{'", "'\\ud83d'", "''", "b'{'"])
def test_text_pieces_are_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    """An engine that streams text is refused with the reason; nothing of it is judged."""
    made = words(tmp_path, monkeypatch, f"for _ in range(max_new_tokens): yield {piece}")
    assert made.verdict in ("error", "fail")
    assert "pass" not in made.verdicts().values()
    assert "A text piece is not a token" in made.finding("short/itl_p95")["reason"]


def test_five_tokens_three_milliseconds_apart_are_five_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id counts once, TTFT at the first, four gaps of 3 ms: nothing waits for whole words."""
    body = "def play(ask, index): return Script([(40, 1)] + [(3, 1)] * 4)"
    made = played(tmp_path, monkeypatch, body, workload={"max_new_tokens": 5})
    itl, ttft = made.finding("short/itl_p95"), made.finding("short/ttft_p95")
    assert (itl["samples"], itl["observed"], ttft["observed"]) == (4 * 38, 3.0, 40.0)


# -- failures inside a generation


OUT_OF_MEMORY = {
    "before any token": "raise MemoryError('CUDA out of memory')\nyield 0",
    "after three tokens": "yield from (1, 2, 3)\nraise MemoryError('CUDA out of memory')",
    "too long": "raise ValueError('max_length 2 is below the prompt of 120')\nyield 0",
}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_a_generation_that_fails_is_an_error_that_names_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No hang, no sample of it in a percentile, no thread left, and the next gate passes."""
    made = words(tmp_path, monkeypatch, OUT_OF_MEMORY[name])
    cause = "max_length 2" if name == "too long" else "CUDA out of memory"
    assert set(made.verdicts().values()) <= {"error", "fail"}
    assert cause in made.finding("short/ttft_p95")["reason"]
    assert cause in made.markdown
    assert "Traceback" not in made.markdown
    assert made.finding("short/itl_p95")["observed"] is None
    assert not [t for t in threading.enumerate() if t.name.startswith("llmsla")]
    (tmp_path / "next").mkdir()
    assert Made(tmp_path / "next", policy(evidence=FAST)).verdict == "pass"


def test_now_and_then_a_failure_is_counted_and_the_rest_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the requests refused, half in 200 ms: 50 % failed, and no percentile says 200 alone."""
    body = """
def play(ask, index):
    if index < 11 or index % 2:
        return Script([(200, 1)] + [(20, 1)] * 7)
    return Script(error="HTTPError: 503 Service Unavailable")
"""
    made = played(tmp_path, monkeypatch, body)
    ttft, rate = made.finding("short/ttft_p95"), made.finding("short/error_rate")
    assert (ttft["verdict"], rate["verdict"], made.verdict) == ("fail", "fail", "fail")
    assert (ttft["observed"], ttft["percentiles"]["p95"]) == (None, None)
    assert rate["observed"] == pytest.approx(0.5, abs=0.1)
    assert "503 Service Unavailable" in made.markdown


def test_a_service_that_refuses_everything_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Error for every metric, 100 % failed, the first error once with its count, no traceback."""
    body = """
def play(ask, index):
    if index < 11:
        return Script([(200, 1)] + [(20, 1)] * 7)
    return Script(error=ConnectionRefusedError("connection refused"))
"""
    made = played(tmp_path, monkeypatch, body)
    found = made.verdicts()
    assert found["short/ttft_p95"] == found["short/itl_p95"] == "error"
    assert made.finding("short/error_rate")["observed"] == 1.0
    rows = [e for e in made.report["errors"] if e["reason"].startswith("ConnectionRefused")]
    assert [e["count"] for e in rows if e["bucket"] == "short"] == [5]
    assert made.verdict == "fail"
    assert "Traceback" not in made.markdown


def test_a_bucket_that_fails_leaves_the_other_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts run out of memory; the short bucket has its verdict all the same."""
    body = """
def play(ask, index):
    if len(ask.prompt.split()) > 130:
        return Script(error=MemoryError("out of memory"))
    return Script([(100, 1)] + [(20, 1)] * 7)
"""
    made = played(tmp_path, monkeypatch, body, SHORT, LONG)
    found = made.verdicts()
    assert found["short/ttft_p95"] == found["short/itl_p95"] == "pass"
    assert found["long/ttft_p95"] == "error"
    assert "3 consecutive warm-up requests failed" in made.finding("long/ttft_p95")["reason"]


# -- length


@pytest.mark.parametrize("got", [1, 2])
def test_far_fewer_tokens_than_asked_for_pass_neither_gap_nor_rate(
    tmp_path: Path, got: int
) -> None:
    """Asked 128, got two: both numbers and the finish reason are shown, nothing passes."""
    loaded = policy(
        target={"kind": "scripted", "script": {"ttft_ms": 100, "itl_ms": 20, "tokens": got}},
        workload={"max_new_tokens": 128},
        tgs={"min_tokens_per_s": 1},
        evidence=FAST,
    )
    made = Made(tmp_path, loaded)
    assert made.finding("short/itl_p95")["verdict"] == "error"
    assert made.finding("tgs/concurrency-1")["verdict"] == "error"
    for limit_id in ("short/itl_p95", "tgs/concurrency-1"):
        assert f"asked 128 tokens, got {got}, finish stop" in made.finding(limit_id)["reason"]


def test_an_end_at_once_is_an_error_of_every_limit(tmp_path: Path) -> None:
    """No token at all: the bucket stops in its warm-up, and no rate is made of nothing."""
    script = {"ttft_ms": 100, "itl_ms": 20, "tokens": 0}
    made = Made(tmp_path, policy(target={"kind": "scripted", "script": script}, evidence=FAST))
    assert set(made.verdicts().values()) == {"error"}
    assert "no token arrived" in made.finding("short/ttft_p95")["reason"]
    assert "tgs/concurrency-1" in {m["id"] for m in made.report["not_measured"]}


def test_more_tokens_than_asked_for_is_an_error_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an internal error, never evidence."""
    made = words(tmp_path, monkeypatch, "while True: yield 1")
    assert made.verdict in ("fail", "error")
    reason = made.finding("short/ttft_p95")["reason"]
    assert "returned 9 tokens, 8 were asked for: the engine must stop at max_new_tokens" in reason
    assert "workload.max_new_tokens" in reason


def test_the_rate_counts_tokens_that_arrived(tmp_path: Path) -> None:
    """110 tokens in two seconds are 55 a second: under a floor of 60, whatever was asked for."""
    script = {"ttft_ms": 38, "itl_ms": 18, "tokens": 110}
    loaded = policy(
        target={"kind": "scripted", "script": script},
        workload={"max_new_tokens": 200, "force_length": False},
        tgs={"min_tokens_per_s": 60},
        evidence=FAST,
    )
    found = Made(tmp_path, loaded).finding("tgs/concurrency-1")
    assert found["verdict"] == "fail"
    assert found["observed"] == pytest.approx(55, abs=0.6)


# -- not streamed


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return list(range(max_new_tokens))", "not streamed"),
        ("return [list(range(max_new_tokens))]", "not streamed"),
        ("return iter([list(range(max_new_tokens))])", "fewer than two gaps"),
    ],
)
def test_an_answer_in_one_piece_has_no_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    """A reply that is not streamed gives an error for ITL, never 0 and never PASS."""
    made = words(tmp_path, monkeypatch, body)
    itl = made.finding("short/itl_p95")
    assert (itl["verdict"], itl["observed"]) == ("error", None)
    assert reason in itl["reason"]
    assert made.verdict != "pass"


def test_an_answer_handed_over_when_it_is_complete_has_no_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four hundred milliseconds of silence, then all tokens in a microsecond each."""
    body = "def play(ask, index): return Script([(290, 1)] + [(0.001, 1)] * 7)"
    for bursts in ("error", "allow"):
        (tmp_path / bursts).mkdir()
        made = played(tmp_path / bursts, monkeypatch, body, itl={"p95_ms": 50, "bursts": bursts})
        assert made.finding("short/itl_p95")["verdict"] == "error"
        assert "handed over together" in made.finding("short/itl_p95")["reason"]


# -- labels


def test_a_label_that_is_not_what_runs_is_carried_into_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File format, runtime dtype and the warning are shown; memory is judged on what was measured.

    A Q4 file of 1.0 GiB that lives expanded in 4.0 GiB breaks a limit of 2.0.
    """
    source = (
        WORDS.format(body="        yield from range(max_new_tokens)\n")
        + """
Engine.describe = lambda self: {
    "model": "a.gguf", "file_format": "GGUF Q4_0", "dtype": "float32", "device": "cpu",
    "warnings": [{"code": "expanded", "message": "Q4_0 was expanded to float32 when loaded"}],
}
Engine.memory = lambda self: {"rss_peak": 4.0, "device": "cpu"}
"""
    )
    module = engine(tmp_path, monkeypatch, source)
    made = Made(tmp_path, python_policy(module, evidence=FAST, memory={"rss_peak_gib": 2.0}))
    memory = made.finding("memory/rss_peak")
    assert (memory["verdict"], memory["observed"], made.verdict) == ("fail", 4.0, "fail")
    for shown in ("GGUF Q4", "float32", "was expanded to float32 when loaded"):
        assert shown in made.markdown


def test_a_model_that_cannot_be_moved_is_an_error_with_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loader says is the reason of every limit; no traceback in the report."""
    source = """
def made():
    raise ValueError("`.to` is not supported for 4-bit models. Load it on the device it is to use")
"""
    module = engine(tmp_path, monkeypatch, source)
    made = Made(tmp_path, python_policy(module))
    assert made.verdict == "error"
    assert "Load it on the device" in made.finding("short/ttft_p95")["reason"]
    assert "Traceback" not in made.markdown


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("{'allocated_peak': 10.0, 'reserved_peak': 14.0}", ("pass", "fail", "error")),
        ("{'allocated_peak': 0.0, 'reserved_peak': -1.0}", ("error", "error", "error")),
        ("{'allocated_peak': None, 'allocated_peak_reason': 'MIG'}", ("error", "error", "error")),
        ("1 / 0", ("error", "error", "error")),
    ],
)
def test_memory_limits_name_their_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, expected: tuple[str, ...]
) -> None:
    """Allocated, reserved and used are three limits; one that cannot be read is an error."""
    source = (
        WORDS.format(body="        yield from range(max_new_tokens)\n")
        + f"""
Engine.memory = lambda self: {memory}
"""
    )
    module = engine(tmp_path, monkeypatch, source)
    limits = {"allocated_peak_gib": 12, "reserved_peak_gib": 12, "device_used_peak_gib": 12}
    made = Made(tmp_path, python_policy(module, evidence=FAST, memory=limits))
    found = made.verdicts()
    names = ("allocated_peak", "reserved_peak", "device_used_peak")
    assert tuple(found[f"memory/{name}"] for name in names) == expected
    assert made.verdict in ("fail", "error")

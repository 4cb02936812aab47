"""``llmsla capacity``, on a scripted server of five places: its capacity is known."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmsla.cli.app import run

MODULE = """
from pytest_llmsla.targets.scripted import Script, ScriptedTarget

def five():
    def play(ask, index):
        return Script(arrivals=[(100.0, 1)] + [(20.0, 1)] * (ask.max_new_tokens - 1))
    return ScriptedTarget(play, slots=5)
"""
POLICY = """
version: 1
target: {kind: scripted, entry: "capacity_servers:five"}
workload: {max_new_tokens: 16}
buckets: [{name: short, prompt_max: 128, ttft_ms: 300}]
evidence: {preset: PRESET}
"""


@pytest.fixture
def sla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capacity_servers.py").write_text(MODULE, "utf-8")
    path = tmp_path / "sla.yaml"
    path.write_text(POLICY.replace("PRESET", "fast"), "utf-8")
    return path


def stored(folder: Path) -> dict[str, object]:
    """The capacity.json of the only search."""
    (path,) = (folder / ".llmsla" / "capacity").glob("*/capacity.json")
    found: dict[str, object] = json.loads(path.read_text("utf-8"))
    return found


def test_the_capacity_of_a_server_with_five_places_is_five(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six in flight wait for each other; five do not. Exit 0: a capacity is shown."""
    assert run(["capacity", str(sla), "--max", "16"]) == 0
    said = capsys.readouterr().out
    assert "capacity: 5 requests in flight" in said
    assert "6 requests in flight fails" in said
    found = stored(sla.parent)
    assert (found["highest"], found["next_tried"], found["monotone"]) == (5.0, 6.0, True)
    levels = found["levels"]
    assert isinstance(levels, list)
    rates = {row["level"]: row["tokens_per_s"] for row in levels}
    assert rates[5.0] == pytest.approx(200.0)
    assert rates[4.0] == pytest.approx(160.0)


@pytest.mark.parametrize(("least", "code"), [("5", 0), ("6", 1)])
def test_a_capacity_that_is_too_low_fails_a_build(
    sla: Path, least: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """--at-least makes a gate of the search: what was asked for has to be shown."""
    assert run(["capacity", str(sla), "--max", "16", "--at-least", least]) == code
    said = capsys.readouterr().out
    assert f"at least {least} requests in flight: {('shown', 'NOT SHOWN')[code]}" in said


def test_the_end_of_the_range_is_told_as_such(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A range that passes to its end shows no limit of the service."""
    assert run(["capacity", str(sla), "--max", "4"]) == 0
    assert "the service may hold more" in capsys.readouterr().out


def test_a_rate_is_searched_with_an_open_loop(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five places of 0.4 s each serve 12.5 requests/s; with Poisson arrivals some less pass."""
    assert run(["capacity", str(sla), "--rate", "--max", "25"]) == 0
    found = stored(sla.parent)
    assert isinstance(found["highest"], float)
    assert 3 < found["highest"] < 12.5
    assert "requests/s" in capsys.readouterr().out


def test_every_level_can_be_judged_again_from_its_log(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of a search is a log like any other: the same verdicts come out of it."""
    run(["capacity", str(sla), "--max", "8"])
    (log,) = (sla.parent / ".llmsla" / "capacity").glob("*/timelines.jsonl")
    capsys.readouterr()
    code = run(["check", str(log), "--json"])
    report = json.loads(capsys.readouterr().out)
    verdicts = {f["id"]: f["verdict"] for f in report["findings"]}
    assert verdicts["capacity/concurrency-5/ttft_p95"] == "pass"
    assert verdicts["capacity/concurrency-6/ttft_p95"] == "fail"
    assert code == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--min", "8", "--max", "4"], "lowest"),
        (["--min", "1.5"], "whole numbers"),
        (["--max", "inf"], "lowest"),
        (["--max", "nan"], "lowest"),
        (["--min", "0"], "lowest"),
        (["--rate", "--max", "inf"], "lowest"),
        (["--rate", "--max", "1e6"], "at most 100000"),
        (["--rate", "--min", "0.001", "--max", "1"], "a PASS needs 38"),
        (["--max", "8", "--at-least", "9"], "none of the levels that are tried, 1 to 8"),
        (["--min", "4", "--at-least", "2"], "none of the levels"),
        (["--at-least", "nan"], "none of the levels"),
        (["--report", "sla.yaml"], "give another folder with --report"),
    ],
)
def test_a_range_that_is_none_is_a_usage_error(
    sla: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured for it."""
    assert run(["capacity", str(sla), *options]) == 4
    assert words in capsys.readouterr().err


def test_a_preset_that_decides_nothing_has_no_capacity(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """observed passes nothing, so nothing could be found."""
    sla.write_text(POLICY.replace("PRESET", "observed"), "utf-8")
    assert run(["capacity", str(sla)]) == 4
    assert "observed" in capsys.readouterr().err


def test_a_service_that_answers_nothing_has_no_capacity(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures are no capacity, and the exit code says so."""
    text = sla.read_text("utf-8").replace('entry: "capacity_servers:five"', "script: {fail: FAIL}")
    sla.write_text(text.replace("FAIL", str(list(range(50)))), "utf-8")
    assert run(["capacity", str(sla)]) != 0
    assert "capacity: none shown" in capsys.readouterr().out


def test_a_bucket_that_was_never_asked_passes_at_no_level(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request of it in a million: the time is spent before it is sent, so nothing is shown."""
    text = sla.read_text("utf-8").replace(
        "ttft_ms: 300}]",
        "ttft_ms: 300}, {name: long, prompt_max: 512, ttft_ms: 450}]",
    )
    load = "max_new_tokens: 16, warmup: {max_requests: 0}, load: {mix: {short: 1000000, long: 1}}"
    text = text.replace("max_new_tokens: 16", load)
    sla.write_text(text.replace("preset: fast", "preset: fast, max_seconds: 1"), "utf-8")
    assert run(["capacity", str(sla), "--min", "2", "--max", "2"]) != 0
    # What its reason names first depends on how far a busy machine comes in the second.
    assert "capacity: none shown" in capsys.readouterr().out
    (log,) = (sla.parent / ".llmsla" / "capacity").glob("*/timelines.jsonl")
    asked = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert not [x for x in asked if x["type"] == "request" and x["bucket"] == "long"]


def under(sla: Path, load: str = "", more: str = "") -> None:
    """The policy under another load."""
    text = sla.read_text("utf-8").replace("max_new_tokens: 16", f"max_new_tokens: 16{load}")
    sla.write_text(f"{text}{more}\n", "utf-8")


def loads(folder: Path) -> list[dict[str, object]]:
    """The load of each level, as its log has it."""
    (path,) = (folder / ".llmsla" / "capacity").glob("*/timelines.jsonl")
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [line["asked"] for line in lines if line["type"] == "level" and "ended" not in line]


def test_the_rate_of_a_trace_is_searched_with_the_trace(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its times are stretched to each rate: it is never another process of arrivals."""
    entries = [{"at_s": k * 1.0, "input_length": 100} for k in range(40)]
    trace = "".join(f"{json.dumps(e)}\n" for e in entries)
    (sla.parent / "day.jsonl").write_text(trace, "utf-8")
    under(sla, ", load: {kind: trace, trace: day.jsonl}")
    assert run(["capacity", str(sla), "--rate", "--max", "8"]) == 0
    said = capsys.readouterr().out
    assert "as in the trace day.jsonl, its times stretched to each rate" in said
    found = loads(sla.parent)
    assert {x["kind"] for x in found} == {"trace"}
    assert [x["rate"] for x in found][:2] == [1.0, 2.0]
    assert {x["trace_requests"] for x in found} == {40}
    assert [x["trace_span_s"] for x in found][:2] == pytest.approx([39.0, 19.5])


def test_what_is_searched_is_said_where_it_is_not_the_policys_load(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An open loop searched as a closed one, and a closed one searched by rates."""
    assert run(["capacity", str(sla), "--rate", "--max", "1"]) == 0
    assert "closed loop; rates were searched with Poisson arrivals" in capsys.readouterr().out
    under(sla, ", load: {kind: gamma, rate: 3, burstiness: 0.5}")
    assert run(["capacity", str(sla), "--max", "2"]) == 0
    said = capsys.readouterr().out
    assert "the policy's load is open loop, 3 requests/s; what was searched is a closed" in said


def test_floors_by_concurrency_are_judged_where_they_are_named(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 tokens/s a request: at two in flight 80, which is under its floor; one has none."""
    under(sla, more="tgs: {concurrency: [2], min_tokens_per_s: {2: 100}}")
    assert run(["capacity", str(sla), "--max", "2"]) == 0
    said = capsys.readouterr().out
    assert "capacity: 1 requests in flight" in said
    assert "names no floor for 1 in flight: none was judged there" in said
    assert stored(sla.parent)["remarks"]


def test_floors_by_concurrency_are_no_limits_of_a_rate(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that could not be judged is never left out in silence."""
    under(sla, more="tgs: {concurrency: [2], min_tokens_per_s: {2: 100}}")
    assert run(["capacity", str(sla), "--rate"]) == 4
    assert "sla.yaml:7 tgs.min_tokens_per_s gives floors by concurrency" in capsys.readouterr().err


def test_a_budget_that_the_highest_level_cannot_pass_with_is_told_at_once(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured, not when the search comes there."""
    text = sla.read_text("utf-8").replace("preset: fast", "preset: fast, max_requests: 300")
    sla.write_text(text, "utf-8")
    assert run(["capacity", str(sla), "--max", "16"]) == 4
    assert "cannot reach PASS at concurrency 16" in capsys.readouterr().err
    assert not (sla.parent / ".llmsla").exists()


def test_a_service_that_breaks_only_between_has_no_one_capacity(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three in flight fail, four pass: told, and only what lies below counts."""
    module = (sla.parent / "capacity_servers.py").read_text("utf-8")
    odd = """
class Odd(ScriptedTarget):
    def crew(self, size, timeouts):
        self.size = size
        return super().crew(size, timeouts)

def odd():
    def play(ask, index):
        ttft = 900.0 if getattr(target, "size", 1) == 3 else 100.0
        return Script(arrivals=[(ttft, 1)] + [(20.0, 1)] * (ask.max_new_tokens - 1))
    target = Odd(play)
    return target
"""
    (sla.parent / "odd_servers.py").write_text(module + odd, "utf-8")
    text = sla.read_text("utf-8").replace("capacity_servers:five", "odd_servers:odd")
    sla.write_text(text, "utf-8")
    assert run(["capacity", str(sla), "--max", "4", "--at-least", "4"]) == 1
    said = capsys.readouterr().out
    assert "capacity: 2 requests in flight" in said
    assert "NOT IN ORDER" in said
    assert "asked for: at least 4 requests in flight: NOT SHOWN" in said


ENDED = """
import signal

class Ended(ScriptedTarget):
    size = 1
    def crew(self, size, timeouts):
        self.size = size
        return super().crew(size, timeouts)

def ended():
    def play(ask, index):
        if target.size >= AT:
            signal.raise_signal(signal.SIGINT)
        return Script(arrivals=[(100.0, 1)] + [(20.0, 1)] * (ask.max_new_tokens - 1))
    target = Ended(play, slots=SLOTS)
    return target
"""


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard, also in a suite that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended_at(sla: Path, level: int, slots: int = 5) -> None:
    """A policy whose search is ended by Ctrl-C in its level of so many in flight."""
    module = ENDED.replace("AT", str(level)).replace("SLOTS", str(slots))
    (sla.parent / f"ended_at_{level}_{slots}.py").write_text(MODULE + module, "utf-8")
    text = sla.read_text("utf-8")
    sla.write_text(
        text.replace("capacity_servers:five", f"ended_at_{level}_{slots}:ended"), "utf-8"
    )


@pytest.mark.usefixtures("ctrl_c")
def test_a_search_that_is_ended_tells_what_it_knows(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One and two in flight were judged, four were not: no capacity, and never exit 0."""
    ended_at(sla, 4)
    assert run(["capacity", str(sla), "--max", "16", "--at-least", "2"]) == 3
    out, err = capsys.readouterr()
    assert "NOT KNOWN: the search is not complete, it was ended while 4 requests in flight" in out
    assert "so far: 2 requests in flight is the highest that passed" in out
    assert "at least 2 requests in flight: NOT SHOWN" in out
    assert "the end of the range" not in out
    assert "interrupted" in err
    found = stored(sla.parent)
    assert (found["complete"], found["ended_at"], found["highest"]) == (False, 4.0, 2.0)
    levels = found["levels"]
    assert isinstance(levels, list)
    assert [(row["level"], row["verdict"]) for row in levels] == [(1.0, "pass"), (2.0, "pass")]
    (page,) = (sla.parent / ".llmsla" / "capacity").glob("*/capacity.md")
    assert page.read_text("utf-8").strip() == out.strip()
    last = json.loads((page.parent / "timelines.jsonl").read_text("utf-8").splitlines()[-1])
    assert (last["type"], last["reason"]) == ("end", "interrupted")


@pytest.mark.usefixtures("ctrl_c")
def test_a_search_that_is_ended_at_once_knows_nothing(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No level was judged, and the files say so too."""
    ended_at(sla, 1)
    assert run(["capacity", str(sla)]) == 3
    out = capsys.readouterr().out
    assert "no level was judged" in out
    assert "so far" not in out
    found = stored(sla.parent)
    assert (found["complete"], found["highest"], found["levels"]) == (False, None, [])


@pytest.mark.usefixtures("ctrl_c")
def test_a_search_that_is_ended_after_a_failure_tells_both(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two places: four in flight fail, three would have been next and end it."""
    ended_at(sla, 3, slots=2)
    module = sla.parent / "ended_at_3_2.py"
    text = module.read_text("utf-8").replace("target.size >= 3", "target.size == 3")
    module.write_text(text, "utf-8")
    assert run(["capacity", str(sla), "--max", "16"]) == 3
    out = capsys.readouterr().out
    assert "so far: 2 requests in flight is the highest that passed" in out
    assert "4 requests in flight fails" in out
    assert "ended while 3 requests in flight were measured" in out


def test_a_whole_search_says_that_it_is_complete(sla: Path) -> None:
    """A reader of the file need not guess."""
    assert run(["capacity", str(sla), "--max", "2"]) == 0
    found = stored(sla.parent)
    assert (found["complete"], found["ended_at"]) == (True, None)

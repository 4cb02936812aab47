"""One run: what it writes, what it keeps from breaking, and that its replay says the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from workload_counters import Uncounted, pieces

from gate_samples import LONG, SHORT, engine, plain_json, policy, python_policy, run_gate
from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.gate import PEAK_REQUESTS
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.reports import terminal
from pytest_llmsla.session import Gate, Session, finish, new_run_dir, prompts_for
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.timeline import PEAK

FAST = {"preset": "fast"}
SCRIPTED = "from pytest_llmsla.targets.scripted import Script, ScriptedTarget\n"


def finished(session: Session) -> dict[str, Any]:
    return finish(session.run_dir)


def verdicts_of(report: Mapping[str, Any]) -> dict[str, str]:
    return {f["id"]: f["verdict"] for f in report["findings"]}


def scripted(ttft: Any = 100, itl: Any = 20, **more: Any) -> dict[str, Any]:
    return {"kind": "scripted", "script": {"ttft_ms": ttft, "itl_ms": itl, **more}}


# -- the same live, from the log, and through JSON


@pytest.mark.parametrize(
    ("target", "groups"),
    [
        (scripted(), {}),
        (scripted([101.337, 140.003, 99.75], [19.1, 23.77]), {}),
        (scripted(700), {}),
        (scripted(itl=90), {}),
        (scripted(fail=[14, 40]), {}),
        (scripted(fail=list(range(12, 40))), {}),
        (scripted(fail=[0, 1, 2]), {}),
        (scripted(tokens=1), {}),
        (scripted(tokens_per_chunk=3), {}),
        (scripted(), {"evidence": {"preset": "observed"}}),
        (scripted([250, 310]), {"evidence": {"preset": "fast", "max_requests": 60}}),
        (scripted(), {"evidence": {"preset": "fast", "max_seconds": 1e-9}}),
        (scripted(), {"tgs": {"min_tokens_per_s": 5}, "memory": {"rss_peak_gib": 64}}),
        (scripted(), {"memory": {"allocated_peak_gib": 64}}),
        (scripted(), {"workload": {"max_new_tokens": 8, "warmup": {"max_requests": 0}}}),
    ],
)
def test_a_replay_says_what_the_run_said(
    tmp_path: Path, target: dict[str, Any], groups: dict[str, Any]
) -> None:
    """Findings of the live judge, of the log, and of the log through JSON: equal to the digit."""
    loaded = policy(SHORT, LONG, target=target, **{"evidence": FAST, **groups})
    session, gate = run_gate(tmp_path, loaded)
    live = [f.to_json() for f in gate.findings()]
    log = read_run(session.run_dir / "timelines.jsonl")
    stored = build_report(log, judge_log(log))
    assert stored["findings"] == live
    assert plain_json(stored["findings"]) == live
    written = json.loads((finished(session), session.run_dir / "report.json")[1].read_bytes())
    assert written["findings"] == live


# -- what a run writes


def test_every_request_has_its_start_and_its_memory_on_record(tmp_path: Path) -> None:
    """Warm-up, measured and peak requests; memory after each that is measured."""
    session, gate = run_gate(tmp_path, policy(evidence=FAST))
    lines = [
        json.loads(line) for line in (session.run_dir / "timelines.jsonl").read_text().splitlines()
    ]
    ids = {kind: [x["id"] for x in lines if x["type"] == kind] for kind in ("start", "request")}
    assert ids["start"] == ids["request"]
    assert len(set(ids["start"])) == len(ids["start"])
    requests = [x for x in lines if x["type"] == "request"]
    measured = [x for x in requests if not x["warmup"]]
    assert sum(x["type"] == "resources" for x in lines) == len(measured)
    assert [x["type"] for x in lines[:3]] == ["run", "target", "segment"]
    assert lines[-1]["type"] == "end"
    assert lines[-1]["measuring"] == [{"gate": None, "concurrency": 1, "reason": "decided"}]
    assert sum(x.get("purpose") == PEAK and not x["warmup"] for x in requests) == PEAK_REQUESTS
    assert len(gate.timelines) == len(requests)


def test_no_rate_is_shown_where_nothing_was_answered(tmp_path: Path) -> None:
    """A figure without a value says nothing; that nothing was generated is a finding."""
    loaded = policy(SHORT, target=scripted(fail=list(range(400))), evidence=FAST)
    session, _ = run_gate(tmp_path, loaded)
    report = finished(session)
    assert report["tgs"] == []
    assert report["verdict"] in ("error", "fail")
    shown = terminal.render(report, width=100, unicode=True, color=False)
    assert "None" not in shown
    assert "tgs peak" not in shown


def test_texts_are_stored_only_where_asked(tmp_path: Path) -> None:
    """Prompts and answers stay out of the log; keep_text puts them in."""
    for keep in (False, True):
        loaded = policy(report={"keep_text": keep}, evidence=FAST)
        session, _ = run_gate(tmp_path / str(keep), loaded)
        assert ('"prompt":"' in (session.run_dir / "timelines.jsonl").read_text()) is keep


def test_no_prompt_of_a_run_repeats(tmp_path: Path) -> None:
    """Warm-up, both buckets and peak: every prompt is new from its first word on."""
    loaded = policy(SHORT, LONG, report={"keep_text": True}, evidence=FAST)
    session, _ = run_gate(tmp_path, loaded)
    log = (session.run_dir / "timelines.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in log.splitlines()]
    sent = [line["prompt"] for line in lines if line["type"] == "request"]
    assert len(sent) > 100
    assert len({text.split()[0] for text in sent}) == len(sent)


def test_each_bucket_is_covered_up_to_its_edge(tmp_path: Path) -> None:
    """Measured lengths lie in their buckets, the edge among them, a third in the top quarter."""
    _, gate = run_gate(tmp_path, policy(SHORT, LONG, evidence=FAST))
    for name, lo, hi in (("short", 1, 128), ("long", 129, 512)):
        lengths = [
            t.prompt_tokens or 0 for t in gate.timelines if t.bucket == name and not t.warmup
        ]
        assert lo <= min(lengths)
        assert max(lengths) == hi


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    assert len({new_run_dir(tmp_path) for _ in range(5)}) == 5


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    """A session that is only made and closed leaves no folder."""
    Session(tmp_path / "out").close()
    assert not (tmp_path / "out").exists()


def test_a_bucket_is_measured_once(tmp_path: Path) -> None:
    """Asking again for what was measured costs no request; another bucket is added."""
    loaded = policy(SHORT, LONG, evidence=FAST)
    session = Session(tmp_path / "out", release=loaded)
    gate = session.gate(None, loaded)
    gate.measure({("short", 1)})
    once = len(gate.timelines)
    gate.measure({("short", 1)})
    assert len(gate.timelines) == once
    assert gate.finding("long/ttft_p95") is None
    gate.measure()
    session.close()
    assert verdicts_of(finished(session))["long/ttft_p95"] == "pass"


# -- targets that break


def report_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, **kwargs: Any
) -> tuple[dict[str, Any], Gate]:
    """The report of a gate on an engine written as ``source``, whose factory is ``made``."""
    module = engine(tmp_path, monkeypatch, source)
    session, gate = run_gate(tmp_path, python_policy(module, **{"evidence": FAST, **kwargs}))
    return finished(session), gate


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def made(): raise RuntimeError('no weights')", "no weights"),
        ("def made(): return 7", "the factory returned int"),
        ("made = 7", "it is int, not callable"),
    ],
)
def test_a_target_that_cannot_be_loaded_is_an_error_of_every_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    """Each bucket limit has its row with the cause, the rest is listed, a report is written."""
    report, _ = report_with(tmp_path, monkeypatch, source)
    assert report["verdict"] == "error"
    assert {f["verdict"] for f in report["findings"]} == {"error"}
    assert all(words in f["reason"] for f in report["findings"])
    assert report["complete"] is False


ENGINE = """
class Engine:
    def generate(self, prompt, *, max_new_tokens, sampling):
        yield from range(max_new_tokens)
    def count(self, prompt, system):
        return len(prompt.split())
{body}
def made():
    return Engine()
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    def describe(self): raise OSError('disk gone')", "describing the target raised"),
        ("    def describe(self): return 7", "describing the target raised"),
        ("    def count(self, prompt, system): raise ValueError('no tokenizer')", "no tokenizer"),
        ("    def count(self, prompt, system): return 12.5", "count() gave 12.5"),
        ("    def count(self, prompt, system): return None", "count() gave None"),
        ("    def count(self, prompt, system): return 9000", "no room for a prompt"),
        ("    count = None", "rule 1 needs prompt lengths"),
        ("    def clock_ns(self): raise OSError('clock gone')", "clock gone"),
    ],
)
def test_what_breaks_around_a_generation_is_an_error_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    """Nothing is raised past the gate; every bucket limit is an error that says why."""
    report, _ = report_with(tmp_path, monkeypatch, ENGINE.format(body=body))
    rows = {f["id"]: f for f in report["findings"] if f["bucket"] == "short"}
    assert {f["verdict"] for f in rows.values()} == {"error"}
    assert len(rows) == 3
    assert all(words in f["reason"] for f in rows.values())


def test_a_clock_that_stands_still_passes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTFT of nothing and gaps of nothing are no speed."""
    body = "    def clock_ns(self): return 5"
    report, _ = report_with(
        tmp_path, monkeypatch, ENGINE.format(body=body), itl={"p95_ms": 50, "bursts": "allow"}
    )
    assert report["verdict"] in ("fail", "error")
    assert "pass" not in verdicts_of(report).values()
    assert any("clock stands still" in e["reason"] for e in report["errors"])


def test_a_clock_of_seconds_passes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 seconds are not 0.2 nanoseconds."""
    body = "    def clock_ns(self):\n        import time\n        return time.perf_counter()"
    report, _ = report_with(tmp_path, monkeypatch, ENGINE.format(body=body))
    assert set(verdicts_of(report).values()) == {"error"}
    assert "valid: whole nanoseconds" in report["findings"][0]["reason"]


def test_an_engines_own_attribute_clock_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation's clock() is no nanosecond clock; only clock_ns() is one."""
    body = "    def clock(self): return 5"
    report, _ = report_with(tmp_path, monkeypatch, ENGINE.format(body=body))
    assert not any("clock stands still" in e["reason"] for e in report["errors"])


ODD_FACTS = """
import math
class Odd:
    pass

def facts(self):
    return {"type": "end", "gate": "else", "kind": "other", "start_point": 3, "nan": math.nan,
            "odd": Odd(), "template_prefix_tokens": "many", "warnings": "beware"}
Engine.describe = facts
Engine.memory = lambda self: {"rss_peak": math.nan, "card": Odd()}
"""


def test_facts_and_figures_of_any_kind_leave_the_log_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What JSON cannot hold becomes text, and no fact takes the place of the line's own keys."""
    report, _ = report_with(
        tmp_path, monkeypatch, ENGINE.format(body="") + ODD_FACTS, memory={"rss_peak_gib": 64}
    )
    assert report["target"]["kind"] == "python"
    assert report["target"]["nan"] == "nan"
    assert report["target"]["warnings"] == ["beware"]
    assert verdicts_of(report)["memory/rss_peak"] == "error"
    assert verdicts_of(report)["tgs/concurrency-1"] == "fail"  # memory undocumented


def test_a_target_that_breaks_on_closing_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured stands, and the log has its end."""
    body = "    def close(self): raise OSError('busy')"
    report, _ = report_with(tmp_path, monkeypatch, ENGINE.format(body=body))
    assert report["ended"] == "ended"


HANGS = """
import threading

release = threading.Event()
asked = []

class Engine:
    def generate(self, prompt, *, max_new_tokens, sampling):
        asked.append(prompt)
        yield 0
        if len(asked) == 14:
            release.wait()
        yield from range(1, max_new_tokens)
    def count(self, prompt, system):
        return len(prompt.split())
    def close(self):
        asked.append("closed")

def made():
    return Engine()
"""


def test_a_hang_ends_the_run_and_every_other_gate_of_that_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is an error, nothing is sent into a busy target, and the report is written."""
    module = engine(tmp_path, monkeypatch, HANGS)
    quick = {"first_token_s": 30.0, "idle_s": 0.3, "total_s": 60.0}
    loaded = python_policy(module, SHORT, LONG, timeouts=quick, evidence=FAST)
    session = Session(tmp_path / "out", release=loaded)
    gate = session.gate(None, loaded)
    gate.measure({("short", 1)})
    asked = len(module.asked)
    assert asked == 14
    gate.measure({"long"})
    other = session.gate("t.py::t", loaded)
    with pytest.raises(TargetError, match="cannot be used any more"):
        other.run()
    with pytest.raises(TargetError, match="cannot be used any more"):
        other.ask("one more prompt")
    session.close()
    assert len(module.asked) == asked  # not even closed: a generation still runs in it
    module.release.set()
    report = finished(session)
    assert report["verdict"] in ("fail", "error")
    assert "pass" not in verdicts_of(report).values()
    assert "cannot be used any more" in next(
        f["reason"] for f in report["findings"] if f["id"] == "long/ttft_p95"
    )


def test_a_file_that_is_too_small_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    """Not one request is sent, and every limit of the bucket is an error."""
    (tmp_path / "p.txt").write_text("one two three\nfour five six seven\n", encoding="utf-8")
    loaded = policy(workload={"max_new_tokens": 8, "prompts": "p.txt"}, base=tmp_path)
    session, gate = run_gate(tmp_path, loaded)
    assert gate.timelines == []
    report = finished(session)
    assert report["verdict"] == "error"


# -- gates of tests


@pytest.fixture
def own_gate(tmp_path: Path) -> Iterator[Callable[[LoadedPolicy], tuple[Session, Gate]]]:
    """A session with the gate of one test; closed at the end of ours."""
    made: list[Session] = []

    def make(loaded: LoadedPolicy) -> tuple[Session, Gate]:
        session = Session(tmp_path / str(len(made)))
        made.append(session)
        return session, session.gate("t.py::t", loaded)

    yield make
    for session in made:
        session.close()


Own = Callable[[LoadedPolicy], tuple[Session, Gate]]


def test_single_requests_are_judged_together(own_gate: Own) -> None:
    """timed_generate five times under observed evidence: one warm-up, five measured."""
    session, gate = own_gate(policy(evidence={"preset": "observed"}))
    for word in ("one", "two", "three", "four", "five"):
        assert gate.ask(f"{word} " * 120).ok
    session.close()
    assert [t.warmup for t in gate.timelines] == [True] + [False] * 5
    assert verdicts_of(finished(session)) == {
        "t.py::t/ttft_p95": "pass",
        "t.py::t/itl_p95": "pass",
        "t.py::t/error_rate": "pass",
    }


def test_one_prompt_sent_again_and_again_never_passes(own_gate: Own) -> None:
    """A prefix cache answers repeats: undeclared, TTFT is an error; declared, it is judged."""
    for warm, expected in ((False, "error"), (True, "pass")):
        loaded = policy(workload={"warm_cache": warm}, evidence=FAST)
        session, gate = own_gate(loaded)
        for _ in range(38):
            gate.ask("again " * 128)
        session.close()
        found = verdicts_of(finished(session))
        assert found["t.py::t/ttft_p95"] == expected
        assert found["t.py::t/itl_p95"] == "pass"


def test_a_prompt_outside_its_bucket_fails(own_gate: Own) -> None:
    """Never moved to another bucket, never dropped."""
    session, gate = own_gate(policy(evidence={"preset": "observed"}))
    t = gate.ask("word " * 300)
    session.close()
    assert (t.status, "outside bucket short" in str(t.error)) == ("error", True)
    assert "pass" not in verdicts_of(finished(session)).values()


@pytest.mark.parametrize("prompt", ["", "   ", None, 7, b"bytes"])
def test_a_prompt_that_is_no_text_is_refused(own_gate: Own, prompt: Any) -> None:
    """Before anything is sent, in words."""
    _, gate = own_gate(policy())
    with pytest.raises(UsageError, match="valid: text that is not empty"):
        gate.ask(prompt)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"max_tokens": 5}, "'max_tokens' cannot be overridden; valid: max_new_tokens, sampling"),
        ({"max_new_tokens": 0}, "valid: a whole number from 1 to 8"),
        ({"max_new_tokens": 9}, "valid: a whole number from 1 to 8"),
        ({"max_new_tokens": True}, "valid: a whole number from 1 to 8"),
        ({"max_new_tokens": 2.0}, "valid: a whole number from 1 to 8"),
        ({"sampling": "greedy"}, "sampling is 'greedy'; valid: a mapping"),
    ],
)
def test_an_override_that_is_none_is_refused(
    own_gate: Own, overrides: dict[str, Any], words: str
) -> None:
    """Unknown names and values the limits are not judged for are usage errors."""
    _, gate = own_gate(policy())
    with pytest.raises(UsageError) as caught:
        gate.run(**overrides)
    assert words in str(caught.value)


def test_a_second_attempt_is_pooled_with_the_first(own_gate: Own) -> None:
    """Attempt 1 at 80 ms, attempt 2 at 45 ms, limit 50: FAIL, each with its own figure."""
    loaded = policy(target=scripted(itl=[80] * 20 + [45] * 200), evidence=FAST)
    session, gate = own_gate(loaded)
    first = gate.run()
    gate.begin_attempt(2)
    second = gate.run()
    session.close()
    assert {t.attempt for t in first} == {1}
    assert {t.attempt for t in second} == {2}
    found = next(f for f in finished(session)["findings"] if f["metric"] == "itl")
    assert found["verdict"] == "fail"
    assert [a["attempt"] for a in found["attempts"]] == [1, 2]
    assert found["attempts"][1]["observed"] < found["attempts"][0]["observed"]


def test_a_second_run_in_one_attempt_goes_on(own_gate: Own) -> None:
    """sla_run() twice adds no request where all is decided, and numbers go on."""
    session, gate = own_gate(policy(evidence=FAST))
    assert len(gate.run()) == len(gate.run()) == 38
    session.close()
    assert sorted(t.unit for t in gate.timelines if not t.warmup) == list(range(38))


def test_two_gates_on_one_target_send_different_prompts(tmp_path: Path) -> None:
    """One target is loaded once, and no gate's prompt repeats another's."""
    loaded = policy(evidence=FAST)
    session = Session(tmp_path / "out")
    gates = [session.gate(key, loaded) for key in ("a", "b")]
    for gate in gates:
        gate.run()
    assert gates[0].target is gates[1].target
    session.close()
    sent = [t.prompt for gate in gates for t in gate.timelines]
    assert len(set(sent)) == len(sent)


def test_targets_of_their_own_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Going back and forth between two targets opens a segment each time; none is mixed up."""
    session = Session(tmp_path / "out")
    gates = [
        session.gate(key, policy(target=scripted(ttft), evidence={"preset": "observed"}))
        for key, ttft in (("a", 100), ("b", 200), ("c", 100))
    ]
    for gate in gates:
        gate.run()
    session.close()
    log = read_run(session.run_dir / "timelines.jsonl")
    assert [s["segment"] for s in log.segments] == [0, 1, 2]
    assert {t.gate: t.ttft_ms for t in log.timelines} == {"a": 100.0, "b": 200.0, "c": 100.0}


def test_a_figure_measured_elsewhere_is_on_record(tmp_path: Path) -> None:
    """With its conditions, documented or not; it makes no verdict of its own."""
    session = Session(tmp_path / "out")
    session.record_tgs("t.py::t", 182.6, {"concurrency": 4, "memory": math.inf})
    session.close()
    report = finished(session)
    assert [(e["kind"], e["documented"]) for e in report["tgs"]] == [("recorded", False)]
    assert report["verdict"] != "pass"


def test_an_interrupted_run_leaves_a_readable_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a request: that request is lost and counted, the others are judged."""
    module = engine(
        tmp_path,
        monkeypatch,
        SCRIPTED
        + """
class Stops(ScriptedTarget):
    def memory(self):
        if self._index == 30:
            raise KeyboardInterrupt
        return super().memory()

def made():
    return Stops(lambda ask, index: Script([(100, 1)] + [(20, 1)] * 7))
""",
    )
    loaded = python_policy(module, kind="scripted", evidence=FAST)
    session = Session(tmp_path / "out", release=loaded)
    with pytest.raises(KeyboardInterrupt):
        session.gate(None, loaded).measure()
    session.close("interrupted")
    report = finished(session)
    assert (report["verdict"], report["ended"]) != ("pass", "ended")
    assert report["requests"]["measured"] > 0
    assert "pass" not in verdicts_of(report)["short/ttft_p95"]


def test_a_killed_run_has_lost_nothing_that_ended(tmp_path: Path) -> None:
    """Without a close the log holds every finished request, and is no PASS."""
    loaded = policy(evidence=FAST)
    session = Session(tmp_path / "out", release=loaded)
    gate = session.gate(None, loaded)
    gate.measure()
    report = finished(session)
    assert report["requests"]["measured"] == sum(not t.warmup for t in gate.timelines)
    assert (report["verdict"], report["complete"]) == ("inconclusive", False)
    session.close()
    assert finished(session)["verdict"] == "pass"


class Served:
    """A target over HTTP, as far as its prompts go."""

    _counter = Uncounted(pieces)
    count, encode = _counter.count, _counter.encode
    lengths = Lengths("pieces", _counter.count, chat=False)


def prompts_of_two_runs(**workload: Any) -> list[list[str]]:
    """The first prompts of two runs of one policy on one server."""
    target: Any = Served()
    made = [prompts_for(policy(workload=workload), target) for _ in range(2)]
    return [[next(s).text for _ in range(20)] for f in made for s in [f.stream("short", 20, 128)]]


def test_a_server_is_never_sent_the_prompts_of_an_earlier_run() -> None:
    """It outlives the run, and its prefix cache would answer the second one."""
    one, two = prompts_of_two_runs()
    assert not set(one) & set(two)
    # By more than another order of the same words: those come again, and what follows with them.
    assert all(re.match(r"\w+-\d{5}\b", text) for text in one + two)


def test_the_seed_decides_alone_where_a_warm_cache_is_meant() -> None:
    """``warm_cache``: hits are intended, so runs may send the same."""
    one, two = prompts_of_two_runs(warm_cache=True)
    assert one == two


def test_prompts_of_a_file_that_a_server_may_remember_are_told(tmp_path: Path) -> None:
    """They cannot be made new: the report says what that may do to TTFT."""
    (tmp_path / "asks.txt").write_text("What does a lighthouse keeper do all day?\n")
    loaded = policy(workload={"prompts": "asks.txt"}, base=tmp_path)
    target: Any = Served()
    assert any("from an earlier one" in note for note in prompts_for(loaded, target).notes)

"""``--sla-resume``: a run that was ended goes on, and all of it is one run's evidence."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.errors import UsageError
from pytest_llmsla.log import read_run
from pytest_llmsla.resume import carry_over, earlier_run

if TYPE_CHECKING:
    from gated import Gated

USAGE = pytest.ExitCode.USAGE_ERROR


def lines(run: Path) -> list[dict[str, Any]]:
    """The log of a run."""
    text = (run / "timelines.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def cut(run: Path, measured: int, *, in_flight: bool = False) -> Path:
    """The run as if it had been killed after so many measured requests of bucket short."""
    seen, kept = 0, []
    for line in lines(run):
        mine = line.get("bucket") == "short" and line.get("warmup") is False
        if mine and line["type"] == "start" and seen == measured:
            if in_flight:
                kept.append(line)
            break
        if line["type"] == "end":
            break
        seen += mine and line["type"] == "request"
        kept.append(line)
    path = run.parents[1] / f"{run.name}-cut"
    path.mkdir()
    rewrite(path, kept)
    return path


def rewrite(run: Path, kept: list[dict[str, Any]]) -> None:
    """Write a log."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept)
    (run / "timelines.jsonl").write_text(text, encoding="utf-8")


def change(run: Path, kind: str, **values: object) -> None:
    """Give all lines of a kind other values."""
    log = lines(run)
    for line in log:
        if line["type"] == kind:
            line.update(values)
    rewrite(run, log)


def findings(gated: Gated) -> dict[str, dict[str, Any]]:
    """Findings of the newest report by id."""
    return {f["id"]: f for f in gated.report()["findings"]}


@pytest.fixture
def killed(gated: Gated) -> Path:
    """A run of sla.yaml that was killed in the middle."""
    assert gated.run("sla.yaml").ret == 0
    return cut(gated.runs()[-1], 9)


def resume(gated: Gated, run: Path, *args: str) -> pytest.RunResult:
    """Continue a run."""
    return gated.run("sla.yaml", "--sla-resume", str(run), *args)


def test_both_parts_are_one_run(gated: Gated) -> None:
    """Decided when an unbroken run would have been, on all requests; the first part stays."""
    assert gated.run("sla.yaml").ret == 0
    whole = findings(gated)
    killed = cut(gated.runs()[-1], 9)
    before = hashlib.sha256((killed / "timelines.jsonl").read_bytes()).hexdigest()
    assert resume(gated, killed).ret == 0
    report = gated.report()
    assert report["verdict"] == "pass"
    assert report["complete"]
    both = findings(gated)
    for name in ("short/ttft_p95", "long/ttft_p95"):
        assert both[name]["requests"] == whole[name]["requests"]
        assert both[name]["decided_at"] == whole[name]["decided_at"]
    log = read_run(gated.runs()[-1] / "timelines.jsonl")
    assert len({t.id for t in log.timelines}) == len(log.timelines)
    assert {t.segment for t in log.timelines} == {0, 1}
    assert {t.attempt for t in log.timelines} == {1, 2}
    (line,) = report["resumed"]
    assert line["sha256"] == before
    assert line["requests"] == sum(t.segment == 0 for t in log.timelines)
    assert hashlib.sha256((killed / "timelines.jsonl").read_bytes()).hexdigest() == before


def test_no_prompt_is_sent_twice(gated: Gated, killed: Path) -> None:
    """The second part's prompts are none of the first's."""
    gated.policy(rest="report: {keep_text: true}")
    assert gated.run("sla.yaml").ret == 0
    assert resume(gated, cut(gated.runs()[-1], 9)).ret == 0
    sent = [line["prompt"] for line in lines(gated.runs()[-1]) if line["type"] == "request"]
    assert len(set(sent)) == len(sent)


def test_it_may_be_continued_again(gated: Gated, killed: Path) -> None:
    """Three parts, each counted once."""
    assert resume(gated, killed).ret == 0
    third = cut(gated.runs()[-1], 20)
    assert resume(gated, third).ret == 0
    assert len(gated.report()["resumed"]) == 2
    assert findings(gated)["short/ttft_p95"]["requests"] == 38
    assert {t.attempt for t in read_run(gated.runs()[-1] / "timelines.jsonl").timelines} == {
        1,
        2,
        3,
    }


def test_a_run_that_ended_before_it_measured_goes_on(gated: Gated) -> None:
    """Killed while the model was loaded: all that stands there is who ran what."""
    assert gated.run("sla.yaml").ret == 0
    first = gated.runs()[-1]
    empty = first.parents[1] / "empty"
    empty.mkdir()
    rewrite(empty, [line for line in lines(first) if line["type"] in ("run", "gate")])
    assert resume(gated, empty).ret == 0
    again = cut(gated.runs()[-1], 9)
    assert resume(gated, again).ret == 0


def test_a_decided_run_measures_nothing_more(gated: Gated) -> None:
    """What is decided is not asked again; the verdict stays."""
    assert gated.run("sla.yaml").ret == 0
    first = gated.runs()[-1]
    count = sum(line["type"] == "request" for line in lines(first))
    assert resume(gated, first).ret == 0
    assert sum(line["type"] == "request" for line in lines(gated.runs()[-1])) == count
    assert gated.report()["verdict"] == "pass"


def test_what_was_in_flight_has_failed(gated: Gated) -> None:
    """The request that never had an answer is not forgotten by going on."""
    assert gated.run("sla.yaml").ret == 0
    killed = cut(gated.runs()[-1], 9, in_flight=True)
    result = resume(gated, killed)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*this run cannot PASS any more*"])
    assert gated.report()["requests"]["in_flight_at_the_end"] == 1
    rate = findings(gated)["short/error_rate"]
    assert rate["verdict"] == "fail"
    assert rate["exceeded"] == 1


def test_a_broken_limit_stays_broken(gated: Gated) -> None:
    """Going on until it passes is no way to pass."""
    gated.policy(ttft=400)
    assert gated.run("sla.yaml").ret == pytest.ExitCode.TESTS_FAILED
    assert resume(gated, gated.runs()[-1]).ret == pytest.ExitCode.TESTS_FAILED
    assert findings(gated)["short/ttft_p95"]["verdict"] == "fail"


def test_another_policy_is_refused_with_both_digests(gated: Gated, killed: Path) -> None:
    """Evidence is that of one policy."""
    was = lines(killed)[0]["policy_sha256"]
    gated.policy(itl=21)
    result = resume(gated, killed)
    assert result.ret == USAGE
    text = result.stderr.str()
    assert was in text
    assert len(set(re.findall(r"\b[0-9a-f]{64}\b", text))) == 2


def test_another_machine_is_refused_with_what_differs(gated: Gated, killed: Path) -> None:
    """Nothing is measured."""
    log = lines(killed)
    log[0]["host"]["cpu"]["model"] = "Another CPU"
    log[0]["host"]["packages"]["psutil"] = "0.1"
    rewrite(killed, log)
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*the machine is another one: cpu.model: was 'Another CPU', is *"])
    result.stderr.fnmatch_lines(["*packages.psutil: was '0.1', is *"])


def test_another_target_is_refused_with_what_differs(gated: Gated, killed: Path) -> None:
    """Known only once it is loaded: every limit is an error and says why."""
    change(killed, "target", revision="abc")
    assert resume(gated, killed).ret == pytest.ExitCode.TESTS_FAILED
    assert set(gated.verdicts().values()) == {"error"}
    reasons = {f["reason"] for f in findings(gated).values()}
    assert any("the target is another one: revision: was 'abc', is None" in r for r in reasons)


def test_a_run_that_could_not_measure_is_not_continued(gated: Gated, killed: Path) -> None:
    """Its problem would stay on the record."""
    problem = {"type": "problem", "gate": None, "bucket": "short", "reason": "the server is gone"}
    rewrite(killed, [*lines(killed), problem])
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*that run could not measure: the server is gone*"])


def test_prompts_of_a_file_could_repeat(gated: Gated, killed: Path) -> None:
    """Which of them were sent is not on record."""
    (gated.path / "prompts.txt").write_text("one\ntwo\n", encoding="utf-8")
    text = (
        (gated.path / "sla.yaml")
        .read_text("utf-8")
        .replace(
            "workload: {max_new_tokens: 8}", "workload: {max_new_tokens: 8, prompts: prompts.txt}"
        )
    )
    (gated.path / "sla.yaml").write_text(text, encoding="utf-8")
    log = lines(killed)
    del log[0]["policy"]
    rewrite(killed, log)
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*prompts come from files*"])


def test_another_memory_is_another_machine(gated: Gated, killed: Path) -> None:
    """Of the host, of its limit, and a machine that is not on record at all."""
    whole = lines(killed)
    for key in ("memory_gib", "memory_limit_gib"):
        log = json.loads(json.dumps(whole))
        log[0]["host"][key] = 1.5
        rewrite(killed, log)
        result = resume(gated, killed)
        assert result.ret == USAGE
        result.stderr.fnmatch_lines([f"*the machine is another one: {key}: was 1.5, is *"])
    del whole[0]["host"]
    rewrite(killed, whole)
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*the machine is another one: cpu.model: was None, is *"])


@pytest.mark.parametrize("edit", ["more", "gone"])
def test_a_target_must_be_on_record_and_the_same(gated: Gated, killed: Path, edit: str) -> None:
    """A fact that only the new one tells, and no facts at all, are no reason to go on."""
    log = lines(killed)
    if edit == "gone":
        log = [line for line in log if line["type"] != "target"]
    else:
        for line in log:
            if line["type"] == "target":
                del line["start_point"]
    rewrite(killed, log)
    assert resume(gated, killed).ret == pytest.ExitCode.TESTS_FAILED
    assert set(gated.verdicts().values()) == {"error"}
    words = {"gone": "is not on record", "more": "the target is another one"}[edit]
    assert any(words in f["reason"] for f in findings(gated).values())


def test_a_run_of_tests_alone_has_no_place_for_a_policy(gated: Gated) -> None:
    """Its log names no policy: what would be measured could not be judged."""
    gated.tests("@sla(bucket='short', ttft_ms=300)\ndef test_a(sla_run):\n    assert sla_run()\n")
    assert gated.run().ret == 0
    result = resume(gated, gated.runs()[-1])
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*that run was of tests alone*"])
    assert len(gated.runs()) == 1


def test_a_run_that_goes_on_is_not_continued_beside_it(gated: Gated, killed: Path) -> None:
    """The process that writes it still has it open."""
    with (killed / "timelines.jsonl").open("a"):
        result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*that run is still going on (process *)*"])


def test_a_log_that_changes_while_it_is_taken_over_is_refused(gated: Gated, killed: Path) -> None:
    """What was read and what is copied are the same bytes, or nothing is copied."""
    earlier = earlier_run(killed)
    with (killed / "timelines.jsonl").open("ab") as file:
        file.write(b"\n")
    copy = gated.path / "copy.jsonl"
    with pytest.raises(UsageError, match="it changed since it was read"):
        carry_over(earlier, copy)
    assert not copy.exists()


@pytest.mark.parametrize("how", ["cut", "without its break", "in the middle", "twice"])
def test_torn_lines(gated: Gated, killed: Path, how: str) -> None:
    """A last line that is cut is lost, one that is whole counts; any other damage is refused."""
    path = killed / "timelines.jsonl"
    raw = path.read_bytes()
    body = raw.rstrip(b"\n").split(b"\n")
    last = max(n for n, line in enumerate(body) if line.startswith(b'{"type":"request"'))
    body = body[: last + 1]
    text = b"\n".join(body)
    if how == "cut":
        text = text[:-20]
    elif how == "in the middle":
        text = b"\n".join([*body[:-2], body[-2][:-20], body[-1], b""])
    elif how == "twice":
        text = b"\n".join([*body, body[-1], b""])
    path.write_bytes(text)
    result = resume(gated, killed)
    if how in ("in the middle", "twice"):
        assert result.ret == USAGE
        result.stderr.fnmatch_lines([f"*--sla-resume {path}:*"])
        return
    report = gated.report()
    assert report["requests"]["in_flight_at_the_end"] == (how == "cut")
    assert report["verdict"] == ("fail" if how == "cut" else "pass")
    assert result.ret == (0 if how != "cut" else pytest.ExitCode.TESTS_FAILED)


def test_a_clock_that_was_set_back_between_the_parts(gated: Gated, killed: Path) -> None:
    """Each part has a clock of its own; no duration is taken between the two."""
    change(killed, "segment", t0_utc="2099-01-01T00:00:00.000Z")
    assert resume(gated, killed).ret == 0


def test_another_sampling_in_the_test_is_no_one_rate(gated: Gated) -> None:
    """The mark is the same, and so the policy; what the test sends is not."""
    body = (
        "@sla(bucket='short', min_tokens_per_s=1)\ndef test_a(sla_run):\n"
        "    assert sla_run(sampling={})\n"
    )
    gated.tests(body.replace("{}", "{'greedy': True}"))
    assert gated.run().ret == 0
    killed = cut(gated.runs()[-1], 9)
    gated.tests(body.replace("{}", "{'temperature': 1.0}"))
    result = gated.run("--sla-resume", str(killed))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = findings(gated)["test_it.py::test_a/tgs"]
    assert (found["verdict"], found["observed"]) == ("fail", None)
    assert "not the same in every part of this run (part 1: " in found["reason"]
    assert not gated.report()["tgs"]


def test_a_comparison_is_not_forgotten_by_going_on(gated: Gated, killed: Path) -> None:
    """Slower than its baseline, and resumed without one: refused until it is asked for again."""
    assert gated.run("sla.yaml").ret == 0
    first = gated.runs()[-1]
    log = lines(first)
    log[-1]["compared"] = {"verdict": "fail", "reason": "ttft p95 is 40 % slower"}
    rewrite(first, log)
    result = resume(gated, first)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*compared with a baseline (fail: ttft p95 is 40 % slower)*"])
    again = resume(gated, first, "--sla-baseline", str(killed))
    assert again.ret != USAGE
    assert gated.report()["baseline"]


def test_parts_put_together_by_hand_do_not_pass(
    gated: Gated, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``llmsla check`` holds a log to what --sla-resume refuses."""
    assert resume(gated, killed).ret == 0
    run = gated.runs()[-1]
    whole = lines(run)
    capsys.readouterr()
    assert llmsla(["check", str(run)]) == 0
    log = json.loads(json.dumps(whole))
    next(line for line in log if line["type"] == "resume")["host"]["cpu"]["model"] = "Another CPU"
    rewrite(run, log)
    capsys.readouterr()
    assert llmsla(["check", str(run)]) == 2
    assert "part 2 was measured on another machine: cpu.model" in capsys.readouterr().out
    log = json.loads(json.dumps(whole))
    [line for line in log if line["type"] == "target"][-1]["revision"] = "abc"
    rewrite(run, log)
    assert llmsla(["check", str(run)]) == 2
    assert "it was continued with another target: revision" in capsys.readouterr().out


def test_two_go_on_from_one_run(gated: Gated, killed: Path) -> None:
    """Each has a folder of its own and all of the evidence; neither touches the other's."""
    assert resume(gated, killed).ret == 0
    one = (gated.runs()[-1] / "timelines.jsonl").read_bytes()
    assert resume(gated, killed).ret == 0
    assert gated.report()["verdict"] == "pass"
    assert (gated.runs()[-2] / "timelines.jsonl").read_bytes() == one


@pytest.mark.parametrize("what", ["nothing", "empty", "damaged"])
def test_no_run_to_continue(gated: Gated, what: str) -> None:
    """A usage error before anything is loaded."""
    path = gated.path / "earlier"
    if what != "nothing":
        path.mkdir()
        text = "" if what == "empty" else '{"type":"run","schema":"other"}\n'
        (path / "timelines.jsonl").write_text(text, encoding="utf-8")
    result = resume(gated, path)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*--sla-resume *earlier*"])
    assert gated.runs() == []


def test_the_latest_run_of_a_report_folder(gated: Gated, killed: Path) -> None:
    """``--sla-resume .llmsla`` continues the run that began last."""
    assert resume(gated, gated.path / ".llmsla").ret == 0
    assert gated.report()["resumed"][0]["from"].endswith("timelines.jsonl")


def test_a_test_of_its_own_goes_on(gated: Gated) -> None:
    """The gate of a marked test continues by its node id, under the same mark only."""
    body = "@sla(bucket='short', ttft_ms={limit})\ndef test_a(sla_run):\n    assert sla_run()\n"
    gated.tests(body.format(limit=300))
    assert gated.run().ret == 0
    killed = cut(gated.runs()[-1], 9)
    assert gated.run("--sla-resume", str(killed)).ret == 0
    assert findings(gated)["test_it.py::test_a/ttft_p95"]["requests"] == 38
    gated.tests(body.format(limit=299))
    result = gated.run("--sla-resume", str(killed))
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*the policy of test_it.py::test_a has the sha256*"])


def test_the_reports_say_it(gated: Gated, killed: Path) -> None:
    """Terminal and Markdown name the part that was continued."""
    result = resume(gated, killed)
    result.stdout.fnmatch_lines(["*continues*"])
    text = (gated.runs()[-1] / "report.md").read_text(encoding="utf-8")
    assert "continues" in text


def test_a_level_of_load_goes_on(gated: Gated) -> None:
    """Blocks of the second part are its own: what was never in flight together is no block."""
    gated.policy(rest="tgs: {concurrency: [4]}")
    assert gated.run("sla.yaml").ret == 0
    killed = cut(gated.runs()[-1], 10)
    resume(gated, killed)
    found = findings(gated)["short/ttft_p95"]
    log = read_run(gated.runs()[-1] / "timelines.jsonl")
    mine = [t for t in log.timelines if t.bucket == "short" and not t.warmup]
    assert found["requests"] == len(mine)
    for attempt in (1, 2):
        part = [t for t in mine if t.attempt == attempt]
        assert [t.unit for t in part] == [n // 4 for n in range(len(part))]
    assert found["units"] < len(mine) / 4


def from_files(gated: Gated) -> Path:
    """A policy whose prompts stand in a file that may be sent again; the file."""
    path = gated.policy()
    text = path.read_text("utf-8").replace(
        "workload: {max_new_tokens: 8}",
        "workload: {max_new_tokens: 8, warm_cache: true, "
        "prompts: {short: short.txt, long: long.txt}}",
    )
    path.write_text(text, encoding="utf-8")
    for name, words in (("short", 62), ("long", 125)):
        lines = (" ".join([f"w{n}"] * words) for n in range(200))
        (gated.path / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return gated.path / "short.txt"


def test_prompts_that_were_changed_between_the_parts(gated: Gated) -> None:
    """The policy names the same file; what stands in it is not the same any more."""
    file = from_files(gated)
    assert gated.run("sla.yaml").ret == 0
    killed = cut(gated.runs()[-1], 9)
    assert resume(gated, killed).ret == 0
    was = file.read_bytes()
    file.write_bytes(was.replace(b"w7 ", b"v7 "))
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*workload.prompts*: short.txt: it was changed: its sha256 was *"])
    file.unlink()
    assert resume(gated, killed).ret == USAGE
    file.write_bytes(was)
    log = lines(killed)
    del log[0]["inputs"]["workload.prompts.long"]
    rewrite(killed, log)
    result = resume(gated, killed)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*long.txt: what was in it when that run began is not on record*"])


def test_a_log_that_lost_lines_is_not_continued(gated: Gated) -> None:
    """Going on would write a new end, and the new end would count it as whole."""
    assert gated.run("sla.yaml").ret == 0
    first = gated.runs()[-1]
    log = lines(first)
    del log[next(n for n, line in enumerate(log) if line["type"] == "resources")]
    rewrite(first, log)
    result = resume(gated, first)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*it is not the file that its run wrote: * 'resources' lines*"])

"""Gates that replay a recorded trace: known by its content, whatever its file is called."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmsla.baselines.same import differences
from pytest_llmsla.cli.app import run as llmsla
from pytest_llmsla.log import read_run

if TYPE_CHECKING:
    from gated import Gated

OPEN = "workload: {max_new_tokens: 8, load: {kind: trace, trace: day.jsonl}}"


def written(folder: Path, gap_s: float = 0.3, *, lengths: tuple[int, ...] = (60, 100)) -> str:
    """A trace of 40 requests of these lengths in turns; its hash."""
    rows = [{"at_s": k * gap_s, "input_length": lengths[k % len(lengths)]} for k in range(40)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "day.jsonl").write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def replaying(gated: Gated, workload: str = OPEN) -> None:
    """The policy of the trace."""
    path = gated.policy(rest=workload)
    text = path.read_text(encoding="utf-8").replace("workload: {max_new_tokens: 8}\n", "", 1)
    path.write_text(text, encoding="utf-8")


def lines(gated: Gated) -> list[dict[str, Any]]:
    """The newest log."""
    text = (gated.runs()[-1] / "timelines.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_holds_what_was_replayed(gated: Gated) -> None:
    """Hash, requests and span in the log; the hash in every finding and in rule 3's conditions."""
    sha = written(gated.path)
    replaying(gated)
    assert gated.run("sla.yaml").ret == 0
    report = gated.report()
    assert report["verdict"] == "pass"
    words = f"open loop, trace day.jsonl (sha256 {sha[:12]})"
    assert {f["load"] for f in report["findings"]} == {words}
    (entry,) = [e for e in report["tgs"] if e["kind"] == "concurrent"]
    assert entry["conditions"]["concurrency"]["asked"] == words
    (level,) = [line for line in lines(gated) if line["type"] == "level"]
    asked = level["asked"]
    assert (asked["trace_sha256"], asked["trace_requests"]) == (sha, 40)
    assert asked["trace_span_s"] == pytest.approx(39 * 0.3)
    (end,) = [line for line in lines(gated) if line["type"] == "end"]
    assert f"sha256 {sha}" in " ".join(end["prompt_notes"])


def test_another_content_under_the_same_name_is_another_workload(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither compared, nor judged by a policy that now means another file, nor continued."""
    one = written(gated.path)
    replaying(gated)
    assert gated.run("sla.yaml").ret == 0
    first = gated.runs()[-1]
    two = written(gated.path, gap_s=0.35)
    assert gated.run("sla.yaml").ret == 0
    logs = [read_run(folder / "timelines.jsonl") for folder in gated.runs()]
    (found,) = [d for d in differences(*logs) if "trace" in d]
    assert one in found
    assert two in found
    assert llmsla(["check", str(first), "--sla", str(gated.path / "sla.yaml")]) == 4
    assert f"trace_sha256 '{one}'" in capsys.readouterr().err
    result = gated.run("sla.yaml", f"--sla-resume={first}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*was measured under*"])


def test_a_policy_whose_trace_is_not_here_judges_no_run_of_it(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows whether it is the same; writing its hash into the policy says so."""
    sha = written(gated.path)
    replaying(gated)
    assert gated.run("sla.yaml").ret == 0
    (gated.path / "day.jsonl").unlink()
    check = ["check", str(gated.runs()[-1]), "--sla", str(gated.path / "sla.yaml")]
    assert llmsla(check) == 4
    assert f"trace_sha256: {sha}" in capsys.readouterr().err
    replaying(gated, OPEN.replace("day.jsonl", f"day.jsonl, trace_sha256: {sha}"))
    assert llmsla(check) == 0


def test_a_trace_is_replayed_at_the_rate_that_is_asked_for(gated: Gated) -> None:
    """Ten times as many a second: every gap a tenth, and the rate is in the words."""
    written(gated.path)
    replaying(gated, OPEN.replace("day.jsonl", "day.jsonl, rate: 33.333333"))
    assert gated.run("sla.yaml").ret == 0
    due = [line.get("scheduled_ns") for line in lines(gated) if line["type"] == "start"]
    timed = sorted(at for at in due if at is not None)
    gaps = {round((b - a) / 1e6) for a, b in pairwise(timed)}
    assert gaps == {30}
    assert {f["load"].rpartition(", ")[2] for f in gated.report()["findings"]} == {
        "33.3333 requests/s"
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        # Its limits could never be judged.
        ({"lengths": (20, 60)}, "brings no request for bucket long (65–128 tokens)"),
        # A request every five minutes: an hour brings each bucket six, and 38 are needed.
        ({"gap_s": 300.0}, "brings about 6 requests for bucket short"),
    ],
)
def test_a_trace_that_cannot_do_is_told_before_it_is_waited_for(
    given: dict[str, Any], words: str, gated: Gated
) -> None:
    """Nothing is sent for a bucket that it asks never or too rarely."""
    written(gated.path, **given)
    replaying(gated)
    result = gated.run("sla.yaml")
    assert result.ret == 4
    assert words in result.stderr.str()
    assert not gated.runs()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"at_s": 0}\n{"at_s": "soon"}\n', "day.jsonl:2: at_s is 'soon'; valid: a number from 0"),
        ('{"at_s": 0}\nnot JSON\n', "day.jsonl:2 is not JSON"),
        ('{"at_s": 0, "input_length": -3}\n', "day.jsonl:1: input_length is -3; valid: a whole"),
        ('{"timestamp": 7}\n', "set workload.load.trace_unit to s or ms"),
        ('{"when": 7}\n', "day.jsonl:1 has no time; a trace is one object a line"),
        ("", "holds no request; it is one object a line"),
    ],
)
def test_a_trace_that_is_none_is_told_while_tests_are_collected(
    text: str, words: str, gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """As any other bad input: exit 4, with the policy's line and the trace's, and no run begins."""
    (gated.path / "day.jsonl").write_text(text, encoding="utf-8")
    replaying(gated)
    result = gated.run("--collect-only", "sla.yaml")
    assert result.ret == 4
    told = " ".join(result.stderr.str().split())
    assert words in told
    assert re.search(r"sla\.yaml:\d+ workload\.load\.trace: ", told)
    assert llmsla(["plan", str(gated.path / "sla.yaml")]) == 4
    assert words in " ".join(capsys.readouterr().err.split())
    assert not gated.runs()


def test_the_preset_in_force_says_how_much_a_trace_has_to_bring(gated: Gated) -> None:
    """Enough for fast and too little for strict: what counts is what will be measured by."""
    written(gated.path, gap_s=40.0)  # an hour brings each bucket 45 requests
    replaying(gated)
    assert gated.run("--collect-only", "sla.yaml").ret == 0
    result = gated.run("--collect-only", "sla.yaml", "--sla-preset=strict")
    assert result.ret == 4
    assert "brings about 45 requests for bucket short" in result.stderr.str()


def test_a_plan_of_a_trace_that_is_not_here_says_so(
    gated: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it costs cannot be told of a trace that nobody can read."""
    replaying(gated)
    assert llmsla(["plan", str(gated.path / "sla.yaml")]) == 4
    assert "cannot read the trace" in capsys.readouterr().err


def test_lengths_that_no_bucket_has_are_told(gated: Gated) -> None:
    """They are sent as prompts of the nearest bucket, and the report says how many."""
    written(gated.path, lengths=(60, 100, 4_000))
    replaying(gated)
    assert gated.run("sla.yaml").ret == 0
    (end,) = [line for line in lines(gated) if line["type"] == "end"]
    assert "13 of them are of lengths that no bucket has (60–4000" in " ".join(end["prompt_notes"])


def prompts(n: int, words: int, first: str) -> str:
    """So many prompts of so many words, each with a first word of its own."""
    return "".join(f"{first}{k} {'word ' * (words - 1)}\n" for k in range(n))


@pytest.mark.parametrize(("short", "verdict"), [(300, "error"), (1_100, "pass")])
def test_an_uneven_mix_says_how_many_prompts_it_needs(
    gated: Gated, short: int, verdict: str
) -> None:
    """Nine short to one long: long may take 100 requests and its warm-up, so short 1,045."""
    (gated.path / "short.txt").write_text(prompts(short, 60, "a"), encoding="utf-8")
    (gated.path / "long.txt").write_text(prompts(130, 120, "b"), encoding="utf-8")
    path = gated.policy(rest="tgs: {concurrency: [2]}", preset="fast, max_requests: 100")
    workload = (
        "workload: {max_new_tokens: 8, warmup: {max_requests: 11}, load: {mix: {short: 9, long: 1}}"
        ", prompts: {short: short.txt, long: long.txt}}"
    )
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("workload: {max_new_tokens: 8}", workload), encoding="utf-8")
    gated.run("sla.yaml")
    report = gated.report()
    (found,) = [f for f in report["findings"] if f["id"] == "short/ttft_p95"]
    assert found["verdict"] == verdict
    assert {f["verdict"] for f in report["findings"]} == {verdict}
    if verdict == "error":
        assert "has 300 prompts and needs 1045 (the mix stays" in found["reason"]
    else:
        assert report["verdict"] == "pass"


def test_prompts_of_files_that_are_enough_for_all_levels_are_enough_at_each(gated: Gated) -> None:
    """What the first level used is not asked for again."""
    (gated.path / "short.txt").write_text(prompts(240, 60, "a"), encoding="utf-8")
    (gated.path / "long.txt").write_text(prompts(240, 120, "b"), encoding="utf-8")
    path = gated.policy(rest="tgs: {concurrency: [1, 2]}", preset="fast, max_requests: 100")
    workload = (
        "workload: {max_new_tokens: 8, warmup: {max_requests: 11}, "
        "prompts: {short: short.txt, long: long.txt}}"
    )
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("workload: {max_new_tokens: 8}", workload), encoding="utf-8")
    gated.run("sla.yaml")
    assert not [f["reason"] for f in gated.report()["findings"] if "prompts" in f["reason"]]

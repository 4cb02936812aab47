"""``llmsla`` plan, init, report, doctor, and what happens to wrong arguments."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pytest_llmsla import __version__
from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.cli.plan import cost
from pytest_llmsla.policy import load_policy
from pytest_llmsla.session import Session, finish

POLICY = """
version: 1
target: {kind: scripted, script: {ttft_ms: 100, itl_ms: 20}}
workload: {max_new_tokens: 8}
buckets:
  - {name: short, prompt_max: 64, ttft_ms: 300}
  - {name: long, prompt_max: 128, ttft_ms: 450}
"""


@pytest.fixture
def sla(tmp_path: Path) -> Path:
    path = tmp_path / "sla.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def run_dir(sla: Path) -> Path:
    loaded = load_policy(sla)
    session = Session(sla.parent / ".llmsla", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    finish(session.run_dir)
    return session.run_dir


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["check"],
        ["check", "--no-such-option", "x"],
        ["no-such-command"],
        ["plan"],
        ["plan", "missing.yaml"],
        ["report"],
        ["report", "missing"],
        ["check", "missing.jsonl"],
    ],
)
def test_wrong_use_is_exit_4(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2 means inconclusive; every usage error is 4, with a message."""
    monkeypatch.chdir(tmp_path)
    assert llmsla(argv) == 4
    out, err = capsys.readouterr()
    assert out or err.startswith("llmsla: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["compare", "ttft", "itl", "tgs", "kv", "ab"])
def test_verbs_to_come_are_unknown(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not built does not pretend to be."""
    assert llmsla([verb, "x"]) == 4
    assert verb in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--help and --version are no errors; help names the exit codes."""
    assert llmsla(["--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "0 pass, 1 fail, 2 inconclusive or conditional, 3 could not measure, 4 usage" in (
        help_text
    )
    assert llmsla(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_a_bug_is_one_line_and_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody foresaw is "could not measure"; LLMSLA_DEBUG shows where it happened."""
    # A folder where report.md belongs: the operating system refuses to read it.
    (tmp_path / "report.md").mkdir()
    report = {"schema": "llmsla-report/1", "verdict": "pass", "complete": True, "findings": []}
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.delenv("LLMSLA_DEBUG", raising=False)
    assert llmsla(["report", str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "LLMSLA_DEBUG=1" in err
    monkeypatch.setenv("LLMSLA_DEBUG", "1")
    assert llmsla(["report", str(tmp_path)]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_plan_counts_what_the_gate_will_ask(
    sla: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planned requests and generated tokens of a clean gate are those of the real one."""
    planned = cost(load_policy(sla))
    lines = (run_dir / "timelines.jsonl").read_text().splitlines()
    asked = [t for t in map(json.loads, lines) if t["type"] == "request" and "purpose" not in t]
    assert planned.requests == len(asked)
    assert sum(b.new_tokens for b in planned.buckets) == sum(t["output_tokens"] for t in asked)
    tokens = sum(t["prompt_tokens"] for t in asked)
    assert sum(b.prompt_tokens for b in planned.buckets) == pytest.approx(tokens, rel=0.15)
    assert llmsla(["plan", str(sla)]) == 0
    out = capsys.readouterr().out
    assert "160 when clean, at most 662" in out
    assert re.search(r"best .*, likely .*, worst ", out)
    assert "nothing was measured" in out


def test_plan_measures_when_told(sla: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--measure asks the target itself: 100 ms and seven gaps of 20 are 0.24 s a request."""
    assert llmsla(["plan", str(sla), "--measure"]) == 0
    out, err = capsys.readouterr()
    assert out.count("0.24 s / 0.24 s / 0.24 s") == 2
    assert "measured just now" in out
    assert "bucket short: measure" in err


def test_plan_measures_an_engine_beside_its_policy(
    sla: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """target.entry is looked for in the policy's folder, as the gate does."""
    monkeypatch.setattr("sys.path", list(sys.path))
    (sla.parent / "engine_to_plan.py").write_text(
        "from pytest_llmsla.targets.scripted import ScriptedTarget\n"
        "def make():\n"
        "    return ScriptedTarget.load({'script': {'ttft_ms': 100, 'itl_ms': 20}})\n"
    )
    script = "script: {ttft_ms: 100, itl_ms: 20}"
    sla.write_text(POLICY.replace(script, "entry: 'engine_to_plan:make'"))
    assert llmsla(["plan", str(sla), "--measure"]) == 0
    assert "measured just now" in capsys.readouterr().out


@pytest.mark.parametrize("preset", ["fast", "strict", "observed"])
def test_plan_follows_the_preset(sla: Path, preset: str) -> None:
    """The requests of a clean gate are those of its preset."""
    sla.write_text(POLICY + f"evidence: {{preset: {preset}}}\n")
    assert [b.to_pass for b in cost(load_policy(sla)).buckets] == [
        {"fast": 38, "strict": 103, "observed": 5}[preset]
    ] * 2


def test_init_writes_a_starter_that_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The starter loads as a policy and can be planned."""
    assert llmsla(["init", str(tmp_path / "new")]) == 0
    written = tmp_path / "new" / "sla.yaml"
    said = capsys.readouterr().out
    assert f"next: llmsla plan {written}, then pytest {written}\n" in said
    assert load_policy(tmp_path / "new" / "sla.yaml").policy.buckets
    assert llmsla(["plan", str(tmp_path / "new" / "sla.yaml")]) == 0


def test_init_ties_tests_to_its_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pytest.ini names it; where pytest has settings already, the line to add is said."""
    assert llmsla(["init", str(tmp_path / "new"), "--server", "http://127.0.0.1:9/v1"]) == 0
    assert "sla_policy = sla.yaml" in (tmp_path / "new" / "pytest.ini").read_text()
    (tmp_path / "pyproject.toml").write_text("")
    capsys.readouterr()
    assert llmsla(["init", str(tmp_path)]) == 0
    assert not (tmp_path / "pytest.ini").exists()
    assert "for @sla tests: sla_policy = sla.yaml" in capsys.readouterr().out


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one file there, none is written and the one there is untouched."""
    mine = tmp_path / "sla.yaml"
    mine.write_text("mine")
    assert llmsla(["init", str(tmp_path)]) == 4
    assert mine.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["sla.yaml"]
    assert "never overwritten" in capsys.readouterr().err


SERVED = """
version: 1
target: {kind: tgi, base_url: "http://127.0.0.1:9", model: m, retries: 2, connect_in_ttft: true}
workload: {max_new_tokens: 8}
buckets:
  - {name: short, prompt_max: 64, ttft_ms: 300}
  - {name: long, prompt_max: 128, ttft_ms: 450}
"""


def test_plan_of_a_server_says_first_what_will_be_asked(
    sla: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests and tokens, clean and at most, with everything that comes beside the buckets."""
    sla.write_text(SERVED)
    planned = cost(load_policy(sla))
    assert planned.server is not None
    assert (planned.requests, planned.most_requests, planned.peak_requests) == (160, 662, 4)
    assert planned.new_tokens == 160 * 8
    small = planned.server.learn_new_tokens
    assert planned.most_new_tokens == (662 + 4) * 8 + small
    # The longest prompts that the budget allows bound what can be sent.
    longest = 331 * 64 + 331 * 128 + 4 * 64 + planned.server.learn_prompt_tokens
    assert planned.prompt_tokens < planned.most_prompt_tokens <= longest
    assert llmsla(["plan", str(sla)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "asks tgi at http://127.0.0.1:9, model m"
    assert lines[1].startswith(
        "  requests   160 when clean, at most 662; 4 more for peak TGS; + up"
    )
    assert "small ones before, to learn the server" in lines[1]
    assert lines[2].endswith("1280 generated (when clean)")
    assert f"{planned.most_new_tokens} generated (peak TGS and learning the server" in lines[3]
    notes = [line for line in lines if line.startswith("  note ")]
    for word, note in zip(("429 or 503", "opens a new", "tgi"), notes, strict=True):
        assert word in note
    assert "loading the model" not in lines[-1]


def test_plan_needs_no_key_and_no_server(
    sla: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a paid endpoint will cost is known before anybody has a key to it."""
    monkeypatch.delenv("LLMSLA_GONE", raising=False)
    keys = "kind: openai, base_url: 'https://h.example/v1', api_key_env: LLMSLA_GONE"
    sla.write_text(re.sub(r"target: .*", f"target: {{{keys}}}", POLICY))
    assert llmsla(["plan", str(sla)]) == 0
    assert "asks openai at https://h.example/v1" in capsys.readouterr().out
    assert llmsla(["plan", str(sla), "--measure"]) == 4
    assert "environment variable LLMSLA_GONE is not set" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [None, "openai", "tgi", "llamacpp", "mii"])
def test_init_writes_a_starter_for_a_server(
    tmp_path: Path, kind: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The starter names the server, loads, and can be planned."""
    more = [] if kind is None else ["--kind", kind]
    url = "http://127.0.0.1:8000/v1"
    assert llmsla(["init", str(tmp_path), "--server", url, *more]) == 0
    target = load_policy(tmp_path / "sla.yaml").policy.target.model_dump()
    assert (target["kind"], target["base_url"]) == (kind or "openai", url)
    text = (tmp_path / "sla.yaml").read_text(encoding="utf-8")
    assert "smollm2" not in text
    assert text.count("\ntarget:") == 1
    assert llmsla(["plan", str(tmp_path / "sla.yaml")]) == 0
    assert "asks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--server", "http://u:hunter2@h/v1"], "target.base_url: holds a user name"),
        (["--server", "localhost:8000"], "target.base_url: begins with neither http:// nor"),
        (["--server", "http://h", "--kind", "opnai"], "Did you mean openai"),
        (["--kind", "tgi"], "give its address too, --server URL"),
    ],
)
def test_init_writes_nothing_for_a_server_that_is_none(
    tmp_path: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address is looked at first, and a password in it is not repeated."""
    assert llmsla(["init", str(tmp_path / "new"), *argv]) == 4
    err = capsys.readouterr().err
    assert words in err
    assert "hunter2" not in err
    assert not (tmp_path / "new").exists()


def test_doctor_looks_at_what_a_server_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Receive timestamps and the light tokenizer are named; neither is needed for readiness."""
    llmsla(["doctor"])
    out = capsys.readouterr().out
    assert re.search(r"\[(ok|note)\] kernel receive timestamps: (not )?available: ", out)
    assert re.search(r"\[(ok|note)\] extra \[tokenizer\], for servers: ", out)
    for extra in ("html", "ray", "otel"):
        assert re.search(rf"\[(ok|note)\] extra \[{extra}\], for .*: (installed|missing)", out)
    assert "ready to gate a running server" in out


def test_a_run_without_a_report_says_how_to_judge_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed has no report.json: named by its folder or as the latest one."""
    (run_dir / "report.json").unlink()
    for given in (run_dir, run_dir.parent.parent):
        assert llmsla(["report", str(given)]) == 4
        said = capsys.readouterr().err
        assert "this run has no report.json: it was killed, or it has not ended" in said
        assert f"llmsla check {given}" in said


def test_report_renders_again_and_keeps_signatures(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signed report.md stays; the new rendering stands beside it, once."""
    signed = run_dir / "report.md"
    text = signed.read_text(encoding="utf-8") + "signed: A. Person\n"
    signed.write_text(text, encoding="utf-8")
    for _ in range(2):
        assert llmsla(["report", str(run_dir.parent.parent)]) == 0
    assert signed.read_text(encoding="utf-8") == text
    assert sorted(p.name for p in run_dir.glob("report*.md")) == ["report-2.md", "report.md"]
    again = (run_dir / "report-2.md").read_text(encoding="utf-8")
    assert text.startswith(again)
    assert "PASS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"verdict": "fail"}, 1),
        ({"verdict": "inconclusive"}, 2),
        ({"verdict": "error"}, 3),
        ({"verdict": "pass", "complete": False}, 2),
        ({"verdict": "pass", "findings": []}, 2),
        ({"verdict": "passed"}, 3),
        ({"schema": "llmsla-report/0"}, 4),
        ({"verdict": "pass", "complete": 1}, 4),
    ],
)
def test_report_never_exits_0_on_less_than_a_complete_pass(
    run_dir: Path, change: dict[str, object], code: int
) -> None:
    """Whatever a report.json claims, only a complete PASS over findings is 0."""
    path = run_dir / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    assert llmsla(["report", str(run_dir)]) == code


def test_doctor_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """doctor names the machine, the model and the extras; it loads none of them."""
    before = "torch" in sys.modules
    code = llmsla(["doctor"])
    out = capsys.readouterr().out
    assert code == (3 if "[MISSING]" in out else 0)
    for part in ("cpu.model:", "packages.pytest:", "embedded model", "extra [transformers]"):
        assert part in out
    assert ("torch" in sys.modules) == before

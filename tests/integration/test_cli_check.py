"""``llmsla check``: the same digits as the run, and nothing broken ever passes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.policy import load_policy
from pytest_llmsla.session import Session, finish

POLICY = """
version: 1
service: {service}
target: {{kind: scripted, script: {script}}}
workload: {{max_new_tokens: 8}}
buckets:
  - {{name: short, prompt_max: 64, ttft_ms: 300}}
{more}
evidence: {{preset: {preset}}}
"""

ONE_OF_17_OVER = f"{{ttft_ms: {[400] + [99] * 16}}}"


def write_policy(
    folder: Path,
    script: str = "{ttft_ms: 100, itl_ms: 20}",
    *,
    preset: str = "fast",
    more: str = "",
    service: str = "scripted service",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sla.yaml"
    text = POLICY.format(script=script, preset=preset, more=more, service=service)
    path.write_text(text, encoding="utf-8")
    return path


def gate(folder: Path, *args: Any, **settings: Any) -> Path:
    """Run a gate in ``folder``; its run folder."""
    loaded = load_policy(write_policy(folder, *args, **settings))
    session = Session(folder / ".llmsla", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    finish(session.run_dir)
    return session.run_dir


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a gate that passed. Tests copy from it and leave it as it is."""
    folder = tmp_path_factory.mktemp("passing")
    gate(folder)
    return folder


@pytest.fixture
def copied(passing: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(passing, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def log_of(folder: Path) -> Path:
    return next((folder / ".llmsla" / "runs").iterdir()) / "timelines.jsonl"


def checked(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = llmsla(["check", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("script", "preset", "more", "code"),
    [
        ("{ttft_ms: 100, itl_ms: 20}", "fast", "", 0),
        ("{ttft_ms: 700, itl_ms: 20}", "fast", "", 1),
        ("{ttft_ms: 100, itl_ms: 90}", "fast", "", 1),
        (ONE_OF_17_OVER, "fast, max_requests: 40", "", 2),
        ("{ttft_ms: 100, itl_ms: 20}", "observed", "", 2),
        ("{ttft_ms: 100, tokens: 1}", "fast", "", 3),
    ],
)
def test_the_findings_of_the_run_to_the_last_digit(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    script: str,
    preset: str,
    more: str,
    code: int,
) -> None:
    """check judges the stored timelines as the run did, and its exit code is the verdict's."""
    run_dir = gate(tmp_path, script, preset=preset, more=more)
    stored = json.loads((run_dir / "report.json").read_bytes())
    got, out, _ = checked(capsys, run_dir, "--sla", tmp_path / "sla.yaml", "--json")
    report = json.loads(out)
    assert report["findings"] == stored["findings"]
    assert report["tgs"] == stored["tgs"]
    assert (report["verdict"], report["complete"]) == (stored["verdict"], stored["complete"])
    assert got == code


def test_a_plan_makes_it_conditional_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ITL over its limit with a valid KV-cache plan is no PASS."""
    (tmp_path / "kv.md").write_text(
        "cause: cache reads grow\nmeasures: static cache\nowner: team one\nexpires: 2999-12-31\n"
    )
    run_dir = gate(tmp_path, "{ttft_ms: 100, itl_ms: 90}", more="itl: {kv_plan: kv.md}")
    code, out, _ = checked(capsys, run_dir, "--sla", tmp_path / "sla.yaml")
    assert code == 2
    assert "CONDITIONAL" in out
    assert "On condition:" in out


def test_json_is_the_object_and_nothing_else(
    passing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is one JSON object; remarks go to standard error."""
    code, out, err = checked(capsys, passing / ".llmsla", "--json")
    assert code == 0
    assert json.loads(out)["schema"] == "llmsla-report/1"
    assert out.isascii()
    assert "give --sla" in err


@pytest.mark.parametrize("given", [".llmsla", ".llmsla/latest", ".llmsla/latest/timelines.jsonl"])
def test_file_run_folder_and_report_folder_mean_the_same(
    passing: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """All three ways to name a run lead to its timelines."""
    code, out, _ = checked(capsys, passing / given, "--sla", passing / "sla.yaml")
    assert code == 0
    assert "scripted service: PASS" in out


def test_another_policy_is_judged_and_named(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tighter limits on the same evidence fail, and the difference is told."""
    stricter = copied / "stricter.yaml"
    text = (copied / "sla.yaml").read_text().replace("ttft_ms: 300", "ttft_ms: 50")
    stricter.write_text(text)
    code, out, err = checked(capsys, copied / ".llmsla", "--sla", stricter)
    assert code == 1
    assert "stricter" not in out
    assert "the policy differs" in err


GARBAGE: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "binary": bytes(range(256)) * 40,
    "cut in the first line": b'{"type":"run","schema":"llmsla-timel',
    "another version": b'{"type":"run","schema":"llmsla-timelines/9","policy":{}}\n',
    "a list": b"[]\n",
    "a number": b"1\n",
    "not a number": b'{"type":"run","schema":NaN}\n',
    "deeply nested": b"[" * 200_000,
    "UTF-16": '{"type":"run","schema":"llmsla-timelines/1"}\n'.encode("utf-16"),
    "AIPerf": b'{"metadata":{"session_num":0},"metrics":{"time_to_first_token":{"value":1}}}\n',
    "vLLM": b'{"backend":"vllm","completed":10,"p99_ttft_ms":12.0,"ttfts":[0.01]}\n',
    "no policy": b'{"type":"run","schema":"llmsla-timelines/1"}\n',
    "an unknown line": b'{"type":"run","schema":"llmsla-timelines/1"}\n{"type":"result"}\n',
    "a line that is no object": b'{"type":"run","schema":"llmsla-timelines/1"}\n7\n{}\n',
}


@pytest.mark.parametrize("sla", [True, False])
@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_evidence_never_passes(
    passing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sla: bool
) -> None:
    """Files that are empty, cut, foreign or damaged exit non-zero with one message, no JSON."""
    path = tmp_path / "timelines.jsonl"
    path.write_bytes(GARBAGE[name])
    extra = ["--sla", str(passing / "sla.yaml")] if sla else []
    code, out, err = checked(capsys, path, "--json", *extra)
    assert code in (2, 3, 4)
    if out:
        assert json.loads(out)["verdict"] != "pass"
    else:
        assert err.startswith("llmsla: ")
        assert "Traceback" not in err


@pytest.mark.parametrize("name", ["missing.jsonl", "a-folder"])
def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A missing file and a folder without a run are usage errors that say what to give."""
    (tmp_path / "a-folder").mkdir()
    code, out, err = checked(capsys, tmp_path / name)
    assert (code, out) == (4, "")
    assert "timelines.jsonl" in err


def test_no_part_of_a_run_passes(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log cut anywhere before its evidence is complete is not PASS."""
    path = log_of(copied)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    evidence = [i for i, t in enumerate(lines) if b'"type":"request"' in t and b"peak" not in t]
    last = sum(map(len, lines[: evidence[-1]]))
    rng = random.Random(1)
    for cut in [*sorted(rng.sample(range(1, last), 12)), last]:
        path.write_bytes(whole[:cut])
        code, _, _ = checked(capsys, path, "--sla", copied / "sla.yaml")
        assert code != 0, f"passed after {cut} of {len(whole)} bytes"


def test_a_line_that_is_changed_is_noticed_or_harmless(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines lost from the middle, doubled, or with a broken field never add up to PASS."""
    path = log_of(copied)
    lines = path.read_text().splitlines(keepends=True)
    at = [i for i, text in enumerate(lines) if '"type":"request"' in text]
    damaged = {
        "doubled": [*lines, lines[at[20]]],
        "lost answer": lines[: at[20]] + lines[at[20] + 1 :],
        "field of another type": [
            t.replace('"start_ns":', '"start_ns":"x","was":') if i == at[20] else t
            for i, t in enumerate(lines)
        ],
        "status unknown": [
            t.replace('"status":"ok"', '"status":"fine"') if i == at[20] else t
            for i, t in enumerate(lines)
        ],
    }
    for name, kept in damaged.items():
        path.write_text("".join(kept))
        code, _, err = checked(capsys, path, "--sla", copied / "sla.yaml")
        assert code != 0, name
        assert "Traceback" not in err


def test_evidence_never_counts_twice(
    copied: Path, passing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run, its copy, or a part of it given beside it is refused."""
    ours, theirs = log_of(copied), log_of(passing)
    part = copied / "part.jsonl"
    part.write_bytes(b"".join(ours.read_bytes().splitlines(keepends=True)[:40]))
    for other in (ours, theirs, part):
        code, _, err = checked(capsys, ours, other, "--sla", passing / "sla.yaml")
        assert code == 4
        assert "count twice" in err


def test_two_runs_of_one_policy_are_pooled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run of the same policy adds its requests to the first, in order of their start."""
    first, second = gate(tmp_path / "a"), gate(tmp_path / "b")
    code, out, err = checked(capsys, first, second, "--sla", tmp_path / "a" / "sla.yaml", "--json")
    assert code == 0
    assert "2 runs are judged as one" in err
    found = json.loads(out)["findings"][0]
    alone = json.loads((first / "report.json").read_bytes())["findings"][0]
    assert found["requests"] == 2 * alone["requests"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("ttft_ms: 300", "ttft_ms: 5000"), "mixed policies"),
        (("max_new_tokens: 8", "max_new_tokens: 4"), "mixed policies"),
    ],
)
def test_runs_under_different_policies_are_not_pooled(
    copied: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: tuple[str, str],
    words: str,
) -> None:
    """Evidence gathered under another policy is refused beside this one."""
    other = tmp_path / "other"
    other.mkdir()
    policy = other / "sla.yaml"
    policy.write_text((copied / "sla.yaml").read_text().replace(*changed))
    loaded = load_policy(policy)
    session = Session(other / ".llmsla", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    code, _, err = checked(capsys, log_of(copied), session.run_dir)
    assert code == 4
    assert words in err


def test_runs_of_two_machines_are_not_pooled(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faster machine's evidence does not help a slower one's."""
    ours = log_of(copied)
    first, *rest = ours.read_text().splitlines(keepends=True)
    run = json.loads(first)
    run["host"]["cpu"]["model"] = "Another CPU"
    run["started"] = "2020-01-01T00:00:00.000Z"
    other = tmp_path / "other.jsonl"
    other.write_text("".join([json.dumps(run) + "\n", *rest]))
    code, _, err = checked(capsys, ours, other)
    assert code == 4
    assert "mixed machines" in err
    assert "Another CPU" in err


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("ttft_ms: 100", "ttft_ms: 99", "target.script"),
        ("max_new_tokens: 8", "max_new_tokens: 64", "workload.max_new_tokens"),
        ("max_new_tokens: 8", "max_new_tokens: 8, sampling: {greedy: true}", "workload.sampling"),
        ("max_new_tokens: 8", "max_new_tokens: 8, warm_cache: true", "workload.warm_cache"),
    ],
)
def test_evidence_of_other_conditions_is_refused(
    copied: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, key: str
) -> None:
    """Timelines of another model, length or sampling say nothing about this policy."""
    policy = copied / "other.yaml"
    policy.write_text((copied / "sla.yaml").read_text().replace(old, new))
    code, out, err = checked(capsys, copied / ".llmsla", "--sla", policy)
    assert (code, out) == (4, "")
    assert key in err


def test_only_what_differs_of_a_target_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two long scripts that differ at their end: the key with both values, nothing else."""
    same = ", ".join(["20"] * 30)
    gate(tmp_path, f"{{itl_ms: [{same}], ttft_ms: 100, tokens: 8}}")
    policy = tmp_path / "sla.yaml"
    policy.write_text(policy.read_text().replace("ttft_ms: 100, tokens", "ttft_ms: 99, tokens"))
    code, out, err = checked(capsys, tmp_path / ".llmsla", "--sla", policy)
    assert (code, out) == (4, "")
    assert "was measured with target.script.ttft_ms 100" in err
    assert "says target.script.ttft_ms 99" in err
    assert "itl_ms" not in err


def test_a_bucket_that_was_not_measured_is_missing(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy with one bucket more than the run is incomplete, never PASS."""
    policy = copied / "more.yaml"
    policy.write_text(
        (copied / "sla.yaml")
        .read_text()
        .replace("ttft_ms: 300}", "ttft_ms: 300}\n  - {name: long, prompt_max: 900, ttft_ms: 800}")
    )
    code, out, _ = checked(capsys, copied / ".llmsla", "--sla", policy)
    assert code == 2
    assert "INCONCLUSIVE, incomplete" in out
    assert "long/ttft_p95" in out


def test_a_file_of_policy_and_requests_is_enough(
    passing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first line with schema and policy only, then requests, is valid input."""
    lines = [json.loads(text) for text in log_of(passing).read_text().splitlines()]
    run = {"type": "run", "schema": lines[0]["schema"], "policy": lines[0]["policy"]}
    kept = [t for t in lines if t["type"] == "request"]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(t) + "\n" for t in (run, *kept)))
    code, out, _ = checked(capsys, path, "--json")
    found = {f["id"]: f["verdict"] for f in json.loads(out)["findings"]}
    assert found["short/ttft_p95"] == "pass"
    assert found["tgs/concurrency-1"] == "fail"  # no memory on record
    assert code == 1


def test_requests_without_a_policy_on_record_are_refused(
    passing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests of an unknown model and sampling are no evidence, whatever policy is given."""
    first, *rest = log_of(passing).read_text().splitlines(keepends=True)
    run = {k: v for k, v in json.loads(first).items() if k in ("type", "schema", "host")}
    path = tmp_path / "unknown.jsonl"
    path.write_text("".join([json.dumps(run) + "\n", *rest]))
    code, out, err = checked(capsys, path, "--sla", passing / "sla.yaml")
    assert (code, out) == (4, "")
    assert "has no policy" in err


def apart(
    *args: object, env: dict[str, str] | None = None, **extra: Any
) -> subprocess.CompletedProcess[bytes]:
    """llmsla in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_llmsla", *map(str, args)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=60,
        check=False,
        **extra,
    )


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "utf-8", "TZ": "Asia/Tokyo"},
    ],
    ids=["C", "cp1252", "utf-8 in Tokyo"],
)
def test_any_locale_gives_the_same_verdict(tmp_path: Path, env: dict[str, str]) -> None:
    """A terminal that cannot show the service's name shows escapes, and the same exit code."""
    run_dir = gate(tmp_path, "{ttft_ms: 700}", service="模型 🙂 \\u0081")
    done = apart("check", run_dir, "--sla", tmp_path / "sla.yaml", env=env)
    assert done.returncode == 1, done.stderr
    encoding = env.get("PYTHONIOENCODING", "ascii")
    text = done.stdout.decode(encoding)
    assert "FAIL" in text
    assert ("模型" in text) == (encoding == "utf-8")
    as_json = apart("check", run_dir, "--sla", tmp_path / "sla.yaml", "--json", env=env)
    report = json.loads(as_json.stdout)
    assert report["service"].startswith("模型 🙂")
    assert report["started"].endswith("Z")


def test_a_closed_pipe_keeps_the_verdict(tmp_path: Path) -> None:
    """A reader that goes away early changes neither exit code nor prints a traceback."""
    run_dir = gate(tmp_path, "{ttft_ms: 700}")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_llmsla", "check", str(run_dir), "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check", "plan"])
def test_nothing_heavy_is_loaded(passing: Path, command: str) -> None:
    """check and plan judge and count without torch or transformers."""
    args = {"check": [".llmsla", "--sla", "sla.yaml"], "plan": ["sla.yaml"]}[command]
    code = (
        "import sys; from pytest_llmsla.cli import run\n"
        f"rc = run({[command, *args]!r})\n"
        "sys.exit(rc or any(m in sys.modules for m in ('torch', 'transformers')) * 99)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=passing, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def measured(folder: Path, **changed: Any) -> Path:
    """A run of one bucket under another load, on a scripted clock."""
    folder.mkdir()
    raw = {
        "version": 1,
        "target": {"kind": "scripted", "script": {"ttft_ms": 100, "itl_ms": 20}},
        "workload": {"max_new_tokens": 8, **changed.pop("workload", {})},
        "buckets": [{"name": "short", "prompt_max": 128, "ttft_ms": 300}],
        "evidence": {"preset": "fast"},
        **changed,
    }
    (folder / "sla.yaml").write_text(json.dumps(raw), "utf-8")
    loaded = load_policy(folder / "sla.yaml")
    session = Session(folder / ".llmsla", release=loaded)
    session.gate(None, loaded).measure()
    session.close()
    return session.run_dir


def test_two_runs_under_load_are_pooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks are counted anew in each run, and each run's memory covers its own answers."""
    runs = [measured(tmp_path / name, tgs={"concurrency": [4]}) for name in "ab"]
    code, out, _ = checked(capsys, *runs, "--json")
    assert code == 0
    found = {f["id"]: f for f in json.loads(out)["findings"]}
    alone = json.loads(checked(capsys, runs[0], "--json")[1])["findings"][0]
    assert found[alone["id"]]["requests"] == 2 * alone["requests"]
    assert {f["verdict"] for f in found.values()} == {"pass"}


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "gamma", "rate": 2, "burstiness": 0.01},
        {"kind": "trace", "trace": "day.csv"},
        {"kind": "constant", "rate": 2, "max_in_flight": 1},
    ],
)
def test_another_schedule_is_another_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, Any]
) -> None:
    """Requests at equal gaps say nothing of bursts; those that never waited, nothing of waiting."""
    run_dir = measured(tmp_path / "a", workload={"load": {"kind": "constant", "rate": 2}})
    policy = json.loads((tmp_path / "a" / "sla.yaml").read_text("utf-8"))
    policy["workload"]["load"] = asked
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(policy), "utf-8")
    code, _, err = checked(capsys, run_dir, "--sla", other)
    assert code == 4
    assert "workload.load." in err

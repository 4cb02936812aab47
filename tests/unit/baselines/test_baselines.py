"""A run against stored runs: what may be compared, what is missing, what is slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gate_samples import LONG, SHORT, policy
from pytest_llmsla import baselines
from pytest_llmsla.baselines import Against
from pytest_llmsla.errors import UsageError
from stored_runs import Edit, baseline, stored


def compared(base: Path, new: Path, tolerance: float = 0.10, min_runs: int = 3) -> Against:
    runs, left_out = baselines.stored(base)
    return baselines.against(
        runs, baselines.load(new), tolerance=tolerance, min_runs=min_runs, left_out=left_out
    )


def rows(found: Against) -> dict[str, str]:
    return {row.id: row.verdict for row in found.rows}


def test_the_same_service_is_ok(tmp_path: Path) -> None:
    """Every metric is compared and none is slower: exit 0."""
    found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9))
    assert rows(found) == {
        "short/ttft_p95": "ok",
        "short/itl_p95": "ok",
        "tgs/concurrency-1": "ok",
    }
    assert (found.verdict, found.compared, found.of, found.exit_code) == ("pass", 3, 3, 0)
    assert found.rows[0].runs == 3


def test_a_slower_one_is_named(tmp_path: Path) -> None:
    """18 % over a tolerance of 10 % is a regression, in each metric; exit 1."""
    found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9, factor=1.18))
    assert set(rows(found).values()) == {"regression"}
    assert (found.verdict, found.exit_code) == ("fail", 1)
    assert found.reason.startswith("short/ttft_p95: more than 10 % slower, with 95 % confidence")
    assert 1.1 < (found.rows[0].lower or 0) < (found.rows[0].ratio or 0) < 1.25
    wide = compared(tmp_path / "base", tmp_path / "run09" / "timelines.jsonl", tolerance=0.25)
    assert wide.verdict == "pass"


def test_which_is_compared_with_which(tmp_path: Path) -> None:
    """Slower one way is faster the other: the ratios are each other's inverse."""
    first = baseline(tmp_path / "first")
    second = tmp_path / "second"
    for day in (11, 12, 13):
        stored(second, day, factor=1.3)
    there = compared(first, second / "run11" / "timelines.jsonl")
    back = compared(second, first / "run01" / "timelines.jsonl")
    assert (there.verdict, back.verdict) == ("fail", "pass")
    for one, other in zip(there.rows, back.rows, strict=True):
        assert (one.ratio or 0) * (other.ratio or 0) == pytest.approx(1, rel=0.01)


def test_no_tolerance_decides_only_what_differs(tmp_path: Path) -> None:
    """Equal runs are never surely no slower at all; runs that differ are told at 0 as well."""
    base = baseline(tmp_path / "base")
    assert compared(base, stored(tmp_path, 8), tolerance=0).verdict == "inconclusive"
    assert compared(base, stored(tmp_path, 9, factor=1.3), tolerance=0).verdict == "fail"
    assert compared(base, stored(tmp_path, 10, factor=0.7), tolerance=0).verdict == "pass"


@pytest.mark.parametrize("runs", [1, 2])
def test_few_stored_runs_decide_nothing(runs: int, tmp_path: Path) -> None:
    """One run cannot tell a change from the difference between runs, however large it looks."""
    for factor, day in ((1.0, 8), (1.5, 9)):
        found = compared(baseline(tmp_path / "base", runs), stored(tmp_path, day, factor=factor))
        assert set(rows(found).values()) == {"inconclusive"}
        assert found.compared == 0
        assert f"{runs} of at least 3 stored runs" in found.rows[0].reason
        assert found.exit_code == 2


def _set(*path: str, to: Any) -> Edit:
    def edit(run: dict[str, Any]) -> None:
        at: Any = run
        for key in path[:-1]:
            at[key] = dict(at[key])
            at = at[key]
        at[path[-1]] = to

    return edit


OTHERS: dict[str, tuple[Edit, str]] = {
    "machine": (_set("host", "cpu", "model", to="CPU Y"), "other CPU model: CPU X and CPU Y"),
    "cores": (_set("host", "cpu", "physical_cores", to=4), "other CPU physical_cores: 8 and 4"),
    "card": (
        _set("host", "gpus", to=[{"name": "GPU B", "driver": "550.1", "memory_gib": 80.0}]),
        "other GPU name: ['GPU A'] and ['GPU B']",
    ),
    "driver": (
        _set("host", "gpus", to=[{"name": "GPU A", "driver": "560", "memory_gib": 80.0}]),
        "other GPU driver: ['550.1'] and ['560']",
    ),
    "no card": (_set("host", "gpus", to=[]), "other GPU name: ['GPU A'] and []"),
    "library": (
        _set("host", "packages", "torch", to="2.10.0"), "other library torch: 2.9.0 and 2.10.0",
    ),
    "library gone": (
        _set("host", "packages", to={}), "other library torch: 2.9.0 and nothing on record",
    ),
    "threads": (
        _set("host", "settings", to={"OMP_NUM_THREADS": "1"}),
        "other setting OMP_NUM_THREADS: nothing on record and 1",
    ),
    "output length": (
        _set("policy", "workload", "max_new_tokens", to=9),
        "other policy workload.max_new_tokens: 8 and 9",
    ),
    "sampling": (
        _set("policy", "workload", "sampling", "temperature", to=0.1),
        "other policy workload.sampling.temperature: 0.8 and 0.1",
    ),
    "unknown machine": (_set("host", to={}), "other machine: not on record"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_another_machine_or_model_is_refused(case: str, tmp_path: Path) -> None:
    """Neither PASS nor FAIL: an error that names what differs, though it is 18 % slower."""
    edit, words = OTHERS[case]
    found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9, factor=1.18, edit=edit))
    assert (found.verdict, found.compared, found.rows) == ("error", 0, ())
    assert found.reason.startswith("refused: ")
    assert words in found.reason
    assert found.exit_code == 3
    assert len(found.left_out) == 3


def test_another_model_is_refused(tmp_path: Path) -> None:
    """The target's own facts count: weights of another hash are another model."""
    for day, sha in ((1, "aa"), (2, "aa"), (3, "aa"), (9, "bb")):
        path = stored(tmp_path if day == 9 else tmp_path / "base", day)
        facts = f'"kind":"transformers","weights_sha256":"{sha}","start_point"'
        text = path.read_text().replace('"kind":"scripted","start_point"', facts)
        path.write_text(text)
    found = compared(tmp_path / "base", tmp_path / "run09" / "timelines.jsonl")
    assert "other model weights_sha256: aa and bb" in found.reason


def test_other_limits_are_no_hindrance(tmp_path: Path) -> None:
    """What is allowed does not change what was measured; nor do libraries of reports."""
    base = baseline(tmp_path / "base")
    tighter = policy({**SHORT, "ttft_ms": 200}, evidence={"preset": "normal"}, itl={"p95_ms": 30})
    new = stored(tmp_path, 9, loaded=tighter, edit=_set("host", "packages", "pytest", to="9.1.0"))
    assert compared(base, new).verdict == "pass"


@pytest.mark.parametrize(
    ("path", "sha", "same"),
    [("there/t.csv", "a", True), ("t.csv", "b", False), ("u", None, False)],
)
def test_a_trace_is_known_by_its_content(
    path: str, sha: str | None, same: bool, tmp_path: Path
) -> None:
    """Under another name it is the same workload; by its name alone it is not known to be."""

    def replayed(path: str, sha: str | None) -> Edit:
        load = {"kind": "trace", "trace": path, "trace_sha256": sha and sha * 64}
        return _set("policy", "workload", "load", to=load)

    first = None if sha is None else "a"
    base = baseline(tmp_path / "base", edit=replayed("t.csv", first))
    found = compared(base, stored(tmp_path, 9, edit=replayed(path, sha)))
    assert ("other policy workload.load.trace" in found.reason) != same
    assert found.reason.startswith("refused: ") != same


def test_prompts_are_known_by_their_content(tmp_path: Path) -> None:
    """Other texts under the same name are another workload; other code is what is compared."""

    def inputs(prompts: str, code: str) -> Edit:
        def edit(run: dict[str, Any]) -> None:
            run["inputs"] = {
                "workload.prompts": {"path": "q.txt", "sha256": prompts * 64},
                "target.entry": {"path": "engine.py", "sha256": code * 64},
            }

        return edit

    base = baseline(tmp_path / "base", edit=inputs("a", "a"))
    assert compared(base, stored(tmp_path, 8, edit=inputs("a", "b"))).verdict == "pass"
    found = compared(base, stored(tmp_path, 9, edit=inputs("b", "a")))
    assert found.verdict == "error"
    assert "other policy workload.prompts sha256" in found.reason


def test_a_stored_run_that_lost_lines_is_left_out(tmp_path: Path) -> None:
    """Without its last, quick requests it would make the baseline look slower than it was."""
    base = baseline(tmp_path / "base")
    assert gone(base / "run02" / "timelines.jsonl") > 0
    found = compared(base, stored(tmp_path, 9))
    assert found.verdict == "inconclusive"
    ((path, why),) = found.left_out
    assert "run02" in str(path)
    assert "it is not all that its run wrote" in why


def gone(path: Path) -> int:
    """Cut the last requests out of a log; how many lines went."""
    log = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    ids = [line["id"] for line in log if line["type"] == "request"][-5:]
    kept = [line for line in log if line.get("id") not in ids]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    return len(log) - len(kept)


def test_runs_of_other_machines_are_left_out_and_told(tmp_path: Path) -> None:
    """Three usable runs of five decide; the others are listed with why."""
    base = baseline(tmp_path / "base", 3)
    for day in (4, 5):
        stored(base, day, edit=OTHERS["machine"][0])
    found = compared(base, stored(tmp_path, 9))
    assert (found.verdict, len(found.runs), len(found.left_out)) == ("pass", 3, 2)
    assert all("CPU" in why for _, why in found.left_out)


class TestNothingCompared:
    """What one side lacks is an error or said; "compared n of m" is in every report."""

    def test_some_on_each_side(self, tmp_path: Path) -> None:
        """Baseline has a and b, the run a and c: b is an error, c has no baseline."""
        both = policy(
            SHORT,
            {"name": "medium", "prompt_max": 300, "ttft_ms": 400},
            LONG,
            evidence={"preset": "fast"},
        )
        base = baseline(tmp_path / "base", loaded=both, buckets=("short",))
        path = stored(tmp_path, 9, loaded=both, buckets=("short", "long"))
        found = compared(base, path)
        told = rows(found)
        assert told["short/ttft_p95"] == "ok"
        assert told["long/ttft_p95"] == "error"
        reason = next(r.reason for r in found.rows if r.id == "long/ttft_p95")
        assert "the stored runs have no figure" in reason
        assert found.verdict == "error"

    def test_a_limit_that_is_gone(self, tmp_path: Path) -> None:
        """A metric of the baseline that the new run does not have is an error."""
        stall = policy(evidence={"preset": "fast"}, itl={"stall_p95_ms": 500})
        base = baseline(tmp_path / "base", loaded=stall)
        found = compared(base, stored(tmp_path, 9))
        row = next(r for r in found.rows if r.id == "short/stall_p95")
        assert (row.verdict, row.reason) == ("error", "missing: the new run does not have it")
        assert (found.compared, found.of, found.exit_code) == (3, 4, 3)

    def test_a_limit_that_is_new(self, tmp_path: Path) -> None:
        """A metric that no stored run has is said, and is no OK."""
        stall = policy(evidence={"preset": "fast"}, itl={"stall_p95_ms": 500})
        found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9, loaded=stall))
        row = next(r for r in found.rows if r.id == "short/stall_p95")
        assert row.verdict == "no baseline"
        assert (found.compared, found.of, found.exit_code) == (3, 3, 2)

    def test_a_run_without_requests(self, tmp_path: Path) -> None:
        """A current run that measured nothing compares nothing: error, not OK."""
        found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9, n=0))
        assert (found.verdict, found.compared, found.of) == ("error", 0, 3)

    def test_a_result_that_is_an_error(self, tmp_path: Path) -> None:
        """Tokens that arrived in bursts have no ITL: that row is an error."""
        path = stored(tmp_path, 9)
        path.write_text(path.read_text().replace('"token_source":"model"', '"token_source":null'))
        told = rows(compared(baseline(tmp_path / "base"), path))
        assert told["short/ttft_p95"] == "ok"
        assert told["short/itl_p95"] == "error"

    def test_a_run_is_no_baseline_of_itself(self, tmp_path: Path) -> None:
        """Nor is its copy under another name."""
        base = baseline(tmp_path / "base", 1)
        own = base / "run01" / "timelines.jsonl"
        found = compared(base, own)
        assert found.verdict == "error"
        assert "no stored run besides the one" in found.reason
        copy = tmp_path / "copy.jsonl"
        copy.write_bytes(own.read_bytes())
        assert compared(base, copy).verdict == "error"

    def test_copies_of_a_run_count_once(self, tmp_path: Path) -> None:
        """Three copies have no difference between runs: they are one run, and decide nothing."""
        own = stored(tmp_path / "base", 1)
        for name in ("again", "under another name"):
            (tmp_path / "base" / name).mkdir()
            (tmp_path / "base" / name / "timelines.jsonl").write_bytes(own.read_bytes())
        found = compared(tmp_path / "base", stored(tmp_path, 9))
        assert (found.verdict, len(found.runs), found.compared) == ("inconclusive", 1, 0)
        assert [why[:16] for _, why in found.left_out] == ["the same run as "] * 2

    def test_a_run_that_went_on_is_one_run(self, tmp_path: Path) -> None:
        """What it went on from is part of it: the longer one stays."""
        part = stored(tmp_path / "base", 1, n=30)
        whole = stored(tmp_path / "base", 2, run={"started": "2026-01-01T12:00:00.000Z", "pid": 1})
        found = compared(tmp_path / "base", stored(tmp_path, 9))
        assert found.runs == (str(whole),)
        assert [run for run, _ in found.left_out] == [str(part)]

    def test_an_interrupted_run_is_not_whole(self, tmp_path: Path) -> None:
        """Neither as a stored run nor as the new one."""
        base = baseline(tmp_path / "base", 3)
        paths = [stored(base, 4), stored(tmp_path, 9)]
        for path in paths:
            text = path.read_text(encoding="utf-8")
            assert '"reason":"ended"' in text
            path.write_text(text.replace('"reason":"ended"', '"reason":"interrupted"'))
        found = compared(base, paths[1])
        assert (found.verdict, len(found.runs)) == ("error", 3)
        assert "cut short" in found.reason

    def test_runs_that_are_broken_off_are_not_used(self, tmp_path: Path) -> None:
        """A killed run lacks its end: left out, and said."""
        base = baseline(tmp_path / "base", 3)
        stored(base, 4, ended=False)
        (base / "run05").mkdir()
        (base / "run05" / "timelines.jsonl").write_text("garbage")
        found = compared(base, stored(tmp_path, 9))
        assert len(found.runs) == 3
        assert sorted(Path(run).parent.name for run, _ in found.left_out) == ["run04", "run05"]

    def test_a_new_run_that_is_cut_short(self, tmp_path: Path) -> None:
        """What is missing of it may have been slow: an error, whatever the rest says."""
        found = compared(baseline(tmp_path / "base"), stored(tmp_path, 9, ended=False))
        assert (found.verdict, found.exit_code) == ("error", 3)
        assert "cut short" in found.reason

    @pytest.mark.parametrize("made", [False, True])
    def test_no_runs_at_all(self, made: bool, tmp_path: Path) -> None:
        """An empty or missing folder is a usage error that says what to give."""
        if made:
            (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match="Give a"):
            baselines.stored(tmp_path / "empty")


def test_failures_never_look_faster(tmp_path: Path) -> None:
    """A run half of whose requests failed at once has no percentile that is ok."""
    path = stored(tmp_path, 9)
    lines = path.read_text().splitlines()
    kept, seen = [], 0
    for line in lines:
        if '"type":"request"' in line:
            seen += 1
            if seen % 2:
                line = line.replace('"status":"ok","error":null', '"status":"error","error":"boom"')
        kept.append(line)
    path.write_text("\n".join(kept) + "\n")
    found = compared(baseline(tmp_path / "base"), path)
    assert found.verdict != "pass"
    assert "ok" not in {r.verdict for r in found.rows if r.metric == "ttft"}

"""Gates under load in pytest: a level has tests of its own, and a mark names its level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

LEVELS = "tgs: {concurrency: [1, 4]}\ngoodput: {min_share: 0.9}"


def test_every_level_is_gated(gated: Gated) -> None:
    """Seven limits at each of two levels, goodput at both: all measured, all green."""
    gated.policy(rest=LEVELS)
    result = gated.run("sla.yaml", "-v")
    assert result.ret == 0
    result.assert_outcomes(passed=16)
    result.stdout.fnmatch_lines(
        [
            "sla.yaml::goodput PASSED*",
            "sla.yaml::goodput::concurrency-4 PASSED*",
        ]
    )
    report = gated.report()
    assert (report["verdict"], report["complete"]) == ("pass", True)
    by_id = {f["id"]: f for f in report["findings"]}
    assert by_id["short/concurrency-4/ttft_p95"]["units"] >= 38
    assert by_id["short/concurrency-4/ttft_p95"]["requests"] >= 4 * 38
    kinds = {(e["kind"], e["concurrency"]): e["documented"] for e in report["tgs"]}
    assert kinds == {("steady", 1): True, ("peak", 1): True, ("concurrent", 4): True}


def test_a_level_that_was_not_selected_leaves_the_run_incomplete(gated: Gated) -> None:
    """One level by its node id is measured alone; the rest is listed, and nothing is green."""
    gated.policy(rest=LEVELS)
    result = gated.run("sla.yaml::short::concurrency-4")
    result.assert_outcomes(passed=3)
    assert result.ret != 0
    report = gated.report()
    assert report["verdict"] == "inconclusive"
    assert {f["concurrency"] for f in report["findings"] if f["bucket"] == "short"} == {4}
    assert "short/ttft_p95" in {m["id"] for m in report["not_measured"]}


def test_an_open_loop_is_gated(gated: Gated) -> None:
    """Three a second on a service that takes a quarter of one: every limit holds."""
    gated.policy(rest="workload: {max_new_tokens: 8, load: {kind: poisson, rate: 3}}")
    text = (gated.path / "sla.yaml").read_text(encoding="utf-8")
    (gated.path / "sla.yaml").write_text(
        text.replace("workload: {max_new_tokens: 8}\n", "", 1), encoding="utf-8"
    )
    result = gated.run("sla.yaml")
    assert result.ret == 0
    report = gated.report()
    assert report["verdict"] == "pass"
    assert {f["load"] for f in report["findings"]} == {"open loop, 3 requests/s"}
    assert "tgs/open-loop" in {f["id"] for f in report["findings"]}


def test_a_mark_asks_for_four_at_once(gated: Gated) -> None:
    """Level 4 alone, its rate with it; the results are the test's to look at."""
    gated.tests(
        """
        @sla(bucket='short', concurrency=4, min_tokens_per_s=100)
        def test_a(sla_run):
            result = sla_run()
            assert {t.concurrency for t in result} == {4}
            assert {f.concurrency for f in result.findings} == {4}
        """
    )
    result = gated.run()
    assert result.ret == 0
    assert gated.verdicts() == {
        f"test_it.py::test_a/{metric}": "pass"
        for metric in ("ttft_p95", "itl_p95", "error_rate", "tgs")
    }


def test_a_mark_at_four_fails_by_its_own_rate(gated: Gated) -> None:
    """133 tokens/s are under 200: the test is red, and says at which concurrency."""
    gated.tests(
        "@sla(bucket='short', concurrency=4, min_tokens_per_s=200)\n"
        "def test_a(sla_run):\n    sla_run()\n"
    )
    result = gated.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*at concurrency 4*FAIL*", "*limit 200 tokens/s*"])


def test_a_mark_asks_one_by_one_whatever_the_policys_load(gated: Gated) -> None:
    """A test says itself how many it sends at once; a schedule is the sla.yaml's own affair."""
    gated.policy(rest=LEVELS)
    gated.tests(
        """
        @sla(bucket='short')
        def test_a(sla_run):
            assert {t.concurrency for t in sla_run()} == {1}
        """
    )
    result = gated.run()
    assert result.ret == 0
    assert set(gated.verdicts()) == {
        f"test_it.py::test_a/{metric}" for metric in ("ttft_p95", "itl_p95", "error_rate")
    }


def test_a_bucket_selected_alone_is_measured_beside_the_others(gated: Gated) -> None:
    """``-k short`` leaves the load of the level whole: only the waiting is for short alone."""
    gated.policy(rest="tgs: {concurrency: [4]}")
    result = gated.run("sla.yaml", "-k", "short")
    assert result.ret != 0
    report = gated.report()
    by_id = {f["id"]: f for f in report["findings"]}
    assert by_id["short/ttft_p95"]["verdict"] == "pass"
    assert by_id["long/ttft_p95"]["requests"] >= by_id["short/ttft_p95"]["requests"] - 1
    assert "long/ttft_p95" in {m["id"] for m in report["not_measured"]}

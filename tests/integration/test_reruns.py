"""A rerun plugin's attempts are pooled: trying again cannot turn a broken limit green."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

pytest.importorskip("pytest_rerunfailures")

ENGINE = """
    from pytest_llmsla.targets.scripted import Script

    itl = [80.0]

    def play(ask, index):
        gaps = [(100.0, 1), *[(itl[0], 1)] * (ask.max_new_tokens - 1)]
        return Script(arrivals=gaps)

    def factory():
        return play
"""


@pytest.fixture
def changing(gated: Gated) -> Gated:
    """A target whose ITL a test can set."""
    gated.pytester.makepyfile(engine=ENGINE)
    path = gated.policy()
    path.write_text(
        path.read_text().replace("script: {ttft_ms: 100, itl_ms: 20}", "entry: engine:factory")
    )
    return gated


def test_a_second_attempt_does_not_clear_a_broken_limit(changing: Gated) -> None:
    """Attempt 1 at 80 ms, attempt 2 at 45: pooled P95 is over 50, FAIL, both in the report."""
    changing.tests(
        """
        import engine

        @sla(bucket="short", ttft_ms=None, itl_p95_ms=50)
        def test_a(sla_run):
            sla_run()
            engine.itl[0] = 45.0
        """
    )
    result = changing.run("--reruns", "2", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    finding = next(f for f in changing.report()["findings"] if f["metric"] == "itl")
    assert finding["verdict"] == "fail"
    assert [a["attempt"] for a in finding["attempts"]] == [1, 2, 3]
    assert finding["attempts"][0]["observed"] == 80
    assert finding["attempts"][1]["observed"] == 45
    result.stdout.fnmatch_lines(["*attempts pooled:*"])


def test_a_rerun_for_another_reason_passes_and_is_told(changing: Gated) -> None:
    """A body that fails once and then holds: pooled data within the limit pass, the rerun shown."""
    changing.tests(
        """
        import engine

        engine.itl[0] = 20.0
        tries = []

        @sla(bucket="short")
        def test_a(sla_run):
            sla_run()
            tries.append(1)
            assert len(tries) == 2
        """
    )
    result = changing.run("--reruns", "1")
    assert result.ret == 0
    report = changing.report()
    assert report["verdict"] == "pass"
    assert {r["status"] for r in report["reruns"]} == {"passed after 1 rerun(s)"}
    result.stdout.fnmatch_lines(["*passed after 1 rerun*"])


def test_a_policy_item_is_not_measured_again(changing: Gated) -> None:
    """A rerun of an item of sla.yaml sees the same requests, and the same verdict."""
    result = changing.run("sla.yaml", "--reruns", "1", "-k", "short")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert changing.report()["verdict"] == "fail"
    assert len({f["requests"] for f in changing.report()["findings"] if f["bucket"]}) == 1


def test_reruns_under_one_worker(changing: Gated) -> None:
    """The same pooling under ``-n1``."""
    pytest.importorskip("xdist")
    changing.tests(
        """
        import engine

        @sla(bucket="short", ttft_ms=None, itl_p95_ms=50)
        def test_a(sla_run):
            sla_run()
            engine.itl[0] = 45.0
        """
    )
    result = changing.run_apart("--reruns", "1", "-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert changing.report()["verdict"] == "fail"

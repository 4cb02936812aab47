"""``@sla`` tests: the verdict falls when the body has returned, and only PASS is green."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated


def test_clean_gate_passes(gated: Gated) -> None:
    """sla_run() asks until every limit is decided; ordinary asserts go on working."""
    gated.tests(
        """
        @sla(prompt_max=64, ttft_ms=300, itl_p95_ms=50)
        def test_a(sla_run):
            result = sla_run()
            assert len(result) == 38
            assert result[0].text == "scripted"
            assert result[0].ttft_ms == 100
            assert [f.verdict for f in result.findings] == ["pass"] * 3
        """
    )
    result = gated.run()
    assert result.ret == 0
    assert gated.verdicts() == {
        "test_it.py::test_a/ttft_p95": "pass",
        "test_it.py::test_a/itl_p95": "pass",
        "test_it.py::test_a/error_rate": "pass",
    }
    assert gated.report()["verdict"] == "pass"


def test_a_broken_limit_fails_the_test(gated: Gated) -> None:
    """The test fails in its call phase, with one readable block and no plugin traceback."""
    gated.policy(ttft=612.5)
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n")
    result = gated.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_a _*",
            "ttft p95, bucket short (1–64 tokens; measured *): FAIL after 5 requests (38 over*",
            "*P95 ≥ 612.5 ms (99 %), limit 300 ms*observed 612.5 ms*",
            "*sla.yaml:7 buckets.short.ttft_ms*",
        ]
    )
    for inside in ("Traceback", "measuring.py", "_hookexec", "def test_a"):
        assert inside not in result.stdout.str()


def test_the_block_names_the_marks_own_limit(gated: Gated) -> None:
    """A limit written in the mark is blamed on the mark's line."""
    gated.tests("@sla(bucket='short', ttft_ms=50)\ndef test_a(sla_run):\n    sla_run()\n")
    gated.run().stdout.fnmatch_lines(["*test_it.py:4 @sla(ttft_ms=50)*"])


def test_the_policy_gives_what_the_mark_leaves_out(gated: Gated) -> None:
    """An ITL limit of the policy holds for a mark that only writes TTFT; None switches it off."""
    gated.policy(itl=80)
    gated.tests(
        """
        @sla(bucket='short', ttft_ms=300)
        def test_inherits(sla_run):
            sla_run()

        @sla(bucket='short', ttft_ms=300, itl_p95_ms=None)
        def test_switched_off(sla_run):
            sla_run()
        """
    )
    result = gated.run("-v")
    result.stdout.fnmatch_lines(["*test_inherits FAILED*", "*test_switched_off PASSED*"])
    result.stdout.fnmatch_lines(["*sla.yaml:9 itl.p95_ms*"])


def test_a_mark_that_asks_for_less_than_the_policy_says_so(gated: Gated) -> None:
    """A looser limit, and a limit switched off, are named in the report and in its replay."""
    gated.tests(
        """
        @sla(bucket='short', ttft_ms=99999, itl_p95_ms=None)
        def test_less(sla_run):
            sla_run()

        @sla(bucket='short', ttft_ms=200, ttft_percentile=99, itl_p95_ms=40)
        def test_more(sla_run):
            sla_run()

        @sla(bucket='short', ttft_ms=300, ttft_percentile=50)
        def test_half(sla_run):
            sla_run()
        """
    )
    assert gated.run().ret == pytest.ExitCode.OK
    source = {f["id"].split("::")[1]: f["source"] for f in gated.report()["findings"]}
    off = "itl_p95_ms=None switches off the policy's 50 ms"
    assert source["test_less/ttft_p95"] == (
        "test_it.py:5 @sla(ttft_ms=99999); looser than the policy: 99999 ms, policy 300 ms; " + off
    )
    assert source["test_less/error_rate"].endswith(f"; {off}")
    assert "50 % of requests, policy 95 % of requests" in source["test_half/ttft_p50"]
    assert not any("policy:" in s or "switches" in s for i, s in source.items() if "more" in i)
    assert "looser than the policy: 99999 ms" in (gated.runs()[-1] / "report.md").read_text("utf-8")


def test_measuring_nothing_fails(gated: Gated) -> None:
    """A mark on a test that asks no model is red, whatever the test asserts."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    assert True\n")
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_a: marked sla, and measured nothing. Call sla_run()*"])
    assert gated.report()["verdict"] != "pass"


def test_a_few_calls_are_inconclusive(gated: Gated) -> None:
    """Under a preset one call decides nothing; the message names both ways out."""
    gated.tests("@sla(bucket='short')\ndef test_a(timed_generate):\n    timed_generate('Hi you')\n")
    result = gated.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["ttft p95*INCONCLUSIVE after 1 request*", "*sla_run()*", "*evidence='observed'*"]
    )


def test_observed_passes_the_test_and_signs_nothing_off(gated: Gated) -> None:
    """One look within its limits passes its test; the run stays inconclusive and not green."""
    gated.tests(
        """
        @sla(bucket='short', evidence='observed')
        def test_a(timed_generate):
            t = timed_generate("The capital of France is")
            assert t.ttft_ms == 100
        """
    )
    result = gated.run()
    result.assert_outcomes(passed=1)
    assert gated.report()["verdict"] == "inconclusive"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*observed only: not release evidence*"])


def test_an_observed_break_fails(gated: Gated) -> None:
    """One look over the limit is red."""
    gated.policy(ttft=900)
    gated.tests(
        """
        @sla(bucket='short', evidence='observed')
        def test_a(timed_generate):
            timed_generate("The capital of France is")
        """
    )
    gated.run().assert_outcomes(failed=1)


def test_a_prompt_outside_the_bucket_fails(gated: Gated) -> None:
    """A limit holds for its prompt lengths; another length is an error, never moved."""
    gated.tests(
        """
        @sla(bucket='long', evidence='observed')
        def test_a(timed_generate):
            timed_generate("far too short")
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*3 tokens*65–128*"])


def test_a_failing_body_stays_the_failure(gated: Gated) -> None:
    """The body's own exception is shown; findings are on record and broken ones told beside it."""
    gated.policy(itl=80)
    gated.tests(
        """
        @sla(bucket='short')
        def test_a(sla_run):
            sla_run()
            assert "Paris" in "London"
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: assert *Paris*", "*Captured sla call*", "itl p95*FAIL*"]
    )
    assert gated.verdicts()["test_it.py::test_a/itl_p95"] == "fail"


def test_a_failing_body_within_its_limits_signs_nothing_off(gated: Gated) -> None:
    """Limits met in a test that fails for another reason do not make a PASS of the run."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n    assert False\n")
    result = gated.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert set(gated.verdicts().values()) == {"pass"}
    report = gated.report()
    assert report["verdict"] == "inconclusive"
    assert report["not_measured"] == [
        {"id": "test_it.py::test_a", "reason": "its limits are met, but the test failed"}
    ]


def test_each_parametrized_case_is_its_own_gate(gated: Gated) -> None:
    """Cases are judged apart: one breaks its limit, the other keeps it."""
    gated.tests(
        """
        import pytest

        @pytest.mark.parametrize("name", [
            pytest.param("tight", marks=sla(bucket="short", ttft_ms=50)),
            pytest.param("loose", marks=sla(bucket="short", ttft_ms=300)),
        ])
        def test_a(sla_run, name):
            sla_run()
        """
    )
    result = gated.run()
    result.assert_outcomes(passed=1, failed=1)
    verdicts = gated.verdicts()
    assert verdicts["test_it.py::test_a[tight]/ttft_p95"] == "fail"
    assert verdicts["test_it.py::test_a[loose]/ttft_p95"] == "pass"


def test_a_class_mark_holds_for_its_tests(gated: Gated) -> None:
    """A mark on a class is every test's gate of its own."""
    gated.tests(
        """
        @sla(bucket="short")
        class TestChat:
            def test_a(self, sla_run):
                sla_run()
            def test_b(self, sla_run):
                sla_run()
        """
    )
    result = gated.run()
    result.assert_outcomes(passed=2)
    assert "test_it.py::TestChat::test_b/ttft_p95" in gated.verdicts()


def test_unittest_classes(gated: Gated) -> None:
    """In a TestCase the gate is asked for by an autouse fixture, and judged all the same."""
    gated.tests(
        """
        import unittest

        class TestChat(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _gate(self, sla_run):
                self.sla_run = sla_run

            @sla(bucket="short")
            def test_kept(self):
                self.sla_run()

            @sla(bucket="short", ttft_ms=50)
            def test_broken(self):
                self.sla_run()

            @sla(bucket="short")
            def test_body(self):
                self.sla_run()
                self.assertIn("Paris", "London")
        """
    )
    result = gated.run("-v")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*test_broken FAILED*", "*test_kept PASSED*"])
    result.stdout.fnmatch_lines(["*'Paris' not found in 'London'*"])


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_async_tests(gated: Gated, mode: str) -> None:
    """An async body is awaited before the verdict; the event loop of later tests still works."""
    mark = "@pytest.mark.asyncio" if mode == "strict" else ""
    gated.tests(
        f"""
        import asyncio

        {mark}
        @sla(bucket="short")
        async def test_kept(sla_run):
            result = await sla_run.aio()
            await asyncio.sleep(0)
            assert len(result) == 38

        {mark}
        @sla(bucket="short", ttft_ms=50, evidence="observed")
        async def test_broken(timed_generate):
            await timed_generate.aio("one two three")

        {mark}
        async def test_plain():
            assert await asyncio.sleep(0, result=1) == 1

        def test_sync():
            assert asyncio.run(asyncio.sleep(0, result=1)) == 1
        """
    )
    result = gated.run_apart("-v", "-W", "error", f"--asyncio-mode={mode}")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*test_broken FAILED*"])


def test_a_model_that_cannot_be_loaded(gated: Gated) -> None:
    """The cause fails the test and stands in the report as an error of every limit."""
    gated.policy(more="").write_text(
        gated.policy()
        .read_text()
        .replace("script: {ttft_ms: 100, itl_ms: 20}", "entry: no_such_module:factory")
    )
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n")
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no_such_module*"])
    assert gated.report()["verdict"] in ("error", "inconclusive")


def test_requests_that_fail(gated: Gated) -> None:
    """A model that raises is an error with its cause; the next test is measured."""
    gated.policy(more="fail: [12], error: out of memory at 12")
    gated.tests(
        """
        @sla(bucket="short", evidence="observed")
        def test_a(sla_run):
            sla_run()

        @sla(bucket="long", evidence="observed")
        def test_b(sla_run):
            sla_run()
        """
    )
    result = gated.run("-v")
    result.stdout.fnmatch_lines(["*test_a FAILED*", "*test_b PASSED*"])
    result.stdout.fnmatch_lines(["*out of memory at 12*"])


def test_overrides_are_checked(gated: Gated) -> None:
    """An override that is not known would be ignored: it fails the test by name."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run(max_tokens=4)\n")
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'max_tokens' cannot be overridden; valid: max_new_tokens*"])


def test_prompts_and_model(gated: Gated) -> None:
    """sla_prompts gives fresh prompts of the bucket; sla_model is the loaded target."""
    gated.tests(
        """
        @sla(bucket="long", evidence="observed")
        def test_a(sla_prompts, timed_generate, sla_model):
            first, second = next(sla_prompts), next(sla_prompts)
            assert first.text != second.text
            assert sla_model.count(first.text) == first.tokens
            assert 65 <= first.tokens <= 128
            assert timed_generate(first.text).prompt_tokens == first.tokens

        def test_without_mark(sla_model):
            assert sla_model.kind == "scripted"
        """
    )
    gated.run().assert_outcomes(passed=2)


def test_without_a_policy_the_published_ranges_count(gated: Gated) -> None:
    """With no policy a mark's range is a published bucket, and only written limits are judged."""
    gated.tests(
        """
        @sla(prompt_max=512, ttft_ms=450)
        def test_a(sla_run):
            ...
        """,
        ini=False,
    )
    gated.run()
    ids = {n["id"] for n in gated.report()["not_measured"]}
    assert ids == {"test_it.py::test_a/ttft_p95", "test_it.py::test_a/error_rate"}


def test_calls_that_overlap_are_made_one_by_one(gated: Gated) -> None:
    """Tasks that ask at once are answered in turn: no request runs beside another."""
    gated.pytester.makepyfile(
        engine="""
        import threading
        from pytest_llmsla.targets.scripted import Script

        inside = []
        most = [0]

        def play(ask, index):
            inside.append(1)
            most[0] = max(most[0], len(inside))
            threading.Event().wait(0.002)
            inside.pop()
            return Script(arrivals=[(100.0, 1)] + [(20.0, 1)] * (ask.max_new_tokens - 1))

        def factory():
            return play
        """
    )
    path = gated.policy()
    path.write_text(
        path.read_text().replace("script: {ttft_ms: 100, itl_ms: 20}", "entry: engine:factory")
    )
    gated.tests(
        """
        import asyncio
        import engine

        @pytest.mark.asyncio
        @sla(bucket="short", evidence="observed")
        async def test_a(timed_generate, sla_prompts):
            prompts = [next(sla_prompts).text for _ in range(6)]
            asked = await asyncio.gather(*(timed_generate.aio(p) for p in prompts))
            assert [t.ttft_ms for t in asked] == [100] * 6
            assert engine.most == [1]
        """
    )
    gated.run("-p", "asyncio").assert_outcomes(passed=1)

"""``@sla``: every misuse is a usage error that names the test, its line and the way out."""

from __future__ import annotations

import pytest

from gated import Gated

MISUSE = {
    "unknown argument": (
        "@sla(prompt_max=64, ttft_p59=300)",
        "*test_it.py:4 test_a: @sla has no argument 'ttft_p59'. Did you mean 'ttft_*'? Valid: *",
    ),
    "positional": (
        "@sla(300)",
        "*test_it.py:4 test_a: @sla takes named arguments only, got 300.*",
    ),
    "no arguments": (
        "@sla()",
        "*test_it.py:4 test_a: @sla has no prompt length.*",
    ),
    "no length": (
        "@sla(ttft_ms=300)",
        "*test_it.py:4 test_a: ttft_ms=300 has no prompt length. *add prompt_max=128*",
    ),
    "both lengths": (
        "@sla(bucket='short', prompt_max=64)",
        "*test_it.py:4 test_a: @sla has both bucket and prompt_min/prompt_max*",
    ),
    "lower edge alone": (
        "@sla(prompt_min=64, ttft_ms=300)",
        "*test_it.py:4 test_a: prompt_min=64 has no prompt_max*",
    ),
    "edges swapped": (
        "@sla(prompt_min=64, prompt_max=32, ttft_ms=300)",
        "*test_it.py:4 test_a: prompt_min=64 is above prompt_max=32*",
    ),
    "unknown edge": (
        "@sla(prompt_max=100, ttft_ms=300)",
        "*test_it.py:4 test_a: @sla: no bucket ends at prompt_max=100 (edges: 64, 128)*prompt_min*",
    ),
    "unknown bucket": (
        "@sla(bucket='shrot', ttft_ms=300)",
        "*test_it.py:4 test_a: @sla: no bucket 'shrot'. Did you mean 'short'?*",
    ),
    "no such plan": (
        "@sla(bucket='short', kv_plan='plans/kv.md')",
        "*test_it.py:4 test_a: kv_plan: *plans/kv.md does not exist; give the file of a KV-cache*",
    ),
    "a plan that is a folder": (
        "@sla(bucket='short', kv_plan='.')",
        "*test_it.py:4 test_a: kv_plan: * is a folder; give the file of a KV-cache plan*",
    ),
    "zero limit": (
        "@sla(bucket='short', ttft_ms=0)",
        "*test_it.py:4 test_a: ttft_ms=0; valid: a finite number of milliseconds above 0*",
    ),
    "boolean limit": (
        "@sla(bucket='short', ttft_ms=True)",
        "*test_it.py:4 test_a: ttft_ms=True; valid: *",
    ),
    "text limit": (
        "@sla(bucket='short', itl_p95_ms='50')",
        "*test_it.py:4 test_a: itl_p95_ms='50'; valid: *",
    ),
    "endless limit": (
        "@sla(bucket='short', itl_p95_ms=float('inf'))",
        "*test_it.py:4 test_a: itl_p95_ms=inf; valid: *",
    ),
    "fraction as percentile": (
        "@sla(bucket='short', ttft_ms=300, ttft_percentile=0.95)",
        "*test_it.py:4 test_a: ttft_percentile=0.95; *Did you mean 95?",
    ),
    "unknown preset": (
        "@sla(bucket='short', ttft_ms=300, evidence='observe')",
        "*test_it.py:4 test_a: evidence='observe'; valid: *Did you mean 'observed'?",
    ),
    "sampling of the wrong kind": (
        "@sla(bucket='short', ttft_ms=300, sampling='greedy')",
        "*test_it.py:4 test_a: sampling='greedy'; valid: a dict*",
    ),
    "unknown sampling key": (
        "@sla(bucket='short', ttft_ms=300, sampling={'temprature': 1.0})",
        "*test_it.py:4 test_a*workload.sampling.temprature*",
    ),
    "no concurrency": (
        "@sla(bucket='short', min_tokens_per_s=10, concurrency=0)",
        "*test_it.py:4 test_a: concurrency=0; valid: a whole number from 1 on.",
    ),
    "stacked": (
        "@sla(bucket='short', ttft_ms=300)\n@sla(bucket='long', ttft_ms=450)",
        "*test_it.py:4 test_a: 2 sla marks on one test: @sla(bucket=*",
    ),
    "every limit switched off": (
        "@sla(bucket='short', ttft_ms=None, itl_p95_ms=None)",
        "*test_it.py:4 test_a: @sla has no limit to judge.*",
    ),
}


@pytest.mark.parametrize("misuse", MISUSE)
@pytest.mark.parametrize("collect_only", [False, True])
def test_misuse_is_a_usage_error(gated: Gated, misuse: str, collect_only: bool) -> None:
    """A mark that cannot be judged by ends the run with exit 4 before anything is measured."""
    mark, message = MISUSE[misuse]
    gated.tests(f"{mark}\ndef test_a(sla_run):\n    sla_run()\n")
    result = gated.run(*(["--collect-only"] if collect_only else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert not gated.runs()


def test_every_bad_mark_is_told_at_once(gated: Gated) -> None:
    """Two bad marks are two lines of one error, not two runs."""
    gated.tests(
        """
        @sla(bucket='short', ttft=1)
        def test_a(sla_run): ...
        @sla(bucket='short', itl=1)
        def test_b(sla_run): ...
        """
    )
    result = gated.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_a: @sla has no argument 'ttft'*", "*test_b: *'itl'*"])


def test_a_bad_mark_on_a_deselected_test_is_still_told(gated: Gated) -> None:
    """A limit that would be ignored is an error whichever tests are selected."""
    gated.tests(
        """
        @sla(bucket='short', ttft=1)
        def test_a(sla_run): ...
        def test_b(): ...
        """
    )
    assert gated.run("-k", "test_b").ret == pytest.ExitCode.USAGE_ERROR


def test_one_question_at_a_time_is_no_concurrency(gated: Gated) -> None:
    """A mark that asks for four at once over a fixture that asks once is refused, with the way."""
    gated.tests(
        "@sla(bucket='short', min_tokens_per_s=10, concurrency=4)\n"
        "def test_a(timed_generate):\n    timed_generate('Hello')\n"
    )
    result = gated.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py:4 test_a: concurrency=4*Use sla_run()*"])
    assert not gated.runs()


@pytest.mark.parametrize("fixture", ["sla_run", "timed_generate", "sla_prompts"])
def test_a_measuring_fixture_without_mark(gated: Gated, fixture: str) -> None:
    """A test that measures and is held to nothing is a usage error, not a pass."""
    gated.tests(f"def test_a({fixture}): ...")
    result = gated.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*test_it.py:4 test_a: {fixture} needs a mark*add @sla(*"])


def test_misspelt_mark_is_an_error_under_strict_markers(gated: Gated) -> None:
    """Our mark is registered, so that pytest itself finds the misspelt one."""
    gated.tests("@pytest.mark.llm_sal(ttft_ms=300)\ndef test_a(): ...")
    result = gated.run("--strict-markers")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'llm_sal' not found in `markers` configuration option*"])


def test_marks_are_documented(gated: Gated) -> None:
    """``pytest --markers`` names the mark."""
    gated.run("--markers").stdout.fnmatch_lines(["@pytest.mark.sla(*hold this test's model*"])

"""Where the plugin is not used, it is as if it were not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

HEAVY = ("torch", "transformers", "numpy", "scipy", "pydantic", "yaml", "rich", "typer", "psutil")
OFF = ["-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest"]


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``."""
    script = (
        f"{code}\nimport sys\nprint('\\n'.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    return set(out.split())


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    """The entry point and the public package import pytest and the standard library."""
    assert not loaded_after("import pytest_llmsla, pytest_llmsla.plugin") & set(HEAVY)


def test_a_suite_without_gates_loads_nothing_heavy(gated: Gated) -> None:
    """A whole run of a suite that times nothing, with an ini policy lying by."""
    gated.tests(
        f"""
        import sys
        def test_a():
            assert not set(sys.modules) & set({HEAVY!r})
            assert not any(m.startswith("pytest_llmsla.policy") for m in sys.modules)
        """.replace("from pytest_llmsla import sla", "")
    )
    result = gated.run_apart(*OFF)
    assert result.ret == 0


def test_a_suite_without_gates_reads_the_same(gated: Gated) -> None:
    """Output and exit status with the plugin and without it are equal, but for its name."""
    gated.pytester.makepyfile("def test_a(): ...\ndef test_b(): assert 0\ndef test_c(nosuch): ...")

    def shown(*args: str) -> list[str]:
        result = gated.run_apart(*args)
        return [
            line.split(" in ")[0]
            for line in result.stdout.lines
            if not line.startswith("plugins:") and "available fixtures" not in line
        ]

    assert shown() == shown("-p", "no:llmsla")


def test_collecting_a_policy_loads_no_model_library(gated: Gated) -> None:
    """``--collect-only`` reads the policy and loads neither torch nor transformers."""
    (gated.path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    print('heavy:', sorted(heavy))\n"
    )
    result = gated.run_apart("sla.yaml", "--collect-only", "-q", "-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*heavy: []"])


def test_help_lists_the_options(gated: Gated) -> None:
    """``pytest --help`` groups the options."""
    result = gated.run("--help")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["latency SLA of a language model:", "*--sla=PATH*"])


def test_fixtures_are_listed_with_their_words(gated: Gated) -> None:
    """``pytest --fixtures`` says what each fixture is for."""
    result = gated.run("--fixtures")
    for name in ("sla_model", "sla_prompts", "sla_run", "timed_generate", "record_tgs"):
        assert f"\n{name}" in result.stdout.str()
    assert "no docstring available" not in result.stdout.str().split("pytest_llmsla")[-1]


@pytest.mark.parametrize("name", ["sla", "memory"])
def test_a_folder_named_like_the_mark(gated: Gated, name: str) -> None:
    """Names of folders and functions are not marks."""
    folder = gated.path / name
    folder.mkdir()
    (folder / f"test_{name}_x.py").write_text("def test_sla(): ...\ndef test_b(): ...\n")
    gated.run(name).assert_outcomes(passed=2)
    assert not gated.runs()

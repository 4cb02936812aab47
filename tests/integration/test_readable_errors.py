"""What cannot be loaded or asked for is told in a line or two, with no frame of this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

INSIDE = ("Traceback", "fixtures.py", "gate.py", "session.py", "_hookexec", "During handling")
NOBODY = "http://127.0.0.1:9/v1"
CALLS = """
    @sla(bucket='short')
    def test_run(sla_run):
        sla_run()

    @sla(bucket='short')
    def test_one(timed_generate):
        timed_generate('Hi you')

    @sla(bucket='short')
    async def test_async_run(sla_run):
        await sla_run.aio()

    @sla(bucket='short')
    async def test_async_one(timed_generate):
        await timed_generate.aio('Hi you')

    @sla(bucket='short')
    def test_prompts(sla_prompts, timed_generate):
        timed_generate(next(sla_prompts).text)

    def test_model(sla_model):
        assert False
"""
TARGETS = {
    "no server": (
        f"{{kind: openai, base_url: '{NOBODY}'}}",
        f"cannot connect to {NOBODY}: Connection refused. Is the server running there?",
    ),
    "no engine": ("{kind: python, entry: 'nowhere:make'}", "nowhere"),
    "no files": ("{kind: transformers, model: ./nowhere}", "nowhere"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_that_cannot_be_loaded(gated: Gated, kind: str) -> None:
    """Every way to ask shows the test's own line and one message, also with every local shown."""
    target, message = TARGETS[kind]
    text = gated.policy().read_text(encoding="utf-8")
    line = next(x for x in text.splitlines() if x.startswith("target:"))
    (gated.path / "sla.yaml").write_text(text.replace(line, f"target: {target}"), encoding="utf-8")
    gated.tests(CALLS)
    gated.ini("sla_policy = sla.yaml", "asyncio_mode = auto")
    result = gated.run("--showlocals")
    result.assert_outcomes(failed=4, errors=2)
    said = result.stdout.str()
    blocks = said[: said.index("= sla =")]
    for inside in INSIDE:
        assert inside not in blocks
    assert blocks.count(message) >= 6
    for asked in ("sla_run()", "timed_generate('Hi you')", "await sla_run.aio()"):
        assert f">       {asked}" in blocks
    assert "sla_prompts: " in blocks
    assert "sla_model: " in blocks
    assert gated.report()["verdict"] == "error"


def test_a_test_may_catch_it(gated: Gated) -> None:
    """The exception is the documented one; a test that goes on without measuring is red."""
    gated.tests(
        """
        from pytest_llmsla.errors import UsageError

        @sla(bucket='short')
        def test_a(timed_generate):
            with pytest.raises(UsageError, match="nonsense"):
                timed_generate("Hi you", nonsense=1)
            with pytest.raises(TypeError):
                timed_generate()
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*measured nothing*"])


@pytest.mark.parametrize(
    ("ini", "mark", "said"),
    [
        ("nowhere.yaml", "bucket='short'", "*nowhere.yaml*"),
        ("broken.yaml", "bucket='short'", "*broken.yaml*"),
        ("sla.yaml", "bucket='nowhere'", "*nowhere*"),
    ],
    ids=["no policy", "broken policy", "no bucket"],
)
def test_a_mark_whose_policy_cannot_be_loaded(gated: Gated, ini: str, mark: str, said: str) -> None:
    """A usage error, before anything is measured: exit 4 and a line, no traceback."""
    (gated.path / "broken.yaml").write_text("version: [1\n", encoding="utf-8")
    gated.tests(f"@sla({mark})\ndef test_a(sla_run):\n    sla_run()\n")
    gated.ini(f"sla_policy = {ini}")
    result = gated.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    for inside in INSIDE:
        assert inside not in result.stdout.str() + result.stderr.str()


def test_a_file_of_prompts_that_is_used_up(gated: Gated) -> None:
    """``next(sla_prompts)`` says that all are used, at the test's own line."""
    (gated.path / "asks.txt").write_text("How far is the sea?\nWho made the tide?\n", "utf-8")
    path = gated.policy()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("max_new_tokens: 8", "prompts: asks.txt"), encoding="utf-8")
    gated.tests(
        """
        @sla(bucket='short', evidence='observed')
        def test_a(sla_prompts):
            for _ in range(3):
                next(sla_prompts)
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*next(sla_prompts)", "E *all 2 prompts are used*"])
    for inside in INSIDE:
        assert inside not in result.stdout.str()

"""``llmsla check`` of a run never says more than the run itself did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmsla.cli import run as llmsla

if TYPE_CHECKING:
    from gated import Gated

BODIES = {
    "a body that fails although its limits are met": "sla_run()\n    assert False, 'garbage'",
    "a body that skips after measuring": "sla_run()\n    pytest.skip('flaky today')",
    "a body that is expected to fail": "sla_run()\n    pytest.xfail('known')",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_of_a_marked_test(gated: Gated, body: str) -> None:
    """What a test's body said stays: evidence that meets the limits does not turn it green."""
    gated.policy()
    gated.tests(
        "import pytest\nfrom pytest_llmsla import sla\n\n"
        f"@sla(prompt_max=64, ttft_ms=300)\ndef test_it(sla_run):\n    {body}\n"
    )
    assert gated.run().ret != pytest.ExitCode.OK
    assert llmsla(["check", str(gated.path / ".llmsla")]) != 0


@pytest.mark.parametrize("option", ["-k=ttft", "--deselect=sla.yaml::tgs::concurrency-1", "-x"])
def test_of_a_part_of_a_gate(gated: Gated, option: str) -> None:
    """A limit that was not selected, or not reached, stays not measured."""
    gated.policy(ttft=700 if option == "-x" else 100)
    assert gated.run("sla.yaml", option).ret == pytest.ExitCode.TESTS_FAILED
    for arguments in ([], ["--sla", str(gated.path / "sla.yaml")]):
        assert llmsla(["check", str(gated.path / ".llmsla"), *arguments]) != 0


def test_of_a_sign_off_by_a_script(gated: Gated) -> None:
    """A sign-off that no model took part in is none in a later check either."""
    gated.policy()
    assert gated.run("sla.yaml", "--sla-signoff").ret == pytest.ExitCode.TESTS_FAILED
    policy = str(gated.path / "sla.yaml")
    assert llmsla(["check", str(gated.path / ".llmsla"), "--sla", policy]) != 0


def test_a_whole_green_run_stays_green_and_completes_a_part(gated: Gated) -> None:
    """The counterpart: a complete PASS is 0, also together with an earlier, partial run."""
    gated.policy()
    policy = str(gated.path / "sla.yaml")
    assert gated.run("sla.yaml", "-k=ttft").ret == pytest.ExitCode.TESTS_FAILED
    assert gated.run("sla.yaml").ret == pytest.ExitCode.OK
    assert llmsla(["check", str(gated.path / ".llmsla"), "--sla", policy]) == 0
    assert llmsla(["check", *map(str, gated.runs()), "--sla", policy]) == 0

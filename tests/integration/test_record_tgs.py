"""``record_tgs``: a rate measured elsewhere is on the record with its four conditions, or red."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmsla.cli import run as llmsla

if TYPE_CHECKING:
    from gated import Gated

WHOLE = 'prompt_lengths="100-500", sampling={"greedy": True}, concurrency=8, memory="5.1 GiB"'


def test_a_documented_rate(gated: Gated) -> None:
    """All four conditions: the test passes and the report carries the figure."""
    gated.tests(f"def test_a(record_tgs):\n    record_tgs(151.5, {WHOLE})\n")
    result = gated.run()
    assert result.ret == 0
    (entry,) = gated.report()["tgs"]
    assert entry["tokens_per_s"] == 151.5
    assert entry["documented"] is True
    assert entry["conditions"]["sampling"] == {"greedy": True}


@pytest.mark.parametrize("missing", ["prompt_lengths", "sampling", "concurrency", "memory"])
def test_an_undocumented_rate(gated: Gated, missing: str) -> None:
    """One condition missing: the test fails, names it and says how to document it."""
    given = ", ".join(
        part
        for part in (
            'prompt_lengths="100-500"',
            'sampling="greedy"',
            "concurrency=8",
            'memory="5.1 GiB"',
        )
        if not part.startswith(missing)
    )
    gated.tests(f"def test_a(record_tgs):\n    record_tgs(151.5, {given})\n")
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"record_tgs(151.5): undocumented: {missing} *"])
    assert gated.report()["tgs"][0]["documented"] is False


SAYS_NOTHING = [
    "None", "''", "' '", "'unknown'", "'N/A'", "float('nan')", "[]", "{}", "set()", "True",
    "[None]", "{'a': None}", "{'a': float('inf')}", "object()", "[float('nan'), 128]",
]  # fmt: skip


def test_conditions_that_say_nothing(gated: Gated) -> None:
    """Each of the four, in each way of not knowing: the test is red, and so is a later check."""
    gated.tests(
        f"""
        GOOD = dict({WHOLE})

        @pytest.mark.parametrize("value", [{", ".join(SAYS_NOTHING)}])
        @pytest.mark.parametrize("name", list(GOOD))
        def test_a(record_tgs, name, value):
            record_tgs(151.5, **{{**GOOD, name: value}})
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=4 * len(SAYS_NOTHING))
    report = gated.report()
    assert not any(entry["documented"] for entry in report["tgs"])
    assert len(report["tgs"]) == 4 * len(SAYS_NOTHING)
    assert all(f["reason"].startswith("undocumented: ") for f in report["findings"])
    assert llmsla(["check", str(gated.runs()[-1])]) == 1


def test_a_condition_that_holds_itself(gated: Gated) -> None:
    """A value that cannot be written down is refused in words."""
    gated.tests(
        f"""
        def test_a(record_tgs):
            held = []
            held.append(held)
            record_tgs(151.5, **{{**dict({WHOLE}), "memory": held}})
        """
    )
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a condition holds itself*"])


@pytest.mark.parametrize("value", ["0", "-1", "float('nan')", "float('inf')", "True", "'12'"])
def test_a_rate_that_is_none(gated: Gated, value: str) -> None:
    """A figure that is no rate is refused."""
    gated.tests(f"def test_a(record_tgs):\n    record_tgs({value}, {WHOLE})\n")
    result = gated.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*valid: a finite number of tokens per second above 0*"])


def test_beside_a_gate(gated: Gated) -> None:
    """A marked test may record a rate too; its own limits are judged as ever."""
    gated.tests(
        f"@sla(bucket='short')\ndef test_a(sla_run, record_tgs):\n"
        f"    sla_run()\n    record_tgs(12, {WHOLE})\n"
    )
    assert gated.run().ret == 0
    assert len(gated.report()["tgs"]) == 1

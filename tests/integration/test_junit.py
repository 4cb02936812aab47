"""JUnit XML: every file parses, every limit has its row, whatever characters came along."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gated import Gated


def cases(path: Path) -> dict[str, dict[str, str]]:
    """Properties by test case name."""
    root = ET.parse(path).getroot()
    return {
        f"{case.get('classname')}.{case.get('name')}": {
            p.get("name", ""): p.get("value", "") for p in case.iterfind("properties/property")
        }
        for case in root.iter("testcase")
    }


def test_each_limit_has_a_property(gated: Gated) -> None:
    """Figures and verdict of a limit are properties of its test case."""
    gated.policy(itl=80)
    gated.run("sla.yaml", "--junitxml=out.xml")
    found = cases(gated.path / "out.xml")
    assert len(found) == 7
    value = found["sla.yaml.long.itl_p95"]["sla long/itl_p95"]
    assert value.startswith("verdict=fail observed=80.0 limit=50.0 lower=80.0")


def test_a_marked_test_has_one_property_per_limit(gated: Gated) -> None:
    """A test with three limits has three."""
    gated.tests("@sla(bucket='short')\ndef test_a(sla_run):\n    sla_run()\n")
    gated.run("--junitxml=out.xml")
    names = cases(gated.path / "out.xml")["test_it.test_a"]
    assert set(names) == {
        f"sla test_it.py::test_a/{m}" for m in ("ttft_p95", "itl_p95", "error_rate")
    }


def test_characters_that_xml_does_not_allow(gated: Gated) -> None:
    """NUL, ESC, a lone surrogate and markup in ids, errors and output: visible, and it parses."""
    nasty = r"\x00\x1b[31m\udc80]]><b>&\""
    gated.pytester.makepyfile(
        engine=f'''
        from pytest_llmsla.targets.scripted import Script

        def factory():
            return lambda ask, index: Script(error="{nasty}")
        '''
    )
    path = gated.policy()
    path.write_text(
        path.read_text().replace("script: {ttft_ms: 100, itl_ms: 20}", "entry: engine:factory")
    )
    gated.tests(
        f'''
        @pytest.mark.parametrize("case", ["{nasty}"])
        @sla(bucket="short", evidence="observed")
        def test_a(timed_generate, case):
            print("{nasty.replace(chr(92) + "udc80", "")}")
            timed_generate("{nasty} one two three")
        '''
    )
    result = gated.run_apart("--junitxml=out.xml")
    assert result.ret == 1
    found = cases(gated.path / "out.xml")
    (properties,) = found.values()
    assert len(properties) == 3
    text = "".join(properties.values())
    assert r"\x00\x1b" in text
    assert r"\udc80" in text
    assert gated.report()["verdict"] in ("fail", "error")

"""What every real server must show, whatever its route: a base class of the tests beside it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from real_server import Kind, RealServer
from server_gate import LONGEST, Gate, gate, policy

from pytest_llmsla.targets import Answer, Ask, Recorder, Target

TOKENS = 12
PROMPTS = [
    "Write one sentence about rivers.",
    "Count the legs of three spiders, and explain how.",
    "Name a planet, then say why you like its colour more than the colour of any other planet.",
    "How do bees find their way home? Answer as you would answer a child of six years.",
]

ABSURD_MS = 3000.0
"""More than any hand-over between a server on this machine and its client may take."""


@dataclass(frozen=True)
class Asked:
    """One answer with its stamps."""

    record: Recorder
    answer: Answer

    @property
    def ttft_ms(self) -> float:
        """First token after the start."""
        assert self.record.start_ns is not None
        return (self.record.arrivals[0][0] - self.record.start_ns) / 1e6

    @property
    def decode_ms(self) -> float:
        """Last token after the first."""
        return (self.record.arrivals[-1][0] - self.record.arrivals[0][0]) / 1e6


def ask(target: Target, prompts: Sequence[str], *, force_length: bool = True) -> list[Asked]:
    """Ask in this process, one after another."""
    asked = []
    for prompt in prompts:
        record = Recorder(target.clock)
        record.start()
        sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 0}
        answer = target.generate(Ask(prompt, TOKENS, sampling, force_length=force_length), record)
        asked.append(Asked(record, answer))
    return asked


class EveryServer:
    """Subclasses say which server and how it is asked; conftest.py makes their gates, once each."""

    kind: ClassVar[Kind]
    target: ClassVar[Mapping[str, Any]]
    """Without ``base_url``."""
    path: ClassVar[str] = "/v1"
    key: ClassVar[str | None] = None
    itl: ClassVar[Mapping[str, Any]] = {}
    """Keys of ``itl`` besides the limit."""
    needs_tokenizer: ClassVar[bool] = False
    """The server cannot say how long a prompt is: ``target.tokenizer`` is given."""

    @classmethod
    def env(cls) -> dict[str, str]:
        """Environment of a gate."""
        return {"SERVER_KEY": cls.key} if cls.key else {}

    @classmethod
    def counters(cls, server: RealServer) -> dict[str, float]:
        """The server's own running totals."""
        return {}

    def test_a_full_gate_passes_with_generous_limits(self, generous: Gate) -> None:
        """Every limit of the policy is decided on a real service, and exit 0 says so."""
        assert generous.exit == 0, generous.said
        report = generous.report
        assert report["verdict"] == "pass", generous.said
        assert report["complete"] is True
        assert set(generous.verdicts()) == {
            "short/ttft_p95",
            "short/itl_p95",
            "short/error_rate",
            "tgs/concurrency-1",
        }
        assert set(generous.verdicts().values()) == {"pass"}

    def test_the_same_gate_fails_with_tight_limits(self, tight: Gate) -> None:
        """Limits that no server holds are broken: exit 1, and each finding says FAIL.

        It is the second gate of the same policy: its prompts are not in the server's prefix cache,
        else the findings would be errors.
        """
        assert tight.exit == 1, tight.said
        assert tight.report["verdict"] == "fail", tight.said
        assert tight.verdicts()["short/ttft_p95"] == "fail"
        assert tight.verdicts()["short/itl_p95"] == "fail"
        assert tight.verdicts()["short/error_rate"] != "fail"

    def test_every_finding_names_its_start_point_and_source(self, generous: Gate) -> None:
        """A reader of the report sees where the clock starts and which server was asked."""
        text = (generous.run / "report.md").read_text("utf-8")
        assert "client" in text
        assert generous.report["target"]["kind"] == self.target["kind"]

    def test_junit_tells_the_same(self, generous: Gate, tight: Gate) -> None:
        """JUnit holds one test a limit, failed exactly where the gate failed."""
        for one in (generous, tight):
            suite = ET.parse(one.folder / "junit.xml").getroot().find("testsuite")
            assert suite is not None
            tests, failures = int(suite.attrib["tests"]), int(suite.attrib["failures"])
            assert tests == len(one.verdicts())
            assert (failures > 0) == (one.exit != 0)

    def test_every_request_holds_all_its_tokens(self, generous: Gate) -> None:
        """No token is lost or made up: arrivals add up to the count, and lengths are known."""
        for line in generous.requests:
            assert line["status"] == "ok", line
            assert sum(tokens for _, tokens in line["arrivals"]) == line["output_tokens"]
            assert 0 < line["prompt_tokens"] <= LONGEST
            assert line["output_tokens"] <= line["max_new_tokens"]

    def test_a_wrong_model_is_told(self, spec: dict[str, Any], tmp_path: Path) -> None:
        """A model that the server does not have ends the gate before measuring, by its name."""
        done = gate(
            tmp_path, policy({**spec, "model": "no-such-model"}, itl=self.itl), env=self.env()
        )
        assert done.exit != 0
        assert "no-such-model" in done.said

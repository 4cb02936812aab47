"""While a gate measures, what the machine did is put on record, on the gate's own clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_llmsla.gate.sampling import sampled
from pytest_llmsla.log import SCHEMA, RunLog, RunWriter, read_run
from pytest_llmsla.probes.sampler import Source


class Machine:
    """The part of a target that sampling sees."""

    def __init__(self, clock: Any, own: Sequence[Source] | Exception | None = None) -> None:
        self.clock = clock
        if own is not None:
            self.samples = lambda: self._give(own)

    @staticmethod
    def _give(own: Sequence[Source] | Exception) -> Sequence[Source]:
        if isinstance(own, Exception):
            raise own
        return own


def log_of(folder: Path, target: Machine, told: list[str]) -> RunLog:
    """What is on record after a window that ended at once."""
    path = folder / "timelines.jsonl"
    writer = RunWriter(path)
    writer.line({"type": "run", "schema": SCHEMA})
    writer.segment(time.perf_counter_ns())
    writer.segment(time.perf_counter_ns())
    target_: Any = target
    with sampled(target_, writer, "test.py::a", told.append):
        pass
    writer.close()
    return read_run(path)


def test_samples_lie_on_the_gates_clock(tmp_path: Path) -> None:
    """Times count from the segment's origin; the target's own figures stand beside the host's."""
    own = Source(("mine",), lambda: (7.0,), about={"mine": "of the target"})
    told: list[str] = []
    log = log_of(tmp_path, Machine(time.perf_counter_ns, [own]), told)
    (line,) = log.resources
    assert (line["phase"], line["gate"], line["segment"]) == ("sample", "test.py::a", 1)
    columns = line["columns"]
    assert 0 <= columns["t_ns"][0] <= columns["t_ns"][-1] == line["t_ns"] < 60 * 10**9
    assert columns["mine"] == [7.0] * len(columns["t_ns"])
    assert columns["process_rss_mib"][0] > 1
    assert line["about"] == {"mine": "of the target"}
    assert told == []


def test_a_clock_of_its_own_has_no_samples(tmp_path: Path) -> None:
    """This machine's moments have no place on a virtual clock."""
    assert log_of(tmp_path, Machine(lambda: 5), []).resources == []


def test_a_target_that_cannot_say_costs_only_its_own_figures(tmp_path: Path) -> None:
    """The machine is sampled all the same, and the reason is told."""
    told: list[str] = []
    log = log_of(tmp_path, Machine(time.perf_counter_ns, OSError("no driver")), told)
    assert told == ["the target's resources are not sampled: OSError: no driver"]
    assert "process_cpu" in log.resources[0]["columns"]


def test_a_target_without_figures_of_its_own(tmp_path: Path) -> None:
    """The host alone."""
    log = log_of(tmp_path, Machine(time.perf_counter_ns), [])
    assert set(log.resources[0]["columns"]) == {
        "t_ns", "process_cpu", "system_cpu", "load_1m", "process_rss_mib",
    }  # fmt: skip

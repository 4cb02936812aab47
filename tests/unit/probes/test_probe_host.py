"""Facts about the host are complete, JSON-ready and never guessed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from stub_nvml import StubNvml

from pytest_llmsla.probes import host

if TYPE_CHECKING:
    from pathlib import Path


def test_facts_are_plain_finite_json() -> None:
    """The whole answer survives strict JSON and names what a report needs."""
    facts = host.facts()
    again = json.loads(json.dumps(facts, allow_nan=False))
    assert again == facts
    for key in ("hostname", "kernel", "os", "python", "cpu", "packages", "gpus", "clock"):
        assert facts[key] is not None
    assert facts["cpu"]["usable_cores"] > 0
    assert facts["packages"]["pytest-llmsla"] is not None
    assert facts["taken_utc"].endswith("+00:00")


def test_versions_are_read_without_importing() -> None:
    """Asking for versions loads none of the heavy packages."""
    code = (
        "import sys; from pytest_llmsla.probes import host; host.facts(); "
        "print([m for m in ('torch', 'transformers', 'bitsandbytes', 'numpy', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_is_not_installed_is_none() -> None:
    """An absent package is None, never an invented version."""
    assert host.package_versions(["no-such-distribution-here"]) == {
        "no-such-distribution-here": None
    }


def test_gpus_are_listed_with_what_they_tell() -> None:
    """Every card with name, UUID and slices; a fact the driver refuses is None."""
    gpus = host.facts(nvml=StubNvml())["gpus"]
    assert [g["uuid"] for g in gpus] == [f"GPU-{i}aaa-bbbb" for i in range(4)]
    assert gpus[3]["memory_gib"] == 80.0
    assert gpus[3]["sm_mhz"] is None
    assert gpus[2]["memory_gib"] is None
    assert gpus[2]["slices"] == ["MIG-0ccc-dddd", "MIG-1ccc-dddd"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            0.5,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    """The tightest quota on the way up counts; ``max`` and ``-1`` mean none."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert host.cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * 2**30}\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            4.0,
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**31}\n"}, 2.0),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_the_memory_limit_is_the_tightest(
    tmp_path: Path, files: dict[str, str], gib: float | None
) -> None:
    """On the way up; ``max`` and what version 1 says for it mean none."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert host.memory_limit_gib(tmp_path) == gib


def test_cpu_model_comes_from_the_system(tmp_path: Path) -> None:
    """The name is taken as the kernel gives it, with single blanks."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: Some   CPU @ 2 GHz\n")
    assert host.cpu_model(tmp_path) == "Some CPU @ 2 GHz"


def test_clock_is_monotonic_with_a_known_step() -> None:
    """The stamping clock cannot be set back, and its real step was seen."""
    clock = host.clock_facts()
    assert clock["monotonic"] is True
    assert clock["adjustable"] is False
    assert 0 < clock["observed_step_ns"] < 1_000_000

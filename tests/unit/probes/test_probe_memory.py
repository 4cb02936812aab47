"""Memory figures keep their names, and what is unknown stays unknown."""
# ruff: noqa: N802 - the names are those of the NVML binding

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmsla.probes.memory import DEVICE_FIGURES, GIB, MemoryProbe

G = int(GIB)


class StubFramework:
    """Two cards of a framework; ``peak_bytes`` is what it allocated and reserved on each."""

    def __init__(self, cards: list[int], peak_bytes: tuple[int, int] = (10 * G, 14 * G)) -> None:
        self.in_use = cards
        self.peak_bytes = peak_bytes
        self.resets: list[int] = []

    def cards(self, device: str) -> list[int]:
        return self.in_use

    def uuid(self, card: int) -> str | None:
        return None

    def reset(self, card: int) -> None:
        self.resets.append(card)

    def peaks(self, card: int) -> tuple[int, int]:
        return self.peak_bytes


class StubNvml:
    """Cards whose used GiB follow a script, one value a reading (None: the reading fails)."""

    def __init__(self, *scripts: list[float | None], own: float | None = 12.0) -> None:
        self.scripts = [iter(s) for s in scripts]
        self.own = own

    def nvmlInit(self) -> None:
        """Nothing to start."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self.scripts)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Stub"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        value = next(self.scripts[handle])
        if value is None:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(used=int(value * G))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        used = None if self.own is None else int(self.own * G)
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=used)]


def probe(framework: StubFramework, nvml: Any, **environ: str) -> MemoryProbe:
    return MemoryProbe("cuda", framework=framework, nvml=nvml, environ=environ)


def test_three_device_figures_are_three_numbers() -> None:
    """Allocated 10, reserved 14 and device used 15.2 stay apart, each with its method."""
    p = probe(StubFramework([0]), StubNvml([15.0, 15.2, 15.1]))
    p.reset()
    p.sample()
    out = p.read()
    assert [out[k] for k in DEVICE_FIGURES] == pytest.approx([10.0, 14.0, 15.2, 12.0])
    assert out["cards"][0]["uuid"] == "GPU-0"
    assert "max_memory_allocated" in out["methods"]["allocated_peak"]
    assert "NVML" in out["methods"]["device_used_peak"]
    assert "request boundaries" in out["methods"]["device_used_peak"]
    json.dumps(out, allow_nan=False)


def test_reset_starts_the_window() -> None:
    """What was used before the reset is not in the peak; the framework is reset as well."""
    framework = StubFramework([0])
    p = probe(framework, StubNvml([70.0, 15.0, 15.0]))
    p.sample()
    p.reset()
    assert p.read()["device_used_peak"] == pytest.approx(15.0)
    assert framework.resets == [0]


def test_one_lost_sample_loses_the_peak() -> None:
    """The peak over the samples that did succeed would be too small, so it is unknown."""
    p = probe(StubFramework([0]), StubNvml([15.0, None, 15.0]))
    p.reset()
    p.sample()
    out = p.read()
    assert out["device_used_peak"] is None
    assert "GPU is lost" in out["device_used_peak_reason"]
    assert out["device_used_own"] is None
    assert out["allocated_peak"] == pytest.approx(10.0)


def test_lost_sample_before_the_window_is_forgotten() -> None:
    """A failed reading during warm-up does not spoil the measured window."""
    p = probe(StubFramework([0]), StubNvml([None, 15.0, 16.0]))
    p.sample()
    p.reset()
    assert p.read()["device_used_peak"] == pytest.approx(16.0)


def test_cards_are_summed_and_kept_apart() -> None:
    """Two cards: the sum, and each card's own figures with its UUID."""
    p = probe(StubFramework([0, 1]), StubNvml([20.0] * 3, [5.0] * 3))
    p.reset()
    out = p.read()
    assert out["device_used_peak"] == pytest.approx(25.0)
    assert [c["device_used_peak"] for c in out["cards"]] == pytest.approx([20.0, 5.0])
    assert out["reserved_peak"] == pytest.approx(28.0)
    assert "sum of 2 cards" in out["methods"]["reserved_peak"]


def test_one_unknown_card_makes_the_sum_unknown() -> None:
    """A partial sum would be too small."""
    p = probe(StubFramework([0, 1]), StubNvml([20.0] * 3, [None] * 3))
    p.reset()
    out = p.read()
    assert out["device_used_peak"] is None
    assert out["device_used_peak_reason"].startswith("cuda:1: ")
    assert out["cards"][0]["device_used_peak"] == pytest.approx(20.0)


def test_visible_devices_lead_to_the_right_card() -> None:
    """cuda:0 under CUDA_VISIBLE_DEVICES=3 reads card 3: 40 used, 30 of them ours."""
    idle: list[float | None] = [0.5] * 3
    p = probe(
        StubFramework([0]),
        StubNvml(idle, idle, idle, [40.0] * 3, own=30.0),
        CUDA_VISIBLE_DEVICES="3",
    )
    p.reset()
    out = p.read()
    assert out["cards"][0]["uuid"] == "GPU-3"
    assert (out["device_used_peak"], out["device_used_own"]) == (40.0, 30.0)


def test_nothing_allocated_is_unknown_not_zero() -> None:
    """A framework that allocated nothing on the card gives no figure that a limit could pass."""
    p = probe(StubFramework([0], (0, 0)), StubNvml([1.0] * 3))
    p.reset()
    out = p.read()
    assert out["allocated_peak"] is None
    assert "allocated nothing" in out["allocated_peak_reason"]
    assert out["reserved_peak"] is None


def test_missing_nvml_keeps_the_framework_figures() -> None:
    """Without NVML the framework's figures stay; the device figures say what is missing."""

    class NoDriver:
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    p = probe(StubFramework([0]), NoDriver())
    p.reset()
    out = p.read()
    assert out["reserved_peak"] == pytest.approx(14.0)
    assert out["device_used_peak"] is None
    assert "no driver" in out["device_used_peak_reason"]


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_without_cuda_only_host_memory_is_known(device: str) -> None:
    """On a CPU every device figure is None with the reason, and resident memory is measured."""
    p = MemoryProbe(device)
    p.reset()
    out = p.read()
    for name in DEVICE_FIGURES:
        assert out[name] is None
        assert device in out[f"{name}_reason"]
    assert 0 < out["rss_now"] <= out["rss_peak"]
    assert out["cards"] == []
    assert out["device"] == device
    json.dumps(out, allow_nan=False)

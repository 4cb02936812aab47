"""Facts about the machine and the software, JSON-ready; nothing heavy is imported for them."""

from __future__ import annotations

import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from .memory import GIB
from .nvml import CardError, all_cards, open_nvml, slices_of

PACKAGES = (
    "pytest-llmsla",
    "pytest",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "bitsandbytes",
    "gguf",
    "numpy",
    "scipy",
    "pydantic",
    "PyYAML",
    "psutil",
    "nvidia-ml-py",
    "pytest-xdist",
)
"""Distributions whose versions change a measurement or a verdict."""

SETTINGS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
)
"""Environment variables that change speed; only these are ever written down."""


def facts(*, nvml: Any = None, root: Path = Path("/")) -> dict[str, Any]:
    """Machine, software and GPUs at this moment. Every number is finite; unknown is None.

    Args:
        nvml: stands in for the NVML binding in tests.
        root: where ``proc`` and ``sys`` are found, for tests.
    """
    gpus, gpus_reason = _gpus(nvml)
    return {
        "taken_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "os": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "cpu": _cpu(root),
        "memory_gib": _finite(psutil.virtual_memory().total / GIB),
        "memory_limit_gib": memory_limit_gib(root),
        "load_average": _load_average(),
        "packages": package_versions(PACKAGES),
        "gpus": gpus,
        "gpus_reason": gpus_reason,
        "clock": clock_facts(),
        "settings": {k: os.environ[k] for k in SETTINGS if k in os.environ},
    }


def package_versions(names: Iterable[str]) -> dict[str, str | None]:
    """Installed version of each distribution, from its metadata; None when not installed."""
    out: dict[str, str | None] = {}
    for name in names:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    if out.get("pytest-llmsla", "") is None:
        from ..version import __version__  # run from a source folder that is not installed

        out["pytest-llmsla"] = __version__
    return out


def clock_facts() -> dict[str, Any]:
    """The clock that stamps tokens, and the smallest step it showed just now, ns."""
    info = time.get_clock_info("perf_counter")
    smallest = None
    last = time.perf_counter_ns()
    for _ in range(1000):
        now = time.perf_counter_ns()
        if now > last:
            smallest = now - last if smallest is None else min(smallest, now - last)
        last = now
    return {
        "name": "perf_counter_ns",
        "implementation": info.implementation,
        "resolution_ns": _finite(info.resolution * 1e9),
        "monotonic": info.monotonic,
        "adjustable": info.adjustable,
        "observed_step_ns": smallest,
    }


def usable_cores(root: Path = Path("/")) -> float:
    """Cores this process may use at once: the smaller of its affinity and its cgroup quota."""
    quota = cgroup_quota(root)
    affinity = float(_affinity())
    return affinity if quota is None else min(affinity, quota)


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """CPU quota in cores, the tightest on the way up (cgroup v2, then v1); None: no quota."""
    quotas = [q for q in (*_quotas_v2(root), _quota_v1(root)) if q is not None]
    return min(quotas, default=None)


def _cpu(root: Path) -> dict[str, Any]:
    frequency = None
    try:
        found = psutil.cpu_freq()
        frequency = None if found is None else _finite(found.max or found.current)
    except (OSError, NotImplementedError, RuntimeError):
        frequency = None
    return {
        "model": cpu_model(root),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(root),
        "affinity_cores": _affinity(),
        "quota_cores": cgroup_quota(root),
        "mhz": frequency or None,
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }


def cpu_model(root: Path = Path("/")) -> str | None:
    """Name of the processor; None when the system does not tell."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware") and value.strip():
            return " ".join(value.split())
    if sys.platform == "darwin":
        try:
            done = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() or None
    return platform.processor() or None


def _gpus(given: Any) -> tuple[list[dict[str, Any]], str | None]:
    try:
        nvml = open_nvml(given)
        driver = _asked(lambda: nvml.nvmlSystemGetDriverVersion())
        cards = all_cards(nvml)
    except CardError as e:
        return [], str(e)
    out: list[dict[str, Any]] = []
    for index, card in enumerate(cards):
        total = _asked(lambda c=card: nvml.nvmlDeviceGetMemoryInfo(c.handle).total)
        out.append(
            {
                "index": index,
                "name": card.name,
                "uuid": card.uuid,
                "driver": driver.decode() if isinstance(driver, bytes) else driver,
                "memory_gib": None if total is None else _finite(total / GIB),
                "sm_mhz": _asked(lambda c=card: nvml.nvmlDeviceGetClockInfo(c.handle, 1)),
                "slices": [part.uuid for part in slices_of(nvml, card)],
            }
        )
    return out, None if out else "NVML lists no card"


def _asked(call: Any) -> Any:
    """A single optional fact: what an old driver does not know is None."""
    try:
        return call()
    except Exception:
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return f"{platform.system()} {platform.version()}".strip()


def _load_average() -> list[float] | None:
    try:
        return [round(v, 2) for v in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_limit_gib(root: Path = Path("/")) -> float | None:
    """Memory this process may use, GiB: the tightest cgroup limit on the way up; None: no limit."""
    said = [_read(folder / "memory.max") for folder in _cgroups(root)]
    said.append(_read(root / "sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limits = [int(text) for text in said if text is not None and text.isdecimal()]
    # Version 1 has no word for "none": it tells a number near 2**63.
    return min((n / GIB for n in limits if 0 < n < 2**60), default=None)


def _quotas_v2(root: Path) -> list[float | None]:
    return [_quota_of((_read(folder / "cpu.max") or "").split()) for folder in _cgroups(root)]


def _cgroups(root: Path) -> list[Path]:
    """This process's cgroup (version 2) and those above it."""
    own = None
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            own = line[3:].strip("/")
    base = root / "sys/fs/cgroup"
    folder = base / own if own else base
    return [folder, *(up for up in folder.parents if up == base or base in up.parents)]


def _quota_v1(root: Path) -> float | None:
    base = root / "sys/fs/cgroup/cpu"
    return _quota_of([_read(base / f"cpu.cfs_{n}_us") or "" for n in ("quota", "period")])


def _quota_of(parts: list[str]) -> float | None:
    """``max 100000`` or ``-1 100000`` mean no quota."""
    if len(parts) != 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return None
    return int(parts[0]) / int(parts[1]) if int(parts[1]) > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

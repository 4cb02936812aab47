"""A stub of the NVML binding: four GPUs, one of them partitioned."""
# ruff: noqa: N802 - the names are those of the NVML binding

from __future__ import annotations

from types import SimpleNamespace

GIB = 1 << 30


class StubNvml:
    """Four equal GPUs: index 0 idle, index 3 with 40 GiB used, 10 of them by another process.

    GPU 2 is partitioned into two MIG slices, the second of which is not readable.
    """

    def __init__(self, names: tuple[str, ...] = ("H",) * 4, own: int | None = 30 * GIB) -> None:
        self.names = names
        self.own = own
        self.slices = {("gpu", 2): [("mig", 0), ("mig", 1)]}
        self.asked: list[object] = []

    def nvmlInit(self) -> None:
        """Nothing to start."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[str, int]:
        return ("gpu", index)

    def nvmlDeviceGetUUID(self, handle: tuple[str, int]) -> str:
        kind, i = handle
        return f"GPU-{i}aaa-bbbb" if kind == "gpu" else f"MIG-{i}ccc-dddd"

    def nvmlDeviceGetName(self, handle: tuple[str, int]) -> bytes:
        return self.names[handle[1]].encode()

    def nvmlDeviceGetMigMode(self, handle: tuple[str, int]) -> tuple[int, int]:
        if handle == ("gpu", 2):
            return (1, 1)
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: tuple[str, int]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(
        self, handle: tuple[str, int], index: int
    ) -> tuple[str, int]:
        return self.slices[handle][index]

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[str, int]) -> SimpleNamespace:
        self.asked.append(handle)
        if handle == ("mig", 1):
            raise RuntimeError("Insufficient Permissions")
        used = {("gpu", 0): 1 * GIB, ("gpu", 3): 40 * GIB, ("mig", 0): 5 * GIB}[handle]
        return SimpleNamespace(used=used, total=80 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(
        self, handle: tuple[str, int]
    ) -> list[SimpleNamespace]:
        other = SimpleNamespace(pid=999, usedGpuMemory=10 * GIB)
        return [other, SimpleNamespace(pid=1, usedGpuMemory=self.own)]

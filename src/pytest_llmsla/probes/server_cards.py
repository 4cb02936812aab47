"""Memory on cards of a server's processes, watched from outside: NVIDIA's by NVML."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .card_samples import card_sources
from .nvml import Card, CardError, all_cards, card_use, open_nvml, slices_of
from .sampler import Source

_PROC = Path("/proc")
_NVIDIA = re.compile(r"/dev/nvidia\d+$")
_OTHER = re.compile(r"/dev/(kfd|dri/renderD\d+|accel/accel\d+|davinci\d+|xdna\d*|hl\d+)$")
_FOREIGN = (
    "the server holds an NVIDIA device open, but NVML does not list its processes (in a container "
    "it may know them by other numbers), so its memory there is unknown"
)


class Cards:
    """Which cards the server's processes are on, and the largest samples of what they use."""

    def __init__(self, nvml: Any = None, proc: Path = _PROC) -> None:
        self._given, self._nvml = nvml, None
        self._proc = proc
        self.restart()

    def restart(self) -> None:
        """Forget the samples."""
        self._used: dict[str, int] = {}
        self._own: dict[str, int] = {}
        self._problem: str | None = None
        self.device = "cpu"
        """What the server computes on: ``cpu``, ``cuda`` or ``accelerator`` (of another maker)."""

    def sample(self, pids: set[int]) -> None:
        """One sample of every card that one of ``pids`` is on."""
        held = {path for pid in pids for path in _open_devices(pid, self._proc)}
        if self.device == "cpu" and (other := next(filter(_OTHER.search, sorted(held)), None)):
            self.device = "accelerator"
            self._problem = f"the server holds {other} open, whose memory cannot be read here"
        holds = any(map(_NVIDIA.search, held))
        try:
            if self._nvml is None:
                self._nvml = open_nvml(self._given)
            listed = self._listed(pids)
        except CardError as e:
            if holds or self.device == "cuda":
                self.device = "cuda"
                self._problem = str(e)  # one lost sample loses the figure
            return
        if holds or listed:
            self.device = "cuda"
        if self.device == "cuda" and not listed:
            self._problem = _FOREIGN
        for uuid, (used, own) in listed.items():
            self._used[uuid] = max(used, self._used.get(uuid, 0))
            if own is not None:
                self._own[uuid] = max(own, self._own.get(uuid, 0))

    def _listed(self, pids: set[int]) -> dict[str, tuple[int, int | None]]:
        """Cards with a process of the server: bytes of the whole card, and of its processes."""
        out: dict[str, tuple[int, int | None]] = {}
        for card in self._every():
            here = self._processes(card) & pids
            if not here:
                continue
            uses = [card_use(self._nvml, card, pid) for pid in sorted(here)]
            own = [use.own for use in uses if use.own is not None]
            out[card.uuid] = (
                max(use.used for use in uses),
                sum(own) if len(own) == len(uses) else None,
            )
        return out

    def sources(self) -> list[Source]:
        """The cards that the server was seen on, over time; none where NVML tells of none."""
        try:
            found = [card for card in self._every() if card.uuid in self._used]
        except CardError:
            return []
        return card_sources(self._nvml, found)

    def _every(self) -> list[Card]:
        if self._nvml is None:
            raise CardError("NVML was not opened")
        cards: list[Card] = []
        for card in all_cards(self._nvml):
            cards += slices_of(self._nvml, card) or [card]
        return cards

    def _processes(self, card: Card) -> set[int]:
        nvml: Any = self._nvml
        try:
            return {int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(card.handle)}
        except Exception as e:
            raise CardError(f"processes of {card.uuid} are not readable: {e}") from None

    @property
    def count(self) -> int:
        """Cards that the server was seen on."""
        return len(self._used)

    @property
    def used(self) -> int | None:
        """Bytes in use on those cards by everyone, None when unknown."""
        return None if self._problem or not self._used else sum(self._used.values())

    @property
    def own(self) -> int | None:
        """Bytes of the server's processes, None when unknown on any of the cards."""
        whole = self._own.keys() == self._used.keys()
        return sum(self._own.values()) if self._used and whole and not self._problem else None

    @property
    def reason(self) -> str:
        """Why a figure is missing."""
        if self.device == "cpu":
            return "none of the server's processes is on a card"
        return self._problem or "NVML does not tell the server's share"


def _open_devices(pid: int, proc: Path) -> set[str]:
    """Paths of the device files that a process has open, as far as we may see."""
    try:
        with os.scandir(proc / str(pid) / "fd") as entries:
            targets = {_target(e.path) for e in entries}
    except OSError:
        return set()
    return {t for t in targets if t.startswith("/dev/")}


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

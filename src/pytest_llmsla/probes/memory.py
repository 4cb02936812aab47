"""Memory of one device over the measured window: named figures that are never mixed.

``allocated_peak`` and ``reserved_peak`` come from the framework, ``device_used_peak`` (the whole
card) and ``device_used_own`` (this process) from NVML, ``rss_*`` from the operating system. All
in GiB. A figure that cannot be read is None with its reason; ``methods`` says how each was taken.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from .card_samples import card_sources
from .nvml import Card, CardError, card_use, find_card, open_nvml
from .rss import RssWindow
from .sampler import Source

GIB = float(1 << 30)

DEVICE_FIGURES = ("allocated_peak", "reserved_peak", "device_used_peak", "device_used_own")


class Framework(Protocol):
    """What the probe needs from torch; tests give a stub device."""

    def cards(self, device: str) -> list[int]:
        """CUDA ordinals behind a device name; empty when it is no CUDA device."""
        ...

    def uuid(self, card: int) -> str | None:
        """UUID of a card as the live context knows it; None when the framework does not tell."""
        ...

    def reset(self, card: int) -> None:
        """Forget the peaks of a card."""
        ...

    def peaks(self, card: int) -> tuple[int, int]:
        """Bytes: peak allocated, peak reserved since the last reset."""
        ...


class TorchFramework:
    """:class:`Framework` over ``torch.cuda``. Imports torch only for a CUDA device."""

    def cards(self, device: str) -> list[int]:
        """``cuda:1`` → [1]; ``cuda`` → the current one; ``auto`` → every card in use by torch."""
        names = [d.strip() for d in device.split(",")]
        if not any(n == "auto" or n.split(":")[0] == "cuda" for n in names):
            return []
        import torch

        if not torch.cuda.is_available():
            return []
        if "auto" in names:
            count = torch.cuda.device_count()
            return [i for i in range(count) if torch.cuda.max_memory_reserved(i) > 0]
        found: list[int] = []
        for name in names:
            kind, _, index = name.partition(":")
            if kind == "cuda":
                found.append(int(index) if index else int(torch.cuda.current_device()))
        return sorted(set(found))

    def uuid(self, card: int) -> str | None:
        """UUID without prefix; torch before 2.5 gives none."""
        import torch

        value = getattr(torch.cuda.get_device_properties(card), "uuid", None)
        return None if value is None else str(value)

    def reset(self, card: int) -> None:
        """Forget the peaks."""
        import torch

        torch.cuda.reset_peak_memory_stats(card)

    def peaks(self, card: int) -> tuple[int, int]:
        """Peak allocated and reserved bytes."""
        import torch

        return int(torch.cuda.max_memory_allocated(card)), int(torch.cuda.max_memory_reserved(card))


class _CardWindow:
    """NVML samples of one card since the window's start."""

    def __init__(self, card: Card | None, problem: str | None) -> None:
        self.card = card
        self.problem = problem
        self.own_problem: str | None = problem
        self.used = 0
        self.own = 0
        self.samples = 0

    def restart(self) -> None:
        if self.card is not None:
            self.problem = self.own_problem = None
        self.used = self.own = self.samples = 0

    def sample(self, nvml: Any) -> None:
        if self.card is None:
            return
        self.samples += 1
        try:
            use = card_use(nvml, self.card)
        except CardError as e:
            # A peak over the other samples would be too small: one lost sample loses the figure.
            self.problem = self.own_problem = str(e)
            return
        self.used = max(self.used, use.used)
        if use.own is None:
            self.own_problem = use.own_reason
        else:
            self.own = max(self.own, use.own)


class MemoryProbe:
    """Peaks of one device (``cpu``, ``cuda``, ``cuda:1``, ``cuda:0,cuda:1``, ``auto``).

    NVML keeps no peak, so the device figures are the largest of samples taken at :meth:`reset`,
    :meth:`sample` and :meth:`read`: call :meth:`sample` after every request. torch's allocator
    keeps what it has once taken, so such samples see its reserve at its largest; memory that other
    software takes and returns inside a request is missed, and ``methods`` says so.
    """

    def __init__(
        self,
        device: str,
        *,
        framework: Framework | None = None,
        nvml: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.device = str(device)
        self._framework = TorchFramework() if framework is None else framework
        self._environ = os.environ if environ is None else environ
        self._nvml_given = nvml
        self._nvml: Any = None
        self._nvml_problem: str | None = None
        self._windows: dict[int, _CardWindow] = {}
        self._rss = RssWindow()
        self._since = "process start (never reset)"

    def reset(self) -> None:
        """Start the measured window: call it after warm-up, with the model loaded."""
        self._rss.reset()
        for ordinal in self._framework.cards(self.device):
            self._framework.reset(ordinal)
            self._window(ordinal).restart()
        self._since = "the start of the measured window"
        self.sample()

    def sample(self) -> None:
        """Take one sample of NVML and of resident memory; cheap (tens of microseconds a card)."""
        self._rss.sample()
        for ordinal in self._framework.cards(self.device):
            self._window(ordinal).sample(self._nvml)

    def read(self) -> dict[str, Any]:
        """All figures of the window so far, JSON-ready.

        Keys: ``allocated_peak reserved_peak device_used_peak device_used_own rss_peak
        rss_sampled_peak rss_now`` (GiB or None, then ``<name>_reason``), ``device`` as given,
        ``cards`` (the same for each card, with name and UUID), ``methods`` and ``since``.
        """
        self.sample()
        cards = [self._read_card(o) for o in self._framework.cards(self.device)]
        out: dict[str, Any] = {}
        for name in DEVICE_FIGURES:
            value, reason = self._sum(cards, name)
            _put(out, name, value, reason)
        rss = self._rss.read()
        _put(out, "rss_peak", _gib(rss.peak), rss.reason)
        _put(out, "rss_sampled_peak", _gib(rss.sampled_peak), None)
        _put(out, "rss_now", _gib(rss.now), None)
        out["device"] = self.device
        out["cards"] = cards
        out["since"] = self._since
        out["methods"] = self._methods(len(cards), rss.method)
        return out

    def sources(self) -> list[Source]:
        """The cards of this device over time, for a sampler; none where they cannot be told."""
        found = [self._window(o).card for o in self._framework.cards(self.device)]
        return card_sources(self._nvml, [card for card in found if card is not None])

    def _window(self, ordinal: int) -> _CardWindow:
        if ordinal not in self._windows:
            self._windows[ordinal] = self._find(ordinal)
        return self._windows[ordinal]

    def _find(self, ordinal: int) -> _CardWindow:
        try:
            if self._nvml_problem is not None:
                raise CardError(self._nvml_problem)
            if self._nvml is None:
                self._nvml = open_nvml(self._nvml_given)
            card = find_card(
                self._nvml,
                ordinal,
                framework_uuid=self._framework.uuid(ordinal),
                visible=self._environ.get("CUDA_VISIBLE_DEVICES"),
                order=self._environ.get("CUDA_DEVICE_ORDER"),
            )
        except CardError as e:
            if self._nvml is None:
                self._nvml_problem = str(e)
            return _CardWindow(None, str(e))
        return _CardWindow(card, None)

    def _read_card(self, ordinal: int) -> dict[str, Any]:
        window = self._window(ordinal)
        card = window.card
        out: dict[str, Any] = {
            "device": f"cuda:{ordinal}",
            "uuid": None if card is None else card.uuid,
            "name": None if card is None else card.name,
            "slice_of": None if card is None else card.slice_of,
            "samples": window.samples,
        }
        allocated, reserved = self._framework.peaks(ordinal)
        nothing = None if allocated > 0 else f"the framework allocated nothing on cuda:{ordinal}"
        _put(out, "allocated_peak", _gib(allocated or None), nothing)
        _put(out, "reserved_peak", _gib(reserved or None), nothing)
        used = window.used if window.problem is None else None
        _put(out, "device_used_peak", _gib(used or None), window.problem)
        own = window.own if window.own_problem is None else None
        _put(out, "device_used_own", _gib(own or None), window.own_problem)
        return out

    def _sum(self, cards: list[dict[str, Any]], name: str) -> tuple[float | None, str | None]:
        """A partial sum would be too small: one unknown card makes the sum unknown."""
        if not cards:
            return None, f"no CUDA device in use (device is {self.device})"
        unknown = [c for c in cards if c[name] is None]
        if unknown:
            return None, "; ".join(f"{c['device']}: {c[name + '_reason']}" for c in unknown)
        return float(sum(c[name] for c in cards)), None

    def _methods(self, cards: int, rss_method: str) -> dict[str, str]:
        over = f"sum of {cards} cards, " if cards > 1 else ""
        out = {
            "rss_peak": f"resident memory of this process without children, {rss_method}",
            "rss_sampled_peak": "largest sample of resident memory at request boundaries",
            "rss_now": "resident memory of this process at the moment of reading",
        }
        if cards:
            sampled = f"{over}largest sample at request boundaries since {self._since}"
            out |= {
                "allocated_peak": f"{over}torch.cuda.max_memory_allocated since {self._since}",
                "reserved_peak": f"{over}torch.cuda.max_memory_reserved since {self._since}",
                "device_used_peak": f"NVML, whole card with other processes, {sampled}",
                "device_used_own": f"NVML, this process alone, {sampled}",
            }
        return out


def _gib(n: int | None) -> float | None:
    return None if n is None else n / GIB


def _put(out: dict[str, Any], name: str, value: float | None, reason: str | None) -> None:
    out[name] = value
    if value is None:
        out[f"{name}_reason"] = reason or "not read yet"

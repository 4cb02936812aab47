"""Cards over time: utilisation, memory, power, clock, temperature, and why a clock was lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .nvml import Card
from .sampler import Source, Value

MIB = float(1 << 20)

FIGURES = ("util", "memory_mib", "power_w", "sm_mhz", "temp_c", "slowed")
"""Columns of one card, without its name. Utilisation in percent; ``slowed``: bits of
:data:`SLOWED_BY`."""

SLOWED_BY = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's clock event reasons that take speed away; idle and chosen clocks are none of them."""

_SM_CLOCK = 1
_GPU_TEMPERATURE = 0


def slowed_by(mask: int) -> list[str]:
    """The words of a ``slowed`` figure."""
    return [words for bit, words in SLOWED_BY.items() if mask & bit]


def card_sources(nvml: Any, cards: Sequence[Card]) -> list[Source]:
    """One source a card. Columns begin with ``gpu_``, of several cards with ``gpu0_``, ``gpu1_`` …

    The numbers are this list's, not NVML's or CUDA's: ``about`` gives each card's UUID.
    """
    return [_source(nvml, card, _prefix(n, len(cards))) for n, card in enumerate(cards)]


def _source(nvml: Any, card: Card, prefix: str) -> Source:
    columns = tuple(f"{prefix}_{figure}" for figure in FIGURES)
    return Source(
        columns=columns,
        read=_CardUse(nvml, card).read,
        slow=True,  # a driver may take milliseconds, and waits for others
        about=dict.fromkeys(columns, f"{card.name}, {card.uuid}"),
    )


def _prefix(number: int, cards: int) -> str:
    return "gpu" if cards == 1 else f"gpu{number}"


class _CardUse:
    def __init__(self, nvml: Any, card: Card) -> None:
        self._nvml, self._card = nvml, card

    def read(self) -> Sequence[Value]:
        """Each figure by itself: what one card does not tell, it says why."""
        nvml, handle = self._nvml, self._card.handle
        return (
            _asked(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            _asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / MIB),
            _asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            _asked(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK))),
            _asked(lambda: float(nvml.nvmlDeviceGetTemperature(handle, _GPU_TEMPERATURE))),
            _asked(lambda: float(self._slowed())),
        )

    def _slowed(self) -> int:
        nvml = self._nvml
        # The older name is still there in every binding; the newer one is not in old drivers.
        ask = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None) or (
            nvml.nvmlDeviceGetCurrentClocksEventReasons
        )
        return int(ask(self._card.handle)) & sum(SLOWED_BY)


def _asked(call: Callable[[], float]) -> Value:
    try:
        return call()
    except Exception as e:
        return f"NVML: {type(e).__name__}: {e}" if str(e) else f"NVML: {type(e).__name__}"

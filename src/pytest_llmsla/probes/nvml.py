"""Which NVIDIA card is ours, and what NVML says is in use on it.

CUDA and NVML count cards differently: CUDA hides and reorders them by ``CUDA_VISIBLE_DEVICES``
and, by default, puts the fastest first; NVML counts all of them by bus. So a card is found by
its UUID, never by taking one numbering for the other. What cannot be read is a
:class:`CardError` with its reason, never a zero.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any, cast


class CardError(Exception):
    """A card or its memory cannot be read; the text is the reason shown to people."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, or one MIG slice of a GPU."""

    uuid: str
    name: str
    handle: Any
    slice_of: str | None = None
    """UUID of the GPU that a MIG slice belongs to."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """Bytes in use on a card at one moment: by everyone, and by one process (None: not told)."""

    used: int
    own: int | None
    own_reason: str | None = None


def open_nvml(library: Any = None) -> Any:
    """The NVML binding, initialised. ``library`` stands in for ``pynvml`` in tests.

    Raises:
        CardError: the binding (package nvidia-ml-py) or the driver's library is not there.
    """
    if library is None:
        try:
            with warnings.catch_warnings():
                # The outdated package of the same module name warns at import.
                warnings.simplefilter("ignore")
                import pynvml
        except ImportError:
            raise CardError(
                "the package nvidia-ml-py is not installed (pip install nvidia-ml-py)"
            ) from None
        library = pynvml
    try:
        library.nvmlInit()
    except Exception as e:
        raise CardError(f"NVML does not start: {_short(e)}") from None
    return library


def all_cards(nvml: Any) -> list[Card]:
    """Every GPU of the machine in NVML's order, whatever CUDA is allowed to see."""
    try:
        count = int(nvml.nvmlDeviceGetCount())
        return [_card(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
    except CardError:
        raise
    except Exception as e:
        raise CardError(f"NVML does not list the cards: {_short(e)}") from None


def slices_of(nvml: Any, card: Card) -> list[Card]:
    """The MIG slices of a GPU; empty where MIG is off or not supported."""
    if not _mig_enabled(nvml, card):
        return []
    found: list[Card] = []
    try:
        count = int(nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle))
    except Exception:
        return []
    for i in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, i)
            found.append(_card(nvml, handle, slice_of=card.uuid, name=card.name))
        except Exception:
            continue
    return found


def find_card(
    nvml: Any,
    ordinal: int,
    *,
    framework_uuid: str | None = None,
    visible: str | None = None,
    order: str | None = None,
) -> Card:
    """The card that CUDA calls ``cuda:<ordinal>`` in this process.

    Args:
        framework_uuid: the UUID that the framework gives for its ordinal; it comes from the live
            context, so it outranks the environment. Older frameworks give none.
        visible: value of ``CUDA_VISIBLE_DEVICES``: indices, GPU UUIDs (prefixes too), MIG UUIDs.
        order: value of ``CUDA_DEVICE_ORDER``.

    Raises:
        CardError: no card, or more than one, fits; nothing is guessed.
    """
    cards = all_cards(nvml)
    entry = _visible_entry(visible, ordinal)
    if framework_uuid is not None:
        return _by_framework(nvml, cards, framework_uuid, entry)
    if entry.startswith("MIG-"):
        return _slice(nvml, cards, entry)
    if entry.startswith("GPU-"):
        return _whole(nvml, _one([c for c in cards if c.uuid.startswith(entry)], entry))
    if order != "PCI_BUS_ID" and len({c.name for c in cards}) > 1:
        raise CardError(
            f"cuda:{ordinal} is index {entry} in CUDA's order (fastest first), and NVML counts by "
            "bus; with different cards in one machine set CUDA_DEVICE_ORDER=PCI_BUS_ID or name "
            "the card by UUID in CUDA_VISIBLE_DEVICES"
        )
    index = int(entry)
    if index >= len(cards):
        raise CardError(f"cuda:{ordinal} is index {index}, but NVML lists {len(cards)} card(s)")
    return _whole(nvml, cards[index])


def card_use(nvml: Any, card: Card, pid: int | None = None) -> CardUse:
    """Bytes in use on ``card`` now, by everyone and by process ``pid`` (default: this one).

    The whole-card figure is total − free, so the driver's own reserve is in it.

    Raises:
        CardError: the card does not tell (a MIG slice without permission, a lost GPU).
    """
    try:
        used = nvml.nvmlDeviceGetMemoryInfo(card.handle).used
    except Exception as e:
        raise CardError(f"memory of {card.uuid} is not readable: {_short(e)}") from None
    if not isinstance(used, int) or used <= 0:
        # This process has a context on the card, so "nothing in use" is a broken reading.
        raise CardError(f"NVML says {used!r} bytes in use on {card.uuid}, which cannot be")
    own, reason = _own_bytes(nvml, card, os.getpid() if pid is None else pid)
    return CardUse(used, own, reason)


def _own_bytes(nvml: Any, card: Card, pid: int) -> tuple[int | None, str | None]:
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(card.handle)
    except Exception as e:
        return None, f"processes of {card.uuid} are not readable: {_short(e)}"
    mine = [p.usedGpuMemory for p in processes if p.pid == pid]
    if not mine:
        return None, (
            f"NVML does not list process {pid} on {card.uuid} "
            "(in a container it may know it by another number)"
        )
    if any(not isinstance(b, int) or b <= 0 or b >= 1 << 63 for b in mine):
        return None, f"NVML lists process {pid} on {card.uuid} without its memory"
    return sum(mine), None


def _by_framework(nvml: Any, cards: list[Card], uuid: str, entry: str) -> Card:
    bare = _bare(uuid)
    for card in cards:
        if _bare(card.uuid) == bare:
            # On a partitioned GPU some frameworks give the parent's UUID for every slice.
            if entry.startswith("MIG-"):
                return _slice(nvml, [card], entry)
            return _whole(nvml, card)
        for part in slices_of(nvml, card):
            if _bare(part.uuid) == bare:
                return part
    raise CardError(f"NVML knows no card with the UUID {uuid} that the framework uses")


def _whole(nvml: Any, card: Card) -> Card:
    if _mig_enabled(nvml, card):
        raise CardError(
            f"{card.uuid} is partitioned (MIG) and it is not known which slice is used; "
            "name it in CUDA_VISIBLE_DEVICES by its MIG UUID (nvidia-smi -L lists them)"
        )
    return card


def _slice(nvml: Any, cards: list[Card], entry: str) -> Card:
    parts = [part for card in cards for part in slices_of(nvml, card)]
    return _one([p for p in parts if p.uuid.startswith(entry)], entry)


def _one(found: list[Card], entry: str) -> Card:
    if len(found) != 1:
        raise CardError(
            f"CUDA_VISIBLE_DEVICES names {entry}, which fits {len(found)} of NVML's cards"
        )
    return found[0]


def _visible_entry(visible: str | None, ordinal: int) -> str:
    """The entry behind an ordinal; CUDA ignores everything from the first invalid entry on."""
    if visible is None:
        return str(ordinal)
    entries: list[str] = []
    for raw in visible.split(","):
        entry = raw.strip()
        if not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        entries.append(entry)
    if ordinal >= len(entries):
        raise CardError(
            f"CUDA_VISIBLE_DEVICES={visible} has no card for cuda:{ordinal} "
            f"({len(entries)} valid entries)"
        )
    return entries[ordinal]


def _mig_enabled(nvml: Any, card: Card) -> bool:
    if card.slice_of is not None:
        return False
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(card.handle)
    except Exception:
        return False  # GPUs without MIG answer "not supported"
    return bool(current)


def _card(nvml: Any, handle: Any, *, slice_of: str | None = None, name: str | None = None) -> Card:
    return Card(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)) if name is None else name,
        handle=handle,
        slice_of=slice_of,
    )


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _text(value: object) -> str:
    # Older bindings answer bytes.
    return value.decode() if isinstance(value, bytes) else cast("str", value)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

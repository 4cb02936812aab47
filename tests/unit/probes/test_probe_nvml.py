"""The card that is read is the card that is used."""
# ruff: noqa: N802 - the names are those of the NVML binding

from __future__ import annotations

from types import SimpleNamespace

import pytest
from stub_nvml import GIB, StubNvml

from pytest_llmsla.probes.nvml import Card, CardError, card_use, find_card, open_nvml


@pytest.mark.parametrize("visible", ["3", "GPU-3aaa-bbbb", "GPU-3a", " 3 , 0"])
def test_visible_devices_name_the_card_by_index_uuid_or_prefix(visible: str) -> None:
    """cuda:0 under CUDA_VISIBLE_DEVICES is the named card, and index 0 is never asked."""
    nvml = StubNvml()
    card = find_card(nvml, 0, visible=visible)
    use = card_use(nvml, card, pid=1)
    assert card.uuid == "GPU-3aaa-bbbb"
    assert (use.used, use.own) == (40 * GIB, 30 * GIB)
    assert nvml.asked == [("gpu", 3)]


def test_mig_uuid_names_the_slice() -> None:
    """A MIG UUID leads to the slice's own memory and names its GPU."""
    nvml = StubNvml()
    card = find_card(nvml, 0, visible="MIG-0ccc-dddd")
    assert (card.uuid, card.slice_of) == ("MIG-0ccc-dddd", "GPU-2aaa-bbbb")
    assert card_use(nvml, card, pid=1).used == 5 * GIB


def test_unreadable_slice_is_an_error_not_a_zero() -> None:
    """A slice that NVML will not read raises with the slice and the cause."""
    nvml = StubNvml()
    card = find_card(nvml, 0, visible="MIG-1ccc-dddd")
    with pytest.raises(CardError, match=r"MIG-1ccc-dddd is not readable.*Insufficient"):
        card_use(nvml, card, pid=1)


@pytest.mark.parametrize(
    ("visible", "text"),
    [
        ("", "0 valid entries"),
        ("-1,3", "0 valid entries"),
        ("NoDevFiles", "0 valid entries"),
        ("MIG-9", "fits 0 of NVML's cards"),
        ("GPU-9", "fits 0 of NVML's cards"),
        ("GPU-", "fits 4 of NVML's cards"),
        ("7", "NVML lists 4 card"),
        ("2", "partitioned.*MIG UUID"),
        ("GPU-2aaa", "partitioned.*MIG UUID"),
    ],
)
def test_nothing_is_guessed(visible: str, text: str) -> None:
    """An entry that fits no card, several, or a partitioned one, is an error that says so."""
    with pytest.raises(CardError, match=text):
        find_card(StubNvml(), 0, visible=visible)


def test_entries_after_an_invalid_one_do_not_count() -> None:
    """CUDA stops at the first invalid entry: so do we."""
    with pytest.raises(CardError, match="1 valid entries"):
        find_card(StubNvml(), 1, visible="3,-1,0")


def test_framework_uuid_outranks_the_environment() -> None:
    """The live context decides: the environment may have changed after it was made."""
    card = find_card(StubNvml(), 0, framework_uuid="3AAA-bbbb", visible="0")
    assert card.uuid == "GPU-3aaa-bbbb"


@pytest.mark.parametrize(
    ("framework", "visible", "expected"),
    [
        ("0ccc-dddd", None, "MIG-0ccc-dddd"),
        ("2aaa-bbbb", "MIG-1ccc-dddd", "MIG-1ccc-dddd"),
    ],
)
def test_framework_on_a_slice(framework: str, visible: str | None, expected: str) -> None:
    """A framework that gives the slice's UUID, or its parent's beside a MIG entry, is followed."""
    assert find_card(StubNvml(), 0, framework_uuid=framework, visible=visible).uuid == expected


@pytest.mark.parametrize("framework", ["2aaa-bbbb", "feed-beef"])
def test_unknown_framework_card_is_an_error(framework: str) -> None:
    """A partitioned GPU without its slice, and a UUID that NVML does not know, are errors."""
    with pytest.raises(CardError):
        find_card(StubNvml(), 0, framework_uuid=framework)


def test_index_among_different_cards_needs_the_bus_order() -> None:
    """With different cards CUDA's and NVML's order may differ: an index alone is refused."""
    nvml = StubNvml(names=("A", "B", "A", "B"))
    with pytest.raises(CardError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_card(nvml, 0, visible="3")
    assert find_card(nvml, 0, visible="3", order="PCI_BUS_ID").uuid == "GPU-3aaa-bbbb"


@pytest.mark.parametrize(("own", "pid"), [(None, 1), (0, 1), ((1 << 64) - 1, 1), (GIB, 2)])
def test_own_share_is_unknown_rather_than_zero(own: int | None, pid: int) -> None:
    """No figure, a zero, NVML's "not available" value or no entry: the own share is unknown."""
    nvml = StubNvml(own=own)
    use = card_use(nvml, find_card(nvml, 3), pid=pid)
    assert use.used == 40 * GIB
    assert use.own is None
    assert use.own_reason is not None
    assert str(pid) in use.own_reason


@pytest.mark.parametrize("used", [0, -1, None])
def test_whole_card_figure_that_cannot_be_is_refused(used: int | None) -> None:
    """A card that we use cannot have nothing in use."""

    class Broken(StubNvml):
        def nvmlDeviceGetMemoryInfo(self, handle: tuple[str, int]) -> SimpleNamespace:
            return SimpleNamespace(used=used)

    with pytest.raises(CardError, match="cannot be"):
        card_use(Broken(), Card("GPU-0", "H", ("gpu", 0)), pid=1)


def test_nvml_that_does_not_start_says_why() -> None:
    """A missing driver is a reason in words."""

    class NoDriver:
        def nvmlInit(self) -> None:
            raise OSError("libnvidia-ml.so.1 not found")

    with pytest.raises(CardError, match="NVML does not start: OSError: libnvidia-ml"):
        open_nvml(NoDriver())

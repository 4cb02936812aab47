"""Numbers on a shelf are the numbers that were put there, whatever becomes of its memory."""

from __future__ import annotations

import os
import pickle
import sys
from array import array
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.shelf import Shelf, in_memory
from pytest_llmsla.timeline import Arrivals

MIB = 1 << 20


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(lambda: tmp_path)


def test_numbers_come_back_in_order_and_to_the_last_bit(shelf: Shelf) -> None:
    """Pieces that left memory are read back as they were, of either type."""
    kept = [(n, shelf.keep(array("d", [n + k / 7 for k in range(5_000)]))) for n in range(300)]
    whole = [(n, shelf.keep(array("q", range(n, n + 500)))) for n in range(300)]
    assert len(kept) * 5_000 * 8 > 2 * 4 * MIB  # over more than one piece
    for n, numbers in kept:
        assert list(numbers) == [n + k / 7 for k in range(5_000)]
        assert max(numbers) == numbers[-1]
    for n, numbers in whole:
        assert list(numbers) == list(range(n, n + 500))


def test_the_folder_is_asked_for_when_it_is_needed_and_left_empty(tmp_path: Path) -> None:
    """A run that keeps nothing makes no folder, and one that does leaves no file in it."""
    asked: list[int] = []

    def folder() -> Path:
        asked.append(1)
        return tmp_path

    shelf = Shelf(folder)
    few = array("q", range(4))
    assert shelf.keep(few) is few
    assert asked == []
    kept = shelf.keep(array("q", range(1_000)))
    assert asked == [1]
    assert list(tmp_path.iterdir()) == []
    shelf.close()
    assert list(kept) == list(range(1_000))
    late = array("q", range(1_000))
    assert shelf.keep(late) is late


def test_where_nothing_can_be_written_numbers_stay_in_memory(tmp_path: Path) -> None:
    """No disk is no reason to lose a run."""
    shelf = Shelf(lambda: tmp_path / "not there")
    numbers = array("d", [1.5] * 1_000)
    assert shelf.keep(numbers) is numbers
    assert in_memory(numbers) is numbers


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory of this system")
def test_what_is_put_there_leaves_memory(shelf: Shelf) -> None:
    """200 MiB of numbers leave less than a quarter of that behind."""
    before = psutil.Process().memory_info().rss
    kept = [shelf.keep(array("q", [n]) * (MIB // 8)) for n in range(200)]
    grown = psutil.Process().memory_info().rss - before
    assert grown < 50 * MIB
    assert [numbers[0] for numbers in kept] == list(range(200))


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 9)), max_size=80))
def test_arrivals_are_the_same_wherever_they_are(pairs: list[tuple[int, int]]) -> None:
    """Moved or not: equal, sliced alike, and themselves again after a trip between processes."""
    there = Arrivals(pairs)
    moved = there.moved(Shelf(lambda: Path(os.curdir)).keep)
    assert moved == there == tuple(pairs)
    assert moved[1:] == there[1:]
    assert len(moved) == len(pairs)
    assert pickle.loads(pickle.dumps(moved)) == there


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors of this system")
def test_a_long_run_takes_few_descriptors(shelf: Shelf) -> None:
    """200 MiB of numbers that are all looked at take less than ten: windows grow."""
    before = len(os.listdir("/proc/self/fd"))
    kept = [shelf.keep(array("q", [n]) * (MIB // 8)) for n in range(200)]
    assert len(os.listdir("/proc/self/fd")) - before < 10
    assert [numbers[-1] for numbers in kept] == list(range(200))


def test_space_is_there_before_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system cannot reserve it by itself."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    shelf = Shelf(lambda: tmp_path)
    kept = [shelf.keep(array("q", [n]) * (MIB // 8)) for n in range(20)]
    assert isinstance(kept[0], memoryview)
    assert [numbers[0] for numbers in kept] == list(range(20))

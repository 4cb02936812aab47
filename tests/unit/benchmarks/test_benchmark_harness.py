"""The benchmarks decide what their figures allow, and follow the package when it changes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other by name, from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def harness() -> Any:
    return importlib.import_module("harness")


def test_pairs_alternate_their_order() -> None:
    """Each side goes first in every second pair, and its figure stays on its side."""
    order: list[str] = []

    def side(name: str, value: float) -> Any:
        def run(_: int) -> float:
            order.append(name)
            return value

        return run

    found = harness().interleave(4, side("a", 1.0), side("b", 2.0))
    assert found == [(1.0, 2.0)] * 4
    assert "".join(order) == "abbaabba"


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([1.0] * 20, True),
        ([9.0] * 20, False),
        ([1.0] * 10 + [9.0] * 10, None),
        ([1.0] * 3, None),
    ],
)
def test_a_median_is_judged_by_its_interval(values: list[float], holds: bool | None) -> None:
    """A claim is decided only when the whole interval is on one side of the limit."""
    h = harness()
    assert h.judged_median(h.median_interval(values), 5.0, "ms", "x")["holds"] is holds


@pytest.mark.parametrize(
    ("value", "noise", "holds"),
    [(90.0, 80.0, True), (110.0, 10.0, False), (110.0, None, False), (110.0, 80.0, None)],
)
def test_noise_of_the_machine_decides_nothing(
    value: float, noise: float | None, holds: bool | None
) -> None:
    """A figure over its limit counts against us only where the control is quiet."""
    assert harness().judged(value, 100.0, "µs", "x", noise=noise)["holds"] is holds


def test_interval_of_the_median_is_that_of_the_sign_test() -> None:
    """For 20 values the 95 % interval runs from the 6th to the 15th."""
    found = harness().median_interval([float(i) for i in range(1, 21)])
    assert (found["low"], found["median"], found["high"]) == (6.0, 10.5, 15.0)


def test_exit_code_and_file_say_the_same(tmp_path: Path) -> None:
    """0: all hold, 1: one does not, 2: one is open; no host name is written."""
    h = harness()
    good, bad = h.judged(1.0, 2.0, "ms", "x"), h.judged(3.0, 2.0, "ms", "x")
    still_open = h.judged(3.0, 2.0, "ms", "x", noise=2.0)
    to = tmp_path / "folder" / "x.json"
    assert h.finish("x", [good], {}, to) == 0
    assert h.finish("x", [good, still_open], {}, None) == 2
    assert h.finish("x", [good, still_open, bad], {}, None) == 1
    written = json.loads(to.read_text(encoding="utf-8"))
    assert written["claims"] == [good]
    assert "hostname" not in written["machine"]


@pytest.mark.parametrize("name", ["clock", "inert", "overhead", "cuda_gate", "cuda_explain"])
def test_every_script_still_finds_what_it_measures(name: str) -> None:
    """Each script can be imported: what it uses of the package is where it looks for it."""
    if name in ("overhead", "cuda_explain"):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    module = importlib.import_module(name)
    assert callable(module.main)
    assert sys.modules[name] is module


def test_random_model_has_a_tokenizer_with_words(tmp_path: Path) -> None:
    """The tokenizer is trained on the package's texts: English words are not spelt in bytes."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    made = importlib.import_module("random_model").tokenizer(4096)
    assert len(made) == 4096
    text = "the queue keeps its order"
    ids = made(text)["input_ids"]
    assert len(ids) <= 12
    assert made.decode(ids) == text

"""``package.module:factory``: found from the current folder, or told what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.targets import load
from pytest_llmsla.targets.entry import make_importable, resolve_entry


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_module_of_the_current_folder_is_found(here: Path) -> None:
    """As a user writes it beside the sla.yaml; attributes of attributes too."""
    (here / "entry_found.py").write_text("class A:\n    @staticmethod\n    def made(): return 7\n")
    assert resolve_entry("entry_found:A.made", "target.entry")() == 7


@pytest.mark.parametrize("entry", ["", "module", "module:", ":made", ":"])
def test_a_malformed_entry_is_refused(entry: str) -> None:
    """With the form that is valid."""
    with pytest.raises(UsageError, match=r"valid: 'package\.module:factory'"):
        resolve_entry(entry, "target.entry")


@pytest.mark.parametrize("entry", ["entry_nowhere:made", "entry_nowhere.sub:made"])
def test_a_module_that_is_not_there_is_a_usage_error(here: Path, entry: str) -> None:
    """It says from which folder to run."""
    with pytest.raises(UsageError, match="no module 'entry_nowhere"):
        resolve_entry(entry, "target.entry")


def test_an_attribute_that_is_not_there_is_a_usage_error(here: Path) -> None:
    """The module is there, its factory is not."""
    (here / "entry_empty.py").write_text("")
    with pytest.raises(UsageError, match="entry_empty has no 'made'"):
        resolve_entry("entry_empty:made", "target.entry")


def test_what_cannot_be_called_is_a_usage_error(here: Path) -> None:
    """A factory is called; a number cannot be."""
    (here / "entry_seven.py").write_text("made = 7\n")
    with pytest.raises(UsageError, match="it is int, not callable"):
        resolve_entry("entry_seven:made", "target.entry")


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("entry_raises", "raise RuntimeError('no card')", "RuntimeError: no card"),
        ("entry_needs", "import a_module_that_is_not_installed", "a_module_that_is_not_installed"),
        ("entry_broken", "def made(:", "SyntaxError"),
    ],
)
def test_a_module_that_breaks_on_import_is_the_targets_fault(
    here: Path, name: str, source: str, words: str
) -> None:
    """Not the user's entry: the cause inside the module is named."""
    (here / f"{name}.py").write_text(source)
    with pytest.raises(TargetError, match=words):
        resolve_entry(f"{name}:made", "target.entry")


def test_an_unknown_kind_names_the_known_ones() -> None:
    """And where a third party could add one."""
    with pytest.raises(UsageError, match=r"valid: llamacpp, mii, openai, .*'pytest_llmsla"):
        load({"kind": "telepathy"})


@pytest.mark.parametrize("kind", ["python", "scripted"])
def test_a_kind_without_what_it_needs_is_refused(kind: str) -> None:
    """Before anything is measured."""
    with pytest.raises(UsageError, match=r"needs target\."):
        load({"kind": kind})


def test_the_policys_folder_comes_before_the_working_directory(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both are importable; a module in both is the policy's."""
    base = tmp_path_factory.mktemp("policy")
    for folder, name in ((base, "policy"), (here, "working")):
        (folder / "entry_of_both.py").write_text(f"def made(): return {name!r}\n")
    (here / "entry_of_here.py").write_text("def made(): return 1\n")
    make_importable(base)
    assert resolve_entry("entry_of_both:made", "target.entry")() == "policy"
    assert resolve_entry("entry_of_here:made", "target.entry")() == 1

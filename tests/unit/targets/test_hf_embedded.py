"""The embedded model's file is found without importing its package and converted once, whole."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from hf_tiny import EOS, ask, load, write_gguf

from pytest_llmsla.errors import TargetError
from pytest_llmsla.targets import embedded
from pytest_llmsla.targets.embedded import Converted, cache_dir, converted, find_gguf, is_complete


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A tiny GGUF file."""
    pytest.importorskip("gguf")
    return write_gguf(tmp_path / "tiny.gguf")


def convert(gguf: Path) -> tuple[Converted, list[str]]:
    """Convert, and what was said meanwhile."""
    said: list[str] = []
    return converted(gguf, "tiny", say=said.append), said


def install(site: Path, *files: str) -> None:
    """A distribution whose record lists ``files``."""
    info = site / "some_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{f},,\n" for f in files))


def test_the_file_is_found_by_the_distribution_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package itself, which would run code on import, is not imported."""
    install(tmp_path, "some_model/__init__.py", "some_model/x.gguf")
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_gguf("some-model") == package / "x.gguf"
    assert "some_model" not in sys.modules


def test_a_wheel_that_is_not_there_or_holds_no_model_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the name is looked for elsewhere."""
    assert find_gguf("llmsla-no-such-wheel") is None
    install(tmp_path, "some_model/__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_gguf("some-model") is None


def test_a_listed_file_that_is_missing_says_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged installation is not silently replaced by a download."""
    install(tmp_path, "some_model/x.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TargetError, match=r"x\.gguf which it lists is missing.*--force-reinstall"):
        find_gguf("some-model")


def test_it_is_converted_once_and_answers(cache: Path, gguf: Path) -> None:
    """The second call says nothing, converts nothing, and gives the same folder."""
    first, said = convert(gguf)
    assert len(said) == 1
    assert said[0].startswith("converting tiny.gguf")
    assert "once, about" in said[0]
    assert first.folder.parent == cache
    assert convert(gguf) == (first, [])
    target = load(first.folder)
    assert target.describe()["bytes_by_dtype"].keys() == {"float32"}
    assert target.tokenizer.chat_template
    # Tokenizer and config, both made from the file, agree on its end token.
    assert target.describe()["eos_token_ids"] == [EOS]
    assert ask(target)[0] == ask(load(gguf))[0]


def test_another_file_gets_another_folder(cache: Path, gguf: Path, tmp_path: Path) -> None:
    """The key is the content: a new version of the wheel is converted anew."""
    first, _ = convert(gguf)
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes() + b"\0" * 32)
    assert convert(other)[0].folder != first.folder


@pytest.mark.parametrize("damage", ["no marker", "bad marker", "short file", "missing file"])
def test_a_half_written_folder_is_never_used(cache: Path, gguf: Path, damage: str) -> None:
    """Whatever is not whole is converted again."""
    done, _ = convert(gguf)
    marker = done.folder / embedded.MARKER
    weights = done.folder / "model.safetensors"
    if damage == "no marker":
        marker.unlink()
    elif damage == "bad marker":
        marker.write_text("{")
    elif damage == "short file":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        weights.unlink()
    assert not is_complete(done.folder)
    again, said = convert(gguf)
    assert again == done
    assert len(said) == 1
    assert is_complete(again.folder)


def test_what_a_killed_process_left_is_cleared(cache: Path, gguf: Path) -> None:
    """A scratch folder of an earlier try is neither used nor kept."""
    done, _ = convert(gguf)
    left = cache / f"{done.folder.name}.tmp-killed"
    done.folder.rename(left)
    assert convert(gguf)[0] == done
    assert [p.name for p in cache.iterdir() if "tmp" in p.name] == []


def test_two_at_once_convert_once(cache: Path, gguf: Path) -> None:
    """The second waits for the first and finds its folder whole."""
    said: list[str] = []
    found: list[bool] = []

    def one() -> None:
        found.append(is_complete(converted(gguf, "tiny", say=said.append).folder))

    both = [threading.Thread(target=one) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(timeout=60)
    assert found == [True, True]
    assert len(said) == 1


def test_a_full_disk_is_said_before_converting(
    cache: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the folder and the variable that moves it; nothing is left behind."""
    monkeypatch.setattr(embedded, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(TargetError, match=r"no space .*MiB free.*LLMSLA_CACHE"):
        convert(gguf)
    assert [p for p in cache.iterdir() if p.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "taken"))
    with pytest.raises(TargetError, match=r"cannot be used .*LLMSLA_CACHE to a folder you may"):
        convert(gguf)


def test_a_file_that_is_no_gguf_is_an_error_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    """The conversion's own error is named."""
    pytest.importorskip("gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 60)
    with pytest.raises(TargetError, match=r"broken\.gguf cannot be converted: \w+"):
        convert(broken)
    assert [p for p in cache.iterdir() if p.is_dir()] == []


def test_the_marker_says_what_was_made_from_what(cache: Path, gguf: Path) -> None:
    """Source hash and library version can be looked up later."""
    done, _ = convert(gguf)
    facts = json.loads((done.folder / embedded.MARKER).read_text())
    assert facts["source_sha256"] == done.gguf_sha256 == embedded.file_sha256(gguf)
    assert set(facts["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_the_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LLMSLA_CACHE wins; without it the user's cache folder."""
    monkeypatch.delenv("LLMSLA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert cache_dir().name == "pytest-llmsla"
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"

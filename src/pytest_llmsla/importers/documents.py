"""A result file as parsed documents: one JSON value, several (one a line or run together), YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..log.strict_json import no_key_twice

_LARGEST = 1 << 30
_LONGEST = 14_000  # bits: Python writes no longer int out, not even for a message
_WHOLE_FILE = "Give the whole file as the tool wrote it"
_YAML = (".yaml", ".yml")
_PACKED = {
    "gzip": b"\x1f\x8b", "zip": b"PK\x03\x04", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh",
    "xz": b"\xfd7zXZ",
}  # fmt: skip
SUFFIXES = (".json", ".jsonl", *_YAML)
"""Names of files that are looked at in a folder."""


def documents(path: Path) -> list[Any]:
    """Every document of the file, at least one.

    Raises:
        UsageError: it cannot be read, is empty, cut, not UTF-8, too large, or has a key twice.
    """
    text = _text(path)
    try:
        if path.suffix.lower() in _YAML:
            return [_yaml(text)]
        return _json(text)
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply to be a result file") from None
    except ValueError as e:
        if text[_skip(text, 0)] not in "{[" and path.suffix.lower() not in _YAML:
            raise UsageError(
                f"{path}: is no JSON: it begins with {text.lstrip()[:20]!r}. Results of a tool are "
                "its JSON or JSON lines, or YAML in a file whose name ends in .yaml"
            ) from e
        raise UsageError(f"{path}: is cut or damaged ({e}). {_WHOLE_FILE}") from e


def _text(path: Path) -> str:
    """The file's text; nothing else of it stays in memory."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path}: is larger than 1 GiB; split the run")
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror or e}). {_WHOLE_FILE}") from e
    packed = next((name for name, head in _PACKED.items() if data.startswith(head)), None)
    if packed is not None:
        raise UsageError(f"{path}: is compressed ({packed}); unpack it and give the file inside")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: is not UTF-8 ({e.reason} at byte {e.start})") from e
    if not text or text.isspace():
        raise UsageError(f"{path}: is empty. {_WHOLE_FILE}")
    return text


def _json(text: str) -> list[Any]:
    decoder = json.JSONDecoder(object_pairs_hook=no_key_twice)
    out, at = [], _skip(text, 0)
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        out.append(value)
        at = _skip(text, at)
    return out


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _yaml(text: str) -> Any:
    import yaml

    base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]  # chosen at run time: libyaml may be missing
        """Refuses a key that stands twice."""

    def pairs(loader: Any, node: Any) -> dict[str, Any]:
        found = [
            (loader.construct_object(k, deep=True), loader.construct_object(v, deep=True))
            for k, v in node.value
        ]
        return no_key_twice([(str(k), v) for k, v in found])

    def whole(loader: Any, node: Any) -> int:
        value = int(loader.construct_yaml_int(node))
        if value.bit_length() > _LONGEST:
            raise ValueError(f"{str(node.value)[:20]}… is no number of a result")
        return value

    Loader.add_constructor("tag:yaml.org,2002:map", pairs)
    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as e:
        raise ValueError(" ".join(str(e).split())[:200]) from e

"""Prompt files of a team's own: text, JSON lines, JSON. Every error names file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError

_BLOCK = "---"
_SHAPES = 'a string, {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """One prompt of a file, word for word."""

    text: str
    system: str | None
    """The prompt's own system text; None: the policy's."""
    where: str
    """``prompts.txt:12``."""


def read_prompts(path: Path) -> tuple[GivenPrompt, ...]:
    """Read the prompts of one file, in its order.

    ``.jsonl``: one JSON value a line. ``.json``: a list. Anything else is text: one prompt a
    line, or, when a line holds only ``---``, blocks of several lines between such lines.

    Raises:
        UsageError: no such file, not UTF-8, not the stated shape, an empty prompt, or no prompt.
    """
    text = _decode(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        found = list(_from_json(path, text))
    elif suffix in (".jsonl", ".ndjson"):
        found = list(_from_jsonl(path, text))
    else:
        found = list(_from_text(path, text))
    if not found:
        raise UsageError(f"{path} holds no prompt; give at least one, or use `prompts: builtin`")
    return tuple(found)


def _decode(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise UsageError(
            f"cannot read the prompt file {path}: {reason}; give the path of a text, .jsonl or "
            ".json file, or use `prompts: builtin`"
        ) from exc
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise UsageError(
            f"{path}:{line} is not UTF-8 (byte {raw[exc.start]:#04x} at offset {exc.start}); it "
            f"looks like {guess_encoding(raw)}; save the file as UTF-8"
        ) from exc


def guess_encoding(raw: bytes) -> str:
    """The likely encoding of bytes that are not UTF-8, for a message; never used to read them."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if raw[:200].count(0) > len(raw[:200]) // 4:
        return "UTF-16 without a byte order mark"
    # Letters with accents stand alone among ASCII; two-byte characters stand in runs.
    runs = re.findall(rb"[\x80-\xff]+", raw)
    if sum(len(r) == 1 for r in runs) > len(runs) / 2:
        return "Windows-1252 or ISO-8859-1"
    for name, codec, lowest, highest, share in (
        ("Shift_JIS", "shift_jis", "\u3040", "\u30ff", 0.25),  # kana tell Japanese from Chinese
        ("GBK", "gb18030", "\u4e00", "\u9fff", 0.6),
    ):
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            continue
        foreign = [ch for ch in text if ord(ch) > 127 and not "\u3000" <= ch <= "\u303f"]
        if foreign and sum(lowest <= ch <= highest for ch in foreign) >= share * len(foreign):
            return name
    return "Windows-1252 or ISO-8859-1"


def _from_text(path: Path, text: str) -> Iterator[GivenPrompt]:
    lines = text.replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not any(line.strip() == _BLOCK for line in lines):
        for number, line in enumerate(lines, 1):
            hint = "delete the line, or put --- between prompts that span several lines"
            yield _given(line.strip(), None, f"{path}:{number}", hint)
        return
    first, block = 1, list[str]()
    if lines[-1].strip() == _BLOCK:
        lines.pop()
    for number, line in enumerate([*lines, _BLOCK], 1):
        if line.strip() != _BLOCK:
            block.append(line)
        elif number > 1 or block:  # a separator in the first line opens the first block
            hint = "remove one of the --- lines around it"
            yield _given("\n".join(block).strip(), None, f"{path}:{first}", hint)
            block = []
        if line.strip() == _BLOCK:
            first = number + 1


def _from_jsonl(path: Path, text: str) -> Iterator[GivenPrompt]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as exc:
                raise UsageError(
                    f"{where} is not JSON: {exc.msg} at column {exc.colno}; each line is {_SHAPES}"
                ) from exc
            yield _from_value(value, where)


def _from_json(path: Path, text: str) -> Iterator[GivenPrompt]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        raise UsageError(
            f"{path}:{exc.lineno} is not JSON: {exc.msg}; the file is a list of {_SHAPES}"
        ) from exc
    if not isinstance(value, list):
        raise UsageError(f"{path} holds {_kind(value)}; it must be a list of {_SHAPES}")
    for index, item in enumerate(value):
        yield _from_value(item, f"{path}[{index}]")


def _from_value(value: Any, where: str) -> GivenPrompt:
    if isinstance(value, str):
        return _given(value, None, where)
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        got = f"keys {', '.join(map(str, value)) or 'none'}" if isinstance(value, dict) else ""
        raise UsageError(f"{where} is {got or _kind(value)}; a prompt is {_SHAPES}")
    if "prompt" in value:
        if not isinstance(value["prompt"], str):
            raise UsageError(f"{where}: prompt is {_kind(value['prompt'])}; it must be a string")
        return _given(value["prompt"], None, where)
    system, user = _turns(value["messages"], where)
    return _given(user, system, where)


def _turns(messages: Any, where: str) -> tuple[str | None, str]:
    """The optional system text and the one user text of a conversation."""
    advice = "give one user message, with at most one system message before it"
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UsageError(f"{where}: messages must be a list of objects; {advice}")
    roles = [m.get("role") for m in messages]
    if roles not in (["user"], ["system", "user"]):
        named = ", ".join(map(str, roles)) or "none"
        raise UsageError(f"{where}: messages have the roles {named}; {advice}")
    texts = [m.get("content") for m in messages]
    if not all(isinstance(t, str) for t in texts):
        raise UsageError(f"{where}: content must be a string (only text is measured); {advice}")
    return (texts[0] if len(texts) == 2 else None), texts[-1]


def _given(text: str, system: str | None, where: str, hint: str = "") -> GivenPrompt:
    if not text.strip():
        raise UsageError(f"{where}: empty prompt; {hint or 'give it a text or remove it'}")
    for part in (text, system or ""):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as exc:
            raise UsageError(
                f"{where}: character {exc.start + 1} is half of a surrogate pair "
                f"(\\u{ord(part[exc.start]):04x}), which is no text; repair the escape"
            ) from exc
    return GivenPrompt(text, system, where)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")

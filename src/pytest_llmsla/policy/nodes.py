"""YAML text to plain values, with the line of every key and every trap of YAML 1.1 named.

PyYAML composes the nodes; values are made here, because its own construction reads ``0200`` as
128, ``1:30`` as 90 and ``on`` as true without a word, and lets a repeated key win in silence.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..errors import UsageError
from .checks import BUCKET_NAME
from .credentials import hidden
from .problems import Path, Problem

MAX_BYTES = 200_000
MAX_VALUES = 20_000
MAX_DEPTH = 40
_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?=\.?[0-9])(0|[1-9][0-9]*)?\.?[0-9]*([eE][-+]?[0-9]+)?\Z")
# Text to YAML 1.1 and a number to YAML 1.2 and to people: 1e3, 5e-1.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")
# 08 is text to YAML 1.1 (no octal number has an 8) and 8 to YAML 1.2.
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+\Z")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass
class Document:
    """A read file: plain values, the line of every path, and what was wrong on the way."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def decode_utf8(data: bytes, name: str) -> str:
    """Text of a UTF-8 file, a byte order mark dropped.

    Raises:
        UsageError: another encoding, which the message names, with the command to convert.
    """
    text_name = name or "the file"
    encoding = None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "UTF-16"
    elif b"\0" in data:
        even, odd = data[0::2].count(0), data[1::2].count(0)
        encoding = {True: "UTF-16LE", False: "UTF-16BE"}[odd > even]
        if max(even, odd) < len(data) // 8:
            raise UsageError(f"{text_name}: not a text file: it holds NUL bytes. Give UTF-8 text.")
    if encoding is None:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            at = data[: e.start].count(b"\n") + 1
            encoding = _guess(data)
            where = f"{text_name}:{at}"
    else:
        where = text_name
    raise UsageError(
        f"{where}: not UTF-8; it looks like {encoding}. Files must be UTF-8. Convert it: "
        f"iconv -f {encoding} -t UTF-8 {text_name} > converted && mv converted {text_name}"
    )


def _guess(data: bytes) -> str:
    """The likely encoding of bytes that are not UTF-8."""
    runs = re.findall(rb"[\x80-\xff]+", data)
    # GB2312's characters are pairs of high bytes; accented Latin letters mostly stand alone.
    if runs and sum(len(r) % 2 == 0 for r in runs) * 2 > len(runs):
        for name in ("GBK", "BIG5", "SHIFT_JIS", "EUC-KR"):
            try:
                data.decode(name)
            except UnicodeDecodeError:
                continue
            return name
    return "WINDOWS-1252" if re.search(rb"[\x80-\x9f]", data) else "ISO-8859-1"


def read_yaml(data: bytes, name: str) -> Document:
    """Parse one YAML document. ``name`` is the file as messages call it.

    Problems that leave the rest readable (repeated keys, ambiguous numbers) are listed in the
    result.

    Raises:
        UsageError: the file as a whole cannot be read; the message names line and cause.
    """
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: {len(data):,} bytes; at most {MAX_BYTES:,}. Is this the file?")
    text = decode_utf8(data, name)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        raise UsageError(_syntax(e, name)) from None
    except yaml.reader.ReaderError as e:
        line = text[: e.position].count("\n") + 1
        raise UsageError(
            f"{name}:{line}: the character U+{e.character:04X} is not allowed in YAML: remove it"
            if isinstance(e.character, int)
            else f"{name}:{line}: a character YAML does not allow: remove it"
        ) from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: nested too deeply (at most {MAX_DEPTH} levels)") from None
    if node is None:
        return Document(None)
    return _Reader(name).read(node)


def _syntax(e: yaml.MarkedYAMLError, name: str) -> str:
    # No excerpt of the line: it may hold a secret.
    mark = e.problem_mark or e.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    problem = e.problem or "cannot be read"
    if "'\\t'" in problem:
        problem = "a tab; YAML indents with spaces only: replace it with spaces"
    elif "expected a single document" in (e.context or "") + problem:
        problem = "a second document begins (---); a policy is one document: remove the line"
    return f"{where}: not valid YAML: {problem}"


class _Reader:
    """Walks nodes once; ``values`` counts them, aliases included, so that a bomb ends early."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values = 0
        self.doc = Document(None)
        self.open: list[int] = []

    def read(self, node: yaml.Node) -> Document:
        self.doc.value = self._value(node, ())
        return self.doc

    def _problem(self, path: Path, node: yaml.Node, text: str) -> None:
        self.doc.lines[path] = node.start_mark.line + 1
        self.doc.problems.append(Problem(path, text))

    def _value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.values += 1
        if self.values > MAX_VALUES:
            raise UsageError(
                f"{self.name}:{line}: more than {MAX_VALUES:,} values, aliases (*name) counted in "
                "full: write the policy without them"
            )
        if id(node) in self.open:
            raise UsageError(f"{self.name}:{line}: an alias (*name) contains itself: remove it")
        if len(self.open) > MAX_DEPTH:
            raise UsageError(f"{self.name}:{line}: nested too deeply (at most {MAX_DEPTH} levels)")
        self.doc.lines.setdefault(path, line)
        self.open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            assert isinstance(node, yaml.ScalarNode)
            return self._scalar(node, path)
        finally:
            self.open.pop()

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> Any:
        if node.tag != _TAG + "seq":
            self._problem(path, node, f"the tag {_short(node.tag)} is not supported: remove it")
        return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Any:
        if node.tag != _TAG + "map":
            self._problem(path, node, f"the tag {_short(node.tag)} is not supported: remove it")
        out: dict[str, Any] = {}
        own: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _TAG + "merge":
                merged.append(value_node)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(path, key_node, "a key must be a word, not a list or mapping")
                continue
            name = key_node.value
            if name in own:
                self._problem(
                    (*path, name),
                    key_node,
                    f"given twice (first on line {own[name]}): remove one",
                )
                continue
            own[name] = line
            self.doc.lines[(*path, name)] = line
            out[name] = self._value(value_node, (*path, name))
        for value_node in merged:
            self._merge(value_node, path, out)
        return out

    def _merge(self, node: yaml.Node, path: Path, out: dict[str, Any]) -> None:
        """``<<``: keys of another mapping that are not given here."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._problem((*path, "<<"), source, "merges a mapping (*name) or a list of them")
                continue
            # Read under the path of the receiver: messages and lines then name the key in use.
            before = dict(self.doc.lines)
            found = self._value(source, path)
            self.doc.lines.update(before)
            for name, value in found.items():
                out.setdefault(name, value)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text, tag = node.value, node.tag.removeprefix(_TAG)
        if node.style is not None or tag == "str":
            if tag != "str":
                self._problem(path, node, f"the tag {_short(node.tag)} is not supported: remove it")
            elif node.style is None and _EXPONENT.match(text):
                return float(text)
            elif node.style is None and _LEADING_ZERO.match(text):
                return self._ambiguous(
                    node, path, "a number to some readers: drop the zero, or quote it if it is text"
                )
            return text
        if tag == "null":
            return None
        if tag == "bool":
            if text in _BOOL:
                return _BOOL[text]
            return self._ambiguous(
                node,
                path,
                "which YAML reads as true or false: write true or false, or quote it if it is text",
            )
        if tag == "int":
            if _INTEGER.match(text) and len(text) < 40:
                return int(text)
            return self._ambiguous(
                node,
                path,
                f"{_reads_as(text)}: write a plain decimal number, or quote it if it is text",
            )
        if tag == "float":
            if _FLOAT.match(text):
                return float(text)
            if text.lstrip("+-").lower() in (".inf", ".nan"):
                return self._ambiguous(node, path, "not a finite number: give a finite one")
            return self._ambiguous(
                node, path, "not a plain number: write it in decimal, or quote it if it is text"
            )
        if tag in ("timestamp", "value"):
            return text
        self._problem(path, node, f"the tag {_short(node.tag)} is not supported: remove it")
        return text

    def _ambiguous(self, node: yaml.ScalarNode, path: Path, text: str) -> str:
        # What may be a credential is not repeated, as in every other message.
        given = "a value" if hidden(path) else _short(node.value)
        self._problem(path, node, f"got {given}, {text}")
        return str(node.value)


def _reads_as(text: str) -> str:
    """How YAML 1.1 reads an integer that is not plain decimal."""
    body = text.lstrip("+-").replace("_", "")
    try:
        if ":" in body:
            total = 0
            for part in body.split(":"):
                total = total * 60 + int(part)
            return f"which YAML reads as {total} (base 60)"
        if body.startswith(("0x", "0b")):
            return f"which YAML reads as {int(body, 0)}"
        if body.startswith("0") and len(body) > 1:
            return f"which YAML reads as {int(body, 8)} (octal)"
    except ValueError:
        pass
    return "not a plain decimal number"


def _short(text: str) -> str:
    text = text.removeprefix(_TAG)
    return text if len(text) <= 60 else f"{text[:57]}..."


def named_path(path: Path, root: Any) -> str:
    """``buckets.short.ttft_ms`` for ``("buckets", 0, "ttft_ms")``; ``buckets[0]`` when nameless."""
    out = ""
    here = root
    for step in path:
        if isinstance(step, int):
            here = here[step] if isinstance(here, (list, tuple)) and step < len(here) else None
            name = here.get("name") if isinstance(here, Mapping) else None
            usable = isinstance(name, str) and re.match(BUCKET_NAME, name) and name.isprintable()
            out += f".{name}" if usable else f"[{step}]"
        else:
            here = here.get(step) if isinstance(here, Mapping) else None
            # A key may hold anything: keep control characters and novels out of messages.
            plain = step.isprintable() and len(step) <= 60
            out += f".{step}" if plain else f".{_short(repr(step))}"
    return out.lstrip(".")

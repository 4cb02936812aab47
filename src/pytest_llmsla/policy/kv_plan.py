"""A KV-cache plan: the file rule 2 asks for when P95 of ITL is over its limit.

It names cause, measures, owner and expires. YAML, or Markdown with front matter, with
``key: value`` lines, or with a heading for each of the four. English or Chinese names.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LlmslaError, UsageError
from .nodes import decode_utf8, read_yaml

MAX_BYTES = 200_000
FIELDS: Mapping[str, tuple[str, ...]] = {
    "cause": ("cause", "root cause", "原因", "根因"),
    "measures": ("measures", "measure", "actions", "措施", "优化措施"),
    "owner": ("owner", "负责人", "责任人"),
    "expires": ("expires", "expiry", "valid until", "有效期", "到期", "到期日"),
}
_NAMES = {alias: name for name, aliases in FIELDS.items() for alias in aliases}
_PLACEHOLDER = re.compile(
    r"(todo|tbd|tba|fixme|xxx+|n/?a|none|null|nil|unknown|pending|placeholder|lorem ipsum.*|"
    r"to be (done|defined|determined|filled( in)?)|fill (me|this) in|"
    r"((your|the) )?(cause|measures?|owner|name)( here)?|yyyy-mm-dd|<.*>|\[.*\]|\{.*\}|"
    r"待定|待补充|待填写?|暂无|无|未定)[\s.:!。：]*",
    re.I,
)
_MARKED = re.compile(r"\b(todo|tbd|fixme)\b|待补充|待填写", re.I)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_HEADING = re.compile(r"#{1,6}\s+(.+?)\s*#*\s*$")
_PAIR = re.compile(r"\s*(?:[-*+]\s+)?(?:\*\*|__)?([^:：*_\n]{2,20}?)(?:\*\*|__)?\s*[:：]\s*(.*)$")
_BULLET = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(.*)$")


class KvPlanProblem(LlmslaError):  # noqa: N818 - a finding about a file, not a failed call
    """The file is no valid plan; the text says why and what is needed."""


@dataclass(frozen=True)
class KvPlan:
    """A plan that holds today."""

    cause: str
    measures: tuple[str, ...]
    owner: str
    expires: datetime.date
    sha256: str

    def summary(self) -> str:
        """One line for the finding."""
        return (
            f"cause: {_cut(self.cause)}; measures: {_cut(', '.join(self.measures))}; "
            f"owner: {_cut(self.owner)}; expires {self.expires.isoformat()}"
        )


def load_kv_plan(path: Path, today: datetime.date) -> KvPlan:
    """Read a plan and hold it against ``today``; it is valid through its last day.

    Raises:
        KvPlanProblem: unreadable, empty, a field missing or a placeholder, or expired.
    """
    data = _bytes(path)
    name = path.name
    try:
        text = decode_utf8(data, name)
    except UsageError as e:
        raise KvPlanProblem(str(e)) from None
    if not text.strip():
        raise KvPlanProblem(f"{name} is empty. {_NEEDED}")
    found = _from_yaml(text, name) if path.suffix in (".yaml", ".yml") else _from_text(text, name)
    cause, owner = _words(found, "cause", name), _words(found, "owner", name)
    measures = _measures(found, name)
    expires = _date(found, name)
    if expires < today:
        raise KvPlanProblem(
            f"{name} expired on {expires.isoformat()}; today is {today.isoformat()}. Carry it out, "
            "or agree on a new date"
        )
    return KvPlan(cause, measures, owner, expires, hashlib.sha256(data).hexdigest())


_NEEDED = (
    "A plan names cause, measures, owner and expires (YYYY-MM-DD), as YAML keys, 'key: value' "
    "lines or Markdown headings"
)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise KvPlanProblem(f"there is no file {path}. {_NEEDED}") from None
    except OSError as e:
        raise KvPlanProblem(f"{path} cannot be read: {e.strerror or e}") from None
    if len(data) > MAX_BYTES:
        raise KvPlanProblem(f"{path.name}: {len(data):,} bytes, at most {MAX_BYTES:,}")
    return data


def _from_yaml(text: str, name: str) -> dict[str, Any]:
    try:
        doc = read_yaml(text.encode(), name)
    except UsageError as e:
        raise KvPlanProblem(str(e)) from None
    if doc.problems:
        first = doc.problems[0]
        raise KvPlanProblem(f"{name}: {'.'.join(map(str, first.path))}: {first.text}")
    if not isinstance(doc.value, dict):
        raise KvPlanProblem(f"{name} holds no keys. {_NEEDED}")
    return {_NAMES[k]: v for key, v in doc.value.items() if (k := key.strip().lower()) in _NAMES}


def _from_text(text: str, name: str) -> dict[str, Any]:
    """Front matter, headings and ``key: value`` lines."""
    text = _COMMENT.sub("", text)
    found: dict[str, Any] = {}
    front = re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", text, re.S)
    if front:
        found.update(_from_yaml(front[1], name))
        text = text[front.end() :]
    for field, lines in _sections(text):
        if field in found and _clean(found[field]) not in ("", _clean(lines)) and lines:
            raise KvPlanProblem(f"{name} gives {field} twice, differently: keep one")
        if lines or field not in found:
            found[field] = lines
    return found


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    field: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        heading, pair = _HEADING.match(line), _PAIR.match(line)
        title = heading[1] if heading else pair[1] if pair else ""
        named = _NAMES.get(title.strip(" *_:：").lower())
        if heading or named:
            if field is not None:
                yield field, lines
            field, lines = named, []
            if pair and not heading and pair[2].strip():
                lines.append(pair[2])
        elif line.strip():
            lines.append(line)
    if field is not None:
        yield field, lines


def _clean(value: Any) -> str:
    """One field as one line of text."""
    if isinstance(value, list):
        return " ".join(filter(None, (_clean(v) for v in value)))
    if isinstance(value, dict):
        return ", ".join(f"{k}: {text}" for k, v in value.items() if (text := _clean(v)))
    if value is None or isinstance(value, bool):
        return ""
    text = str(value).strip()
    bullet = _BULLET.match(text)
    return " ".join((bullet[1] if bullet else text).split()).strip("*_` ")


def _is_placeholder(text: str) -> bool:
    """Nothing that says anything: no letters, a stand-in word, or a mark to be filled in."""
    letters = [c for c in text if c.isalpha()]
    if not letters or (len(letters) == 1 and text.isascii()):
        return True
    return bool(_PLACEHOLDER.fullmatch(text)) or bool(_MARKED.search(text))


def _words(found: Mapping[str, Any], field: str, name: str) -> str:
    if field not in found:
        raise KvPlanProblem(f"{name} does not name {field}. {_NEEDED}")
    text = _clean(found[field])
    if not text:
        raise KvPlanProblem(f"{name}: {field} is empty. {_NEEDED}")
    if _is_placeholder(text):
        raise KvPlanProblem(f"{name}: {field} is a placeholder ({_cut(text)!r}): write it out")
    return text


def _measures(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if "measures" not in found:
        raise KvPlanProblem(f"{name} does not name measures. {_NEEDED}")
    items = [text for entry in _entries(found["measures"]) if (text := _clean(entry))]
    if not items:
        raise KvPlanProblem(f"{name}: measures is empty. {_NEEDED}")
    for item in items:
        if _is_placeholder(item):
            raise KvPlanProblem(f"{name}: measures holds a placeholder ({_cut(item)!r})")
    return tuple(items)


def _entries(given: Any) -> list[Any]:
    """A list as it is; lines joined to the bullet they continue; one line split where it lists."""
    lines = given if isinstance(given, list) else str(given or "").splitlines()
    if len(lines) == 1 and isinstance(lines[0], str):
        flow = re.fullmatch(r"\s*\[(.*)\]\s*", lines[0])
        return re.split(r"[,;，；]", flow[1]) if flow else re.split(r"[;；]", lines[0])
    if not any(isinstance(entry, str) and _BULLET.match(entry) for entry in lines):
        return lines
    out: list[Any] = []
    for entry in lines:
        if out and isinstance(entry, str) and not _BULLET.match(entry):
            out[-1] = f"{out[-1]} {entry.strip()}"
        else:
            out.append(entry)
    return out


def _date(found: Mapping[str, Any], name: str) -> datetime.date:
    text = _clean(found.get("expires"))
    if not text:
        raise KvPlanProblem(f"{name} does not name expires. {_NEEDED}")
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise KvPlanProblem(
            f"{name}: expires is {_cut(text)!r}; valid: a date as YYYY-MM-DD"
        ) from None


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."

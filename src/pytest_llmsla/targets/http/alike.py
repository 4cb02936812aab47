"""Events that are like one read before, but for the text and running counts.

Nearly every event of a stream repeats the one before it byte for byte, but for one string and a
few whole numbers. Once two such events were read in full, further ones are known by their bytes:
all else is the same, and what stands in the holes is a JSON string or whole number, so the event
is the same JSON with other leaves, and says what the dialect would make of that. What the holes
mean is not guessed: the dialect reads the event with other values in them. Whatever differs
otherwise is read in full.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ...wire.errors import WireError
from ...wire.sse import Event
from .dialect import Piece
from .reading import clean

_TEXT_KEYS = "content|text|reasoning_content|reasoning"
"""Keys whose string is generated text as it stands, in the dialects that stream."""
_COUNT_KEYS = "completion_tokens|tokens_predicted"
"""Keys that may hold the running total."""
_FREE_KEYS = "total_tokens|created"
"""Whole numbers that no dialect reads."""
_FIXED_KEYS = "prompt_tokens|tokens_evaluated"
"""Whole numbers that stay as they are in one answer, but not from one to the next."""
_STRING = r'([^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*)'
_NUMBER = r"(0|[1-9][0-9]{0,5})"  # below MOST_OUTPUT
_LONG = r"(0|[1-9][0-9]{0,17})"
_MAY_BE = {"count": _NUMBER, "free": _LONG, "fixed": _LONG, "id": _STRING}
_TEXT = re.compile(rf'"(?:{_TEXT_KEYS})" ?: ?"{_STRING}"'.encode())
_HOLE = re.compile(
    rf'"(?:(?P<count>{_COUNT_KEYS})|(?P<free>{_FREE_KEYS})|(?P<fixed>{_FIXED_KEYS}))" ?: ?'
    rf'(?P<number>0|[1-9][0-9]{{0,17}})(?=[ ,}}])|"id" ?: ?"(?P<id>{_STRING[1:-1]})"'.encode()
)
_DIGITS = b"0123456789"
_LONGEST = 4096
"""Bytes; longer events are few, and are read in full."""
_PROBES = ("", "Ab \u4e2d")


class Hole(NamedTuple):
    """A place behind the text: where, and what may stand there."""

    start: int
    end: int
    kind: str
    """``count``, ``free``, ``fixed`` or ``id``."""


class Alike:
    """Reads events that are like one that was read in full.

    Attributes:
        piece: what that one said.
        visible: its text is what a user sees.
        notes: it tells of the prompt.
    """

    __slots__ = ("_fixed", "_head", "_match", "_size", "_total", "notes", "piece", "visible")

    def __init__(self, data: bytes, text: tuple[int, int], holes: tuple[Hole, ...], piece: Piece):
        self.piece = piece
        self.visible = bool(piece.visible)
        self.notes = piece.prompt_tokens is not None or piece.cached_tokens is not None
        self._head = data[: text[0]]
        self._size = text[0]
        self._total = 0
        parts, at, fixed = [_STRING.encode()], text[1], list[tuple[int, bytes]]()
        for n, (start, end, kind) in enumerate(holes, 2):
            parts += [re.escape(data[at:start]), _MAY_BE[kind].encode()]
            at = end
            if kind == "count":
                self._total = n
            elif kind != "free":
                fixed.append((n, data[start:end]))
        self._match = _compiled(b"".join([*parts, re.escape(data[at:])]))
        self._fixed = tuple(fixed)

    def read(self, data: bytes, start: int, end: int) -> tuple[str, int | None] | None:
        """Text and running total of the event whose data is ``data[start:end]``.

        None: it is another kind of event. Otherwise its data holds no end of line.
        """
        if not data.startswith(self._head, start):
            return None
        found = self._match(data, start + self._size, end)
        if found is None:
            return None
        for group, value in self._fixed:
            if found[group] != value:
                return None
        try:
            text = found[1].decode()
        except UnicodeDecodeError:
            return None
        if "\\" in text:
            text = clean(json.loads(f'"{text}"'))
        return text, int(found[self._total]) if self._total else None


@lru_cache(maxsize=256)
def _compiled(pattern: bytes) -> Callable[[bytes, int, int], re.Match[bytes] | None]:
    """Streams of one server differ in what stands before the text and in holes: one for all."""
    return re.compile(pattern).fullmatch


def learn(before: bytes, data: bytes, piece: Piece, read: Callable[[Event], Piece]) -> Alike | None:
    """How to read what is like ``data``; None where nothing can be said.

    Args:
        before: data of the event of text before it; not alike, nothing is learnt.
        data: data of an event that was read in full.
        piece: what it says.
        read: reads an event in full.
    """
    if len(data) > _LONGEST or b"\n" in data or b"\r" in data:
        return None
    if piece != Piece(
        text=piece.text, visible=piece.visible and piece.text, total=piece.total,
        prompt_tokens=piece.prompt_tokens, cached_tokens=piece.cached_tokens,
    ):  # fmt: skip
        return None
    text = _text_of(data, piece.text)
    if text is None or not _resemble(before, data, text):
        return None
    try:
        holes = tuple(_meant(data, piece, read, text[1]))
        for probe in _PROBES:
            other = data[: text[0]] + probe.encode() + data[text[1] :]
            said = replace(piece, text=probe, visible=piece.visible and probe)
            if _said(read, other) != said:
                return None
    except WireError:
        return None
    found = Alike(data, text, holes, piece)
    return None if found.read(before, 0, len(before)) is None else found


def _text_of(data: bytes, text: str) -> tuple[int, int] | None:
    """Where the one string stands that is the event's text."""
    found = [m.span(1) for m in _TEXT.finditer(data) if json.loads(b'"%b"' % m[1]) == text]
    return found[0] if len(found) == 1 else None


def _resemble(before: bytes, data: bytes, text: tuple[int, int]) -> bool:
    """A first, cheap look: a pattern is dear to make."""
    tail = data[text[1] :].translate(None, _DIGITS)
    return before.startswith(data[: text[0]]) and before.translate(None, _DIGITS).endswith(tail)


def _meant(data: bytes, piece: Piece, read: Callable[[Event], Piece], since: int) -> Iterator[Hole]:
    """Holes behind the text, each with what it was found to mean."""
    counted = False
    for found in _HOLE.finditer(data, since):
        if found["id"] is not None:
            yield Hole(*found.span("id"), "id")
            continue
        start, end = found.span("number")
        if found["fixed"] is not None:
            yield Hole(start, end, "fixed")
            continue
        said = _said(read, data[:start] + b"987654" + data[end:])
        if said == piece:
            yield Hole(start, end, "free")
        elif not counted and piece.total is not None and said == replace(piece, total=987654):
            counted = True
            yield Hole(start, end, "count")


def _said(read: Callable[[Event], Piece], data: bytes) -> Piece:
    return read(Event(0, "message", data))

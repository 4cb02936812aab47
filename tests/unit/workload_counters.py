"""Counters for workload tests: each stands for a kind of tokenizer, with a template around it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

TEMPLATE = 3


@dataclass(frozen=True)
class Counter:
    """``split`` cuts text into tokens; the template and the system prompt are counted too."""

    split: Callable[[str], list[str]]

    def encode(self, text: str) -> list[int] | None:
        return [zlib.crc32(token.encode()) for token in self.split(text)]

    def count(self, text: str, system: str | None) -> int:
        return TEMPLATE + len(self.split(system or "")) + len(self.split(text))


class Uncounted(Counter):
    """Counts (a server does) but has no tokenizer here."""

    def encode(self, text: str) -> list[int] | None:
        return None


def pieces(text: str) -> list[str]:
    """Like a small subword vocabulary: at most four letters a token, single digits, CJK apart."""
    return re.findall(r" ?[^\W\d_]{1,4}|\d|[^\w\s]|\n| ", text)


def marked(text: str) -> list[str]:
    """Like a vocabulary that puts a mark of its own before every text it is given."""
    return ["▁", *pieces(text)] if text else []


WORDS = Counter(str.split)
CHARACTERS = Counter(list)
BYTES = Counter(lambda text: [chr(b) for b in text.encode()])
PIECES = Counter(pieces)
MARKED = Counter(marked)
SERVER = Uncounted(pieces)

ALL = {
    "words": WORDS,
    "characters": CHARACTERS,
    "bytes": BYTES,
    "pieces": PIECES,
    "marked": MARKED,
    "server": SERVER,
}

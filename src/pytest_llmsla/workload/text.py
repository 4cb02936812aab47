"""The shipped texts: instructions and passages in several languages, and words to open with."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random

STYLES = ("chat", "document")
_SECTIONS = tuple(f"{kind} {style}" for kind in ("ask", "text") for style in STYLES)
# Weights of the languages among the built-in prompts.
_LANGUAGES: Mapping[str, int] = {"en": 40, "zh": 30, "de": 8, "fr": 8, "es": 8, "ja": 4, "ar": 2}
_UNSPACED = frozenset({"zh", "ja"})


@dataclass(frozen=True)
class Corpus:
    """Shipped texts of one language."""

    language: str
    asks: Mapping[str, tuple[str, ...]]
    """Instructions and questions per style."""
    blocks: Mapping[str, tuple[tuple[str, ...], ...]]
    """Passages per style, each a tuple of sentences."""

    @property
    def joiner(self) -> str:
        """What stands between sentences and words."""
        return "" if self.language in _UNSPACED else " "

    @property
    def colon(self) -> str:
        """What stands after the opening word."""
        return "：" if self.language in _UNSPACED else ": "


def parse_corpus(language: str, text: str) -> Corpus:
    """Read the shipped format: ``[section]``, one sentence a line, a blank line after a passage.

    Raises:
        ValueError: a section is unknown or missing.
    """
    blocks: dict[str, list[list[str]]] = {}
    current: list[list[str]] | None = None
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            current = blocks.setdefault(line[1:-1], [[]])
        elif line.startswith("#"):
            continue
        elif current is None:
            if line:
                raise ValueError(f"{language}: text before the first section: {line!r}")
        elif line:
            current[-1].append(line)
        elif current[-1]:
            current.append([])
    if set(blocks) != set(_SECTIONS):
        raise ValueError(f"{language}: sections are {sorted(blocks)}, not {sorted(_SECTIONS)}")
    flat = {name: tuple(itertools.chain.from_iterable(b)) for name, b in blocks.items()}
    return Corpus(
        language=language,
        asks={s: flat[f"ask {s}"] for s in STYLES},
        blocks={s: tuple(tuple(b) for b in blocks[f"text {s}"] if b) for s in STYLES},
    )


@cache
def builtin_corpora() -> Mapping[str, Corpus]:
    """The shipped texts by language, in a fixed order."""
    folder = resources.files(__package__) / "prompts"
    return {
        lang: parse_corpus(lang, (folder / f"{lang}.txt").read_text(encoding="utf-8"))
        for lang in _LANGUAGES
    }


@cache
def tag_words() -> tuple[str, ...]:
    """Short nouns that many vocabularies hold as one token when they follow a space."""
    folder = resources.files(__package__) / "prompts"
    return tuple((folder / "tags.txt").read_text(encoding="utf-8").split())


def pick_language(rng: Random, languages: Collection[str] | None = None) -> Corpus:
    """A language by its weight; only of ``languages`` where they are given."""
    weights = {k: v for k, v in _LANGUAGES.items() if languages is None or k in languages}
    return builtin_corpora()[rng.choices(list(weights), list(weights.values()))[0]]


def leading_words(text: str) -> list[str]:
    """Runs of letters, of digits, and single marks of ``text``, in order, spaces left out."""
    kinds = itertools.groupby(
        enumerate(text),
        key=lambda p: (
            "a"
            if p[1].isalpha()
            else "d"
            if p[1].isdigit()
            else ("" if p[1].isspace() else f"m{p[0]}")
        ),
    )
    return ["".join(ch for _, ch in run) for kind, run in kinds if kind]


@cache
def opening_words() -> tuple[str, ...]:
    """Words of the shipped texts and letter codes that may open a prompt: ``Harbour``, ``KL``."""
    words: set[str] = set()
    for corpus in builtin_corpora().values():
        if corpus.language in (*_UNSPACED, "ar"):
            continue
        lines = itertools.chain(
            *corpus.asks.values(), *itertools.chain.from_iterable(corpus.blocks.values())
        )
        for word in leading_words(" ".join(lines)):
            if len(word) >= 3 and word.isalpha():
                words |= {word.lower(), word.capitalize()}
    letters = string.ascii_uppercase
    codes = {a + b for a in letters for b in letters}
    codes |= {a + b + c for a in letters[::2] for b in letters[1::3] for c in letters[::4]}
    return tuple(sorted(words | codes))

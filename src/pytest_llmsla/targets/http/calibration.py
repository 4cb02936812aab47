"""Prompt lengths without a tokenizer: a small linear model of text, fitted to counts of a server.

A byte-pair vocabulary holds common words whole and cuts others, so a text's tokens follow from how
many words, letters, digits and marks it has. What one of them costs differs by vocabulary, and by
language: English texts, whose words nearly every vocabulary holds, come out within some percent,
Chinese and Japanese within ten and more. So only English texts are *judged* by such a model; for
the others it is good enough to search with, while the server counts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from ...workload.text import builtin_corpora, opening_words, tag_words

CALIBRATED = ("en",)
"""Languages whose texts a calibration is made over, and whose prompts it may place."""

_LATIN = ("en", "de", "fr", "es")  # later ones give way where two share a word
_WHOLE = 4  # letters of a word that its own price covers
_PIECE = re.compile(
    r"(?P<latin>[A-Za-z\u00aa-\u024f]+)|(?P<han>[\u3400-\u4dbf\u4e00-\u9fff])"
    r"|(?P<kana>[\u3041-\u30ff])|(?P<arabic>[\u0600-\u06ff]+)|(?P<digit>\d)|(?P<line>\n)"
    r"|(?P<space>\s)|(?P<wide>[\u3000-\u303f\uff00-\uffef])|(?P<mark>[!-/:-@\[-`{-~])"
    r"|(?P<other>.)",
    re.DOTALL,
)
# What a thing costs in a vocabulary nobody has seen yet, tokens.
_PRIOR: Mapping[str, float] = {
    "en word": 1.0,
    "en letter": 0.04,
    "de word": 1.2,
    "de letter": 0.25,
    "fr word": 1.2,
    "fr letter": 0.2,
    "es word": 1.2,
    "es letter": 0.25,
    "word": 0.8,
    "letter": 0.25,
    "capital": 0.6,
    "accent": 0.3,
    "digit": 1.0,
    "mark": 1.0,
    "line": 1.0,
    "han": 1.1,
    "kana": 0.9,
    "wide": 1.0,
    "arabic word": 0.7,
    "arabic letter": 0.5,
    "other": 1.5,
}
_NAMES = tuple(_PRIOR)
_INDEX = {name: i for i, name in enumerate(_NAMES)}
_TRUST_PRIOR = 0.03
"""A price off by all of itself weighs as much as one sample off by 3 %."""
_LEAST_SCALE = 0.25  # tokens; smaller prices may move by as much as this one
_SIGMAS = 2.5
_LEAST_MARGIN = 0.02
_FOREIGN = 0.02
_WHITE = frozenset({"space", "line"})


@dataclass(frozen=True, slots=True)
class Sample:
    """A text to be counted by the server."""

    text: str
    language: str


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokens of bare text, estimated. ``prices``: tokens of each feature, in their order."""

    prices: tuple[float, ...]
    error: float
    """Relative error of texts left out of the fit, root mean square."""

    @property
    def margin(self) -> float:
        """Relative error that practically no built-in English prompt exceeds."""
        return max(_LEAST_MARGIN, _SIGMAS * self.error)

    def tokens(self, text: str) -> float:
        """Estimated tokens of ``text``, no template."""
        return math.fsum(n * p for n, p in zip(features(text), self.prices, strict=True))


def features(text: str) -> list[float]:
    """How often each priced thing occurs in ``text``."""
    found = [0.0] * len(_NAMES)
    for match in _PIECE.finditer(text):
        kind, piece = match.lastgroup, match.group()
        if kind == "latin":
            for name, n in _word(piece):
                found[name] += n
        elif kind == "arabic":
            found[_INDEX["arabic word"]] += 1
            found[_INDEX["arabic letter"]] += len(piece)
        elif kind is not None and kind != "space":
            found[_INDEX[kind]] += 1
    return found


def foreign_share(text: str) -> float:
    """Share of the characters that a calibration over English texts knows nothing about."""
    seen = [m.lastgroup for m in _PIECE.finditer(text) if m.lastgroup not in _WHITE]
    strange = sum(k in ("han", "kana", "other", "wide") for k in seen)
    strange += sum(len(m.group()) for m in _PIECE.finditer(text) if m.lastgroup == "arabic")
    letters = sum(len(m.group()) for m in _PIECE.finditer(text) if m.lastgroup == "latin")
    return strange / max(1, letters + len(seen))


def is_foreign(text: str) -> bool:
    """True when a calibration over English texts cannot tell this text's length."""
    return foreign_share(text) > _FOREIGN


def english_samples() -> tuple[Sample, ...]:
    """The dozen texts of a calibration, 80 to 250 tokens of English each."""
    return tuple(_cut("en", (400, 400, 400, 800, 800, 800, 1200, 1200, 1200, 1600, 1600, 1600)))


def every_sample() -> tuple[Sample, ...]:
    """Texts in all languages of the built-in prompts, for a server that counts for nothing."""
    plan = {"en": (600, 900, 900, 900), "zh": (300,) * 4, "de": (900,) * 2, "fr": (900,) * 2}
    plan |= {"es": (900,) * 2, "ja": (250,) * 2, "ar": (450,) * 2}
    return tuple(itertools.chain.from_iterable(_cut(lang, sizes) for lang, sizes in plan.items()))


def fit(samples: Sequence[Sample], counts: Sequence[int]) -> TextModel:
    """Prices that fit the counts best in relative terms, none below 0; unseen ones as usual.

    Non-negative least squares with a ridge towards the usual prices. The error is that of each
    sample with itself left out of the fit.
    """
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array([features(s.text) for s in samples])
    tokens = np.array(counts, dtype=float)
    usual = np.array([_PRIOR[name] for name in _NAMES])
    stiff = _TRUST_PRIOR / np.maximum(usual, _LEAST_SCALE)

    def solve(keep: np.ndarray) -> np.ndarray:
        scaled = rows[keep] / tokens[keep, None]
        return np.asarray(
            nnls(
                np.vstack([scaled, np.diag(stiff)]),
                np.concatenate([np.ones(len(scaled)), stiff * usual]),
            )[0]
        )

    everything = np.ones(len(samples), dtype=bool)
    left_out = []
    for i in range(len(samples)):
        others = everything.copy()
        others[i] = False
        left_out.append(float(rows[i] @ solve(others) / tokens[i] - 1))
    error = math.sqrt(math.fsum(e * e for e in left_out) / len(left_out))
    return TextModel(tuple(float(p) for p in solve(everything)), error)


@cache
def _word(word: str) -> tuple[tuple[int, float], ...]:
    """Features of one word in Latin script."""
    if len(word) > 1 and word.isupper():
        return ((_INDEX["capital"], float(len(word))),)
    language = _vocabulary().get(word.lower())
    prefix = "" if language is None else f"{language} "
    return (
        (_INDEX[f"{prefix}word"], 1.0),
        (_INDEX[f"{prefix}letter"], float(max(0, len(word) - _WHOLE))),
        (_INDEX["accent"], float(sum(not c.isascii() for c in word))),
    )


@cache
def _vocabulary() -> Mapping[str, str]:
    """The language of every word of the built-in texts in Latin script."""
    found: dict[str, str] = {}
    for language in reversed(_LATIN):
        corpus = builtin_corpora()[language]
        lines = itertools.chain(
            *corpus.asks.values(), *itertools.chain.from_iterable(corpus.blocks.values())
        )
        for match in _PIECE.finditer(" ".join(lines)):
            if match.lastgroup == "latin":
                found[match.group().lower()] = language
    return found | dict.fromkeys(tag_words(), "en")


def _cut(language: str, sizes: Sequence[int]) -> Iterator[Sample]:
    """Texts like the built-in prompts of a language, of ``sizes`` characters.

    No sentence comes twice before all were used. Each text holds several of the words that prompts
    begin with, and begins itself as no prompt does: no prefix cache will know a prompt's start.
    """
    corpus, rng = builtin_corpora()[language], Random(f"calibration/{language}")
    blocks = [b for style in corpus.blocks.values() for b in style]
    asks = [a for style in corpus.asks.values() for a in style]
    rng.shuffle(blocks)
    rng.shuffle(asks)
    sentences = itertools.cycle(itertools.chain.from_iterable(blocks))
    for n, (size, ask) in enumerate(zip(sizes, itertools.cycle(asks), strict=False), 1):
        words = rng.sample(opening_words(), 3)
        text = " ".join(f"{w}.md:" if w.islower() else f"{w}:" for w in words) + f" {ask}"
        while len(text) < size:
            text += corpus.joiner + next(sentences)
        tags = " ".join(rng.sample(tag_words(), 6))
        yield Sample(f"({n}) {text[:size].rstrip()}\nTags: {tags}", language)

"""How a prompt begins: with a first user token that no other prompt of the run has."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from zlib import crc32

from ..errors import TargetError
from .fit import MAX_DEPTH, Key, Ruler
from .text import opening_words

_SLOTS = 6  # at least 400 first tokens each with a vocabulary of 49,152


class Openers:
    """Hands out openings whose first user token no earlier prompt of the factory has.

    Each stream walks its own seeded order of the words and prefers the share of first tokens
    that its slot owns, so that what another bucket has used does not change its prompts. When
    first tokens run out, prompts differ within their first two, three … tokens instead.
    """

    def __init__(self, ruler: Ruler) -> None:
        self._ruler = ruler
        self._seen: list[set[Key]] = [set() for _ in range(MAX_DEPTH + 1)]
        self._heads: dict[str, Key] = {}

    @property
    def firsts(self) -> int:
        """Different first tokens given out so far."""
        return len(self._seen[1])

    def unseen(self, text: str, depth: int) -> bool:
        """Whether no prompt given out begins with the same ``depth`` user tokens."""
        head = self._ruler.head(text, depth)
        return bool(head) and head not in self._seen[depth]

    def claim(self, text: str) -> None:
        """``text`` is given out."""
        head = self._ruler.head(text)
        for depth in range(1, MAX_DEPTH + 1):
            self._seen[depth].add(head[:depth])

    def walk(self, rng: Random, slot: int) -> Iterator[tuple[str, int]]:
        """``(opening, depth)``: the caller asks :meth:`unseen` again with the whole text.

        Lasts for thousands of prompts with any tokenizer that tells letters apart.

        Raises:
            TargetError: the tokenizer gives every text the same first tokens.
        """
        words = list(opening_words())
        for depth in range(1, MAX_DEPTH + 1):
            for own in (True, False):
                rng.shuffle(words)
                for word in words:
                    text = _dress(word, rng, numbered=depth > 2)
                    mine = self._slot(word) == slot % _SLOTS
                    if (mine or not own) and self.unseen(text, depth):
                        yield text, depth
        raise TargetError(
            f"no more distinct prompts: the tokenizer gave {len(self._seen[1])} different first "
            f"tokens and {len(self._seen[MAX_DEPTH])} different starts of {MAX_DEPTH} tokens; "
            "check the target's encode(), or give prompt files of your own"
        )

    def _slot(self, word: str) -> int:
        """The slot that owns the first token of ``word``."""
        if word not in self._heads:
            self._heads[word] = self._ruler.head(word, 1)
        return crc32(repr(self._heads[word]).encode()) % _SLOTS


def _dress(word: str, rng: Random, *, numbered: bool) -> str:
    """A word as a heading, a file or a code: ``Harbour``, ``harbour.md``, ``KL``; ``KL-2041``."""
    tail = f"-{rng.randrange(1000, 10000)}" if numbered else ""
    return f"{word}{tail}.md" if word.islower() else f"{word}{tail}"

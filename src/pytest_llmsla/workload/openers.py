"""How a prompt begins: with a first user token that no other prompt of the run has."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, repeat
from random import Random
from zlib import crc32

from ..errors import TargetError
from .fit import MAX_DEPTH, Key, Ruler
from .text import opening_words

_SLOTS = 6  # at least 400 first tokens each with a vocabulary of 49,152
_NUMBER = (1000, 10_000)
_SALT = (10_000, 100_000)


class _Beginnings:
    """Beginnings of prompts that were given out: a Bloom filter of two bits each, in 4 MiB.

    A long run gives out a hundred thousand prompts of eight beginnings each, which is too much to
    keep. One that was never seen is taken for seen in 1 of 500 cases even then, and costs an
    opening; the other way round it cannot fail. The digest is the same in every process, so that
    a seed gives the same prompts.
    """

    _BITS = 1 << 25

    def __init__(self) -> None:
        self._bits = bytearray(self._BITS // 8)

    def holds(self, head: Key, depth: int) -> bool:
        """Whether it was given out as the first ``depth`` tokens of a prompt."""
        return all(self._bits[at >> 3] >> (at & 7) & 1 for at in self._places(head, depth))

    def add(self, head: Key, depth: int) -> bool:
        """It is seen from now on; False where it was before."""
        if self.holds(head, depth):
            return False
        for at in self._places(head, depth):
            self._bits[at >> 3] |= 1 << (at & 7)
        return True

    def _places(self, head: Key, depth: int) -> tuple[int, int]:
        key = f"{depth} {head!r}".encode("utf-8", "surrogatepass")
        digest = blake2b(key, digest_size=8).digest()
        whole = int.from_bytes(digest, "big")
        return whole % self._BITS, (whole >> 32) % self._BITS


class Openers:
    """Hands out openings whose first user token no earlier prompt of the factory has.

    Each stream walks its own seeded order of the words and prefers the share of first tokens
    that its slot owns, so that what another bucket has used does not change its prompts. When
    first tokens run out, prompts differ within their first two, three … tokens instead.

    ``salted``: a random number follows every word. A word alone comes again in another run, and
    now and then before the same instruction and passage: a cache that outlives the run knows them.
    """

    def __init__(self, ruler: Ruler, *, salted: bool = False) -> None:
        self._ruler = ruler
        self._salted = salted
        self._seen = _Beginnings()
        self._different = [0] * (MAX_DEPTH + 1)
        """By depth: beginnings given out."""
        self._heads: dict[str, Key] = {}

    @property
    def firsts(self) -> int:
        """Different first tokens given out so far."""
        return self._different[1]

    def unseen(self, text: str, depth: int) -> bool:
        """Whether no prompt given out begins with the same ``depth`` user tokens."""
        head = self._ruler.head(text, depth)
        return bool(head) and not self._seen.holds(head, depth)

    def claim(self, text: str) -> None:
        """``text`` is given out."""
        head = self._ruler.head(text)
        for depth in range(1, MAX_DEPTH + 1):
            self._different[depth] += self._seen.add(head[:depth], depth)

    def walk(self, rng: Random, slot: int) -> Iterator[tuple[str, int]]:
        """``(opening, depth)``: the caller asks :meth:`unseen` again with the whole text.

        Lasts for thousands of prompts with any tokenizer that tells letters apart, and for as many
        as there are numbers behind a word with one that tells numbers apart.

        Raises:
            TargetError: the tokenizer gives every text the same first tokens.
        """
        words = list(opening_words())
        for depth in chain(range(1, MAX_DEPTH + 1), repeat(MAX_DEPTH)):
            given = 0
            for own in (True, False):
                rng.shuffle(words)
                for word in words:
                    text = self.dressed(word, rng, depth)
                    mine = self._slot(word) == slot % _SLOTS
                    # A word of fewer tokens than depth says nothing: the colon after it counts too.
                    begun = text if depth == 1 else f"{text}: "
                    if (mine or not own) and self.unseen(begun, depth):
                        given += 1
                        yield text, depth
            if not given and depth == MAX_DEPTH:
                break
        raise TargetError(
            f"no more distinct prompts: the tokenizer gave {self._different[1]} different first "
            f"tokens and {self._different[MAX_DEPTH]} different starts of {MAX_DEPTH} tokens; "
            "check the target's encode(), or give prompt files of your own"
        )

    def dressed(self, word: str, rng: Random, depth: int = 1) -> str:
        """``word`` as it opens a prompt that differs from others within ``depth`` tokens."""
        span = _SALT if self._salted else _NUMBER if depth > 2 else None
        return _dress(word, None if span is None else rng.randrange(*span))

    def _slot(self, word: str) -> int:
        """The slot that owns the first token of ``word``."""
        if word not in self._heads:
            self._heads[word] = self._ruler.head(word, 1)
        return crc32(repr(self._heads[word]).encode()) % _SLOTS


def _dress(word: str, number: int | None = None) -> str:
    """A word as a heading, a file or a code: ``Harbour``, ``harbour.md``, ``KL``; ``KL-2041``."""
    tail = "" if number is None else f"-{number}"
    return f"{word}{tail}.md" if word.islower() else f"{word}{tail}"

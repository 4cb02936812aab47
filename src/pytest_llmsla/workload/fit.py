"""Token lengths through the target's own callables, and texts cut and filled to an exact length.

Nothing here decodes tokens or knows a tokenizer. Lengths are tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ..errors import UsageError
from .text import Corpus, leading_words, tag_words

Count = Callable[[str, str | None], int]
Encode = Callable[[str], list[int] | None]
Size = Callable[[str], int]
Key = tuple[Hashable, ...]

MAX_DEPTH = 8
"""User tokens compared when two prompts are told apart."""
_ROUNDS = 8
_TAG_ROOM = 48  # shorter prompts end without a line of tags
_MAX_FILL = 24
# For counters that no word satisfies (characters, bytes): units that add one of whatever it is.
_MARKS = (".", "!", "a", "-", "。")


class Ruler:
    """Token lengths through a target's ``count`` and ``encode``, with sentences remembered.

    ``size``: an estimate of a bare text's tokens, for targets whose every count takes a request;
    texts are then planned with it and only whole prompts are counted.
    """

    def __init__(
        self, count: Count, encode: Encode, system: str | None, size: Size | None = None
    ) -> None:
        self._count = count
        self._encode = encode
        self._system = system
        self._size = size
        self._sizes: dict[str, int] = {}
        bare = encode("a")
        self.has_ids = bare is not None
        rendered = count("a", system)
        self.overhead = rendered - (1 if bare is None else len(bare))
        """Tokens that the template and the system prompt take."""

    def rendered(self, text: str) -> int:
        """Tokens of the rendered prompt: the number that decides the bucket."""
        return self._count(text, self._system)

    def size(self, text: str) -> int:
        """Tokens of bare ``text``; only an estimate when the target has no tokenizer."""
        if self._size is not None:
            return self._size(text)
        ids = self._encode(text) if self.has_ids else None
        return self.rendered(text) - self.overhead if ids is None else len(ids)

    def added(self, text: str, joiner: str) -> int:
        """Tokens that ``joiner + text`` adds after the end of a sentence. Remembered.

        Measured in context, because some tokenizers put a mark of their own before a bare text.
        """
        key = joiner + text
        if key not in self._sizes:
            stop = "." if joiner else "。"
            self._sizes[key] = self.size(stop + key) - self.size(stop)
        return self._sizes[key]

    def singles(self, words: Sequence[str]) -> list[str]:
        """Those of ``words`` that add one token after a space, in their order.

        With an estimate: counted in groups, halved where a group holds a longer word.
        """
        if self._size is None:
            return [w for w in words if self.added(w, " ") == 1]
        return self._halved(words, self.rendered("water"))

    def _halved(self, words: Sequence[str], stem: int) -> list[str]:
        if not words or self.rendered(" ".join(["water", *words])) - stem == len(words):
            return list(words)
        if len(words) == 1:
            return []
        middle = len(words) // 2
        return [*self._halved(words[:middle], stem), *self._halved(words[middle:], stem)]

    def head(self, text: str, depth: int = MAX_DEPTH) -> Key:
        """The first user tokens; without a tokenizer the first words, cut at marks and digits."""
        ids = self._encode(text[:96]) if self.has_ids else None
        return tuple(leading_words(text[:96])[:depth] if ids is None else ids[:depth])


@dataclass(frozen=True)
class Fitter:
    """Cuts and fills texts to an exact rendered length."""

    ruler: Ruler
    tags: tuple[str, ...]
    mark: str
    """A mark that adds one token, for counters that no word satisfies; empty when none does."""

    @classmethod
    def make(cls, ruler: Ruler) -> Fitter:
        """Find the filling words and marks that add exactly one token with this counter."""
        tags = tuple(ruler.singles(tag_words()))
        stem = ruler.rendered("water")

        def adds_one(mark: str) -> bool:
            try:
                return ruler.rendered("water" + mark * 3) == stem + 3
            except UsageError:  # a calibrated count does not know every script
                return False

        return cls(ruler, tags, "" if tags else next(filter(adds_one, _MARKS), ""))

    def fit(
        self, opening: str, corpus: Corpus, style: str, target: int, rng: Random
    ) -> tuple[str, int]:
        """A text that begins with ``opening`` and renders to ``target`` tokens.

        Returns:
            The text and its exact rendered length, which misses ``target`` when this opening
            and these sentences cannot make it.
        """
        head = opening + corpus.colon
        room = target - self.ruler.overhead - self.ruler.size(head.rstrip())
        label = "\nTags:" if self.tags and room >= _TAG_ROOM else ""
        if label:
            room -= self.ruler.size("." + label) - self.ruler.size(".")
        least = 1 if label else 0
        keep = rng.randrange(2, 7) if label else 0
        fills = rng.sample(self.tags, len(self.tags))
        sentences = list(self._script(corpus, style, room, rng))
        best = ("", 0)
        for _ in range(_ROUNDS):
            body, used = self._cut(sentences, corpus.joiner, room - keep)
            fill = max(least, min(room - used, _MAX_FILL))
            for _ in range(_ROUNDS):
                text = (head + body).rstrip() + self._tail(label, fills, fill)
                length = self.ruler.rendered(text)
                if length == target:
                    return text, length
                if abs(length - target) < abs(best[1] - target):
                    best = (text, length)
                if not least <= fill + target - length <= _MAX_FILL:
                    break
                fill += target - length
            room += target - length  # the parts did not add up: cut again with what was learnt
        return best

    def _tail(self, label: str, fills: Sequence[str], fill: int) -> str:
        if fills:
            words = itertools.islice(itertools.cycle(fills), fill)
            return label + "".join(f" {w}" for w in words)
        return self.mark * fill

    def _script(
        self, corpus: Corpus, style: str, room: int, rng: Random
    ) -> Iterator[tuple[str, int]]:
        """An instruction, then passages, as ``(sentence, tokens)``: enough to cut twice."""
        ask = rng.choice(corpus.asks[style])
        left = 2 * room + _MAX_FILL
        for sentence in itertools.chain([ask], _passages(corpus.blocks[style], rng)):
            n = max(1, self.ruler.added(sentence, corpus.joiner))
            yield sentence, n
            left -= n
            if left <= 0:
                return

    def _cut(self, sentences: Sequence[tuple[str, int]], joiner: str, room: int) -> tuple[str, int]:
        """Whole sentences, then as much of the next as ``room`` tokens hold."""
        used, parts = 0, []
        for sentence, n in sentences:
            if used + n > room:
                piece, n = self._cut_sentence(sentence, joiner, room - used)
                if piece:
                    parts.append(piece)
                    used += n
                break
            parts.append(sentence)
            used += n
        return joiner.join(parts), used

    def _cut_sentence(self, sentence: str, joiner: str, room: int) -> tuple[str, int]:
        """The longest start of ``sentence``, at a word or character border, within ``room``."""
        units = sentence.split(joiner) if joiner else list(sentence)
        low, high, size = 0, len(units), 0
        while low < high and room > 0:
            middle = (low + high + 1) // 2
            n = self.ruler.size(joiner.join(units[:middle]))
            if n <= room:
                low, size = middle, n
            else:
                high = middle - 1
        return joiner.join(units[:low]), size


def _passages(blocks: Sequence[Sequence[str]], rng: Random) -> Iterator[str]:
    """Sentences of the passages in a seeded order, for ever."""
    order = list(blocks)
    while True:
        rng.shuffle(order)
        yield from itertools.chain.from_iterable(order)

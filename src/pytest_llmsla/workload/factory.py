"""Distinct prompts in exact length ranges, counted with the target's own tokenizer.

A prefix cache answers a repeated beginning without computing it, so one run never sends the
same rendered prompt twice, warm-up included. Lengths are tokens of the rendered prompt, chat
template and system prompt included. See docs/prompts.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..errors import UsageError
from .aim import Aim, aim_at, top_quarter
from .files import GivenPrompt
from .fit import Count, Encode, Fitter, Ruler, Size
from .openers import Openers
from .pool import GivenPool, Source, listed
from .text import STYLES, Corpus, builtin_corpora, opening_words, pick_language

_GOLDEN = (math.sqrt(5) - 1) / 2
_EDGE_EVERY = 6
_LOW_EDGE_EVERY = 16
_OWN_TRIES = 3  # openings tried with the language drawn
_TRIES = 12  # openings tried for the exact length
_MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to send: user text, system text, and its exact rendered length in tokens."""

    text: str
    system: str | None
    tokens: int
    bucket: str


def lengths(lo: int, floor: int, hi: int, rng: Random, top: int | None = None) -> Iterator[int]:
    """Prompt lengths for ever, every second one in the top quarter of ``lo`` … ``hi``.

    So any three or more in a row have at least a third there. The edge ``hi`` comes first and
    at every sixth place; the rest spreads evenly (golden-ratio sequence) over the top quarter
    and over what lies below it, down to ``floor``, the shortest prompt that can be made.
    ``top``: where the top quarter begins, where counts are estimates.
    """
    top = max(top_quarter(lo, hi) if top is None else top, floor)
    high = _spread(top, hi, rng)
    low = _spread(floor, top - 1, rng) if floor < top else high
    for i in itertools.count():
        if i % 2 == 0:
            yield hi if i % _EDGE_EVERY == 0 else next(high)
        elif i % _LOW_EDGE_EVERY == 1 and floor < top:
            yield floor
        else:
            yield next(low)


def _spread(lo: int, hi: int, rng: Random) -> Iterator[int]:
    at = rng.random()
    while True:
        at = (at + _GOLDEN) % 1.0
        yield lo + int(at * (hi - lo + 1))


class PromptFactory:
    """Makes the prompts of one run. Not for several threads at once.

    Args:
        count: ``(text, system) -> tokens`` of the rendered prompt.
        encode: ``text -> ids`` of bare user text, or None when there is no tokenizer; then
            prompts differ from the first word on instead of the first token.
        seed: the same seed gives the same prompts.
        salted: built-in prompts also differ from those of every other seed within their first
            words, for a server that remembers earlier runs; takes some six tokens a prompt.
        source: ``builtin``, a file, or a file per bucket.
        system: system prompt of every prompt that brings none of its own.
        warm_cache: prefix-cache hits are intended: a file's prompts may share their beginning
            and are repeated, in the same order, when used up. Built-in prompts stay distinct.
        base: folder that relative paths start from; default the working directory.
        margin: relative error of ``count``; prompts are aimed inside their range by as much.
        languages: of the built-in texts, those that ``count`` knows; None: all.
        size: ``text -> tokens`` of bare text, estimated, where every ``count`` is a request to a
            server; texts are planned with it, and only whole prompts are counted.
        notes: of the caller's, for the report.

    Built-in texts are recombined: an opening word whose first token no other prompt has, an
    instruction, passages, filled up to the exact length. A file's prompts are sent word for
    word, once each, in a seeded order that puts at least half in the top quarter of the bucket
    as long as the file has such prompts.

    Raises:
        UsageError: a file cannot be read or holds something that is no prompt.
    """

    def __init__(
        self,
        count: Count,
        encode: Encode,
        *,
        seed: int,
        salted: bool = False,
        source: Source = "builtin",
        system: str | None = None,
        warm_cache: bool = False,
        base: Path | None = None,
        margin: float = 0.0,
        languages: Collection[str] | None = None,
        size: Size | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self._seed = seed
        self._margin = margin
        self._languages = languages
        self._system = system
        self._made: dict[tuple[str, int, int], int] = {}
        self._notes: dict[str, None] = dict.fromkeys(notes)
        self._pool: GivenPool | None = None
        if source != "builtin":
            files = _resolve(source, base or Path())
            self._pool = GivenPool(files, count, encode, system=system, warm_cache=warm_cache)
        self._ruler = Ruler(count, encode, system, size)
        self._openers = Openers(self._ruler, salted=salted)
        self._fitter: Fitter | None = None
        self._shortest: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know about the prompts."""
        return tuple(self._notes)

    def check(self, bucket: str, lo: int, hi: int, needed: int, why: str = "") -> None:
        """Make sure that ``needed`` prompts of ``lo`` … ``hi`` tokens are there, warm-up included.

        ``why`` so many, for the message where they are not.

        Raises:
            UsageError: no prompt fits into the range; a file has too few, or prompts that share
                their beginning, while ``warm_cache`` is off.
        """
        aim = self._aim(bucket, lo, hi)
        if self._pool is None:
            self._floor(bucket, aim.lo, aim.hi)
            return
        found = self._pool.check(bucket, aim.lo, aim.hi, needed, why)
        long = sum(tokens >= aim.top for _, tokens in found)
        if 3 * long < min(needed, len(found)):
            self.note(
                f"bucket {bucket}: {long} of {len(found)} prompts are {aim.top}–{aim.hi} tokens "
                "long; a PASS needs a third of the measured requests there, else: lengths not "
                "covered"
            )

    def outside(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
        """Prompts of the files that no bucket of ``{name: (lo, hi)}`` takes, with their lengths.

        Raises:
            UsageError: a bucket is too narrow for lengths that are only estimated.
        """
        if self._pool is None:
            return ()
        aims = {b: aim_at(b, lo, hi, self._margin) for b, (lo, hi) in ranges.items()}
        found = self._pool.outside({b: (aim.lo, aim.hi) for b, aim in aims.items()})
        if found:
            self.note(f"prompts outside every bucket, not used: {listed(found)}")
        return found

    def stream(self, bucket: str, lo: int, hi: int) -> Iterator[Prompt]:
        """Prompts of ``lo`` … ``hi`` tokens, both included, for ever (a file: until used up).

        The same seed gives the same prompts, whatever order the streams are read in, as long as
        they were opened in the same order.

        Raises:
            UsageError: at the call when the range has no room for a prompt or the bucket has
                none; while iterating when a file is used up and ``warm_cache`` is off.
        """
        return self._stream(bucket, self._aim(bucket, lo, hi))

    def _stream(self, bucket: str, aim: Aim) -> Iterator[Prompt]:
        slot, rng = self._open(bucket, aim.lo, aim.hi)
        if self._pool is None:
            floor = self._floor(bucket, aim.lo, aim.hi)
            return self._compose(bucket, aim, floor, rng, slot)
        given = self._pool.stream(bucket, aim.lo, aim.hi, aim.top, rng)
        return self._verbatim(self._pool, bucket, given)

    def warmup(self, bucket: str, lo: int, hi: int) -> Iterator[Prompt]:
        """Prompts to warm a bucket up: like :meth:`stream`, but of one shape.

        Built-in: lengths of the top quarter. Files: the longest of those that the measured
        requests need least; open this after :meth:`check`.

        Raises:
            UsageError: as :meth:`stream`.
        """
        aim = self._aim(bucket, lo, hi)
        if self._pool is None:
            return self._stream(bucket, aim.upper())
        _, rng = self._open(f"{bucket} warm-up", aim.lo, aim.hi)
        given = self._pool.warmup(bucket, aim.lo, aim.hi, aim.top, rng)
        return self._verbatim(self._pool, bucket, given)

    def _aim(self, bucket: str, lo: int, hi: int) -> Aim:
        return aim_at(bucket, lo, hi, self._margin)

    def _open(self, bucket: str, lo: int, hi: int) -> tuple[int, Random]:
        """The number of a new stream and its random source."""
        like = (bucket, lo, hi)
        ordinal, slot = self._made.get(like, 0), sum(self._made.values())
        self._made[like] = ordinal + 1
        return slot, Random(f"{self._seed}/{bucket}/{lo}/{hi}/{ordinal}")

    def _verbatim(
        self, pool: GivenPool, bucket: str, given: Iterator[tuple[GivenPrompt, int]]
    ) -> Iterator[Prompt]:
        return (Prompt(p.text, pool.system_of(p), tokens, bucket) for p, tokens in given)

    def _compose(
        self, bucket: str, aim: Aim, floor: int, rng: Random, slot: int
    ) -> Iterator[Prompt]:
        # Generators of their own, so that a retry in one place shifts nothing elsewhere.
        seeds = [rng.random() for _ in range(3)]
        if not self._ruler.has_ids:
            self.note("the target has no tokenizer: prompts differ from their first word on")
        openings = self._openers.walk(Random(seeds[0]), slot)
        targets = lengths(aim.lo, floor, aim.hi, Random(seeds[1]), aim.top)
        texts = Random(seeds[2])
        return (
            Prompt(text, self._system, tokens, bucket)
            for text, tokens in (
                self._one(openings, target, aim, Random(texts.random())) for target in targets
            )
        )

    def _one(
        self,
        openings: Iterator[tuple[str, int]],
        target: int,
        aim: Aim,
        rng: Random,
    ) -> tuple[str, int]:
        """A new text of ``target`` tokens, else of the nearest length inside the range found."""
        corpus, style = pick_language(rng, self._languages), rng.choice(STYLES)
        best: tuple[str, int] | None = None
        for attempt, (opening, depth) in enumerate(openings, 1):
            text, tokens = self._fit(opening, corpus, style, target, rng)
            usable = aim.lo <= tokens <= aim.hi and self._openers.unseen(text, depth)
            if usable and (best is None or abs(tokens - target) < abs(best[1] - target)):
                best = (text, tokens)
            if best is not None and (best[1] == target or attempt >= _TRIES):
                self._openers.claim(best[0])
                self._note_depth(depth)
                return best
            if attempt >= _MOST_TRIES:
                break
            if attempt >= _OWN_TRIES:  # some scripts cannot make every short length
                corpus = builtin_corpora()["en"]
        raise UsageError(
            f"no prompt of {target} tokens could be made for the range {aim.lo}–{aim.hi}: the "
            "target's count() changes in larger steps; widen the bucket or give prompt files"
        )

    def _fit(
        self, opening: str, corpus: Corpus, style: str, target: int, rng: Random
    ) -> tuple[str, int]:
        if self._fitter is None:
            self._fitter = Fitter.make(self._ruler)
        return self._fitter.fit(opening, corpus, style, target, rng)

    def _floor(self, bucket: str, lo: int, hi: int) -> int:
        """Shortest length in the range that a built-in prompt can have.

        Raises:
            UsageError: the range has no room for one.
        """
        if self._shortest is None:
            # Most openings and a few words; an opening that takes more is passed over.
            rng = Random(0)
            heads = [self._openers.dressed(w, rng) for w in rng.sample(opening_words(), 41)]
            sizes = sorted(self._ruler.size(f"{head}: a few words") for head in heads)
            self._shortest = self._ruler.overhead + sizes[len(sizes) // 2]
        floor = max(lo, self._shortest)
        if floor > hi:
            raise UsageError(
                f"bucket {bucket} ({lo}–{hi} tokens) has no room for a prompt: the chat template "
                f"and system prompt take {self._ruler.overhead} tokens and the shortest built-in "
                f"prompt has {self._shortest} with them; raise the bucket's upper edge to "
                f"{self._shortest} or more"
            )
        return floor

    def _note_depth(self, depth: int) -> None:
        if depth > 1:
            self.note(
                f"first user tokens ran out (this tokenizer gave {self._openers.firsts} of them): "
                f"later prompts differ within their first {depth} user tokens"
            )

    def note(self, text: str) -> None:
        """Something that a reader of the report should know; each is kept once."""
        self._notes[text] = None


def _resolve(source: Source, base: Path) -> Path | dict[str, Path]:
    """Paths of the files, relative ones from ``base``.

    Raises:
        UsageError: a mapping without entries.
    """
    if not isinstance(source, Mapping):
        return base / source
    if not source:
        raise UsageError("prompts is an empty mapping; give {bucket: file}, a file, or builtin")
    return {bucket: base / path for bucket, path in source.items()}

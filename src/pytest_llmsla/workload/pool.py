"""A team's own prompts: placed by length, sent word for word, once each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from ..errors import UsageError
from .files import GivenPrompt, read_prompts
from .fit import Count, Encode

BLOCK_TOKENS = 16
"""Prefix caches keep whole blocks: two prompts may share at most one block of so many tokens."""
_BLOCK_BYTES = 64  # the same without a tokenizer, at about four UTF-8 bytes a token
_LISTED = 10

Source = str | Path | Mapping[str, str | Path]
"""``builtin``, one file for all buckets, or a file per bucket."""
Sized = tuple[GivenPrompt, int]
Head = tuple[int | str, ...]


class GivenPool:
    """The prompts of the files and which of them are still unused.

    Raises:
        UsageError: a file cannot be read or holds something that is no prompt.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Path],
        count: Count,
        encode: Encode,
        *,
        system: str | None,
        warm_cache: bool,
    ) -> None:
        if isinstance(source, Mapping):
            self._files: dict[str | None, tuple[GivenPrompt, ...]] = {
                bucket: read_prompts(path) for bucket, path in source.items()
            }
        else:
            self._files = {None: read_prompts(source)}
        self._count = count
        self._encode = encode
        self._system = system
        self._warm = warm_cache
        self._lengths: dict[GivenPrompt, int] = {}
        self._used: set[GivenPrompt] = set()
        self._distinct = warm_cache

    def system_of(self, prompt: GivenPrompt) -> str | None:
        """The prompt's own system text, else the policy's."""
        return self._system if prompt.system is None else prompt.system

    def fitting(self, bucket: str, lo: int, hi: int) -> list[Sized]:
        """Prompts of the bucket's file that are ``lo`` … ``hi`` tokens long, used ones included.

        Raises:
            UsageError: the bucket has no file or no prompt; prompts share their beginning.
        """
        if not self._distinct:
            every = dict.fromkeys(itertools.chain(*self._files.values()))
            _refuse_shared({p: (self.system_of(p), self._head(p)) for p in every})
            self._distinct = True
        sized = self._sized(bucket)
        found = [(p, n) for p, n in sized if lo <= n <= hi]
        if not found:
            have = _span(n for _, n in sized)
            raise UsageError(
                f"bucket {bucket} ({lo}–{hi} tokens) has no prompt: the {len(sized)} given are "
                f"{have} tokens long, chat template included; add prompts of that length, or use "
                "`prompts: builtin`"
            )
        return found

    def check(self, bucket: str, lo: int, hi: int, needed: int, why: str = "") -> list[Sized]:
        """As :meth:`fitting`, and ``needed`` of them are unused (any number in a warm cache).

        Raises:
            UsageError: as :meth:`fitting`, or too few.
        """
        found = self.fitting(bucket, lo, hi)
        left = sum(p not in self._used for p, _ in found)
        if left < needed and not self._warm:
            raise UsageError(
                f"bucket {bucket} ({lo}–{hi} tokens) has {left} prompts and needs {needed}{why}, "
                "warm-up included, because no prompt may repeat (a prefix cache would answer); "
                "give more prompts, lower evidence.max_requests, use `prompts: builtin`, or set "
                "workload.warm_cache: true if cached prompts are what you mean to measure"
            )
        return found

    def stream(self, bucket: str, lo: int, hi: int, top: int, rng: Random) -> Iterator[Sized]:
        """Unused prompts, at least every second ``top`` tokens or longer while there are such.

        Raises:
            UsageError: as :meth:`fitting` at once; used up, while iterating.
        """
        longs, shorts = self._halves(bucket, lo, hi, top, rng)
        return self._give(bucket, (lo, hi), _interleave(longs, shorts))

    def warmup(self, bucket: str, lo: int, hi: int, top: int, rng: Random) -> Iterator[Sized]:
        """Unused prompts of similar length that the measured requests can best do without.

        Raises:
            UsageError: as :meth:`stream`.
        """
        longs, shorts = self._halves(bucket, lo, hi, top, rng)
        if self._warm:  # what is measured is what was warmed
            return self._give(bucket, (lo, hi), _interleave(longs, shorts))
        shorts.sort(key=lambda s: -s[1])
        plenty = len(longs) >= len(shorts)
        return self._give(bucket, (lo, hi), longs + shorts if plenty else shorts + longs)

    def outside(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
        """``prompts.txt:12 (640 tokens)`` for every prompt that no range takes.

        Raises:
            UsageError: a file is given for a bucket that is not among ``ranges``.
        """
        unknown = [str(b) for b in self._files if b is not None and b not in ranges]
        if unknown:
            raise UsageError(
                f"workload.prompts names buckets that do not exist: {', '.join(unknown)}; the "
                f"buckets are {', '.join(ranges)}"
            )
        out: dict[str, None] = {}
        for bucket in self._files:
            spans = list(ranges.values()) if bucket is None else [ranges[bucket]]
            for prompt, n in self._sized(bucket):
                if not any(lo <= n <= hi for lo, hi in spans):
                    out[f"{prompt.where} ({n} tokens)"] = None
        return tuple(out)

    def _halves(
        self, bucket: str, lo: int, hi: int, top: int, rng: Random
    ) -> tuple[list[Sized], list[Sized]]:
        """Prompts from ``top`` tokens on and those below, each in a seeded order."""
        found = self.fitting(bucket, lo, hi)
        rng.shuffle(found)
        return [s for s in found if s[1] >= top], [s for s in found if s[1] < top]

    def _give(self, bucket: str, span: tuple[int, int], order: Sequence[Sized]) -> Iterator[Sized]:
        return itertools.cycle(order) if self._warm else self._once(bucket, span, order)

    def _once(self, bucket: str, span: tuple[int, int], order: Sequence[Sized]) -> Iterator[Sized]:
        for prompt, n in order:
            if prompt not in self._used:
                self._used.add(prompt)
                yield prompt, n
        raise UsageError(
            f"bucket {bucket} ({span[0]}–{span[1]} tokens): all {len(order)} prompts are used and "
            "none may repeat; give more prompts or set workload.warm_cache: true"
        )

    def _sized(self, bucket: str | None) -> list[Sized]:
        given = self._files.get(bucket, self._files.get(None))
        if given is None:
            named = ", ".join(str(b) for b in self._files)
            raise UsageError(
                f"bucket {bucket} has no prompts: files are given for {named}; add a file for it "
                "under workload.prompts"
            )
        for prompt in given:
            if prompt not in self._lengths:
                self._lengths[prompt] = self._count(prompt.text, self.system_of(prompt))
        return [(p, self._lengths[p]) for p in given]

    def _head(self, prompt: GivenPrompt) -> Head:
        """What no other prompt may begin with: one token or byte more than a block, or all."""
        ids = self._encode(prompt.text)
        if ids is None:
            start: Head = tuple(prompt.text.encode()[: _BLOCK_BYTES + 1])
            return start if len(start) > _BLOCK_BYTES else (prompt.text,)
        return tuple(ids[: BLOCK_TOKENS + 1]) if len(ids) > BLOCK_TOKENS else (prompt.text,)


def listed(items: Sequence[str]) -> str:
    """The first items, and how many more there are."""
    more = len(items) - _LISTED
    return ", ".join(items[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _refuse_shared(keyed: Mapping[GivenPrompt, tuple[str | None, Head]]) -> None:
    """Raise when two prompts are equal or share more than one block of their beginning."""
    first: dict[tuple[str | None, Head], GivenPrompt] = {}
    clashes: list[str] = []
    for prompt, key in keyed.items():
        other = first.setdefault(key, prompt)
        if other is not prompt:
            what = "is equal to" if other.text == prompt.text else "begins like"
            clashes.append(f"{prompt.where} {what} {other.where}")
    if clashes:
        raise UsageError(
            f"prompts share their beginning: {listed(clashes)}; a prefix cache would answer a "
            f"beginning of more than {BLOCK_TOKENS} tokens seen before, and TTFT would be too "
            "short. Put what differs first, move a common introduction to "
            "workload.system_prompt, or set workload.warm_cache: true if cached prompts are what "
            "you mean to measure"
        )


def _interleave(top: Sequence[Sized], rest: Sequence[Sized]) -> list[Sized]:
    """Both in their order, at least every second place from ``top`` while it lasts."""
    share = max(0.5, len(top) / (len(top) + len(rest)))
    longs, shorts, due = list(reversed(top)), list(reversed(rest)), 1.0
    out: list[Sized] = []
    while longs or shorts:
        take_top = bool(longs) and (due >= 1.0 or not shorts)
        out.append(longs.pop() if take_top else shorts.pop())
        due += share - (1.0 if take_top else 0.0)
    return out


def _span(lengths: Iterable[int]) -> str:
    seen = sorted(lengths)
    return f"{seen[0]}–{seen[-1]}"

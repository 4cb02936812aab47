"""Built-in prompts: exact lengths, covered ranges, no shared beginnings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_counters import ALL, CHARACTERS, MARKED, PIECES, SERVER, TEMPLATE, Counter

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.workload import Prompt, PromptFactory, lengths, top_quarter
from pytest_llmsla.workload.fit import Ruler
from pytest_llmsla.workload.openers import Openers
from pytest_llmsla.workload.text import STYLES, builtin_corpora, parse_corpus, tag_words

SHORT, MEDIUM, LONG = (1, 128), (129, 512), (513, 1024)
BUCKETS = {"short": SHORT, "medium": MEDIUM, "long": LONG}


def factory(
    counter: Counter = PIECES, seed: int = 0, system: str | None = None, salted: bool = False
) -> PromptFactory:
    return PromptFactory(counter.count, counter.encode, seed=seed, system=system, salted=salted)


def take(made: PromptFactory, n: int, span: tuple[int, int], bucket: str = "b") -> list[Prompt]:
    return list(itertools.islice(made.stream(bucket, *span), n))


def covered(tokens: Sequence[int], span: tuple[int, int]) -> bool:
    """The report's own rule, written again: a third at or over hi - (hi - lo) / 4."""
    edge = span[1] - (span[1] - span[0]) / 4
    return 3 * sum(t >= edge for t in tokens) >= len(tokens)


@pytest.mark.parametrize("span", [SHORT, MEDIUM, LONG, (600, 601)], ids=str)
@pytest.mark.parametrize("counter", ALL.values(), ids=ALL.keys())
def test_every_kind_of_counter_gives_lengths_inside_the_range_and_on_its_edge(
    counter: Counter, span: tuple[int, int]
) -> None:
    """Prompt.tokens is what the target counts, never outside the bucket, and hits the edge."""
    prompts = take(factory(counter), 16, span)
    assert [counter.count(p.text, p.system) for p in prompts] == [p.tokens for p in prompts]
    assert all(span[0] <= p.tokens <= span[1] for p in prompts)
    assert prompts[0].tokens == span[1]
    assert sum(p.tokens == span[1] for p in prompts) >= 3


@settings(max_examples=40, deadline=None)
@given(lo=st.integers(1, 700), width=st.integers(0, 500), seed=st.integers(0, 9))
def test_any_range_with_room_is_met_exactly(lo: int, width: int, seed: int) -> None:
    """Whatever the bucket's edges, the planned lengths are made to the token."""
    span = (lo, max(20, lo + width))
    made = factory(seed=seed)
    prompts = take(made, 7, span)
    floor = min(p.tokens for p in prompts)
    assert prompts[0].tokens == prompts[6].tokens == span[1]
    assert prompts[1].tokens == floor  # the low edge, second in every stream
    assert all(span[0] <= p.tokens <= span[1] for p in prompts)


@settings(max_examples=200, deadline=None)
@given(
    lo=st.integers(1, 2000),
    width=st.integers(0, 2000),
    above=st.integers(0, 200),
    start=st.integers(0, 40),
    n=st.integers(3, 80),
)
def test_any_three_or_more_in_a_row_cover_the_range(
    lo: int, width: int, above: int, start: int, n: int
) -> None:
    """Wherever warm-up ends and the gate decides, a third lies in the top quarter."""
    span = (lo, lo + width)
    floor = min(lo + above, span[1])
    window = list(itertools.islice(lengths(lo, floor, span[1], Random(0)), start, start + n))
    assert covered(window, span)
    assert all(floor <= t <= span[1] for t in window)


def test_the_lower_part_is_covered_down_to_the_shortest_prompt() -> None:
    """Half of the lengths spread over what lies below the top quarter, both ends included."""
    got = list(itertools.islice(lengths(1, 30, 128, Random(3)), 64))
    low = sorted(t for t in got if t < top_quarter(1, 128))
    assert len(low) == 32
    assert low[0] == 30
    gaps = [b - a for a, b in itertools.pairwise([30, *low, 97])]
    assert max(gaps) <= 7


@pytest.mark.parametrize("counter", [*ALL.values()], ids=[*ALL.keys()])
def test_no_two_prompts_share_their_beginning_across_streams(counter: Counter) -> None:
    """Prompts of one factory differ in text and in their head, whichever streams they are from."""
    made = factory(counter)
    streams = [made.stream(name, *span) for name, span in BUCKETS.items()]
    streams.append(made.stream("short", *SHORT))  # the same bucket again, as for a second test
    prompts = [next(s) for _ in range(30) for s in streams]
    assert len({p.text for p in prompts}) == len(prompts)
    heads = [tuple((counter.encode(p.text) or list(p.text.split()[0]))[:8]) for p in prompts]
    assert len(set(heads)) == len(prompts)


@pytest.mark.parametrize("counter", [SERVER, PIECES], ids=["server", "tokenizer"])
def test_salted_prompts_share_no_beginning_with_those_of_other_runs(counter: Counter) -> None:
    """Of any two runs no two prompts agree further than an opening word and some digits.

    Forty runs open alike some thousand times; by the word alone, a few of those pairs go on
    with the same instruction and passage, which a server's prefix cache then remembers.
    """
    words = [p.text for run in range(40) for p in take(factory(SERVER, run), 46, SHORT)]
    assert max(_shared_by_neighbours(words)) > 16  # what the salt is for
    salted = [
        p.text for run in range(40) for p in take(factory(counter, run, salted=True), 46, SHORT)
    ]
    assert len(set(salted)) == len(salted)
    assert max(_shared_by_neighbours(salted)) <= 8


def _shared_by_neighbours(texts: list[str]) -> list[int]:
    """Pieces that sorted neighbours have in common: no other pair shares more."""
    cut = sorted(PIECES.split(text) for text in texts)
    return [
        sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(a, b, strict=False)))
        for a, b in itertools.pairwise(cut)
    ]


@pytest.mark.parametrize("span", [SHORT, MEDIUM], ids=str)
def test_salted_prompts_have_exact_lengths_and_distinct_first_tokens(span: tuple[int, int]) -> None:
    """The salt takes room like any other words, and comes behind what tells a run's own apart."""
    prompts = take(factory(salted=True), 60, span)
    assert all(PIECES.count(p.text, None) == p.tokens for p in prompts)
    assert all(span[0] <= p.tokens <= span[1] for p in prompts)
    assert prompts[0].tokens == span[1]
    assert len({PIECES.split(p.text)[0] for p in prompts}) == 60
    assert take(factory(salted=True), 60, span) == prompts


def test_first_tokens_differ_while_there_are_some() -> None:
    """With a vocabulary that allows it, the very first user token never repeats."""
    made = factory(PIECES)
    firsts = [PIECES.split(p.text)[0] for p in take(made, 400, SHORT)]
    assert len(set(firsts)) == 400
    assert made.notes == ()


def test_when_first_tokens_run_out_the_second_differs_and_the_report_says_so() -> None:
    """A character tokenizer has few first tokens: prompts then differ within two, with a note."""
    made = factory(CHARACTERS)
    prompts = take(made, 150, SHORT)
    assert len({p.text[0] for p in prompts}) < 150
    assert len({p.text[:3] for p in prompts}) == 150
    assert "first user tokens ran out" in made.notes[0]
    assert "first 2 user tokens" in made.notes[0]


def test_openings_that_are_handed_out_can_be_used_however_many_were() -> None:
    """Words of one token are used up first: a search for the next prompt never meets only those."""
    openers = Openers(Ruler(PIECES.count, PIECES.encode, None))
    unusable = longest = used = 0
    for opening, depth in itertools.islice(openers.walk(Random(1), 0), 25_000):
        text = f"{opening}: list what follows"
        fresh = openers.unseen(text, depth)
        unusable = 0 if fresh else unusable + 1
        longest = max(longest, unusable)
        if fresh:
            openers.claim(text)
            used += 1
    assert used > 20_000
    assert longest < 10


def test_a_mark_before_every_text_is_seen_through() -> None:
    """Where every text begins with the same mark, the token after it differs."""
    seconds = [MARKED.split(p.text)[1] for p in take(factory(MARKED), 150, SHORT)]
    assert len(set(seconds)) == 150


def test_without_tokenizer_first_words_differ_and_the_report_says_so() -> None:
    """A server that only counts still gets prompts with different first words."""
    made = factory(SERVER)
    words = [
        p.text.replace(".", ":").replace("：", ":").split(":")[0] for p in take(made, 60, SHORT)
    ]
    assert len(set(words)) == 60
    assert made.notes == ("the target has no tokenizer: prompts differ from their first word on",)


def test_a_tokenizer_that_tells_nothing_apart_is_an_error() -> None:
    """Prompts that cannot be kept apart are never handed out as distinct."""
    made = PromptFactory(lambda text, system: len(text.split()), lambda text: [7] * 9, seed=0)
    stream = made.stream("b", *SHORT)
    with pytest.raises((TargetError, UsageError), match=r"distinct prompts|could be made"):
        list(itertools.islice(stream, 3))


def test_the_seed_decides_and_reading_order_does_not() -> None:
    """The same seed gives the same prompts, however the streams are interleaved."""
    one, two = factory(seed=5), factory(seed=5)
    a, b = one.stream("short", *SHORT), one.stream("medium", *MEDIUM)
    c, d = two.stream("short", *SHORT), two.stream("medium", *MEDIUM)
    turns = [next(s) for _ in range(25) for s in (a, b)]
    in_rows = [*itertools.islice(c, 25), *itertools.islice(d, 25)]
    assert sorted(p.text for p in turns) == sorted(p.text for p in in_rows)
    assert take(factory(seed=5), 25, SHORT, "short") == in_rows[:25]
    assert {p.text for p in take(factory(seed=6), 25, SHORT)}.isdisjoint(p.text for p in turns)


def test_the_system_prompt_is_counted_and_carried() -> None:
    """Length is that of the rendered prompt, so a system prompt leaves less room for the text."""
    system = "You answer in one sentence."
    bare, with_system = factory(), factory(system=system)
    a, b = next(bare.stream("b", 40, 40)), next(with_system.stream("b", 40, 40))
    assert (a.system, b.system) == (None, system)
    assert a.tokens == b.tokens == 40
    assert len(PIECES.split(a.text)) - len(PIECES.split(b.text)) == len(PIECES.split(system))


def test_a_range_without_room_is_refused_with_the_numbers() -> None:
    """A bucket below template plus shortest prompt: what is given, taken, and needed."""
    system = "word " * 30
    made = factory(system=system)
    overhead = TEMPLATE + len(PIECES.split(system))
    with pytest.raises(UsageError) as told:
        made.check("short", 1, overhead, 69)
    text = str(told.value)
    assert f"(1–{overhead} tokens)" in text
    assert f"take {overhead} tokens" in text
    with pytest.raises(UsageError):
        made.stream("short", 1, overhead)
    needed = int(text.split("upper edge to ")[1].split()[0])
    made.check("short", 1, needed, 69)
    assert next(made.stream("short", 1, needed)).tokens <= needed


def test_warmup_keeps_to_one_shape_and_repeats_nothing() -> None:
    """Warm-up prompts lie in the top quarter and are none of the measured ones."""
    made = factory()
    measured = take(made, 40, MEDIUM, "medium")
    warm = list(itertools.islice(made.warmup("medium", *MEDIUM), 31))
    assert all(p.tokens >= top_quarter(*MEDIUM) for p in warm)
    firsts = [PIECES.split(p.text)[0] for p in measured + warm]
    assert len(set(firsts)) == 71


def test_languages_and_styles_are_mixed() -> None:
    """English and Chinese prevail, and every script that is shipped turns up."""
    prompts = take(factory(), 300, MEDIUM)
    chinese = sum("\u4e00" <= p.text[-60] <= "\u9fff" or "，" in p.text for p in prompts)
    assert 60 <= chinese <= 130
    assert any("\u0600" <= c <= "\u06ff" for p in prompts for c in p.text)
    assert any("\u3040" <= c <= "\u30ff" for p in prompts for c in p.text)
    assert not any("\ufffd" in p.text or p.text != p.text.strip() for p in prompts)


def test_shipped_texts_are_many_and_each_says_its_own() -> None:
    """The corpus is as large as promised, and no sentence of it stands twice."""
    sizes = {}
    for language, corpus in builtin_corpora().items():
        lines = [line for s in STYLES for b in corpus.blocks[s] for line in b]
        lines += [line for s in STYLES for line in corpus.asks[s]]
        assert len(set(lines)) == len(lines), language
        sizes[language] = len(lines)
    assert sizes["en"] >= 300
    assert sizes["zh"] >= 200
    assert all(n >= 38 for n in sizes.values()), sizes
    assert len(set(tag_words())) >= 40


@pytest.mark.parametrize(
    ("text", "what"),
    [("loose line", "before the first section"), ("[ask chat]\nWhy?\n", "sections are")],
)
def test_a_damaged_corpus_is_refused(text: str, what: str) -> None:
    """A shipped file with a wrong shape cannot silently shrink the prompts."""
    with pytest.raises(ValueError, match=what):
        parse_corpus("en", text)


def test_prompts_never_hold_special_tokens_or_control_characters() -> None:
    """Built-in texts render as plain user text in every template."""
    for p in take(factory(), 60, LONG):
        assert not any(mark in p.text for mark in ("<|", "[INST]", "<s>", "###"))
        assert all(c == "\n" or c.isprintable() for c in p.text)

"""A team's own prompt files: what is read, what is refused, and in which order they are sent."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_counters import PIECES, SERVER, TEMPLATE, WORDS

from pytest_llmsla.errors import UsageError
from pytest_llmsla.workload import PromptFactory, Source, top_quarter
from pytest_llmsla.workload.files import guess_encoding, read_prompts

SPAN = (1, 40)
NAMES = [f"name{n}" for n in range(12)]


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def texts(path: Path) -> list[str]:
    return [p.text for p in read_prompts(path)]


def lines(lengths: list[int]) -> str:
    """One prompt a line, each with its own first word, of ``lengths`` words."""
    return "\n".join(f"p{i} " + "word " * (n - 1) for i, n in enumerate(lengths))


def factory(source: Source, *, warm: bool = False, counter: Any = WORDS) -> PromptFactory:
    return PromptFactory(counter.count, counter.encode, seed=0, source=source, warm_cache=warm)


# -- reading


def test_text_is_one_prompt_a_line_or_blocks(tmp_path: Path) -> None:
    """Without a --- line each line is a prompt; with one, the lines between are."""
    assert texts(write(tmp_path, "a.txt", "One?\r\nTwo?\n\n")) == ["One?", "Two?"]
    blocks = "First\nsecond line\n\nafter a gap\n---\nAnother\n---\n"
    want = ["First\nsecond line\n\nafter a gap", "Another"]
    assert texts(write(tmp_path, "b.txt", blocks)) == want
    assert texts(write(tmp_path, "c.txt", "---\n" + blocks)) == want


def test_json_shapes(tmp_path: Path) -> None:
    """Strings, prompt objects and single-turn conversations, in .json and .jsonl alike."""
    items = [
        "plain",
        {"prompt": "from an object", "id": 7},
        {"messages": [{"role": "user", "content": "one turn"}]},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]},
    ]
    as_list = read_prompts(write(tmp_path, "a.json", json.dumps(items)))
    as_lines = read_prompts(write(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, items))))
    want = [("plain", None), ("from an object", None), ("one turn", None), ("U", "S")]
    assert [(p.text, p.system) for p in as_list] == want
    assert [(p.text, p.system) for p in as_lines] == want
    assert [p.where.rpartition("a.json")[2] for p in as_list][:2] == ["[0]", "[1]"]
    assert as_lines[1].where.endswith("a.jsonl:3")


def test_a_byte_order_mark_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    """UTF-8 with the mark that some editors write reads like UTF-8 without."""
    assert texts(write(tmp_path, "a.txt", "\ufeff你好\n".encode())) == ["你好"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "One\n\nThree\n", r"a\.txt:2: empty prompt.*---"),
        ("a.txt", "One\n---\n  \n---\nTwo\n", r"a\.txt:3: empty prompt"),
        ("a.txt", "\n \n", "holds no prompt"),
        ("a.txt", "---\n", "empty prompt|holds no prompt"),
        ("a.jsonl", '"ok"\n{"prompt": " "}\n', r"a\.jsonl:2: empty prompt"),
        ("a.jsonl", '"ok"\n{"prompt": 3}\n', r"a\.jsonl:2: prompt is a number"),
        ("a.jsonl", '"ok"\nplain text\n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", '{"text": "x"}\n', r"a\.jsonl:1 is keys text; a prompt is"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1 is a list; a prompt is"),
        ("a.jsonl", '{"prompt": "x", "messages": []}\n', "keys prompt, messages"),
        ("a.jsonl", '{"messages": []}\n', "roles none; give one user message"),
        ("a.jsonl", '{"messages": "hi"}\n', "messages must be a list"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "roles assistant"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": [1]}]}', "content must be a str"),
        ("a.jsonl", '"\\ud83d half"\n', r"a\.jsonl:1: character 1 is half of a surrogate"),
        ("a.json", '{"prompt": "x"}', "holds an object; it must be a list"),
        ("a.json", '["x",\n "y"', r"a\.json:2 is not JSON"),
        ("a.json", '["x", null]', r"a\.json\[1\] is null"),
        ("a.json", "[]", "holds no prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    """Nothing of a file is skipped in silence: each fault names file and line."""
    with pytest.raises(UsageError, match=says):
        read_prompts(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        ("港口在中午关闭，请用三句话概括。", "gbk", "GBK"),
        ("風が強いので港はしまりました。ごめんなさい。", "shift_jis", "Shift_JIS"),
        ("Größe und Wärme prüfen", "cp1252", "Windows-1252"),
        ("plain words in wide form", "utf-16", "UTF-16"),
        ("plain words in wide form é", "utf-16-le", "UTF-16 without"),
    ],
)
def test_another_encoding_is_named_with_the_line(
    tmp_path: Path, text: str, encoding: str, named: str
) -> None:
    """A file that is not UTF-8 is refused, and the message says what it looks like."""
    raw = "ok\n".encode("ascii") + text.encode(encoding)
    path = write(tmp_path, "p.txt", raw if named != "UTF-16" else text.encode(encoding))
    if named == "UTF-16 without":  # such bytes are valid UTF-8 until the accent
        path = write(tmp_path, "p.txt", text.encode(encoding))
    with pytest.raises(UsageError, match=rf"p\.txt:\d+ is not UTF-8 .*{named}"):
        read_prompts(path)


def test_guessing_never_fails_on_any_bytes() -> None:
    """The guess is only for a message: bytes of no encoding still get an answer."""
    assert guess_encoding(bytes(range(128, 256))) == "Windows-1252 or ISO-8859-1"


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    """The path as resolved, from the folder of the policy, stands in the message."""
    with pytest.raises(UsageError, match=r"cannot read the prompt file .*none\.txt: No such"):
        PromptFactory(WORDS.count, WORDS.encode, seed=0, source="none.txt", base=tmp_path)
    with pytest.raises(UsageError, match="empty mapping"):
        factory({})


# -- placing and counting


def test_prompts_are_placed_by_rendered_length(tmp_path: Path) -> None:
    """The template counts: a text of 37 words with a template of 3 fits up to 40, 38 does not."""
    path = write(tmp_path, "p.txt", lines([36, 37, 38, 39]))
    made = factory(path)
    short = list(itertools.islice(made.stream("short", 1, 40), 2))
    long = list(itertools.islice(made.stream("long", 41, 80), 2))
    assert sorted(p.tokens for p in short) == [36 + TEMPLATE, 40]
    assert sorted(p.tokens for p in long) == [41, 42]


def test_prompts_outside_every_bucket_are_listed(tmp_path: Path) -> None:
    """What no bucket takes is named with its line and length, also in the notes."""
    path = write(tmp_path, "p.txt", lines([5, 90, 20, 7, 200]))
    made = factory(path)
    out = made.outside({"short": (1, 10), "medium": (11, 40)})
    assert [o.rpartition("p.txt")[2] for o in out] == [":2 (93 tokens)", ":5 (203 tokens)"]
    assert "outside every bucket, not used" in made.notes[0]
    assert factory(path).outside({"all": (1, 300)}) == ()


def test_a_file_per_bucket(tmp_path: Path) -> None:
    """Each bucket draws from its own file; a bucket without one, or a file without one, is told."""
    source = {
        "short": write(tmp_path, "s.txt", lines([5, 6])),
        "medium": write(tmp_path, "m.txt", "m" + lines([60, 70]).replace("\n", "\nm")),
    }
    made = factory(source)
    assert {p.tokens for p in itertools.islice(made.stream("medium", 50, 90), 2)} == {63, 73}
    with pytest.raises(UsageError, match="bucket long has no prompts: files are given for short"):
        made.stream("long", 91, 200)
    with pytest.raises(UsageError, match="do not exist: medium; the buckets are short"):
        made.outside({"short": (1, 40)})


def test_a_bucket_without_prompts_is_refused_with_the_lengths_there_are(tmp_path: Path) -> None:
    """No prompt of the right length: the message says which lengths the file has."""
    made = factory(write(tmp_path, "p.txt", lines([5, 20])))
    with pytest.raises(UsageError, match=r"bucket long \(513–1024 tokens\) has no prompt.*8–23"):
        made.check("long", 513, 1024, 69)


def test_a_file_too_small_for_its_budget_is_refused(tmp_path: Path) -> None:
    """No prompt may repeat, so a budget needs as many prompts; a warm cache is the way out."""
    path = write(tmp_path, "p.txt", lines([10] * 99))
    factory(path).check("short", *SPAN, needed=99)
    with pytest.raises(UsageError, match=r"has 99 prompts and needs 100.*warm_cache: true"):
        factory(path).check("short", *SPAN, needed=100)
    factory(path, warm=True).check("short", *SPAN, needed=100)


def test_used_prompts_do_not_count_as_left(tmp_path: Path) -> None:
    """A second gate on the same file has what the first one left."""
    made = factory(write(tmp_path, "p.txt", lines([10] * 30)))
    list(itertools.islice(made.stream("short", *SPAN), 12))
    made.check("short", *SPAN, needed=18)
    with pytest.raises(UsageError, match="has 18 prompts and needs 19"):
        made.check("short", *SPAN, needed=19)


def test_few_long_prompts_are_noted(tmp_path: Path) -> None:
    """A file that cannot cover its bucket is told before the run ends inconclusive."""
    made = factory(write(tmp_path, "p.txt", lines([10] * 90 + [37] * 9)))
    made.check("short", *SPAN, needed=99)
    assert "bucket short: 9 of 99 prompts are 31–40 tokens long" in made.notes[0]
    full = factory(write(tmp_path, "q.txt", lines([10] * 60 + [37] * 39)))
    full.check("short", *SPAN, needed=99)
    assert full.notes == ()


# -- sending


def test_each_prompt_is_sent_once_word_for_word(tmp_path: Path) -> None:
    """All prompts of the file, none twice, none changed, in an order that the seed decides."""
    given_texts = [f"{name} is what I ask about" for name in NAMES]
    path = write(tmp_path, "p.txt", "\n".join(given_texts))
    stream = factory(path).stream("short", *SPAN)
    sent = [next(stream).text for _ in NAMES]
    assert sorted(sent) == sorted(given_texts)
    assert sent != given_texts
    again = factory(path).stream("short", *SPAN)
    assert [next(again).text for _ in NAMES] == sent
    with pytest.raises(UsageError, match="all 12 prompts are used and none may repeat"):
        next(stream)


def test_two_streams_never_send_the_same_prompt(tmp_path: Path) -> None:
    """Warm-up and measured requests share the file without sharing a prompt."""
    made = factory(write(tmp_path, "p.txt", lines([10] * 30 + [37] * 30)))
    a, b, c = (
        made.stream("short", *SPAN),
        made.warmup("short", *SPAN),
        made.stream("other", 1, 60),
    )
    sent = [next(s).text for _ in range(20) for s in (a, b, c)]
    assert len(set(sent)) == 60


@settings(max_examples=60, deadline=None)
@given(high=st.integers(1, 60), low=st.integers(0, 60), start=st.integers(0, 20))
def test_long_prompts_come_at_every_second_place_while_they_last(
    tmp_path_factory: pytest.TempPathFactory, high: int, low: int, start: int
) -> None:
    """Any window before they run out has a third in the top quarter, as the report demands."""
    folder = tmp_path_factory.mktemp("p")
    made = factory(write(folder, "p.txt", lines([37] * high + [8] * low)))
    stream = made.stream("short", *SPAN)
    tokens = [next(stream).tokens for _ in range(high + low)]
    until = len(tokens) if high >= low else 2 * high
    for n in range(3, until - start + 1):
        window = tokens[start : start + n]
        assert 3 * sum(t >= top_quarter(*SPAN) for t in window) >= n


def test_warmup_takes_what_measuring_needs_least(tmp_path: Path) -> None:
    """Few long prompts stay for the measured requests; many may warm up."""
    scarce = factory(write(tmp_path, "a.txt", lines([10, 20] * 25 + [37] * 12)))
    warm = list(itertools.islice(scarce.warmup("short", *SPAN), 20))
    assert Counter(p.tokens for p in warm) == {23: 20}
    plenty = factory(write(tmp_path, "b.txt", lines([10] * 12 + [37] * 50)))
    assert {next(plenty.warmup("short", *SPAN)).tokens for _ in range(5)} == {40}


def test_a_warm_cache_repeats_in_the_same_order(tmp_path: Path) -> None:
    """Declared: one prompt may be sent for ever, and warm-up sends what is measured."""
    one = factory(write(tmp_path, "p.txt", "Always the same."), warm=True)
    one.check("short", *SPAN, needed=331)
    warm, measured = one.warmup("short", *SPAN), one.stream("short", *SPAN)
    assert {next(s).text for s in (warm, measured) for _ in range(21)} == {"Always the same."}


def test_the_same_prompt_undeclared_is_refused(tmp_path: Path) -> None:
    """One prompt written 21 times can never be sent 21 times without the declaration."""
    path = write(tmp_path, "p.txt", "Always the same.\n" * 21)
    with pytest.raises(UsageError, match=r"p\.txt:2 is equal to .*p\.txt:1.* and 10 more"):
        factory(path).check("short", *SPAN, needed=21)
    with pytest.raises(UsageError, match="warm_cache"):
        factory(path).stream("short", *SPAN)


@pytest.mark.parametrize(("shared", "refused"), [(16, False), (17, True)])
def test_beginnings_shared_beyond_one_block_are_refused(
    tmp_path: Path, shared: int, refused: bool
) -> None:
    """Sixteen tokens in common are one cache block and allowed; seventeen are not."""
    intro = " ".join(f"i{n}" for n in range(shared))
    path = write(tmp_path, "p.txt", f"{intro} first\nother\n{intro} second\n")
    if refused:
        with pytest.raises(UsageError, match=r"p\.txt:3 begins like .*p\.txt:1.*system_prompt"):
            factory(path).check("short", *SPAN, needed=3)
    else:
        factory(path).check("short", *SPAN, needed=3)
    factory(path, warm=True).check("short", *SPAN, needed=3)


def test_without_a_tokenizer_beginnings_are_compared_by_bytes(tmp_path: Path) -> None:
    """A server that only counts gets the same refusal, at 64 bytes of UTF-8."""
    intro = "An introduction that many of the prompts in this file begin with, word by word: "
    path = write(tmp_path, "p.txt", f"{intro}first\n{intro}second\n")
    with pytest.raises(UsageError, match="begins like"):
        factory(path, counter=SERVER).check("short", *SPAN, needed=2)
    ok = write(tmp_path, "q.txt", f"{intro[:60]} first\n{intro[:60]} second\n")
    factory(ok, counter=SERVER).check("short", *SPAN, needed=2)


def test_the_same_text_under_two_system_prompts_is_distinct(tmp_path: Path) -> None:
    """The system prompt comes first in the rendered prompt, so the beginnings differ."""
    items = [
        {"messages": [{"role": "system", "content": s}, {"role": "user", "content": "Same"}]}
        for s in ("Be brief.", "Be thorough.")
    ]
    path = write(tmp_path, "p.json", json.dumps(items))
    made = PromptFactory(PIECES.count, PIECES.encode, seed=0, source=path, system="Else.")
    stream = made.stream("short", *SPAN)
    assert {next(stream).system, next(stream).system} == {"Be brief.", "Be thorough."}

"""The last resort on a real byte-level BPE: what it calls exact is where the tokens were."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.targets.http.counting import TokenEvent, reconcile

tokenizers = pytest.importorskip("tokenizers")

CORPUS = """The quick brown fox jumps over the lazy dog, and the dog sleeps through all of it.
Numbers like 1234 and 5678 come in groups; so do words such as tokenizer, tokens, tokenized.
你好，世界。今天天气很好。 😀 😁 ünïcode élan."""
WORDS = ("the", " dog", " tokenized", " 1234", "。", "你好", " 😀", "\n", "  ", "élan", "xq")


@cache
def bpe() -> Any:
    """A tokenizer trained on a few lines: merges inside words, several tokens a character."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS.splitlines() * 4, trainer)
    return made


def count(text: str) -> int:
    """Tokens of ``text``."""
    return len(bpe().encode(text).ids)


@st.composite
def streamed(draw: st.DrawFn) -> tuple[list[TokenEvent], tuple[tuple[int, int], ...]]:
    """An answer in events of a few tokens, half characters held back; and the truth."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
    ids = bpe().encode("".join(words)).ids
    events: list[TokenEvent] = []
    truth: list[tuple[int, int]] = []
    sent, held = "", 0
    for i in range(len(ids)):
        held += 1
        text = bpe().decode(ids[: i + 1])
        last = i + 1 == len(ids)
        if (not text.endswith("\ufffd") and draw(st.booleans())) or last:
            events.append(TokenEvent(i, text[len(sent) :]))
            truth.append((i, held))
            sent, held = text, 0
    return events, tuple(truth)


@given(streamed(), st.booleans())
def test_a_real_tokenizer_finds_the_tokens(
    said: tuple[list[TokenEvent], tuple[tuple[int, int], ...]], stopped: bool
) -> None:
    """With a final total, an end token among them or not, tokens are where they were."""
    events, truth = said
    n = sum(k for _, k in truth)
    got = reconcile(
        events,
        totals=[(1000, n + stopped)],
        final=n + stopped,
        finish=(999, "stop" if stopped else "length"),
        tokenize=count,
    )
    if len(events) == 1:
        return  # one event holds all
    assert got.estimated is None
    assert got.arrivals == ((*truth, (999, 1)) if stopped else truth)
    assert got.source == "usage_final"


STEP = 1000
TEXT = "the dog and 🚀 漢字 over ж 🛰 lazy 語"


def cut(at: int) -> tuple[list[TokenEvent], list[tuple[int, int]], int]:
    """TEXT, an event each step, cut behind ``at`` tokens; where they were; what was held back.

    Half characters are held back; what is left of one never comes.
    """
    ids = bpe().encode(TEXT).ids[:at]
    events: list[TokenEvent] = []
    truth: list[tuple[int, int]] = []
    sent, held = "", 0
    for i in range(at):
        held += 1
        text = bpe().decode(ids[: i + 1])
        if not text.endswith("\ufffd"):
            events.append(TokenEvent(i * STEP, text[len(sent) :]))
            truth.append((i * STEP, held))
            sent, held = text, 0
    return events, truth, held


@pytest.mark.parametrize("wait", [0, 1, STEP, 40 * STEP])
@pytest.mark.parametrize("at", range(6, len(bpe().encode(TEXT).ids)))
def test_what_an_answer_was_cut_in_is_not_placed_by_a_tokenizer(at: int, wait: int) -> None:
    """Wherever it is cut and whenever its finish is read: exact where no character is cut, else an
    estimate, since tokens without text may as well stand before the end."""
    events, truth, held = cut(at)
    end = events[-1].t_ns + wait
    got = reconcile(events, totals=[(10**9, at)], final=at, finish=(end, "length"), tokenize=count)
    assert (got.estimated is None) == (held == 0)
    assert got.output_tokens == at
    if not held:
        assert got.arrivals == tuple(truth)


def test_some_of_these_answers_are_cut_inside_a_character() -> None:
    """One to three bytes of one, or none, or the test above shows nothing."""
    assert {cut(n)[2] for n in range(6, len(bpe().encode(TEXT).ids))} >= {0, 1, 2}


@given(streamed(), st.integers(2, 9))
def test_another_model_s_tokenizer_proves_nothing(
    said: tuple[list[TokenEvent], tuple[tuple[int, int], ...]], more: int
) -> None:
    """A count that the text does not explain stays an estimate."""
    events, truth = said
    n = sum(k for _, k in truth) + more
    got = reconcile(events, totals=[(1000, n)], final=n, finish=(999, "length"), tokenize=count)
    assert (got.estimated is None) == (len(events) == 1)
    assert got.output_tokens == n

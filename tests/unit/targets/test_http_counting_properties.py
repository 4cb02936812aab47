"""What holds for every answer, and that exact means true: checked against a simulated server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmsla.targets.http.counting import (
    Counted,
    TokenEvent,
    by_evidence,
    plus_one,
    reconcile,
)

COUNTS = st.one_of(st.none(), st.integers(0, 50))


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[TokenEvent], list[tuple[int, int]], tuple[int, str]]:
    """Events, totals and a finish of a server that may be lying."""
    stamps = sorted(draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=12)))
    found = [
        TokenEvent(t, draw(st.sampled_from(["", "x", "xx", "word "])), draw(COUNTS), draw(COUNTS))
        for t in stamps
    ]
    end = stamps[-1] + draw(st.integers(0, 1000))
    totals = [(e.t_ns, e.total) for e in found if e.total is not None]
    totals += [(end, n) for n in draw(st.lists(st.integers(0, 50), max_size=2))]
    return found, totals, (end, draw(st.sampled_from(["stop", "length", "tool_calls"])))


@given(anything(), st.booleans(), st.booleans())
def test_whatever_a_server_says(
    said: tuple[list[TokenEvent], list[tuple[int, int]], tuple[int, str]],
    tokenizer: bool,
    finished: bool,
) -> None:
    """No 0, the sum is the count, stamps are those of events and in order, the first is the first
    text's, and a count that is not the server's is said to be none."""
    found, totals, finish = said
    got = reconcile(
        found,
        totals=totals,
        final=totals[-1][1] if totals else None,
        finish=finish if finished else None,
        tokenize=len if tokenizer else None,
    )
    texts = [e.t_ns for e in found if e.text]
    if not texts:
        assert got.arrivals == ()
        return
    stamps = [t for t, _ in got.arrivals]
    assert all(k >= 1 for _, k in got.arrivals)
    assert sum(k for _, k in got.arrivals) == got.output_tokens
    assert stamps == sorted(stamps)
    assert set(stamps) <= {e.t_ns for e in found} | {t for t, _ in totals} | {finish[0]}
    assert stamps[0] == texts[0]
    if totals and totals[-1][1] and not stopped_counting(found, totals):
        assert got.output_tokens == totals[-1][1]
        assert got.source in ("usage_continuous", "usage_final")
    else:
        assert got.source in ("events", "tokenizer")


def stopped_counting(found: list[TokenEvent], totals: list[tuple[int, int]]) -> bool:
    """Running totals that end before the text does, at the last total of all."""
    texts, every = [e for e in found if e.text], [n for _, n in totals]
    known = [e.total for e in texts if e.total is not None]
    grows = known and known[0] and (len(known) == 1 or known[-1] > known[0])
    fell = sorted(every) != every
    return bool(grows and not fell and texts[-1].total is None and known[-1] == every[-1])


@dataclass
class Served:
    """An answer as a truthful server sends it, and where its tokens were."""

    events: list[TokenEvent]
    totals: list[tuple[int, int]]
    finish: tuple[int, str]
    truth: tuple[tuple[int, int], ...]


@st.composite
def served(draw: st.DrawFn) -> Served:
    """Tokens in groups, totals or ids or neither, an end token or none."""
    groups = draw(st.lists(st.integers(1, 5), min_size=1, max_size=10))
    gaps = [draw(st.integers(1, 90)) for _ in groups]
    running, ids = draw(st.booleans()), draw(st.booleans())
    events, truth, t, so_far = [], [], 0, 0
    totals: list[tuple[int, int]] = []
    for k, gap in zip(groups, gaps, strict=True):
        t, so_far = t + gap, so_far + k
        total = so_far if running and draw(st.booleans()) else None
        if total is not None:
            totals.append((t, total))
        text = "y" * draw(st.integers(1, 9))
        events.append(TokenEvent(t, text, k if ids else None, total))
        truth.append((t, k))
    end = t + draw(st.integers(1, 90))
    stopped = draw(st.booleans())
    if stopped:
        so_far += 1
        truth.append((end, 1))
    if running:
        totals.append((end, so_far))
    totals.append((end + 5, so_far))
    return Served(events, totals, (end, "stop" if stopped else "length"), tuple(truth))


def counted(said: Served) -> Counted:
    """What is made of it, without a tokenizer."""
    return reconcile(
        said.events,
        totals=said.totals,
        final=said.totals[-1][1],
        finish=said.finish,
        tokenize=None,
    )


@given(served())
def test_the_count_of_a_truthful_server_is_kept(said: Served) -> None:
    """Exact or estimated, the number of tokens is the server's."""
    assert counted(said).output_tokens == sum(k for _, k in said.truth)


@given(served())
def test_ids_and_totals_together_give_the_truth(said: Served) -> None:
    """With an id count on each event and totals nothing is left to guess."""
    assume(all(e.tokens is not None for e in said.events))
    got = counted(said)
    assert got.estimated is None
    assert got.arrivals == said.truth


@given(served())
def test_a_total_on_every_event_gives_the_truth(said: Served) -> None:
    """Running totals alone are enough."""
    so_far, full = 0, []
    for event, (_, k) in zip(said.events, said.truth, strict=False):
        so_far += k
        full.append(TokenEvent(event.t_ns, event.text, None, so_far))
    totals = [(e.t_ns, e.total) for e in full if e.total is not None]
    final = sum(k for _, k in said.truth)
    got = reconcile(
        full,
        totals=[*totals, (said.finish[0], final)],
        final=final,
        finish=said.finish,
        tokenize=None,
    )
    assert got.estimated is None
    assert got.arrivals == said.truth


@given(served())
def test_exact_is_never_said_of_a_guess(said: Served) -> None:
    """Without an estimate's label the arrivals are the truth; an answer of one event has all its
    tokens there, the end token too, since nothing but a running total could tell it apart."""
    got = counted(said)
    if got.estimated is None and len(said.events) > 1:
        assert got.arrivals == said.truth


@st.composite
def nearly_plus_one(
    draw: st.DrawFn,
) -> tuple[list[TokenEvent], list[tuple[int, int]], int | None]:
    """The common answer, with a thing or two about it changed."""
    n = draw(st.integers(0, 6))
    running = draw(st.sampled_from(["all", "last", "none"]))
    ids = draw(st.sampled_from([None, 1]))
    at = {"all": range(n), "last": range(n - 1, n), "none": ()}[running]
    found = [TokenEvent(10 * i, "x", ids, i + 1 if i in at else None) for i in range(n)]
    total = st.integers(-1, 8)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        i = draw(st.integers(0, max(n - 1, 0)))
        change: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "text": st.sampled_from(["", "yy"]),
                    "tokens": st.sampled_from([None, 0, 1, 2]),
                    "total": st.one_of(st.none(), total),
                },
            )
        )
        found[i : i + 1] = [e._replace(**change) for e in found[i : i + 1]]
    totals = [(e.t_ns, e.total) for e in found if e.total is not None]
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        some = (draw(st.integers(0, 99)), draw(st.one_of(st.just(n), total)))
        totals.insert(draw(st.sampled_from([len(totals), len(totals), 0])), some)
    return found, totals, draw(st.sampled_from([totals[-1][1] if totals else None, n]))


@given(nearly_plus_one(), st.sampled_from([None, (45, "stop"), (45, "length")]), st.booleans())
def test_the_short_way_finds_what_the_long_way_finds(
    said: tuple[list[TokenEvent], list[tuple[int, int]], int | None],
    finish: tuple[int, str] | None,
    tokenizer: bool,
) -> None:
    """Or says that it is not for this answer."""
    found, totals, final = said
    if final is None and totals:
        final = totals[-1][1]
    short = plus_one(found, totals, final)
    assert short in (None, by_evidence(found, totals, final, finish, len if tokenizer else None))


@given(st.integers(2, 9), st.booleans(), st.sampled_from([None, 1]))
def test_the_short_way_is_taken(n: int, running: bool, ids: int | None) -> None:
    """One token an event: by running totals, by ids, or as many events as tokens."""
    found = [TokenEvent(10 * i, "x", ids, i + 1 if running else None) for i in range(n)]
    totals = [(e.t_ns, e.total) for e in found if e.total is not None]
    assert plus_one(found, [*totals, (99, n)], n) is not None


@st.composite
def cut_short(
    draw: st.DrawFn,
) -> tuple[list[TokenEvent], list[tuple[int, int]], tuple[int, str]]:
    """An answer whose last total counts a few tokens more than its events tell of."""
    said = draw(served())
    n = said.totals[-1][1] + draw(st.integers(0, 4))
    return said.events, [*said.totals, (said.totals[-1][0] + 1, n)], said.finish


@given(st.one_of(anything(), cut_short()), st.booleans(), st.randoms(use_true_random=False))
def test_only_the_order_of_stamps_counts(
    said: tuple[list[TokenEvent], list[tuple[int, int]], tuple[int, str]],
    tokenizer: bool,
    rng: Random,
) -> None:
    """How long anything took says nothing of tokens: reads may be late, and hold several events."""
    found, totals, finish = said
    at, other = 0, dict[int, int]()
    for t in sorted({e.t_ns for e in found} | {t for t, _ in totals} | {finish[0]}):
        at += rng.choice([1, 2, 1000, 10**9])
        other[t] = at
    one, two = (
        reconcile(
            [e._replace(t_ns=when(e.t_ns)) for e in found],
            totals=[(when(t), n) for t, n in totals],
            final=totals[-1][1] if totals else None,
            finish=(when(finish[0]), finish[1]),
            tokenize=len if tokenizer else None,
        )
        for when in (int, other.__getitem__)
    )
    assert two == replace(one, arrivals=tuple((other[t], k) for t, k in one.arrivals))

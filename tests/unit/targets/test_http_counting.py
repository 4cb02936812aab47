"""Placing the tokens of an answer on its events: every kind of evidence, and the lack of it.

Stamps are in ms here; only their order and identity matter to the code.
"""

from __future__ import annotations

import pytest

from pytest_llmsla.targets.http.counting import NONE_AT_LAST, Counted, TokenEvent, reconcile
from pytest_llmsla.timeline import FIRST_UNSURE

STOP = (1000, "stop")
LENGTH = (1000, "length")


def events(
    *times: int, text: str = "x", totals: list[int | None] | None = None
) -> list[TokenEvent]:
    """Events of one text each at ``times``."""
    known = totals or [None] * len(times)
    return [TokenEvent(t, "x", None, n) for t, n in zip(times, known, strict=True)]


def totals_of(*extra: tuple[int, int], on: list[TokenEvent]) -> list[tuple[int, int]]:
    """Totals of token events and ``extra`` ones, by stamp."""
    return sorted([(e.t_ns, e.total) for e in on if e.total is not None] + list(extra))


def ask(
    found: list[TokenEvent],
    *extra: tuple[int, int],
    finish: tuple[int, str | None] | None = STOP,
    tokenize: object = None,
) -> Counted:
    """Reconcile ``found`` with totals on its events and at ``extra`` stamps."""
    totals = totals_of(*extra, on=found)
    final = totals[-1][1] if totals else None
    return reconcile(found, totals=totals, final=final, finish=finish, tokenize=tokenize)  # type: ignore[arg-type]


VOCABULARY = ("abcd", "ab", "cd", "a", "b", "c", "d", " ", "x")


def greedy(text: str) -> int:
    """Tokens of a toy tokenizer: the longest word of :data:`VOCABULARY` first."""
    n = 0
    while text:
        text = text[len(next(w for w in VOCABULARY if text.startswith(w))) :]
        n += 1
    return n


def test_a_final_total_of_one_token_an_event_is_exact() -> None:
    """As many events as tokens: each brought one, at its own stamp."""
    got = ask(events(620, 650, 680), (690, 3))
    assert got == Counted(((620, 1), (650, 1), (680, 1)), 3, "usage_final", None)


def test_running_totals_place_groups_of_tokens() -> None:
    """The growth of the running total is what an event brought."""
    found = events(100, 220, 340, 460, totals=[1, 5, 9, 13])
    got = ask(found, finish=(460, "stop"))
    assert got == Counted(((100, 1), (220, 4), (340, 4), (460, 4)), 13, "usage_continuous", None)


def test_a_total_of_0_on_the_role_chunk_changes_nothing() -> None:
    """vLLM counts 0 on its role chunk and repeats the total on the finish and in a usage chunk."""
    found = events(100, 130, 160, 190, totals=[1, 2, 3, 4])
    got = ask(found, (5, 0), (192, 4), (194, 4), finish=(192, "stop"))
    assert got == Counted(((100, 1), (130, 1), (160, 1), (190, 1)), 4, "usage_continuous", None)


def test_an_increase_on_the_finishing_event_is_an_end_token() -> None:
    """It has no text, but it was generated: an arrival at the stamp of the finish."""
    found = events(100, 130, totals=[1, 2])
    got = ask(found, (160, 3), finish=(160, "stop"))
    assert got == Counted(((100, 1), (130, 1), (160, 1)), 3, "usage_continuous", None)


def test_an_end_token_with_an_event_of_its_own_keeps_that_stamp() -> None:
    """llama.cpp sends an empty event for the end token, then the finishing one: 160, not 162."""
    found = events(100, 130, totals=[1, 2])
    got = ask(found, (160, 3), (162, 3), finish=(162, "stop"))
    assert got.arrivals == ((100, 1), (130, 1), (160, 1))
    assert got.estimated is None


def test_an_end_token_that_only_the_usage_event_counts_arrived_with_the_finish() -> None:
    """The usage event is no arrival."""
    found = events(100, 130, totals=[1, 2])
    got = ask(found, (400, 3), finish=(160, "stop"))
    assert got == Counted(((100, 1), (130, 1), (160, 1)), 3, "usage_continuous", None)


@pytest.mark.parametrize(
    ("extra", "finish"),
    [
        pytest.param([(400, 22)], (160, "stop"), id="in-the-usage-event"),
        pytest.param([(160, 22)], (160, "stop"), id="on-the-finish"),
        pytest.param([(160, 3), (400, 4)], (160, "stop"), id="on-both"),
        pytest.param([(160, 3)], None, id="no-finish"),
    ],
)
def test_more_than_held_back_text_explains_is_an_estimate(
    extra: list[tuple[int, int]], finish: tuple[int, str] | None
) -> None:
    """Twenty tokens on an event without text would dilute the percentiles with tiny gaps."""
    got = ask(events(100, 130, totals=[1, 2]), *extra, finish=finish)
    assert got.estimated is not None
    assert got.output_tokens == extra[-1][1]


@pytest.mark.parametrize("late", [0, 0.01, 1, 20])
@pytest.mark.parametrize("held", [1, 2, 3])
def test_half_a_character_at_the_end_arrives_with_the_finish(held: int, late: float) -> None:
    """Counted in the usage event alone: running totals say that it is behind the text, whenever
    the finish was read."""
    found = events(100, 130, 160, totals=[1, 2, 3])
    end = 161 + round(30 * held * late)
    got = ask(found, (9000, 3 + held), finish=(end, "length"))
    arrivals = ((100, 1), (130, 1), (160, 1), (end, held))
    assert got == Counted(arrivals, 3 + held, "usage_continuous", None)


@pytest.mark.parametrize(
    ("held", "finish"),
    [
        pytest.param(4, (280, "length"), id="more-than-a-character-has"),
        pytest.param(2, (220, "stop"), id="not-cut"),
    ],
)
def test_what_is_no_half_character_is_an_estimate(held: int, finish: tuple[int, str]) -> None:
    """More tokens than there can be bytes, or an answer that was not cut."""
    found = events(100, 130, 160, totals=[1, 2, 3])
    assert ask(found, (500, 3 + held), finish=finish).estimated is not None


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_ids_that_miss_more_than_an_end_token_are_an_estimate(missing: int) -> None:
    """Half a character behind the text, or tokens without text before it: nothing says which,
    though the finish came as late as so many steps take."""
    found = [TokenEvent(t, "x", 2) for t in (100, 120, 140)]
    got = ask(found, (900, 6 + missing), finish=(140 + 10 * missing, "length"))
    assert got.estimated is not None


def test_held_back_text_arrives_with_the_text_that_it_becomes() -> None:
    """Totals that grow on empty events (half a character) belong to the next event of text."""
    found = events(100, 200, totals=[1, 4])
    got = ask(found, (130, 2), (160, 3), (210, 4), finish=(210, "length"))
    assert got == Counted(((100, 1), (200, 3)), 4, "usage_continuous", None)


def test_an_event_whose_total_does_not_grow_brought_nothing() -> None:
    """The text of one token in two events: the second one is no arrival."""
    got = ask(events(100, 130, 140, 160, totals=[1, 2, 2, 3]), (170, 3))
    assert got == Counted(((100, 1), (130, 1), (160, 1)), 3, "usage_continuous", None)


def test_totals_on_some_events_only_cut_the_answer_into_groups() -> None:
    """Inside a group the same evidence counts as for a whole answer."""
    found = events(1, 2, 3, 4, 5, totals=[1, None, 3, None, 5])
    assert ask(found).arrivals == ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    assert ask(found).estimated is None
    coarse = ask(events(1, 2, 3, totals=[1, None, 6]))
    assert coarse.estimated is not None
    assert (coarse.output_tokens, coarse.arrivals[0]) == (6, (1, 1))


def test_totals_that_lag_behind_the_text_are_no_running_totals() -> None:
    """0, 1, 2, 3 on four events and 4 at the end: text without a token cannot be."""
    got = ask(events(1, 2, 3, 4, totals=[0, 1, 2, 3]), (6, 4), finish=(5, "length"))
    assert got == Counted(((1, 1), (2, 1), (3, 1), (4, 1)), 4, "usage_final", None)


@pytest.mark.parametrize(
    ("totals", "finish"),
    [([0, 1, 2, 3], "stop"), ([0, 2, 3, 4], "length"), ([0, None, 1, 3], "stop")],
)
def test_a_first_text_that_counts_for_nothing_may_be_none_of_the_model_s(
    totals: list[int | None], finish: str
) -> None:
    """A greeting and a counted end token look like totals that lag; others do not even that."""
    got = ask(events(1, 90, 93, 96, totals=totals), (99, 4), finish=(98, finish))
    assert got.estimated is not None
    assert got.estimated.endswith(FIRST_UNSURE)
    assert sum(k for _, k in got.arrivals) == 4


@pytest.mark.parametrize(
    ("final", "end", "ids"), [(4, (), 1), (5, ((125, 1),), 1), (5, ((125, 1),), None)]
)
def test_totals_that_lag_to_a_natural_stop_are_one_token_an_event(
    final: int, end: tuple[tuple[int, int], ...], ids: int | None
) -> None:
    """No prompt can have been read between the first texts; the end token may be counted or not."""
    stamps = (10, 50, 80, 120)
    found = [TokenEvent(t, "x", ids, i) for i, t in enumerate(stamps)]
    got = ask(found, (130, final), finish=(125, "stop"))
    assert got == Counted((*((t, 1) for t in stamps), *end), final, "usage_final", None)


@pytest.mark.parametrize(("held", "exact"), [(1, True), (2, False)])
def test_an_end_token_with_an_event_of_its_own_keeps_it_where_totals_lag(
    held: int, exact: bool
) -> None:
    """Its id came before the finish; more ids than the total has left contradict it."""
    found = [TokenEvent(t, "x", 1, i) for i, t in enumerate((10, 40, 70))]
    got = ask([*found, TokenEvent(100, "", held)], (130, 4), finish=(125, "stop"))
    assert (got.estimated is None) == exact
    assert not exact or got.arrivals == ((10, 1), (40, 1), (70, 1), (100, 1))


@pytest.mark.parametrize(
    ("stamps", "final", "finish", "tokens"),
    [
        ((10, 40, 70, 100), 4, "stop", None),
        ((10, 620, 650, 680), 5, "stop", None),
        ((10, 40, 70, 100), 5, "stop", 5),
        ((10, 40, 70, 100), 5, "length", None),
        ((10, 40, 70, 100), 6, "stop", None),
        ((10, 40, 70, 100), 3, "stop", None),
    ],
    ids=[
        "a counted end token, and none left for the first",
        "the prompt was read behind the first",
        "a tokenizer finds others",
        "no end token could be the last",
        "too many",
        "too few",
    ],
)
def test_totals_that_lag_may_be_those_of_a_greeting(
    stamps: tuple[int, ...], final: int, finish: str, tokens: int | None
) -> None:
    """Where anything besides the lag is odd, the first text is not surely the model's."""
    found = events(*stamps, totals=[0, 1, 2, 3])
    tokenize = None if tokens is None else (lambda text: len(text) + 1 if text else 0)
    got = ask(found, (800, final), finish=(700, finish), tokenize=tokenize)
    assert FIRST_UNSURE in str(got.estimated)


def test_a_first_text_without_an_id_is_doubted() -> None:
    """The server says itself that no token is in it, whether its total would fit or not."""
    found = [TokenEvent(1, "hello", 0), *(TokenEvent(t, "x", 1) for t in (2, 3, 4))]
    for total in (None, (6, 3), (6, 4)):
        got = ask(found, *(() if total is None else (total,)), finish=(5, "stop"))
        assert got.estimated is not None
        assert FIRST_UNSURE in got.estimated


def test_text_behind_the_last_total_is_not_left_out() -> None:
    """Nor its gap, which may be the slow one; with ids it is placed."""
    bare = ask(events(1, 2, 900, totals=[1, 2, None]), finish=(901, "stop"))
    assert (bare.arrivals[-1], bare.source) == ((900, 1), "events")
    assert bare.estimated is not None
    found = [TokenEvent(1, "x", 1, 1), TokenEvent(2, "x", 1, 2), TokenEvent(900, "xx", 2)]
    by_ids = ask(found, finish=(901, "stop"))
    assert by_ids == Counted(((1, 1), (2, 1), (900, 2)), 4, "events", None)


@pytest.mark.parametrize(("constant", "exact"), [(3, True), (64, False)])
def test_a_total_that_never_grows_is_no_running_total(constant: int, exact: bool) -> None:
    """A server that repeats one number on every event (its max_tokens, say)."""
    got = ask(events(1, 2, 3, totals=[constant] * 3))
    assert got.source == "usage_final"
    assert (got.estimated is None) == exact
    assert len(got.arrivals) == 3


def test_a_falling_total_places_nothing() -> None:
    """It counts something else; what it ended with is kept and labelled."""
    got = ask(events(1, 2, 3, totals=[1, 5, 3]))
    assert got.estimated == "the server's running total fell from 5 to 3"
    assert (got.output_tokens, got.source) == (3, "usage_final")


def test_one_event_holds_all_tokens() -> None:
    """A whole answer in one event: exact, and no inter-token time at all."""
    got = ask(events(1000), (1004, 50), finish=(1002, "length"))
    assert got == Counted(((1000, 50),), 50, "usage_final", None)


def test_grouped_tokens_with_a_final_total_only_are_an_estimate() -> None:
    """13 tokens in 4 events cannot be placed; every event has one, the rest goes by length."""
    found = [TokenEvent(100, "x"), *(TokenEvent(t, "xxxx") for t in (220, 340, 460))]
    got = ask(found, (463, 13), finish=(460, "stop"))
    assert got.estimated is not None
    assert "13 tokens in 4 events" in got.estimated
    assert (got.output_tokens, got.source) == (13, "usage_final")
    assert [k for _, k in got.arrivals] == [1, 4, 4, 4]


def test_ids_of_single_events_place_a_final_total() -> None:
    """Token ids or logprobs of every event, if they add up."""
    found = [TokenEvent(1, "x", 1), TokenEvent(2, "xx", 3), TokenEvent(3, "x", 2)]
    assert ask(found, (4, 6)) == Counted(((1, 1), (2, 3), (3, 2)), 6, "usage_final", None)
    assert ask(found, (4, 9)).estimated is not None
    assert ask([*found[:2], TokenEvent(3, "x")], (4, 6)).estimated is not None


def test_ids_that_miss_just_the_end_token_place_it_at_the_finish() -> None:
    """logprobs leave the end token out, the total has it."""
    found = [TokenEvent(1, "x", 1), TokenEvent(2, "xx", 3)]
    got = ask(found, (9, 5), finish=(8, "stop"))
    assert got == Counted(((1, 1), (2, 3), (8, 1)), 5, "usage_final", None)


def test_ids_without_text_belong_to_the_next_text() -> None:
    """TGI: an event for every id, so for half a character and for the end token too."""
    found = [
        TokenEvent(1, "", 1),
        TokenEvent(2, "你", 1),
        TokenEvent(3, "", 1),
        TokenEvent(4, "", 1),
        TokenEvent(5, "好", 1),
        TokenEvent(6, "", 1, 6),
    ]
    got = ask(found, finish=(6, "stop"))
    assert got == Counted(((2, 2), (5, 3), (6, 1)), 6, "usage_final", None)


def test_an_event_of_text_with_0_ids_is_no_arrival() -> None:
    """Text that was flushed late; the ids say so, although there are as many events as tokens."""
    found = [TokenEvent(1, "x", 2), TokenEvent(2, "x", 0), TokenEvent(3, "x", 1)]
    assert ask(found, (4, 3)) == Counted(((1, 2), (3, 1)), 3, "usage_final", None)


@pytest.mark.parametrize("last", [TokenEvent(900, "x", 0), TokenEvent(900, "x", None, 2)])
def test_a_last_text_without_a_token_is_not_left_out_without_a_word(last: TokenEvent) -> None:
    """By its ids or by a total that does not grow: the gap before it may be the slow one."""
    total = last.total is not None
    found = [TokenEvent(t, "x", None if total else 1, t if total else None) for t in (1, 2)]
    got = ask([*found, last], (905, 2), finish=(901, "length"))
    assert got.estimated == NONE_AT_LAST


def test_a_tokenizer_places_a_total_by_the_text_so_far() -> None:
    """'ab' then 'cd' alone are two tokens; together with what stands before they are other ones."""
    found = [TokenEvent(1, "ab"), TokenEvent(2, " ab"), TokenEvent(3, " cd")]
    got = ask(found, (4, 5), tokenize=greedy)
    assert got == Counted(((1, 1), (2, 2), (3, 2)), 5, "usage_final", None)


def test_a_tokenizer_whose_count_differs_from_the_server_s_proves_nothing() -> None:
    """'ab' and 'cd' are one token together; the server counted five."""
    found = [TokenEvent(1, "ab"), TokenEvent(2, "cd")]
    assert greedy("abcd") == 1
    assert ask(found, (4, 5), tokenize=greedy).estimated is not None


def test_a_tokenizer_can_tell_an_end_token() -> None:
    """All the text explained, one token left, and the model ended the answer itself."""
    found = [TokenEvent(1, "ab"), TokenEvent(2, " ab")]
    got = ask(found, (9, 4), finish=(8, "stop"), tokenize=greedy)
    assert got == Counted(((1, 1), (2, 2), (8, 1)), 4, "usage_final", None)
    assert ask(found, (9, 4), finish=(8, "length"), tokenize=greedy).estimated is not None


def test_a_tokenizer_resolves_a_group_between_totals() -> None:
    """With the text before the group as its context."""
    found = [
        TokenEvent(1, "ab", None, 1),
        TokenEvent(2, " ab"),
        TokenEvent(3, " ", None, 4),
    ]
    got = ask(found, tokenize=greedy)
    assert got == Counted(((1, 1), (2, 2), (3, 1)), 4, "usage_continuous", None)


def test_one_token_more_than_events_and_a_natural_stop_is_taken_for_an_end_token() -> None:
    """Likely, but nothing proves it: an estimate."""
    got = ask(events(1, 2, 3), (9, 4), finish=(8, "stop"))
    assert got.arrivals == ((1, 1), (2, 1), (3, 1), (8, 1))
    assert got.estimated is not None
    assert "end token" in got.estimated
    assert "end token" not in str(ask(events(1, 2, 3), (9, 4), finish=LENGTH).estimated)


def test_tokens_of_the_last_event_and_an_end_token_cannot_be_told_apart() -> None:
    """A total on the finish only: three tokens for the last text and the end token behind it."""
    found = events(1, 2, totals=[1, None])
    assert ask(found, (8, 4), finish=(8, "stop")).estimated is not None
    told = ask(found, (8, 4), finish=(8, "length"))
    assert told == Counted(((1, 1), (2, 3)), 4, "usage_continuous", None)


def test_a_first_event_that_the_server_counts_as_no_token_is_not_surely_one() -> None:
    """A sign of life sent as text, then two tokens an event: the sum alone would not tell."""
    found = events(1, 2, 3, 4, totals=[0, 2, 4, 6])
    assert FIRST_UNSURE in str(ask(found, (4, 6), finish=LENGTH).estimated)


def test_fewer_tokens_than_events_is_an_estimate() -> None:
    """The sum is the server's; TTFT hears that what came first may have been no token."""
    got = ask(events(*range(1, 25)), (30, 3))
    assert got.estimated == (
        "the server counted 3 tokens for 24 events of text: the first one may hold no token"
    )
    assert got.arrivals[0] == (1, 1)
    assert sum(k for _, k in got.arrivals) == got.output_tokens == 3


def test_without_any_total_each_event_is_taken_for_one_token() -> None:
    """Counted and labelled; what was asked for is never a count."""
    got = ask(events(1, 2, 3))
    assert got.arrivals == ((1, 1), (2, 1), (3, 1))
    assert (got.output_tokens, got.source) == (3, "events")
    assert got.estimated is not None
    assert "counted no tokens" in got.estimated


def test_a_total_of_0_beside_text_is_no_count() -> None:
    """Servers that fill in usage with zeros."""
    got = ask(events(1, 2), (3, 0))
    assert (got.output_tokens, got.source) == (2, "events")
    assert got.estimated is not None
    assert "counted 0 tokens" in got.estimated


def test_without_a_total_ids_count_exactly() -> None:
    """The server names every token of every event: counted from events, no estimate."""
    found = [TokenEvent(1, "x", 2), TokenEvent(2, "x", 1), TokenEvent(3, "", 1)]
    assert ask(found) == Counted(((1, 2), (2, 1), (3, 1)), 4, "events", None)


def test_without_a_total_a_tokenizer_counts_if_every_event_has_a_token() -> None:
    """'a' and then 'b' are one token 'ab': the second event would have none, so nothing is sure."""
    sound = [TokenEvent(1, "ab"), TokenEvent(2, " ab")]
    assert ask(sound, tokenize=greedy) == Counted(((1, 1), (2, 2)), 3, "tokenizer", None)
    merged = ask([TokenEvent(1, "a"), TokenEvent(2, "b")], tokenize=greedy)
    assert (merged.source, merged.output_tokens) == ("events", 2)
    assert merged.estimated is not None


def test_events_that_share_a_stamp_stay_apart() -> None:
    """Two events in one read: a gap of 0 is kept, never merged away."""
    got = ask(events(100, 130, 160, 160, 190), (200, 5))
    assert got.arrivals == ((100, 1), (130, 1), (160, 1), (160, 1), (190, 1))


def test_no_text_is_no_arrival() -> None:
    """Ids or totals alone begin no answer."""
    assert ask([]) == Counted((), None, "events", None)
    got = ask([TokenEvent(1, "", 1)], (2, 5))
    assert got.arrivals == ()
    assert got.output_tokens == 5
    assert got.estimated is not None

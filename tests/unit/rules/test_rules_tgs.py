"""Rule 3: a rate with its four conditions, of the right requests, over the right time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_samples import LONG, MS, SAMPLING, SHORT, TOKENS, broken, judged, only, policy, timeline
from pytest_llmsla.finding import CONDITIONS
from pytest_llmsla.policy import LoadedPolicy
from pytest_llmsla.rules.conditions import histogram, undocumented
from pytest_llmsla.rules.memory import FIGURES
from pytest_llmsla.rules.tgs import recorded_entry
from pytest_llmsla.rules.windows import Windows, window_length_ns
from pytest_llmsla.timeline import PEAK, Timeline
from pytest_llmsla.verdict import Gatekeeper

TGS = "tgs/concurrency-1"
ONE_SECOND = 1000 * MS


def second(n: int, tokens: int = TOKENS, **fields: Any) -> Timeline:
    """One request of one second that gives ``tokens`` tokens: ``tokens`` tokens a second."""
    gap = 890 / (tokens - 1)
    t = timeline(n, gaps=(gap,) * (tokens - 1), **{"max_new_tokens": tokens, **fields})
    return replace(t, end_ns=t.start_ns + ONE_SECOND) if t.ok else t


def with_floor(rate: float, **groups: Any) -> LoadedPolicy:
    return policy(tgs={"min_tokens_per_s": rate}, **groups)


def steady(keeper: Gatekeeper) -> dict[str, Any]:
    return next(e for e in keeper.tgs_entries() if e["kind"] == "steady")


def test_a_median_under_the_limit_does_not_pass() -> None:
    """Eight windows at 40 pass 8 tokens/s; with eight more at 4 the printed median is 4."""
    fast = [second(n, 80, max_new_tokens=80) for n in range(16)]
    loaded = with_floor(8, workload={"max_new_tokens": 80})
    keeper = judged(loaded, fast)
    assert only(keeper, TGS).verdict == "pass"
    slow = [second(n, 4) for n in range(16, 32)]
    both = judged(loaded, [*fast, *slow])
    found = only(both, TGS)
    assert (found.observed, found.verdict) == (4, "inconclusive")
    assert "the median over all windows is under the limit" in found.reason
    for f in (found, only(keeper, TGS)):
        assert f.observed is not None
        assert (f.lower or 0) <= f.observed <= (f.upper or f.observed)


# -- windows


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9000)), min_size=1, max_size=30),
    st.integers(2000, 5000),
)
def test_windows_hold_every_token_and_all_time_once(
    requests: list[tuple[int, int]], length_ms: int
) -> None:
    """Whole windows and the open one together have all tokens; idle time between is left out."""
    windows = Windows(length_ms * MS)
    for n, (tokens, span) in enumerate(requests):
        step = span * MS // tokens or 1
        start = n * 10**15
        arrivals = tuple((start + step * (i + 1), 1) for i in range(tokens))
        end = max(arrivals[-1][0], start + span * MS)
        windows.add(timeline(n, arrivals=arrivals, start_ns=start, end_ns=end), None)
    whole = sum(rate * length_ms / 1000 for rate in windows.rates)
    assert whole + windows._in_window == pytest.approx(sum(k for k, _ in requests))
    assert len(windows.rates) == windows.total_ns // windows.length_ns


def test_a_failed_request_costs_its_time_and_gives_no_tokens() -> None:
    """Whoever drops failures from both sides praises a service that fails fast."""
    windows = Windows(2 * ONE_SECOND)
    windows.add(second(0), None)
    windows.add(second(1), "boom")
    assert windows.rates == [TOKENS / 2]
    assert (windows.total_tokens, windows.total_ns) == (TOKENS, 2 * ONE_SECOND)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [((), 2000), ((100, 200, 300), 2000), ((5000, 9000, 7000), 7000)],
)
def test_a_window_is_two_seconds_or_a_request(spans: tuple[int, ...], expected: int) -> None:
    """Fixed before measuring, by the median warm-up request; failed ones do not count."""
    warm = [timeline(n, end_ns=n * 10_000_000 * MS + s * MS) for n, s in enumerate(spans)]
    assert window_length_ns([*warm, broken(9)]) == expected * MS


# -- documented or not


def test_all_four_conditions_on_record_pass_without_a_limit() -> None:
    """Documented is what the rule asks; the entry carries each of the four."""
    keeper = judged(policy(), map(timeline, range(5)))
    found, entry = only(keeper, TGS), steady(keeper)
    assert (found.verdict, entry["documented"], entry["undocumented"]) == ("pass", True, "")
    assert set(entry["conditions"]) == set(CONDITIONS)
    assert entry["conditions"]["sampling"] == SAMPLING
    assert entry["conditions"]["prompt_lengths"]["by_bucket"] == {"short": 5}
    assert entry["conditions"]["memory"]["rss_peak_gib"] == 1.5


def fed(
    timelines: list[Timeline], memory: list[dict[str, Any]], loaded: LoadedPolicy | None = None
) -> Gatekeeper:
    keeper = Gatekeeper(loaded or policy())
    for t in timelines:
        keeper.add(t)
    for one in memory:
        line = {"phase": "measured", "purpose": None, "memory": one}
        keeper.resources({**line, **one.get("line", {})})
    return keeper


KNOWN = {"rss_peak": 1.5, "device": "cpu"}


@pytest.mark.parametrize(
    ("memory", "missing"),
    [
        ([KNOWN, KNOWN, KNOWN], None),
        ([], "memory"),
        ([KNOWN, KNOWN], "memory"),  # one request has none
        ([KNOWN, {"device": "cpu"}, KNOWN], "memory"),
        ([{"problem": "OSError: no probe"}] * 3, "memory"),
        ([{"rss_peak": None, "rss_peak_reason": "not kept"}] * 3, "memory"),
        ([{"rss_peak": 0.0}] * 3, "memory"),
        ([{"rss_peak": -1.0}] * 3, "memory"),
        ([{"rss_peak": True}] * 3, "memory"),
        ([{"rss_peak": "1.5"}] * 3, "memory"),
        ([{"rss_peak": float("inf")}] * 3, "memory"),
        ([{"rss_peak": float("nan")}] * 3, "memory"),
        ([{**KNOWN, "device": "cuda:0"}] * 3, "memory"),  # host memory says nothing of a card
        ([{**KNOWN, "device": "cuda:0", "allocated_peak": 7.0}] * 3, None),
        ([{**KNOWN, "line": {"phase": "warm-up"}}] * 3, "memory"),
        ([{**KNOWN, "line": {"purpose": PEAK}}] * 3, "memory"),
    ],
)
def test_memory_that_is_not_known_fails_with_how_to_document_it(
    memory: list[dict[str, Any]], missing: str | None
) -> None:
    """Missing, partial, zero, negative, not a number, or of the wrong device: FAIL."""
    found = only(fed([timeline(n) for n in range(3)], memory), TGS)
    if missing is None:
        assert found.verdict == "pass"
    else:
        assert found.verdict == "fail"
        assert found.reason.startswith("undocumented: memory (memory: make a figure readable")


DECLARED = {"declared": 14.2, "declared_source": "nvidia-smi, node 7", "device": "remote"}


@pytest.mark.parametrize(
    ("memory", "documented"),
    [
        ([DECLARED] * 3, True),
        ([DECLARED] * 2, False),  # one request has none
        ([DECLARED, {"device": "remote"}, DECLARED], False),
        ([DECLARED, {**DECLARED, "declared": 15.0}, DECLARED], False),  # which of the two?
        ([DECLARED, {**DECLARED, "declared_source": "a guess"}, DECLARED], False),
        ([{"declared": 14.2}] * 3, False),
        ([{**DECLARED, "declared_source": "  "}] * 3, False),
        ([{**DECLARED, "declared_source": 7}] * 3, False),
        ([{**DECLARED, "declared": 0}] * 3, False),
        ([{**DECLARED, "declared": "14.2"}] * 3, False),
        ([{**DECLARED, "declared": True}] * 3, False),
        ([{**DECLARED, "declared": float("inf")}] * 3, False),
        ([{**DECLARED, "device": "cuda", "rss_peak": 1.0}] * 3, True),
        ([{**KNOWN, "device": "accelerator"}] * 3, False),  # host memory says nothing of a card
    ],
)
def test_declared_memory_documents_with_its_source_and_never_without(
    memory: list[dict[str, Any]], documented: bool
) -> None:
    """One figure, one source, in every reading: else the condition is missing."""
    keeper = fed([timeline(n) for n in range(3)], memory)
    assert only(keeper, TGS).verdict == ("pass" if documented else "fail")
    assert steady(keeper)["documented"] is documented


def test_declared_and_measured_memory_are_not_mixed() -> None:
    """Each has its own name; on a card the host's memory is left out."""
    both = fed([timeline(0)], [{**KNOWN, **DECLARED, "device": "cpu"}])
    given = steady(both)["conditions"]["memory"]
    assert given["declared_gib"] == 14.2
    assert given["declared_source"] == "nvidia-smi, node 7"
    assert given["rss_peak_gib"] == 1.5
    card = fed([timeline(0)], [{**KNOWN, **DECLARED, "device": "cuda"}])
    given = steady(card)["conditions"]["memory"]
    assert "rss_peak_gib" not in given
    assert given["declared_gib"] == 14.2


def test_unknown_memory_says_why_and_how_to_document_it() -> None:
    """The probe's own reason stands in the finding, once."""
    why = "port 8000 is held by docker-proxy (pid 7), which passes requests on"
    reading = {f"{name}_reason": why for name in FIGURES} | {"problem": why}
    found = only(fed([timeline(0)], [reading]), TGS)
    assert found.verdict == "fail"
    assert found.reason.count(why) == 1
    assert "target.memory_gib and target.memory_source" in found.reason


@pytest.mark.parametrize(
    ("samplings", "expected"),
    [
        ([SAMPLING] * 3, "pass"),
        ([{}] * 3, "fail"),
        ([SAMPLING, {}, SAMPLING], "fail"),
        ([SAMPLING, SAMPLING, {"greedy": True}], "pass"),
    ],
)
def test_sampling_of_every_request_is_on_record(
    samplings: list[dict[str, Any]], expected: str
) -> None:
    """One request of unknown sampling makes the condition unknown; several ways are all named."""
    every = [timeline(n, sampling=s) for n, s in enumerate(samplings)]
    keeper = fed(every, [KNOWN] * 3)
    assert only(keeper, TGS).verdict == expected
    if samplings[2] == {"greedy": True}:
        assert steady(keeper)["conditions"]["sampling"] == {"mixed": [SAMPLING, {"greedy": True}]}


@pytest.mark.parametrize(
    "fields", [{"output_tokens": TOKENS + 1}, {"token_source": None}, {"token_source": "events"}]
)
def test_unknown_counts_give_no_rate(fields: dict[str, Any]) -> None:
    """A rate needs tokens that were counted."""
    found = only(judged(policy(), [timeline(0), timeline(1, **fields)]), TGS)
    assert found.verdict == "error"


def test_nothing_generated_is_an_error() -> None:
    """Every request failed: no rate, and the cause."""
    found = only(judged(policy(), [broken(n) for n in range(5)]), TGS)
    assert (found.verdict, found.observed) == ("error", None)
    assert "RuntimeError: boom (5 of 5 requests)" in found.reason


def test_nothing_measured_has_no_finding() -> None:
    """Warm-up alone is no evidence of a rate."""
    keeper = judged(policy(), [timeline(0, warmup=True)])
    assert (keeper.finding(TGS), keeper.tgs_entries()) == (None, [])


# -- a limit on it


@pytest.mark.parametrize(
    ("floor", "expected", "windows"), [(TOKENS, "pass", 6), (TOKENS * 2, "fail", 8)]
)
def test_the_median_window_is_held_against_the_limit(
    floor: float, expected: str, windows: int
) -> None:
    """Six clean windows pass, eight at half the limit fail; the limit itself is kept."""
    found = only(judged(with_floor(floor), map(second, range(30))), TGS)
    assert (found.verdict, found.observed, found.decided_at) == (expected, float(TOKENS), windows)


def test_too_few_windows_are_inconclusive_with_the_number_needed() -> None:
    """Ten seconds hold five windows; a median needs six."""
    found = only(judged(with_floor(1), map(second, range(10))), TGS)
    assert found.verdict == "inconclusive"
    assert found.reason == "5 windows of 2 s; at least 6 are needed"


def test_a_limit_keeps_its_buckets_going() -> None:
    """Requests are asked until the rate is decided, also when each bucket is."""
    keeper = Gatekeeper(with_floor(1, evidence={"preset": "fast"}))
    for n in range(40):  # 17 ms each: not one window of two seconds
        keeper.add(timeline(n, ttft=10, gaps=(1,) * 7))
    assert not keeper.open_limits("short")
    assert keeper.undecided("short")


def test_an_undocumented_rate_is_no_rate_however_fast() -> None:
    """Conditions come first."""
    keeper = Gatekeeper(with_floor(1))
    for n in range(12):
        keeper.add(second(n))
    assert only(keeper, TGS).verdict == "fail"


@pytest.mark.parametrize(
    ("tokens", "force", "expected"),
    [(2, True, "error"), (2, False, "error"), (5, True, "error"), (5, False, "pass")],
)
def test_answers_far_shorter_than_asked_pass_no_rate(
    tokens: int, force: bool, expected: str
) -> None:
    """Two tokens of eight say nothing of throughput; a natural stop is fine."""
    loaded = with_floor(1, workload={"force_length": force})
    every = [second(n, tokens, max_new_tokens=TOKENS, finish_reason="stop") for n in range(14)]
    assert only(judged(loaded, every), TGS).verdict == expected


@pytest.mark.parametrize(
    ("gate", "floor", "expected"),
    [
        (None, 1, "inconclusive"),
        (None, 99, "fail"),
        ("t.py::t", 1, "pass"),
        ("t.py::t", 99, "fail"),
    ],
)
def test_an_observed_rate_passes_no_release(gate: str | None, floor: float, expected: str) -> None:
    """A look at one window can refuse a release and cannot pass it."""
    loaded = with_floor(floor, evidence={"preset": "observed"})
    keeper = judged(loaded, map(second, range(5)), gate=gate)
    found = next(f for f in keeper.findings() if f.rule == "tgs")
    assert found.verdict == expected
    assert "not release evidence" in found.reason


def test_an_observed_rate_needs_a_whole_window() -> None:
    """Less than two seconds of serving is no rate."""
    loaded = with_floor(1, evidence={"preset": "observed"})
    keeper = judged(loaded, [timeline(0)], gate="t.py::t")
    found = next(f for f in keeper.findings() if f.rule == "tgs")
    assert (found.verdict, found.reason) == ("error", "no complete window")


def test_the_rate_is_over_all_buckets() -> None:
    """Short and long prompts together, in the order they were asked."""
    every = [
        second(n, prompt=120 if n % 2 else 500, bucket="short" if n % 2 else "long")
        for n in range(12)
    ]
    keeper = judged(policy(SHORT, LONG, tgs={"min_tokens_per_s": TOKENS}), every)
    assert only(keeper, TGS).verdict == "pass"
    assert steady(keeper)["conditions"]["prompt_lengths"]["by_bucket"] == {"long": 6, "short": 6}


def test_padding_after_the_end_is_not_generated() -> None:
    """Tokens are those that arrived: 110 in two seconds are 55 a second, under a limit of 60."""
    rows = timeline(0, arrivals=((900 * MS, 100), (2000 * MS, 10)), end_ns=2000 * MS)
    rows = replace(rows, max_new_tokens=200, output_tokens=110)
    loaded = policy(workload={"max_new_tokens": 200}, evidence={"preset": "observed"})
    keeper = judged(loaded, [rows])
    assert steady(keeper)["tokens_per_s"] == 55.0


# -- peak


def peak(n: int, **fields: Any) -> Timeline:
    return second(n, bucket=PEAK, purpose=PEAK, prompt=30, sampling={"greedy": True}, **fields)


def peaked(*requests: Timeline) -> Gatekeeper:
    keeper = judged(policy(), map(timeline, range(5)))
    for t in requests:
        keeper.add(t)
        keeper.resources(
            {"phase": "measured", "purpose": PEAK, "bucket": PEAK, "memory": {"rss_peak": 2.0}}
        )
    return keeper


def test_peak_has_an_entry_of_its_own_and_touches_no_bucket() -> None:
    """Greedy, short prompts, its own conditions; the steady figure stays as it was."""
    keeper, without = peaked(peak(5), peak(6)), judged(policy(), map(timeline, range(5)))
    entry = next(e for e in keeper.tgs_entries() if e["kind"] == "peak")
    assert (entry["tokens_per_s"], entry["documented"]) == (float(TOKENS), True)
    assert entry["conditions"]["sampling"] == {"greedy": True}
    assert entry["conditions"]["memory"]["rss_peak_gib"] == 2.0
    assert entry["conditions"]["prompt_lengths"]["max"] == 30
    assert steady(keeper) == steady(without)
    assert keeper.findings() == without.findings()


@pytest.mark.parametrize(
    "bad",
    [
        broken(6, bucket=PEAK, purpose=PEAK),
        replace(peak(6), arrivals=()),
        replace(peak(6), max_new_tokens=TOKENS - 1),
        replace(peak(6), concurrency=2),
    ],
)
def test_a_failed_peak_request_is_seen(bad: Timeline) -> None:
    """One of two figures is missing: rule 3 is an error, and the reason names the peak."""
    found = only(peaked(peak(5), bad), TGS)
    assert found.verdict == "error"
    assert found.reason.startswith("1 of 2 peak requests failed: ")


def test_a_peak_without_its_conditions_is_undocumented() -> None:
    """Steady figures are known and the peak's memory is not: rule 3 is broken, and says where."""
    keeper = judged(policy(), map(timeline, range(5)))
    keeper.add(peak(5))
    found = only(keeper, TGS)
    assert found.verdict == "fail"
    assert found.reason.startswith("peak: undocumented: memory (")


def test_a_failed_request_cannot_end_before_it_began() -> None:
    """Time that runs backwards is not taken off the serving time of the others."""
    windows = Windows(2 * ONE_SECOND)
    for n in range(4):
        windows.add(second(2 * n), None)
        windows.add(replace(second(2 * n + 1), end_ns=0), "boom")
    assert windows.total_ns == 4 * ONE_SECOND


def test_a_problem_of_the_peak_is_seen() -> None:
    """Prompts that ran out or a hang leave rule 3 without its peak."""
    keeper = judged(policy(), map(timeline, range(5)))
    keeper.problem(PEAK, "no prompt is left")
    assert (only(keeper, TGS).verdict, only(keeper, TGS).reason) == ("error", "no prompt is left")


# -- figures measured elsewhere


GIVEN = {
    "prompt_lengths": "128/256/512 mixed",
    "sampling": {"temperature": 0.7},
    "concurrency": 4,
    "memory": "16.3 GiB, framework peak",
}


def test_a_recorded_figure_keeps_what_it_was_given() -> None:
    """All four conditions, its value, and that it is documented."""
    entry = recorded_entry({"id": "t.py::t/tgs", "value": 182.6, **GIVEN})
    assert (entry["kind"], entry["tokens_per_s"], entry["concurrency"]) == ("recorded", 182.6, 4)
    assert (entry["conditions"], entry["documented"]) == (GIVEN, True)


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize(
    "value",
    [
        None, "", {}, [], "unknown", " N/A ", "TBD", "todo", "?", "-", "…", "NaN", "undefined",
        float("nan"), float("inf"), True, False, [None], ["unknown"], {"a": None}, {"a": {"b": ""}},
        {"a": float("nan"), "b": 7}, [128, "nan"], {"a_reason": "5 of 7 readings lack it"},
        "<object object at 0x7f10>",
    ],
    ids=repr,
)  # fmt: skip
def test_a_condition_that_says_nothing_is_undocumented(name: str, value: Any) -> None:
    """Each of the four, in each way of not knowing, named with how to document it."""
    words = undocumented({**GIVEN, name: value})
    assert words.startswith(f"undocumented: {name} ({name}: ")
    assert recorded_entry({"id": "t", "value": 1.0, **GIVEN, name: value})["documented"] is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory", 0), ("memory", "0 GiB"), ("memory", -5.1),
        ("memory", {"device": "cuda:1", "methods": {"rss": "kernel 6"}}),
        ("concurrency", 0), ("concurrency", {"asked": None}),
        ("prompt_lengths", 0), ("prompt_lengths", {"min": None}),
        ("prompt_lengths", [0, 0]), ("sampling", 0.8), ("sampling", {"temperature": "unknown"}),
    ],
)  # fmt: skip
def test_a_condition_without_its_figure_is_undocumented(name: str, value: Any) -> None:
    """None of what is counted is nothing; a device is no memory; sampling has names."""
    assert undocumented({**GIVEN, name: value}).startswith(f"undocumented: {name} ({name}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory", 5.1), ("memory", "5.1 GiB"), ("memory", {"total": "~ 5.1 GiB", "device": "cpu"}),
        ("concurrency", "8"), ("concurrency", {"asked": "open loop, 3 requests/s", "actual": 2.5}),
        ("concurrency", {"asked": 8}), ("prompt_lengths", [128, 512]), ("prompt_lengths", 128),
        ("prompt_lengths", {"min": 4, "max": None}), ("sampling", {"greedy": False}),
        ("sampling", "greedy"), ("sampling", {"temperature": 0}),
        ("sampling", {"temperature": 0.8, "top_k": None}),
    ],
)  # fmt: skip
def test_a_condition_that_says_what_it_was_documents(name: str, value: Any) -> None:
    """In numbers, in words, by name; what a sampler was not given is no unknown."""
    assert undocumented({**GIVEN, name: value}) == ""


def test_a_condition_may_nest_deeper_than_the_stack() -> None:
    """A line of a log may; it is looked through and is no crash."""
    deep: Any = 5
    for _ in range(5000):
        deep = [deep]
    assert undocumented({**GIVEN, "memory": deep}) == ""


def test_nothing_given_is_nothing_documented() -> None:
    """All four are named."""
    assert undocumented({}).startswith("undocumented: prompt_lengths, sampling, concurrency, memo")


def test_the_length_distribution_is_counted_in_ranges_that_double() -> None:
    """Every length falls into exactly one range, and its edges belong to it."""
    lengths = [1, 2, 3, 4, 5, 8, 9, 64, 65, 128, 129, 512, 513]
    found = histogram(lengths)
    assert found == {
        "1": 1, "2": 1, "3–4": 2, "5–8": 2, "9–16": 1, "33–64": 1, "65–128": 2, "129–256": 1,
        "257–512": 1, "513–1024": 1,
    }  # fmt: skip
    assert sum(found.values()) == len(lengths)

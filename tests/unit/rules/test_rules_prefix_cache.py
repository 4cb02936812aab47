"""A prefix cache by the server's own counter: an error only where hits must be ours and hidden."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_samples import judged, policy, timeline
from pytest_llmsla.rules.checks import BLOCK_TOKENS
from pytest_llmsla.rules.prefix_cache import hidden_hits, unexplained_hits

TEMPLATE = 30
NAME = "vllm:prefix_cache_hits_total"


def window(
    hits: Any, *, told: Any = 0, silent: Any = 0, others: int | None = 0, **more: Any
) -> dict[str, Any]:
    """The ``server`` object of one window."""
    cache = {"names": [NAME], "hits": hits, "told": told, "silent": silent, "reason": None}
    return {"prefix_cache": cache, "requests": {"others": others}, **more}


@given(
    shares=st.lists(st.integers(0, TEMPLATE + BLOCK_TOKENS), max_size=40),
    told=st.lists(st.integers(0, 4000), max_size=40),
)
def test_what_all_prompts_share_and_what_is_told_is_never_an_error(
    shares: list[int], told: list[int]
) -> None:
    """No mixture of sound requests looks like a hidden hit."""
    one = window(sum(shares) + sum(told), told=sum(told), silent=len(shares))
    assert hidden_hits([one], TEMPLATE) is None
    assert unexplained_hits([one], TEMPLATE) == []


@given(silent=st.integers(1, 400), told=st.integers(0, 10_000), more=st.integers(1, 10_000))
def test_a_token_more_is_one_where_answers_are_silent(silent: int, told: int, more: int) -> None:
    """The reason has both numbers; with others in the window or nobody silent it is a note."""
    hits = silent * (TEMPLATE + BLOCK_TOKENS) + told + more
    reason = hidden_hits([window(hits, told=told, silent=silent)], TEMPLATE)
    assert reason is not None
    assert f"{hits} tokens ({NAME}) over {silent} requests" in reason
    shared = window(hits, told=told, silent=silent, others=1)
    assert hidden_hits([shared], TEMPLATE) is None
    assert "others were served" in unexplained_hits([shared], TEMPLATE)[0]
    open_ = window(told + more, told=told)
    assert hidden_hits([open_], TEMPLATE) is None
    assert f"answers told {told}" in unexplained_hits([open_], TEMPLATE)[0]


def test_each_window_is_held_to_it() -> None:
    """A clean window does not make up for another; one without a counter says nothing."""
    clean, hit = window(0, silent=40), window(1000, silent=4)
    assert hidden_hits([clean, hit], TEMPLATE) is not None
    assert hidden_hits([clean, window(None, silent=40), {"reason": "404"}], TEMPLATE) is None


def test_where_nobody_can_tell_of_others_it_is_an_error() -> None:
    """Unknown is not "others"; a server that counts tokens alone is heard by those."""
    assert hidden_hits([window(1000, silent=4, others=None)], TEMPLATE) is not None
    by_tokens = window(1000, silent=4, others=None, tokens={"others": 12})
    assert hidden_hits([by_tokens], TEMPLATE) is None


@pytest.mark.parametrize("wrong", [-1, 1.5, "9", True, 2**60])
@pytest.mark.parametrize("key", ["hits", "told", "silent"])
def test_a_figure_that_is_none_is_an_error(key: str, wrong: Any) -> None:
    """A log that was edited or cut gives no PASS."""
    figures = {"hits": 10, "told": 0, "silent": 5} | {key: wrong}
    assert f"prefix_cache.{key} is" in str(hidden_hits([window(**figures)], TEMPLATE))
    assert "cannot be read" in str(hidden_hits([{"prefix_cache": wrong}], TEMPLATE))


@pytest.mark.parametrize(("warm", "verdict"), [(False, "error"), (True, "pass")])
def test_ttft_alone_is_in_doubt(warm: bool, verdict: str) -> None:
    """ITL does not depend on how the prompt was computed; a warm cache that is meant is fine."""
    keeper = judged(
        policy(evidence={"preset": "fast"}, workload={"warm_cache": warm}),
        [timeline(n) for n in range(60)],
    )
    assert {f.verdict for f in keeper.findings()} == {"pass"}
    keeper.server(window(60 * 100, silent=60))
    found = {f.id: f for f in keeper.findings()}
    assert found["short/ttft_p95"].verdict == verdict
    assert found["short/itl_p95"].verdict == "pass"
    assert any(NAME in note for note in found["short/ttft_p95"].notes)

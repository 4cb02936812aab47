"""The section on a gated server: its words inert, its own figures beside ours, the client."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_samples import CONDITIONS, HOSTILE, NORMAL, passed, report, tgs_entry

from pytest_llmsla.reports import markdown, server, terminal
from pytest_llmsla.reports.json_report import schema

TTFT: dict[str, Any] = {
    "name": "vllm:time_to_first_token_seconds",
    "what": "",
    "count": 200,
    "mean_ms": 80.0,
    "percentiles": {
        "p50": {"over_ms": 60.0, "to_ms": 80.0},
        "p95": {"over_ms": 100.0, "to_ms": 250.0},
        "p99": {"over_ms": 2560.0, "to_ms": None},
    },
    "reason": None,
}
NONE: dict[str, Any] = {
    "name": None,
    "what": "",
    "count": None,
    "mean_ms": None,
    "percentiles": {},
    "reason": "this server publishes none",
}
OURS = {"count": 200, "mean_ms": 83.1, "p50_ms": 79.0, "p95_ms": 120.0, "p99_ms": 130.0}
TARGET: dict[str, Any] = {
    "kind": "openai",
    "start_point": "client, just before the request's first byte is written",
    "server": {
        "software": "vllm",
        "version": "0.32.0",
        "header": "uvicorn",
        "models": ["m"],
        "models_listed": 1,
        "model": "/data/m",
        "max_context": 2048,
    },
    "server_side": {
        "source": "/metrics",
        "software": "vllm",
        "reason": None,
        "warnings": ["other traffic: the server counted 210 requests, 200 of them ours"],
        "requests": {"name": "n", "server": 210, "ours": 200, "others": 10, "reason": None},
        "tokens": {"name": None, "server": None, "ours": None, "others": None, "reason": "none"},
        "ttft": TTFT,
        "itl": NONE,
        "tpot": NONE,
        "queue": {**TTFT, "name": "vllm:request_queue_time_seconds", "mean_ms": 1.5},
        "prefill": NONE,
        "prefix_cache": {
            "names": ["vllm:prefix_cache_hits_total"],
            "hits": 3200,
            "told": 0,
            "silent": 200,
            "reason": None,
        },
        "kv_cache": {
            "name": "vllm:kv_cache_usage_perc",
            "before": 0.0,
            "after": 0.125,
            "capacity_tokens": 93184,
            "reason": None,
        },
        "beside": {
            "ttft": {
                "ours": OURS,
                "theirs": {k: v for k, v in TTFT.items() if k != "reason"},
                "difference": {
                    "mean_ms": 3.1,
                    "p50_ms": [-1.0, 19.0],
                    "p95_ms": [-130.0, 20.0],
                    "p99_ms": [None, -2430.0],
                },
                "reason": None,
            },
            "itl": {
                "ours": {**OURS, "count": 0, "mean_ms": None, "p95_ms": None},
                "theirs": {k: v for k, v in NONE.items() if k != "reason"},
                "difference": {},
                "reason": "this server publishes none",
            },
        },
    },
    "transport": {
        "requests": 220,
        "stamps": {"kernel": 219, "user": 1},
        "retried": 1,
        "retries": 2,
        "arrivals": 4000,
        "merged": 12,
        "merged_share": 0.003,
        "estimated": 5,
        "estimated_reasons": [{"reason": "usage and events disagree", "count": 5}],
        "lag_p95_ms": 0.4,
        "prefill": {"requests": 200, "median_ms": 60.0, "after_prefill_ms": 4.5},
    },
}
DECLARED = {
    "declared_gib": 14.2,
    "declared_source": "nvidia-smi, node 7",
    "methods": {"declared": "declared: nvidia-smi, node 7"},
    "device": "remote",
}


def gated(**changes: Any) -> dict[str, Any]:
    return report(passed(evidence=NORMAL), verdict="pass", target={**TARGET, **changes})


def test_a_report_on_a_server_keeps_to_the_schema() -> None:
    """What the sections are made of is described, and other shapes are refused."""
    checker = jsonschema.Draft202012Validator(schema("report"))
    checker.validate(gated())
    for place, value in (
        (("server", "max_context"), "2048"),
        (("server_side", "ttft", "mean_ms"), "80"),
        (("server_side", "ttft", "percentiles", "p95"), 200.0),
        (("server_side", "kv_cache", "after"), 12.5),
        (("server_side", "prefix_cache", "hits"), 0.5),
        (("server_side", "beside", "ttft", "difference", "p95_ms"), 3.0),
        (("transport", "stamps"), {"kernel": "all"}),
        (("transport", "lag"), 1),
    ):
        broken = copy.deepcopy(gated())
        inner = broken["target"]
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        assert not checker.is_valid(broken), place


def test_markdown_has_the_figures_of_both_and_the_difference() -> None:
    """Mean and bucket of the server, ours, ours minus its own, KV cache, start point, client."""
    text = markdown.render(gated())
    for part in (
        "software: vllm",
        "max_context: 2048",
        "clock starts: client, just before the request's first byte",
        "TTFT, ours: mean 83.1 ms, P50 79.0 ms, P95 120.0 ms, P99 130.0 ms (n=200)",
        "TTFT, the server's own: mean 80.0 ms, P50 within 60.0 ms to 80.0 ms, "
        "P95 within 100.0 ms to 250.0 ms, P99 over 2560.0 ms "
        "(n=200, vllm:time_to_first_token_seconds)",
        "TTFT, ours minus the server's own: mean 3.1 ms, P50 -1.0 ms to 19.0 ms, "
        "P95 -130.0 ms to 20.0 ms, P99 at most -2430.0 ms",
        "ITL, the server's own: none (this server publishes none)",
        "the server's own time in its queue: mean 1.5 ms",
        "prefix cache: 3200 prompt tokens came from it (vllm:prefix_cache_hits_total); "
        "answers told 0, 200 requests told nothing",
        "KV cache: 0 % used before the requests, 12 % used after the requests, "
        "room for 93184 tokens",
        "client: 220 requests, arrivals stamped by: kernel 219, user 1; its own lag, P95 of a "
        "request, at most 0.4 ms",
        "retries: 2 in 1 request;",
        "merged reads: 12 of 4000 arrivals (0.3 %)",
        "estimated in 5 requests: usage and events disagree",
        "server's own prefill of the same request: median 4.5 ms, prefill 60.0 ms (n=200)",
    ):
        assert part in text, part
    known = text.split("## To be known")[1].split("##")[0]
    assert "other traffic" in known
    target = text.split("## Model and target")[1].split("##")[0]
    assert "kind: openai" in target
    assert "server" not in target.replace("start_point", "")


def test_the_terminal_has_the_same_in_short() -> None:
    """One line who it is, P95 of both and the difference, and what the client went through."""
    text = terminal.render(gated(), width=200)
    section = text.split("\nServer:\n")[1].split("\nNote:\n")[0]
    for part in (
        "vllm 0.32.0, model /data/m, context 2048 tokens",
        "TTFT, ours: mean 83.1 ms, P95 120.0 ms (n=200)",
        "TTFT, the server's own: mean 80.0 ms, P95 within 100.0 ms to 250.0 ms (n=200)",
        "TTFT, ours minus the server's own: mean 3.1 ms, P95 -130.0 ms to 20.0 ms",
        "retries: 2 in 1 request",
    ):
        assert part in section, part
    assert "P99" not in section
    assert "other traffic" in text.split("\nNote:\n")[1]


def test_declared_memory_reads_the_same_everywhere() -> None:
    """Figure and source in one phrase, under its own name, beside what was measured."""
    memory = {"rss_peak_gib": 0.5, **DECLARED}
    found = gated() | {"tgs": [tgs_entry(conditions={**CONDITIONS, "memory": memory})]}
    words = (
        "memory: declared: 14.2 GiB (source: nvidia-smi, node 7), resident memory, peak: 0.50 GiB"
    )
    assert words in markdown.render(found).replace("\\_", "_")
    assert words in terminal.render(found, width=200)


def test_reasons_alone_are_no_condition() -> None:
    """A memory that is only explained is shown as not documented, with the reason below."""
    memory = {"rss_peak_reason": "192.0.2.1 is not this host"}
    entry = tgs_entry(conditions={**CONDITIONS, "memory": memory}, documented=False)
    text = markdown.render(gated() | {"tgs": [entry]})
    assert "memory: NOT DOCUMENTED" in text
    assert "192.0.2.1 is not this host" in text


def test_a_server_without_metrics_says_so() -> None:
    """One row with the reason instead of figures."""
    side = {"source": "/metrics", "software": None, "reason": "/metrics: answered 404"}
    text = markdown.render(gated(server_side={**side, "warnings": []}))
    assert "the server's own figures: none (/metrics: answered 404)" in text
    assert "TTFT, ours" not in text


def test_other_targets_have_no_such_section() -> None:
    """An in-process run is reported as before."""
    plain = report(passed(), verdict="pass")
    assert server.rows(plain) == server.figures(plain) == server.warnings(plain) == []
    assert "The server" not in markdown.render(plain)
    assert "Server:" not in terminal.render(plain)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_words_of_a_server_are_inert(text: str) -> None:
    """Version, header, model ids, names and reasons: text, in Markdown and on a terminal."""
    side = copy.deepcopy(TARGET["server_side"])
    side["warnings"] = [text]
    side["beside_note"] = text
    side["kv_cache"] = {"reason": text}
    for one in side["beside"].values():
        one["theirs"] |= {"name": text, "what": text}
    side["beside"]["itl"]["reason"] = text
    facts = dict.fromkeys(("software", "version", "header", "model", "dtype", "x" + text), text)
    fared = {**TARGET["transport"], "stamps": {text: 1}}
    fared["estimated_reasons"] = [{"reason": text, "count": 1}]
    found = gated(
        server={**facts, "models": [text]}, server_side=side, transport=fared, start_point=text
    )
    shown = markdown.render(found)
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(shown)
    kinds = {t.type for block in parsed for t in (block, *(block.children or ()))}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "code_inline", "s_open"}
    assert sum(t.type == "tr_open" for t in parsed) == 2
    screen = terminal.render(found, width=300)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", screen + shown)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.data())
def test_any_shape_is_shown_or_left_out(data: st.DataObject) -> None:
    """A log of another making may hold anything there: no exception, no number from nothing."""
    target = copy.deepcopy(TARGET)
    inner: Any = target
    while isinstance(inner, dict) and inner:
        key = data.draw(st.sampled_from(sorted(inner)))
        if data.draw(st.booleans()):
            inner[key] = data.draw(JSON)
            break
        inner = inner[key]
    found = json.loads(json.dumps(gated(**target)))
    if isinstance(target["kind"], str):
        assert markdown.render(found)
        assert terminal.render(found)

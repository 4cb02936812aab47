"""vLLM on the CPU, with an API key in every test: chat, completions, and its histograms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from at_once import assert_holds_and_breaks
from every_server import ABSURD_MS, TOKENS, Asked, EveryServer
from killed import assert_no_pass, gate_and_kill
from real_server import MODEL, VLLM, VLLM_KEY, RealServer
from server_gate import Gate, gate, policy
from server_metrics import totals

if TYPE_CHECKING:
    from conftest import Start

pytestmark = pytest.mark.servers

_FIRST = "vllm:time_to_first_token_seconds"
_BETWEEN = "vllm:inter_token_latency_seconds"


class OfVllm(EveryServer):
    """What both routes share."""

    kind = VLLM
    key = VLLM_KEY

    @classmethod
    def counters(cls, server: RealServer) -> dict[str, float]:
        names = (
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            *(f"{name}_{part}" for name in (_FIRST, _BETWEEN) for part in ("sum", "count")),
        )
        return totals(server.get("/metrics"), names)

    def test_counts_equal_the_servers_own(
        self, asked: tuple[list[Asked], dict[str, float]]
    ) -> None:
        """Over the same requests its counters grew by what we counted, prompt and output."""
        answers, grown = asked
        assert (
            sum(a.answer.output_tokens or 0 for a in answers)
            == grown["vllm:generation_tokens_total"]
        )
        assert (
            sum(a.answer.prompt_tokens or 0 for a in answers) == grown["vllm:prompt_tokens_total"]
        )
        assert all(a.answer.output_tokens == TOKENS for a in answers)

    def test_times_agree_with_the_servers_histograms(
        self, asked: tuple[list[Asked], dict[str, float]]
    ) -> None:
        """The sums of its TTFT and ITL histograms grew by what we measured, or a little less."""
        answers, grown = asked
        assert grown[f"{_FIRST}_count"] == len(answers)
        assert grown[f"{_BETWEEN}_count"] == sum(
            a.answer.output_tokens or 0 for a in answers
        ) - len(answers)
        ours = sum(a.ttft_ms for a in answers)
        theirs = grown[f"{_FIRST}_sum"] * 1000
        assert theirs <= ours <= theirs + ABSURD_MS * len(answers)
        decode = sum(a.decode_ms for a in answers)
        own = grown[f"{_BETWEEN}_sum"] * 1000
        assert abs(decode - own) <= 0.5 * own + ABSURD_MS

    def test_no_secret_is_written_anywhere(self, generous: Gate, tight: Gate) -> None:
        """The key is in no file of either gate and in nothing they printed, tracebacks included."""
        for one in (generous, tight):
            assert VLLM_KEY not in one.said
            for path in one.files():
                assert VLLM_KEY.encode() not in path.read_bytes(), path

    def test_the_report_has_the_servers_figures_beside_ours(self, generous: Gate) -> None:
        """A reader sees the server's own histograms of the same window, and the difference."""
        theirs = generous.report["target"]["server_side"]
        assert {"ttft", "itl"} <= set(theirs["beside"])


class TestChat(OfVllm):
    """``/v1/chat/completions``."""

    target: ClassVar = {"kind": "openai", "model": MODEL, "api_key_env": "SERVER_KEY"}


class TestCompletions(OfVllm):
    """``/v1/completions``."""

    target: ClassVar = {
        "kind": "openai",
        "api": "completions",
        "model": MODEL,
        "api_key_env": "SERVER_KEY",
    }


def test_four_requests_at_once(start: Start, tmp_path: Path) -> None:
    """A gate at one and at four requests at once, both ways; the key is in no file."""
    url = start(VLLM).url + "/v1"
    spec = {"kind": "openai", "model": MODEL, "api_key_env": "SERVER_KEY", "base_url": url}
    assert_holds_and_breaks(tmp_path, spec, env={"SERVER_KEY": VLLM_KEY})
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or VLLM_KEY.encode() not in path.read_bytes(), path


def test_a_wrong_key_is_told_and_not_shown(start: Start, tmp_path: Path) -> None:
    """401 ends the gate before measuring; the key that was sent stays unseen."""
    url = start(VLLM).url + "/v1"
    wrong = "sk-wrong-9876543210"
    spec = {"kind": "openai", "model": MODEL, "api_key_env": "SERVER_KEY", "base_url": url}
    done = gate(tmp_path, policy(spec), "--showlocals", env={"SERVER_KEY": wrong})
    assert done.exit != 0
    assert "401" in done.said
    assert wrong not in done.said
    for path in done.files():
        assert wrong.encode() not in path.read_bytes(), path


def test_prompts_of_a_file_gated_twice_never_pass_the_second_time(
    start: Start, tmp_path: Path
) -> None:
    """Its prefix cache is on and its answers are silent about it: the counter of hits tells."""
    spec = {"kind": "openai", "model": MODEL, "api_key_env": "SERVER_KEY"}
    spec["base_url"] = start(VLLM).url + "/v1"
    # Longer than a block of the CPU's cache, 128 tokens.
    asks = [
        f"Report {n}. " + f"On day {n} the river rose by {n} inches and fell again. " * 16
        for n in range(8)
    ]
    lines = "".join(json.dumps(ask) + "\n" for ask in asks)
    bucket = {"name": "reports", "prompt_max": 400, "ttft_ms": 60_000}
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "asks.jsonl").write_text(lines, encoding="utf-8")
        contents = policy(spec, evidence={"preset": "observed"}, buckets=[bucket], tgs={})
        contents["workload"] |= {"prompts": "asks.jsonl", "warmup": {"max_requests": 3}}
        done = gate(tmp_path / name, contents, env={"SERVER_KEY": VLLM_KEY})
        found.append(done.finding("reports/ttft_p95"))
    assert found[0]["verdict"] == "inconclusive", found[0]  # observed, and no release evidence
    assert found[1]["verdict"] == "error", found[1]
    assert "vllm:prefix_cache_hits_total" in found[1]["reason"]


def test_a_server_killed_in_mid_gate_never_passes(start: Start, tmp_path: Path) -> None:
    """A crash while measuring ends in a report without PASS and an exit that is not 0."""
    spec = {"kind": "openai", "model": MODEL, "api_key_env": "SERVER_KEY"}
    done = gate_and_kill(start(VLLM), spec, tmp_path, env={"SERVER_KEY": VLLM_KEY})
    assert_no_pass(done)

"""llama.cpp's own ``llama-server``: its route with ``timings``, and its OpenAI route."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from at_once import assert_holds_and_breaks
from every_server import ABSURD_MS, PROMPTS, TOKENS, Asked, EveryServer, ask
from killed import assert_no_pass, gate_and_kill
from real_server import LLAMACPP, MODEL, RealServer
from server_gate import FORMATS, TIGHT, gate, policy, quiet_gate
from server_metrics import totals

from pytest_llmsla import targets

if TYPE_CHECKING:
    from conftest import Start

pytestmark = pytest.mark.servers

KEY = "sk-llama-0123456789abcdef"


class OfLlamacpp(EveryServer):
    """What both routes share: the server's counters and its ``timings`` block."""

    kind = LLAMACPP

    @classmethod
    def counters(cls, server: RealServer) -> dict[str, float]:
        names = (
            "llamacpp:prompt_tokens_total",
            "llamacpp:prompt_tokens_cached_total",
            "llamacpp:tokens_predicted_total",
        )
        return totals(server.get("/metrics"), names)

    def test_counts_equal_the_servers_own(
        self, asked: tuple[list[Asked], dict[str, float]]
    ) -> None:
        """Over the same requests its counters grew by what we counted, prompt and output."""
        answers, grown = asked
        assert len(answers) == len(PROMPTS)
        assert (
            sum(a.answer.output_tokens or 0 for a in answers)
            == grown["llamacpp:tokens_predicted_total"]
        )
        prompt = (
            grown["llamacpp:prompt_tokens_total"] + grown["llamacpp:prompt_tokens_cached_total"]
        )
        assert sum(a.answer.prompt_tokens or 0 for a in answers) == prompt
        assert all(a.answer.output_tokens == TOKENS for a in answers)

    def test_times_agree_with_the_servers_timings(
        self, asked: tuple[list[Asked], dict[str, float]]
    ) -> None:
        """Each answer brings the server's own prefill and decode times; ours contain them."""
        for one in asked[0]:
            own = one.answer.server_ms
            assert own["prefill"] > 0
            assert own["prefill"] <= one.ttft_ms <= own["prefill"] + ABSURD_MS
            assert abs(one.decode_ms - own["decode"]) <= 0.5 * own["decode"] + ABSURD_MS


class TestNative(OfLlamacpp):
    """``/completion``."""

    target: ClassVar = {"kind": "llamacpp"}
    path = ""

    test_a_wrong_model_is_told = None  # type: ignore[assignment]  # it takes none


class TestOpenai(OfLlamacpp):
    """``/v1/chat/completions``."""

    target: ClassVar = {"kind": "openai", "extra_body": {"timings_per_token": True}}

    def test_a_wrong_model_is_told(self, spec: dict[str, Any], tmp_path: Path) -> None:
        """llama-server answers to any name; the report then warns that it lists another."""
        done = quiet_gate(tmp_path, policy({**spec, "model": "no-such-model"}, limits=TIGHT))
        assert done.exit == 1
        warnings = done.report["target"]["warnings"]
        assert "model-not-listed" in [w["code"] for w in warnings]


@pytest.mark.usefixtures("llamacpp_is_there")
def test_the_key_of_a_protected_server_is_written_nowhere(models: Path, tmp_path: Path) -> None:
    """With the key the gate measures; it is in no file, no traceback, no JUnit; without, 401."""
    spec = {"kind": "llamacpp", "base_url": "", "api_key_env": "SERVER_KEY"}
    with RealServer(LLAMACPP, models, model=f"{MODEL}.gguf", more=("--api-key", KEY)) as server:
        spec["base_url"] = server.url
        tight = policy(spec, limits=TIGHT, report={"formats": [*FORMATS, "html"]})
        told = quiet_gate(tmp_path / "told", tight, "--showlocals", "-vv", env={"SERVER_KEY": KEY})
        wrong = gate(tmp_path / "wrong", tight, "--showlocals", "-vv", env={"SERVER_KEY": KEY[:-1]})
        none = gate(tmp_path / "none", tight, "--showlocals", "-vv")
    assert told.exit == 1, told.said
    assert told.verdicts()["short/ttft_p95"] == "fail"
    assert wrong.exit not in (0, 1) or "401" in wrong.said, wrong.said
    assert none.exit != 0
    assert "SERVER_KEY" in none.said
    for one in (told, wrong, none):
        assert KEY[:-1] not in one.said
        for path in one.files():
            assert KEY[:-1].encode() not in path.read_bytes(), path


@pytest.mark.usefixtures("llamacpp_is_there")
def test_a_unix_socket(models: Path) -> None:
    """A server that listens on a socket file is asked like any other, its memory is told too."""
    with tempfile.TemporaryDirectory(prefix="llmsla-") as short:
        path = Path(short) / "llama.sock"
        server = RealServer(
            LLAMACPP, models, model=f"{MODEL}.gguf", more=("--host", str(path)), unix=path
        )
        with server:
            url = "http+unix://" + str(path).replace("/", "%2F")
            target = targets.load({"kind": "llamacpp", "base_url": url})
            try:
                answers = ask(target, PROMPTS)
                lengths = [target.count(prompt) for prompt in PROMPTS]
                memory = target.memory()
            finally:
                target.close()
            resident = sum(p.memory_info().rss for p in server.family())
    assert [a.answer.output_tokens for a in answers] == [TOKENS] * len(PROMPTS)
    assert [a.answer.prompt_tokens for a in answers] == lengths
    assert all(a.ttft_ms >= a.answer.server_ms["prefill"] > 0 for a in answers)
    assert [p["name"] for p in memory["processes"]] == ["llama-server"]
    assert memory["rss_peak"] * 2**30 == pytest.approx(resident, rel=0.2)


@pytest.mark.usefixtures("llamacpp_is_there")
def test_four_requests_at_once(models: Path, tmp_path: Path) -> None:
    """A gate at one and at four requests at once, both ways, on a server with four slots."""
    more = ("--parallel", "4")
    with RealServer(LLAMACPP, models, model=f"{MODEL}.gguf", more=more) as server:
        assert_holds_and_breaks(tmp_path, {"kind": "llamacpp", "base_url": server.url})


def test_a_server_killed_in_mid_gate_never_passes(start: Start, tmp_path: Path) -> None:
    """A crash while measuring ends in a report without PASS and an exit that is not 0."""
    done = gate_and_kill(start(LLAMACPP), {"kind": "llamacpp"}, tmp_path, path="")
    assert_no_pass(done)

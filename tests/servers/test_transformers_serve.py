"""``transformers serve``: no metrics, no /tokenize, usage in the last chunk only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from at_once import assert_holds_and_breaks
from every_server import PROMPTS, TOKENS, Asked, EveryServer, ask
from killed import assert_no_pass, gate_and_kill
from real_server import MODEL, TRANSFORMERS
from server_gate import gate, policy

from pytest_llmsla import targets

if TYPE_CHECKING:
    from conftest import Start

pytestmark = pytest.mark.servers


@pytest.fixture(scope="session")
def tokenizer(models: Path) -> Any:
    """The model's own."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models / MODEL)


class TestChat(EveryServer):
    """``/v1/chat/completions``."""

    kind = TRANSFORMERS
    target: ClassVar = {"kind": "openai", "model": MODEL}
    needs_tokenizer = True
    itl: ClassVar = {"estimated": "allow"}

    def test_counts_equal_those_of_its_own_tokenizer(
        self, asked: tuple[list[Asked], dict[str, float]], tokenizer: Any
    ) -> None:
        """Prompt and output tokens are what the model's own tokenizer says of both texts."""
        for one, prompt in zip(asked[0], PROMPTS, strict=True):
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer.encode(rendered, add_special_tokens=False)
            assert one.answer.prompt_tokens == len(ids)
            text = tokenizer.encode(one.answer.text, add_special_tokens=False)
            ended = one.answer.finish_reason == "stop"
            assert one.answer.output_tokens == len(text) + ended
            assert ended or one.answer.output_tokens == TOKENS

    def test_lengths_with_and_without_a_tokenizer(self, spec: dict[str, Any]) -> None:
        """With ``target.tokenizer`` a prompt has the very length that the server counts; without,
        calibration comes as close as it says."""
        for given in (spec, {k: v for k, v in spec.items() if k != "tokenizer"}):
            target = targets.load(given)
            try:
                assert target.lengths is not None
                margin = target.lengths.margin
                assert (margin == 0) == ("tokenizer" in given)
                for one, prompt in zip(ask(target, PROMPTS), PROMPTS, strict=True):
                    counted = one.answer.prompt_tokens
                    assert counted is not None
                    off = abs(target.count(prompt) - counted)
                    assert off <= math.ceil(margin * counted)
            finally:
                target.close()


def test_four_requests_at_once(start: Start, models: Path, tmp_path: Path) -> None:
    """A gate at one and at four requests at once, both ways, on a server that queues them."""
    url = start(TRANSFORMERS).url + "/v1"
    tokenizer = str(models / MODEL)
    spec = {"kind": "openai", "model": MODEL, "base_url": url, "tokenizer": tokenizer}
    # In a queue requests overlap however short they are.
    assert_holds_and_breaks(tmp_path, spec, itl={"estimated": "allow"}, tokens=3)


def test_a_server_killed_in_mid_gate_never_passes(start: Start, tmp_path: Path) -> None:
    """A crash while measuring ends in a report without PASS and an exit that is not 0."""
    done = gate_and_kill(start(TRANSFORMERS), {"kind": "openai", "model": MODEL}, tmp_path)
    assert_no_pass(done)


def test_nobody_listens(tmp_path: Path) -> None:
    """A wrong port is told as such, with the address."""
    spec = {"kind": "openai", "model": MODEL, "base_url": "http://127.0.0.1:9/v1"}
    done = gate(tmp_path, policy(spec))
    assert done.exit != 0
    assert "127.0.0.1:9" in done.said
    assert "refused" in done.said.lower()

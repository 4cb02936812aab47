"""What a prompt becomes before generate() sees it."""

from __future__ import annotations

import pytest
from hf_tiny import TEMPLATE, tokenizer

from pytest_llmsla.targets.hf_prompt import PromptRenderer

NO_SYSTEM = "{{ raise_exception('roles') if messages[0]['role'] == 'system' }}" + TEMPLATE
DEAF = TEMPLATE.replace(
    "{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}"
)


def test_the_template_is_rendered_with_the_opening_of_the_answer() -> None:
    """System and user turn, then the assistant's opening."""
    renderer = PromptRenderer.of(tokenizer())
    assert renderer.system_role
    assert renderer.text("hi", "be brief") == (
        "<s>system\nbe brief</s>\n<s>user\nhi</s>\n<s>assistant\n"
    )


def test_a_template_adds_its_begin_token_once() -> None:
    """The tokenizer's own begin token is not put before the template's."""
    made = tokenizer()
    renderer = PromptRenderer.of(made)
    ids = renderer.ids("hi")
    assert made.decode(ids) == renderer.text("hi")
    assert ids[0] == made.bos_token_id
    assert ids[1] != made.bos_token_id


@pytest.mark.parametrize("template", [NO_SYSTEM, DEAF], ids=["raises", "ignores"])
def test_a_template_that_takes_no_system_role_gets_it_with_the_user(template: str) -> None:
    """A refused or swallowed system prompt is never lost: it goes before the user's text."""
    renderer = PromptRenderer.of(tokenizer(template))
    assert not renderer.system_role
    assert "<s>user\nbe brief\n\nhi</s>" in renderer.text("hi", "be brief")
    assert "be brief" not in renderer.text("hi")


def test_without_template_the_text_is_plain() -> None:
    """A base model gets the prompt as it is, a system prompt before it."""
    renderer = PromptRenderer.of(tokenizer(None))
    assert not renderer.chat
    assert renderer.text("hi") == "hi"
    assert renderer.text("hi", "be brief") == "be brief\n\nhi"
    assert len(renderer.ids("hi")) == 2
    assert renderer.overhead() is None


def test_the_overhead_is_what_the_template_puts_around_the_text() -> None:
    """Before plus after plus the text's own tokens is the whole prompt."""
    made = tokenizer()
    renderer = PromptRenderer.of(made)
    before, after = renderer.overhead() or (0, 0)
    assert (before, after) == (len("_user\n"), len("_\n_assistant\n"))
    assert len(renderer.ids("xyz")) == before + 3 + after

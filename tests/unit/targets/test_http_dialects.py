"""What each kind of server is sent: bodies, sampling, forced lengths, extra_body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.targets.base import Ask
from pytest_llmsla.targets.http.dialect import Dialect, Options
from pytest_llmsla.targets.http.llamacpp import LlamaCpp
from pytest_llmsla.targets.http.mii import MiiOpenAI, MiiRest
from pytest_llmsla.targets.http.openai import OpenAIChat, OpenAICompletions
from pytest_llmsla.targets.http.tgi import Tgi

DEFAULT = {
    "greedy": False,
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": None,
    "frequency_penalty": None,
    "presence_penalty": None,
    "seed": 0,
}
"""``workload.sampling`` as a policy without any has it."""
ALL = {**DEFAULT, "top_k": 40, "repetition_penalty": 1.1, "frequency_penalty": 0.5}
OPTIONS = Options()
MAKERS: Mapping[str, Callable[..., Dialect]] = {
    "chat": lambda extra=None: OpenAIChat("m", extra or {}),
    "completions": lambda extra=None: OpenAICompletions("m", extra or {}),
    "tgi": lambda extra=None: Tgi(extra or {}),
    "llamacpp": lambda extra=None: LlamaCpp(extra or {}),
    "mii": lambda extra=None: MiiOpenAI("m", extra or {}),
    "mii rest": lambda extra=None: MiiRest("d", extra or {}),
}


def ask(sampling: Mapping[str, Any] | None = None, **more: Any) -> Ask:
    """A request for 64 tokens."""
    return Ask("Hello", 64, DEFAULT if sampling is None else sampling, **more)


def refused(*names: str) -> Options:
    """Options that a server has refused."""
    return Options(frozenset(names))


def test_openai_chat_says_all_that_it_wants() -> None:
    """Both usage options, the sampling, the cap; the system prompt as a message of its own."""
    body = OpenAIChat("m").body(ask(system="Be brief.", force_length=True), OPTIONS)
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "min_tokens": 64,
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 0,
        "max_tokens": 64,
    }


def test_openai_completions_sends_the_prompt_as_it_is() -> None:
    """No messages; no model where none is given."""
    body = OpenAICompletions().body(ask(), OPTIONS)
    assert body["prompt"] == "Hello"
    assert not {"messages", "model", "ignore_eos", "min_tokens"} & set(body)


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["continuous_usage_stats"], {"include_usage": True}),
        (["include_usage"], None),
        (["include_usage", "continuous_usage_stats"], None),
    ],
)
def test_refused_stream_options_are_not_sent_again(
    names: list[str], left: dict[str, bool] | None
) -> None:
    """continuous_usage_stats without include_usage means nothing, so it goes with it."""
    assert OpenAIChat("m").body(ask(), refused(*names)).get("stream_options") == left


def test_forcing_needs_one_option_that_is_taken() -> None:
    """Either of the two forces a length; with neither the target has to say so."""
    forced = ask(force_length=True)
    chat = OpenAIChat("m")
    assert chat.body(forced, refused("ignore_eos"))["min_tokens"] == 64
    assert chat.body(forced, refused("min_tokens"))["ignore_eos"] is True
    assert chat.can_force(refused("ignore_eos"))
    assert chat.can_force(refused("min_tokens"))
    assert not chat.can_force(refused("ignore_eos", "min_tokens"))
    assert not Tgi().can_force(OPTIONS)
    assert LlamaCpp().can_force(OPTIONS)
    assert not LlamaCpp().can_force(refused("ignore_eos"))
    assert MiiOpenAI("m").can_force(OPTIONS)
    assert not MiiOpenAI("m").can_force(refused("min_tokens"))
    assert MiiRest("d").can_force(OPTIONS)


def test_every_optional_key_is_left_out_once_it_is_refused() -> None:
    """What the preflight learns changes the body, for each option of each dialect."""
    for make in MAKERS.values():
        dialect = make()
        full = dialect.body(ask(force_length=True), OPTIONS)
        for name in dialect.optional:
            assert dialect.body(ask(force_length=True), refused(name)) != full


def test_tgi_puts_sampling_into_parameters() -> None:
    """Details are asked for, since only they hold the count."""
    assert Tgi().body(ask(ALL, force_length=True), OPTIONS) == {
        "inputs": "Hello",
        "parameters": {
            "max_new_tokens": 64,
            "details": True,
            "decoder_input_details": False,
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 0.9,
            "top_k": 40,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.5,
            "seed": 0,
        },
    }


def test_tgi_is_not_sent_a_top_p_of_1() -> None:
    """It refuses 1, which means off."""
    assert "top_p" not in Tgi().body(ask({**DEFAULT, "top_p": 1.0}), OPTIONS)["parameters"]


def test_llamacpp_has_its_own_name_for_the_repetition_penalty() -> None:
    """And forces a length by ignore_eos."""
    body = LlamaCpp().body(ask(ALL, force_length=True), OPTIONS)
    assert body == {
        "prompt": "Hello",
        "stream": True,
        "n_predict": 64,
        "cache_prompt": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "repeat_penalty": 1.1,
        "frequency_penalty": 0.5,
        "seed": 0,
        "ignore_eos": True,
    }


def test_a_rendered_prompt_holds_the_system_prompt() -> None:
    """Where the server renders the chat, the body has the text as it is and no system prompt."""
    for dialect in (Tgi(), LlamaCpp()):
        assert dialect.renderer is not None
        body = dialect.body(Ask("<s>[INST] Hello", 8, DEFAULT, system=None), OPTIONS)
        assert "<s>[INST] Hello" in body.values()


@pytest.mark.parametrize("kind", ["completions", "mii rest"])
def test_a_system_prompt_has_no_place_in_a_raw_text(kind: str) -> None:
    """Gluing it on would measure another prompt than the one declared."""
    with pytest.raises(UsageError, match="system_prompt"):
        MAKERS[kind]().body(ask(system="Be brief."), OPTIONS)


def test_mii_is_sent_the_few_keys_that_it_knows() -> None:
    """Its server drops every other key without a word; the seed is said not to be sent."""
    body = MiiOpenAI("m").body(ask({**DEFAULT, "top_k": 7}, force_length=True), OPTIONS)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "max_tokens": 64,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 7,
        "min_tokens": 64,
    }
    for dialect in (MiiOpenAI("m"), MiiRest("d")):
        (note,) = dialect.notes(ask(), OPTIONS)
        assert note.startswith("seed not sent")
        assert dialect.notes(ask({"greedy": True, "seed": 0}), OPTIONS) == ()


def test_mii_rest_takes_a_list_of_prompts() -> None:
    """The gateway passes its keys to generate()."""
    dialect = MiiRest("my-deployment")
    assert dialect.path == "mii/my-deployment"
    assert not dialect.streams
    assert dialect.body(ask(force_length=True), OPTIONS) == {
        "prompts": ["Hello"],
        "max_new_tokens": 64,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "ignore_eos": True,
        "min_new_tokens": 64,
    }


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("chat", {"temperature": 0}),
        ("completions", {"temperature": 0}),
        ("tgi", {"do_sample": False}),
        ("llamacpp", {"temperature": 0}),
        ("mii", {"top_k": 1}),
        ("mii rest", {"do_sample": False}),
    ],
)
def test_greedy_sends_no_other_sampling_key(kind: str, left: dict[str, Any]) -> None:
    """The likeliest token, in the words of each server."""
    body = MAKERS[kind]().body(ask({**ALL, "greedy": True}), OPTIONS)
    flat = {**body, **body.get("parameters", {})}
    names = {*ALL, "do_sample", "repeat_penalty"}
    assert {k: v for k, v in flat.items() if k in names} == left


@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_null_is_not_sent(kind: str) -> None:
    """It means the server's own default."""
    body = MAKERS[kind]().body(ask(dict.fromkeys(DEFAULT)), OPTIONS)
    flat = {**body, **body.get("parameters", {})}
    assert not {*DEFAULT, "repeat_penalty"} & set(flat)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("tgi", "min_p"),
        ("tgi", "presence_penalty"),
        ("mii", "repetition_penalty"),
        ("mii", "frequency_penalty"),
        ("mii rest", "min_p"),
    ],
)
def test_what_an_api_cannot_express_is_refused(kind: str, key: str) -> None:
    """Never dropped without a word; a value that means off may be, since it asks for nothing."""
    dialect = MAKERS[kind]()
    with pytest.raises(UsageError, match=rf"sampling\.{key}: 0\.3 .* Remove {key}"):
        dialect.body(ask({**DEFAULT, key: 0.3}), OPTIONS)
    off = 1 if key == "repetition_penalty" else 0
    dialect.body(ask({**DEFAULT, key: off}), OPTIONS)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_unknown_keys_and_a_temperature_of_0_are_refused(kind: str) -> None:
    """The messages name what to do."""
    with pytest.raises(UsageError, match="extra_body"):
        MAKERS[kind]().body(ask({"typical_p": 0.9}), OPTIONS)
    with pytest.raises(UsageError, match="greedy: true"):
        MAKERS[kind]().body(ask({"temperature": 0.0}), OPTIONS)


def test_keys_that_openai_does_not_have_are_noted() -> None:
    """A server may ignore them without a word, so the record names them."""
    notes = OpenAIChat("m").notes(ask(ALL), OPTIONS)
    assert [note.split()[0] for note in notes] == ["top_k", "repetition_penalty"]
    assert OpenAIChat("m").notes(ask(), OPTIONS) == ()


def test_extra_body_comes_last() -> None:
    """It adds keys, replaces ours, and takes one out by null; sampling so changed is noted."""
    extra = {"seed": None, "temperature": 1, "reasoning_effort": "low", "min_tokens": 8}
    chat = OpenAIChat("m", extra)
    body = chat.body(ask(force_length=True), OPTIONS)
    assert body["reasoning_effort"] == "low"
    assert body["min_tokens"] == 8
    assert body["temperature"] == 1
    assert "seed" not in body
    assert chat.notes(ask(), OPTIONS) == (
        "extra_body: temperature is 1, not 0.8",
        "extra_body: seed is not sent, not 0",
    )


def test_extra_body_of_tgi_reaches_its_parameters() -> None:
    """Keys under parameters are put among ours, the others beside them."""
    body = Tgi({"parameters": {"typical_p": 0.9, "seed": None}, "x": 1}).body(ask(), OPTIONS)
    assert body["x"] == 1
    assert body["parameters"]["typical_p"] == 0.9
    assert "seed" not in body["parameters"]
    assert body["parameters"]["max_new_tokens"] == 64


@pytest.mark.parametrize("value", [64, None, 12])
def test_max_completion_tokens_in_extra_body_names_the_cap(value: int | None) -> None:
    """Newer models of OpenAI refuse max_tokens; the number is the policy's in any case."""
    body = OpenAIChat("m", {"max_completion_tokens": value}).body(ask(), OPTIONS)
    assert body["max_completion_tokens"] == 64
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        *((kind, "stream") for kind in MAKERS),
        ("chat", "messages"),
        ("chat", "model"),
        ("chat", "max_tokens"),
        ("chat", "n"),
        ("completions", "prompt"),
        ("completions", "echo"),
        ("completions", "n_predict"),
        ("tgi", "inputs"),
        ("llamacpp", "n_predict"),
        ("llamacpp", "max_tokens"),
        ("llamacpp", "prompt"),
        ("llamacpp", "response_fields"),
        ("mii", "max_completion_tokens"),
        ("mii rest", "prompts"),
        ("mii rest", "max_new_tokens"),
    ],
)
def test_extra_body_may_not_change_what_is_measured(kind: str, key: str) -> None:
    """Refused when the target is made, not at its first request."""
    with pytest.raises(UsageError, match=rf"target\.extra_body\.{key} .* Remove it"):
        MAKERS[kind]({key: 5})


@pytest.mark.parametrize("key", ["max_new_tokens", "details", "return_full_text"])
def test_extra_body_may_not_change_tgi_s_own_parameters(key: str) -> None:
    """Without details there would be no count."""
    with pytest.raises(UsageError, match=rf"extra_body\.parameters\.{key}"):
        Tgi({"parameters": {key: False}})


def test_extra_body_may_say_what_is_so_anyway() -> None:
    """Bodies copied from elsewhere hold stream: true and n: 1; MII's gateway cannot stream."""
    assert OpenAIChat("m", {"stream": True, "n": 1}).body(ask(), OPTIONS)["stream"] is True
    with pytest.raises(UsageError, match="cannot stream"):
        MiiRest("d", {"stream": True})


def test_asking_changes_nothing_that_is_kept() -> None:
    """A body is made anew for each request: changing one changes no other."""
    for make in MAKERS.values():
        dialect = make()
        first = dialect.body(ask(), OPTIONS)
        copy = dict(first)
        first.clear()
        assert dialect.body(ask(), OPTIONS) == copy

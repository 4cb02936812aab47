"""How long a prompt is: by the server, by a tokenizer, by a calibration, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lengths_server import (
    LLAMA,
    NOTHING,
    SGLANG,
    TGI,
    VLLM,
    Routes,
    folder,
    ids,
    nobody,
    raw_usage,
    render,
    served,
    usage,
    vllm,
)

from pytest_llmsla.errors import TargetError, UsageError
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.workload import PromptFactory

PROMPTS: list[tuple[str, str | None]] = [
    ("What does a lighthouse keeper do all day?", None),
    ("请用三句话说明潮汐是怎么形成的。", None),
    ("  leading and trailing \n", None),
    ("Why tides?", "Be brief."),
    ("Warum Gezeiten?", "Antworte kurz – in zwei Sätzen."),
]
RAW = [(prompt, None) for prompt, system in PROMPTS if system is None]


def native_tgi(prompt: str, system: str | None) -> int:
    """TGI's /generate_stream puts a begin token before the rendered chat, which has one."""
    return usage(prompt, system) + 1


@pytest.mark.parametrize(
    ("routes", "kind", "api", "count", "source"),
    [
        (VLLM, "openai", "chat", usage, "server /tokenize (vLLM)"),
        (SGLANG, "openai", "chat", usage, "server /tokenize (SGLang), chat template measured"),
        (LLAMA, "openai", "chat", usage, "server /apply-template and /tokenize (llama.cpp)"),
        (LLAMA, "llamacpp", None, usage, "server /apply-template and /tokenize (llama.cpp)"),
        (TGI, "openai", "chat", usage, "server /chat_tokenize (TGI)"),
        (TGI, "tgi", None, native_tgi, "server /chat_tokenize and /tokenize (TGI)"),
        (VLLM, "openai", "completions", raw_usage, "server /tokenize (vLLM, SGLang)"),
        (SGLANG, "openai", "completions", raw_usage, "server /tokenize (vLLM, SGLang)"),
        (LLAMA, "openai", "completions", raw_usage, "server /tokenize (llama.cpp)"),
        (TGI, "openai", "completions", raw_usage, "server /tokenize (TGI)"),
        ({"/v1/tokenize": vllm}, "openai", "chat", usage, "server /tokenize (vLLM)"),
    ],
)
def test_a_server_that_counts_is_found_and_counts_as_its_answers_do(
    routes: Routes,
    kind: str,
    api: str | None,
    count: Callable[[str, str | None], int],
    source: str,
) -> None:
    """Each kind of server, with system prompts of two lengths: exact, no margin, no doubt."""
    with served(routes) as here:
        found = here.lengths(kind=kind, api=api, count=count)
        assert (found.source, found.margin, found.notes) == (source, 0.0, ())
        for prompt, system in PROMPTS if count is not raw_usage else RAW:
            assert found.count(prompt, system) == count(prompt, system)
        assert found.encode("tide") is None
        assert found.tokenize("tide") is None
        assert found.remote


def test_only_a_count_of_a_whole_chat_tells_the_context() -> None:
    """vLLM says max_model_len; the number that SGLang puts there is not the server's limit."""
    with served(VLLM) as here:
        assert here.lengths().max_context == 2048
    with served(SGLANG) as here:
        assert here.lengths().max_context is None


def test_template_tokens_are_what_every_prompt_shares() -> None:
    """The rest of the rendered chat; nothing for raw text."""
    with served(VLLM) as here:
        assert here.lengths().template_tokens == usage("a", None) - 1
        assert here.lengths(api="completions", count=raw_usage).template_tokens == 0


def test_a_count_is_one_request_and_is_remembered() -> None:
    """Also with llama.cpp, whose template is asked for once for each system prompt."""
    with served(LLAMA) as here:
        found = here.lengths()
        found.count("one", None)
        before = len(here.seen)
        found.count("two", None)
        found.count("two", None)
        assert here.seen[before:] == ["/tokenize"]
        assert found.calls == len(here.seen)


def test_a_text_that_a_template_may_trim_is_rendered_by_the_server() -> None:
    """What stands around a prompt is only remembered for texts that begin and end visibly."""
    with served(LLAMA) as here:
        found = here.lengths()
        before = len(here.seen)
        assert found.count(" two\n", None) == usage(" two\n", None)
        assert here.seen[before:] == ["/apply-template", "/tokenize"]


def test_a_server_without_any_route_costs_two_requests_to_find_out() -> None:
    """404 for /tokenize below root and prefix says it: nothing else is tried."""
    with served(NOTHING) as here:
        here.lengths()
        assert here.seen == ["/tokenize", "/v1/tokenize"]


def test_a_constant_difference_is_corrected_for_each_system_prompt() -> None:
    """A server whose answers are rendered with more than its /tokenize knows (extra_body)."""

    def more(prompt: str, system: str | None) -> int:
        return usage(prompt, system) + (5 if system is None else 9)

    with served(VLLM) as here:
        found = here.lengths(count=more)
        assert "5 tokens less" in found.notes[0]
        for prompt, system in PROMPTS:
            assert found.count(prompt, system) == more(prompt, system)


def test_a_count_that_answers_contradict_is_not_used() -> None:
    """A difference that grows with the text is another tokenizer's: on to the calibration."""

    def other(prompt: str, system: str | None) -> int:
        return usage(prompt, system) + len(prompt) // 9

    with served(VLLM) as here:
        found = here.lengths(count=other)
        assert found.source.startswith("calibrated by usage.prompt_tokens")


def test_without_usage_the_servers_count_stands_with_a_note() -> None:
    """Nothing contradicts it, and the report says that nothing could."""
    with served(VLLM) as here:
        found = here.lengths(count=lambda prompt, system: None)
        assert found.source == "server /tokenize (vLLM)"
        assert "not compared with an answer" in found.notes[0]


@pytest.mark.parametrize(
    "said",
    [
        {"count": True},
        {"count": 0},
        {"count": -3},
        {"count": "35"},
        {"count": 35.5},
        {"count": 10**9},
        {"count": 3, "tokens": [1, 2]},
        {"tokens": []},
        {},
        [],
        "35",
        None,
        b"<html>no such page</html>",
        b"[" * 100_000,
        b"",
    ],
    ids=repr,
)
def test_an_answer_that_is_no_count_is_not_taken_for_one(said: Any) -> None:
    """While looking for a route, the next way is tried; nothing crashes."""
    with served({"/tokenize": lambda body: (200, said)}) as here:
        assert here.lengths().source.startswith("calibrated")


@pytest.mark.parametrize(
    "answer",
    [(500, {"error": "out of memory"}), (200, {"count": -1}), (200, b"nonsense"), (429, {})],
    ids=["500", "negative", "no JSON", "429"],
)
def test_a_count_that_fails_later_is_an_error(answer: tuple[int, Any]) -> None:
    """Never a guess, never the last good number."""
    replies = itertools.chain([vllm] * 4, itertools.repeat(lambda body: answer))
    with served({"/tokenize": lambda body: next(replies)(body)}) as here:
        found = here.lengths()
        with pytest.raises(TargetError, match="could not be counted: /tokenize"):
            found.count("another text", None)


def test_a_tokenizer_that_agrees_with_the_server_saves_its_requests(tmp_path: Path) -> None:
    """It then gives ids as well, and counts generated text."""
    with served(VLLM) as here:
        found = here.lengths(tokenizer=folder(tmp_path))
        before = len(here.seen)
        assert found.source == f"tokenizer {tmp_path}, which agrees with server /tokenize (vLLM)"
        for prompt, system in PROMPTS:
            assert found.count(prompt, system) == usage(prompt, system)
        assert found.encode("tide of 12") == ids("tide of 12")
        assert found.tokenize("tide of 12") == len(ids("tide of 12"))
        assert found.max_context == 2048
        assert len(here.seen) == before
        assert not found.remote


def test_where_tokenizer_and_server_differ_the_server_is_right(tmp_path: Path) -> None:
    """Another template: the server's counts are used, and the report says why."""
    other = folder(tmp_path, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with served(VLLM) as here:
        found = here.lengths(tokenizer=other)
        assert found.source == "server /tokenize (vLLM)"
        assert "counts otherwise" in found.notes[0]
        assert found.count("Why tides?", "Be brief.") == usage("Why tides?", "Be brief.")
        assert found.encode("tide") is None
        assert found.tokenize("tide") is None


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_tokenizer_counts_for_a_server_that_does_not(tmp_path: Path, api: str) -> None:
    """With the chat template for chats, with the begin token alone for raw text."""
    count = usage if api == "chat" else raw_usage
    with served(NOTHING) as here:
        found = here.lengths(api=api, tokenizer=folder(tmp_path), count=count)
        assert (found.source, found.margin, found.notes) == (f"tokenizer {tmp_path}", 0.0, ())
        for prompt, system in PROMPTS if api == "chat" else RAW:
            assert found.count(prompt, system) == count(prompt, system)
        assert len(here.asked) == 2


def test_a_tokenizer_file_without_a_template_is_enough(tmp_path: Path) -> None:
    """What the server's template takes is learnt from an answer, for each system prompt."""
    file = folder(tmp_path, None) / "tokenizer.json"
    with served(NOTHING) as here:
        found = here.lengths(tokenizer=file)
        assert "holds no chat template" in found.notes[0]
        for prompt, system in (p for p in PROMPTS if p[0] == p[0].strip()):
            assert found.count(prompt, system) == usage(prompt, system)


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    """The server's answers contradict it: usage error with both numbers."""
    with (
        served(NOTHING) as here,
        pytest.raises(UsageError, match=r"counts otherwise \(.* \d+ tokens .* has \d+\); give"),
    ):
        here.lengths(tokenizer=folder(tmp_path), count=lambda p, s: len(p.split()) + 7)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda d: d / "missing", "does not exist"),
        (lambda d: d, "tokenizer.json does not exist"),
        (lambda d: _file(d / "tokenizer.json", "{}"), "cannot be read as a tokenizer"),
        (lambda d: _file(folder(d) / "chat_template.jinja", "{% if %}").parent, "cannot be read"),
        (lambda d: _file(folder(d) / "tokenizer_config.json", "[1]").parent, "no JSON object"),
        (lambda d: _file(folder(d) / "tokenizer_config.json", "{").parent, "cannot be read"),
    ],
    ids=["nothing", "empty folder", "no tokenizer", "bad template", "config list", "bad config"],
)
def test_a_tokenizer_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    """Before anything is asked of the server."""
    with served(NOTHING) as here:
        with pytest.raises(UsageError, match=says):
            here.lengths(tokenizer=make(tmp_path))
        assert not here.seen


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare install says what to add."""
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with (
        served(NOTHING) as here,
        pytest.raises(UsageError, match=rf"{package}.*pip install 'pytest-llmsla\[tokenizer\]'"),
    ):
        here.lengths(tokenizer=folder(tmp_path))


def test_nothing_left_names_all_three_ways_and_what_was_tried() -> None:
    """No /tokenize, no tokenizer, no usage."""
    with served(NOTHING) as here, pytest.raises(UsageError) as caught:
        here.lengths(count=lambda prompt, system: None)
    text = str(caught.value)
    assert "/tokenize: HTTP 404" in text
    assert "sends no usage.prompt_tokens" in text
    assert "target.tokenizer, a folder" in text
    assert "server that counts" in text


def test_usage_that_ends_later_does_not_run_in_circles(tmp_path: Path) -> None:
    """A target without usage counts the prompt itself: a length to be learnt is then an error."""
    with served(NOTHING) as here:
        ready: list[Lengths] = []

        def count(prompt: str, system: str | None) -> int:
            return ready[0].count(prompt, system) if ready else usage(prompt, system)

        ready.append(here.lengths(tokenizer=folder(tmp_path, None), count=count))
        assert ready[0].count("Why tides?", None) == usage("Why tides?", None)
        with pytest.raises(TargetError, match="did not say how long"):
            ready[0].count("Why tides?", "Be brief.")


def test_a_server_that_answers_nothing_is_a_target_error() -> None:
    """The failure of the request for a short answer is what is told."""

    def dead(prompt: str, system: str | None) -> int:
        raise TargetError("connection refused")

    with nobody() as here, pytest.raises(TargetError, match="connection refused"):
        here.lengths(count=dead)


def test_prompts_of_a_counting_server_take_few_requests() -> None:
    """Texts are planned with an estimate: about two counts a prompt, and every length exact."""
    with served(VLLM) as here:
        found = here.lengths()
        made = PromptFactory(found.count, found.encode, seed=0, size=found.size)
        stream = made.stream("medium", 129, 512)
        next(stream)
        before = found.calls
        prompts = list(itertools.islice(stream, 40))
        assert (found.calls - before) / 40 < 4
        assert all(p.tokens == usage(p.text, None) for p in prompts)
        assert all(129 <= p.tokens <= 512 for p in prompts)


def test_the_stand_in_renders_what_its_template_says(tmp_path: Path) -> None:
    """The servers of these tests and the tokenizer's folder are the same model's."""
    from pytest_llmsla.targets.http.local_tokenizer import LocalTokenizer

    local = LocalTokenizer.load(str(folder(tmp_path)))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert local.render("Why?", "Be brief.") == render(messages)

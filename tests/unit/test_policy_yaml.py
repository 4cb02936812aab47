from __future__ import annotations

from pathlib import Path

import pytest
from policy_samples import SHORT, load, refusal

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy.nodes import decode_utf8, read_yaml


@pytest.mark.parametrize(
    ("written", "reads"),
    [
        ("0200", "which YAML reads as 128 (octal)"),
        ("1:30", "which YAML reads as 90 (base 60)"),
        ("0x80", "which YAML reads as 128"),
        ("0b11", "which YAML reads as 3"),
        ("1_000", "not a plain decimal number"),
        ("089", "a number to some readers: drop the zero, or quote it if it is text"),
        ("on", "which YAML reads as true or false"),
        ("No", "which YAML reads as true or false"),
        (".inf", "not a finite number"),
        ("-.INF", "not a finite number"),
        ("1_0.5", "not a plain number"),
        ("!!int 0200-", "not a plain decimal number"),
        ("!!float .", "not a plain number"),
    ],
)
def test_a_scalar_that_readers_disagree_on_is_refused(
    tmp_path: Path, written: str, reads: str
) -> None:
    """0200 never becomes 128 in silence: what was written and what YAML makes of it is said."""
    text = refusal(tmp_path, SHORT.replace("prompt_max: 128", f"prompt_max: {written}"))
    shown = written.split()[-1]
    assert f"sla.yaml:5: buckets.short.prompt_max: got {shown}, {reads}" in text
    assert "problems" not in text


@pytest.mark.parametrize("written", ["300", "300.0", "3e2", "3.0e+2", "+300"])
def test_plain_numbers_are_numbers(tmp_path: Path, written: str) -> None:
    """However people and YAML 1.2 write a number, it is that number."""
    text = SHORT.replace("ttft_ms: 300", f"ttft_ms: {written}")
    assert load(tmp_path, text).policy.buckets[0].ttft_ms == 300


def test_text_stays_text(tmp_path: Path) -> None:
    """Dates, quoted words and block text are not turned into anything else."""
    text = SHORT.replace("service: llama2-7b-chat-4bit", "service: 2026-01-31")
    text += "workload:\n  system_prompt: |\n    on\n    1:30\n"
    policy = load(tmp_path, text).policy
    assert policy.service == "2026-01-31"
    assert policy.workload.system_prompt == "on\n1:30\n"


def test_a_repeated_key_is_refused_with_both_lines(tmp_path: Path) -> None:
    """The second of two limits never wins in silence."""
    text = SHORT.replace("itl: {p95_ms: 50}", "itl:\n  p95_ms: 50\n  p95_ms: 500")
    expected = "sla.yaml:10: itl.p95_ms: given twice (first on line 9): remove one"
    assert refusal(tmp_path, text) == expected
    assert "sla.yaml:10: version: given twice (first on line 1)" in refusal(
        tmp_path, f"{SHORT}version: 1\n"
    )


def test_anchors_and_merges_are_followed(tmp_path: Path) -> None:
    """Shared settings work; a key of the bucket itself wins over a merged one, without a word."""
    buckets = """buckets:
  - &first {name: short, prompt_max: 128, ttft_ms: 300}
  - {<<: *first, name: medium, prompt_max: 512}
itl:"""
    head, _, rest = SHORT.partition("buckets:")
    loaded = load(tmp_path, head + buckets + rest.partition("itl:")[2])
    medium = loaded.policy.buckets[1]
    assert (medium.name, medium.prompt_max, medium.ttft_ms) == ("medium", 512, 300)
    assert loaded.source("buckets.medium.prompt_max").startswith("sla.yaml:6 ")
    assert loaded.source("buckets.medium.ttft_ms").startswith("sla.yaml:5 ")


def test_a_merged_key_is_checked_like_any_other(tmp_path: Path) -> None:
    """Nothing gets into a policy through a merge that could not stand in it."""
    text = SHORT.replace("itl: {p95_ms: 50}", "itl: {<<: {p95_ms: true, p59_ms: 3}}")
    message = refusal(tmp_path, text)
    assert "itl.p95_ms: got true" in message
    assert "itl.p59_ms: unknown key" in message
    assert "itl.<<: merges a mapping" in refusal(
        tmp_path, SHORT.replace("itl: {p95_ms: 50}", "itl: {<<: 3, p95_ms: 50}")
    )


def test_alias_bombs_end_early() -> None:
    """A few lines that stand for billions of values cost a bounded effort."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
    with pytest.raises(UsageError, match=r"f.yaml:\d+: more than 20,000 values"):
        read_yaml("\n".join(lines).encode(), "f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "f.yaml:1: an alias (*name) contains itself"),
        ("a: &a {b: *a}", "f.yaml:1: an alias (*name) contains itself"),
        ("[" * 60 + "]" * 60, "f.yaml:1: nested too deeply"),
        ("[" * 100_000, "f.yaml: nested too deeply"),
        ("a: *b", "f.yaml:1:4: not valid YAML: found undefined alias"),
        ("a: b\n\tc: d", "f.yaml:2:1: not valid YAML: a tab; YAML indents with spaces only"),
        ("a: b\nc: d: e", "f.yaml:2:5: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: not valid YAML: a second document begins (---)"),
        ("a: 1\nb: \x07", "f.yaml:2: the character U+0007 is not allowed in YAML"),
        ("a: " + "x" * 200_000, "f.yaml: 200,003 bytes; at most 200,000"),
    ],
)
def test_a_file_that_is_no_yaml_is_refused_in_words(text: str, message: str) -> None:
    """No traceback, no excerpt of the file: the place and the cause."""
    with pytest.raises(UsageError) as caught:
        read_yaml(text.encode(), "f.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "written", ["!!python/name:os.system", "!env X", "!!int '3'", "!!binary aGk=", "!!set {a}"]
)
def test_tags_are_refused(tmp_path: Path, written: str) -> None:
    """Nothing in a policy can name a Python object or change its own type."""
    text = SHORT.replace("service: llama2-7b-chat-4bit", f"service: {written}")
    assert "is not supported: remove it" in refusal(tmp_path, text)


@pytest.mark.parametrize(("text", "given"), [("- a", "a list"), ("a", "a single value")])
def test_a_policy_is_a_mapping(tmp_path: Path, text: str, given: str) -> None:
    """Lists, words and nothing at all are refused with what a policy begins with."""
    assert f"sla.yaml: holds {given}" in refusal(tmp_path, text)
    assert "the file is empty" in refusal(tmp_path, "# only a comment\n")


SERVICE = "service: llama2-7b-chat-4bit"


@pytest.mark.parametrize(
    ("encoding", "service", "named"),
    [
        ("gbk", "service: 客服模型", "sla.yaml:2: not UTF-8; it looks like GBK"),
        ("latin-1", "service: modèle déployé", "sla.yaml:2: not UTF-8; it looks like ISO-8859-1"),
        ("cp1252", "service: modèle – “a”", "sla.yaml:2: not UTF-8; it looks like WINDOWS-1252"),
        ("utf-16", SERVICE, "not UTF-8; it looks like UTF-16."),
        ("utf-16-le", SERVICE, "not UTF-8; it looks like UTF-16LE"),
        ("utf-16-be", SERVICE, "not UTF-8; it looks like UTF-16BE"),
    ],
)
def test_another_encoding_is_named_with_the_way_out(
    tmp_path: Path, encoding: str, service: str, named: str
) -> None:
    """People learn which encoding their editor used and the command that converts it."""
    text = refusal(tmp_path, SHORT.replace(SERVICE, service).encode(encoding))
    assert named in text
    assert "iconv -f " in text


def test_utf_8_with_a_mark_and_windows_line_ends_is_fine(tmp_path: Path) -> None:
    """What Windows editors write by default is accepted."""
    data = b"\xef\xbb\xbf" + SHORT.replace(SERVICE, "service: 客服模型").encode()
    loaded = load(tmp_path, data.replace(b"\n", b"\r\n"))
    assert loaded.policy.service == "客服模型"
    assert loaded.source("itl.p95_ms").startswith("sla.yaml:8 ")


def test_binary_is_not_taken_for_an_encoding() -> None:
    """A model file given by mistake is called what it is."""
    with pytest.raises(UsageError, match="not a text file"):
        decode_utf8(b"GGUF\x03\x00\x00\x01" + bytes(range(1, 256)) * 4, "model.gguf")


def test_control_characters_of_a_key_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """A hostile key is shown escaped."""
    message = refusal(tmp_path, SHORT + '"\\e[31mred\\n": 1\n')
    assert "\x1b" not in message
    assert "\\x1b[31mred\\n" in message
